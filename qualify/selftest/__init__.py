"""Measures what the checks detect: plants faults in a simulated kernel and sends them through the pipeline.

::

    simulator.py   correct attention, one method per step
    faults/        wrong steps, by class of public incident
    correct.py     other correct kernels, on which every check must stay silent
    goldens.py     golden results that kernels with the same inputs share
    kernel.py      the entry that a kernel card names
    workloads.py   the cases that each kernel runs
    battery.py     sends all kernels through the pipeline of a real kernel, and counts
"""
