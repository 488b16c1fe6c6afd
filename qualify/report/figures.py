"""Numbers as text, and numbers as lengths in a picture. Units come from :mod:`qualify.units`."""

from __future__ import annotations

import math
from collections.abc import Sequence

BAR_WIDTH = 40
"""pixels that stand for the limit in a bar"""
BAR_END = 56
"""pixels at which a bar is cut: 1.4 times the limit"""
STRIP_WIDTH = 320
"""pixels of a strip plot of samples"""

_SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_NO_NUMBER = {"nan": "NaN", "inf": "∞", "-inf": "-∞"}
MOST_PERCENT = 10.0
"""shares from here on are told as multiples"""
SELF_EXPLAINING = ("bytes", "flops", "exps", "flops_per_s", "bytes_per_s", "exps_per_s", "share")
"""units whose values are shown with their own scale, so that the column's header does not repeat the unit"""


def text(value: str | float | bool | None, unit: str = "") -> str:
    """A value for a person: three significant digits, a scale where the unit has one, – for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return _NO_NUMBER[str(float(value))]
    return _quantity(value, unit)


def significant(value: float) -> str:
    """Three significant digits; an exponent only below a thousandth."""
    size = abs(value)
    if size and size < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-")
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.{1 if size >= 10 else 2 if size >= 1 else 3}f}"


def duration(us: float) -> str:
    """A time with the unit that suits it: ``312 µs``, ``1.24 ms``, ``3.70 s``."""
    if not math.isfinite(us):
        return f"{text(us)} µs"
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= factor:
            return f"{significant(us / factor)} {unit}"
    return f"{significant(us)} µs"


def ratio(value: float) -> str:
    """A speed ratio: ``1.84×``."""
    return f"{value:.2f}×"


def signed_percent(share: float | None) -> str:
    """A change in a cell of a table: ``+3.1 %``; ``+0.0 %`` where it is rounded to zero, – for None."""
    return "–" if share is None else f"{100 * share:+z.1f} %"


def limit_percent(share: float) -> str:
    """A limit that somebody wrote, without its unit: ``+5.0``, ``+0.25``. It is not rounded like a measured change."""
    text = f"{100 * share:+.6g}"
    return text if {".", "e"} & set(text) else f"{text}.0"


def interval_words(change: float, low: float | None, high: float | None) -> str:
    """A change with its 95 % interval, in a sentence: ``+3.1% [+2.6%, +3.7%]``."""
    return f"{change:+z.1%} [{low or 0.0:+z.1%}, {high or 0.0:+z.1%}]"


def counted(count: int, one: str, many: str = "") -> str:
    """A count with its noun: ``1 case``, ``1,204 cases``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def all_counted(count: int, one: str) -> str:
    """All of something, as the beginning of a sentence: ``All 3 shapes``, ``The one shape``."""
    return f"The one {one}" if count == 1 else f"All {counted(count, one)}"


def proven_paths(proven: int, required: int) -> str:
    """How many production shapes have a proven path, of those that need one."""
    if not required:
        return "no production shape is required"
    return f"{proven:,} of {required:,} production shapes have a proven path"


def bar_px(value: float, limit: float) -> float:
    """Length in pixels of a bar for value / limit; NaN or infinity fills the bar."""
    share = abs(value) / limit if limit else math.inf
    return round(min(BAR_WIDTH * share, BAR_END), 1) if math.isfinite(share) else BAR_END


def exceeds(value: float, limit: float) -> bool:
    """Whether a value breaks its limit; NaN does."""
    return not abs(value) <= limit


def strip_path(places: Sequence[float]) -> str:
    """SVG path of one tick at each place."""
    return "".join(f"M{x:g} 4v12" for x in places)


def strip_positions(values: Sequence[float], samples: Sequence[float]) -> list[float]:
    """Places of values, in pixels, on the strip that the samples span."""
    finite = [sample for sample in samples if math.isfinite(sample)]
    if not finite:
        return []
    low, spread = min(finite), max(finite) - min(finite)
    inner = STRIP_WIDTH - 8
    return [
        round(4 + inner * ((value - low) / spread if spread else 0.5), 1) for value in values if math.isfinite(value)
    ]


def _quantity(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:.0f} %" if abs(value) < MOST_PERCENT else f"{significant(value)}×"
    if unit == "bytes":
        return _binary(value)
    if unit in SELF_EXPLAINING:
        return _scaled(value, "" if unit in ("flops", "exps") else unit.removesuffix("_per_s"))
    return f"{value:,}" if isinstance(value, int) else significant(value)


def _binary(value: float) -> str:
    for factor, unit in _BINARY:
        if abs(value) >= factor:
            return f"{significant(value / factor)} {unit}"
    return f"{value:,.0f} B"


def _scaled(value: float, noun: str) -> str:
    shown = {"flops": "FLOP/s", "bytes": "B/s", "exps": "exp/s", "": ""}[noun]
    for factor, prefix in _SCALES:
        if abs(value) >= factor:
            return f"{significant(value / factor)} {prefix}{shown}"
    return f"{significant(value)} {shown}".rstrip()
