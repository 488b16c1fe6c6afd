"""The closed table of units: what a number in a field, a column or a page means.

A field name ends in its unit (``latency_us``, ``peak_temporary_bytes``) or stands here by its symbol.
A guard test refuses a numeric field that does neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """One unit: the suffix or symbol in code, what a page shows, what it means, and its direction."""

    symbol: str
    shown: str
    meaning: str
    lower_is_better: bool | None
    """True or False where a change has a good direction, None where it is only a fact."""


UNITS: tuple[Unit, ...] = (
    Unit(symbol="us", shown="µs", meaning="microseconds", lower_is_better=True),
    Unit(symbol="s", shown="s", meaning="seconds", lower_is_better=True),
    Unit(symbol="bytes", shown="B", meaning="bytes", lower_is_better=True),
    Unit(symbol="flops", shown="FLOP", meaning="floating-point operations of one call", lower_is_better=None),
    Unit(symbol="flops_per_s", shown="FLOP/s", meaning="floating-point operations per second", lower_is_better=False),
    Unit(symbol="bytes_per_s", shown="B/s", meaning="bytes per second", lower_is_better=False),
    Unit(symbol="exps", shown="exp", meaning="exponentials of one call", lower_is_better=None),
    Unit(symbol="exps_per_s", shown="exp/s", meaning="exponentials per second", lower_is_better=False),
    Unit(symbol="share", shown="%", meaning="fraction of one, shown in percent", lower_is_better=None),
    Unit(symbol="count", shown="", meaning="a count of things", lower_is_better=None),
    Unit(symbol="E", shown="E", meaning="worst element error over its budget; limit 1", lower_is_better=True),
    Unit(symbol="R", shown="R", meaning="worst row rms error over the row's sigma; limit 3", lower_is_better=True),
    Unit(
        symbol="G",
        shown="G",
        meaning="rms of all errors over their row's sigma; limit from 1.6 to 3",
        lower_is_better=True,
    ),
    Unit(symbol="beta", shown="β", meaning="signed gain error <e,o>/<o,o>", lower_is_better=True),
    Unit(symbol="lse_rel", shown="LSE", meaning="worst |lse - golden| / max(1, |golden|)", lower_is_better=True),
)


@cache  # a page asks once for each of its hundred thousand cells
def unit_of(field: str) -> Unit | None:
    """The unit of a field by its symbol or longest matching suffix; None where it has none."""
    matches = [unit for unit in UNITS if field == unit.symbol or field.endswith(f"_{unit.symbol}")]
    return max(matches, key=lambda unit: len(unit.symbol), default=None)
