"""What a kernel card promises and how each promise is checked, as text that a later card can be compared with."""

from __future__ import annotations

from collections.abc import Mapping

Terms = Mapping[str, str]
"""text by the key of the card, for example ``accuracy.bf16``; a list has each value on a line of its own"""
NAMED = 3
"""keys that a sentence names"""


def terms_change(before: Terms, now: Terms) -> str:
    """How a card promises something else than before; empty where it does not.

    A key that only one of the two has is left out: an older qualify, or a newer one, did not note it.
    """
    changed = [
        f"{key} was {_words(before[key])}, and is {_words(now[key])}"
        for key in sorted(before.keys() & now.keys())
        if before[key] != now[key]
    ]
    more = f"; and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
    return "; ".join(changed[:NAMED]) + more


def _words(value: str) -> str:
    return ", ".join(value.split("\n")) or "nothing"
