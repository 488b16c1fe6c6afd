"""The canary service: notices a stack change, fires a matrix, files the verdict and who is to be told.

::

    service    the loop of one replica: leads or follows; options say how
    timetable  files what is due by its cron, and wakes the loop at that moment
    runner     the fire that this replica runs: takes it, looks after its child, files its end
    keeper     a lease, in a thread of its own
    deck       the cards, read again when they change
    slots      when a canary is due
    nodes      the machines of a service, and which of them a canary chooses
    rollouts   fires of many machines in waves, and the advice of each wave
    watch      the fingerprint of the stack, and when a change of it has settled
    scope      what canaries watch besides: third-party kernels, files, variables
    upgrades   files what follows from a look, whoever leads
    firing     a fire as a child process: child.py
    leash      ends the child when the lease of its fire is over
    blame      what changed, by the stack that the run ran on
    conditions what the card (the GPU) says against running, or against its times
    advice     promote, hold or roll back
    orders     what the child of a fire is told to do, by the card
    card_lease one fire at a time on a card, whichever service owes it
    duels      the duel of a fire whose kernel looks slower
    fleets     a fire on every card of a cluster, and what follows for each node
    seeing     what the advice hears of a judged run
    results    what a fire ends with, and who is told
    alerts     tells the targets on the card what is in the outbox
    overview   what `qualify canary list` and `explain` show; waves: what `qualify canary waves` does
    log        lines with time and level, or JSON

The truth is in the tables (qualify.store.canaries); what a replica remembers only saves time.
"""
