"""The tool's own detection power: planted faults in a simulated kernel, and the pipeline that must find them.

::

    simulator.py   correct attention, one method per step
    faults/        wrong steps, by class of public incident
    correct.py     other ways to be right, on which every check must stay silent
    goldens.py     golden results that kernels with the same inputs share
    kernel.py      the entry that a kernel card names; workloads.py  the cases that each kernel runs
    battery.py     sends all of them through the pipeline of a real kernel, and counts
"""
