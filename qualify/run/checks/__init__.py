"""One module per check, behind the contract of ``interface``; ``registry`` lists them.

Still to come, each as one module and one registry line: page permutation, head, parameter recovery, powers of
two, degenerate, merge, layout, history, size limits, growth, graph (docs/numerics.md says what each catches).
"""
