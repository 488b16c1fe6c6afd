"""What a reader must know of the run that the shares of a fleet make up."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from qualify.facts.placement import Placement
from qualify.store.store import Store

NAMED = 5
"""shares that do not count and are named"""


def whole_notes(store: Store, place: Placement, origins: Mapping[str, datetime]) -> list[str]:
    """Of the run that a fleet's shares make up: how many runs it is from, and which shares do not count.

    Args:
        origins: by id, when the runs began that the cases were taken over from.
    """
    begun = f", begun {min(origins.values()):%Y-%m-%d %H:%M} UTC at the earliest" if origins else ""
    made = f"the cases ran on {len(place.cards)} cards of fleet {place.fleet}, in {len(origins)} runs{begun}"
    odd = [it for it in store.fleets.shares(place.fleet) if it.state != "COVERED"]
    odd.sort(key=lambda it: it.state != "REFUSED")
    told = [f"share {it.number} on {it.node} does not count: {it.state}, {it.reason}" for it in odd[:NAMED]]
    more = [f"{len(odd) - NAMED} more shares do not count"] if len(odd) > NAMED else []
    return [made, *told, *more]
