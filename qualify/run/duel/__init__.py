"""A duel as its judge runs it: two hosts that take turns. Verdicts are made elsewhere (qualify.statistics)."""
