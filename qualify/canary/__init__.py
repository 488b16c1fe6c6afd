"""The canary service: notices a stack change, fires a matrix, files the verdict and who is to be told.

::

    service    the loop of one replica: leads or follows
    keeper     a lease, in a thread of its own
    deck       the cards, read again when they change
    slots      when a canary is due
    watch      the fingerprint of the stack, and when a change of it has settled
    upgrades   files what follows from a look, whoever leads
    firing     a fire as a child process: child.py
    leash      ends the child when the lease of its fire is over
    blame      what changed, by the stack that the run ran on
    conditions what the card (the GPU) says against running, or against its times
    advice     promote, hold or roll back
    alerts     tells the targets on the card what is in the outbox
    overview   what `qualify canary list` and `explain` show

The truth is in the tables (qualify.store.canaries); what a replica remembers only saves time.
"""
