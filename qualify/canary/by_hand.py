"""A fire that somebody asked for. The leader runs it; where nobody leads, this process does, and runs no other fire."""

from __future__ import annotations

import time
from dataclasses import replace
from logging import Logger
from pathlib import Path

from qualify.canary.deck import Deck
from qualify.canary.options import Options
from qualify.canary.service import Service
from qualify.errors import INFRASTRUCTURE, NO_VERDICT, NOT_QUALIFIED, QUALIFIED
from qualify.facts.canary import OPEN, Fire
from qualify.store.store import Store

LOOK_S = 1.0


def fire_and_wait(
    store: Store, keeping: Store, fire: Fire, cards: tuple[Path, ...], options: Options, log: Logger
) -> Fire:
    """Lead where nobody does, until the fire has ended; returns it as it ended."""
    looked, found = 0.0, fire

    def ended() -> bool:
        nonlocal looked, found
        if time.monotonic() - looked >= LOOK_S:
            looked, found = time.monotonic(), store.canaries.fire(fire.id) or fire
        return found.state not in OPEN

    deck = Deck(cards, (fire.canary,))
    Service(store, keeping, deck, replace(options, only=fire.id), log).run(until=ended)
    return found


def exit_code(fire: Fire) -> int:
    """0: promote. 1: it failed or got worse. 4: the machine or the store did not let it run. 5: nothing is decided."""
    if fire.state != "completed":
        return INFRASTRUCTURE
    if fire.advice == "promote":
        return QUALIFIED
    return NOT_QUALIFIED if fire.advice == "roll back" or fire.verdict == "FAIL" else NO_VERDICT
