"""The pages of ``qualify web`` other than reports. Each is made of parts: tables, terms, timelines and forms.

::

    parts     the parts of every page, and its JSON and CSV
    home      what needs attention now
    runs      the list of runs; two runs to compare
    models    models, kernels, findings and waivers of the newest runs
    troubles  groups of failures of the newest runs
    cases     a case with its history
    duels     duels: two sides that took turns on one card, cell by cell
    stacks    the stacks that runs were made on
    fleet     one fleet: its nodes, and its cards with a filter
    canaries  canaries with their timeline, and holds
    people    sign-offs and comments of a run, the audit log, login
"""
