"""Makes the generated parts of the documents: one module for each part, and ``documents``, which puts them into pages.

::

    command line, cards ──┐
    docs/evidence/*.json ─┼─ a module for each block ─ documents ─ README.md, docs/*.md, docs/schema/*.json
    released selftest ────┘
"""
