"""Statistics of timings: paired log ratios, intervals, verdicts with a known error rate, change points. No torch.

::

    blocks -> quads -> pairs of processes -> Estimate -> verdict
    quads.py    A B B A in one pair of processes, as one log ratio
    draws.py    random draws that every numpy gives
    estimate.py the ratio of a cell with its interval and p-values
    verdicts.py what a family of cells says together: SLOWER, SAME, FASTER or AMBIGUOUS
    power.py    the smallest change that would be found
    history.py  change points of a series

numpy and scipy are in the extras ``run`` and ``service``. Only what computes imports them: :func:`check_installed` says
so where they are not there.
"""
