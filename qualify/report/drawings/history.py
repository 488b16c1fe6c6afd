"""One case over runs: its time in each run that measured it, and its verdict in every one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from qualify.facts.run import Verdict
from qualify.report import figures
from qualify.report.columns import Column, Table
from qualify.report.drawings.svg import Drawing, Frame, picture, safe, scale, tick_texts
from qualify.report.views import WORDS

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 24, 44
MOST_DATES = 6
FEWEST_PLACES = 6
"""least number of places on the axis: fewer runs stand at the left, the part that a narrow screen shows"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A case in one run."""

    run: str
    at: datetime
    verdict: Verdict
    latency_us: float | None
    """None where it was not timed"""
    href: str = ""
    """page of the run; empty = no link"""


COLUMNS: tuple[Column[Moment], ...] = (
    Column(key="at", title="Run began (UTC)", cell=lambda one: f"{one.at:%Y-%m-%d %H:%M}"),
    Column(key="run", title="Run", cell=lambda one: one.run, code=True),
    Column(key="verdict", title="Verdict", cell=lambda one: " ".join(WORDS[one.verdict])),
    Column(key="latency_us", title="Time of one call", unit="us", cell=lambda one: one.latency_us),
)


def history(title: str, series: Sequence[Moment]) -> Drawing | None:
    """Times over runs, the oldest at the left. A run without a time stands on the axis. None where there is no run."""
    if not series:
        return None
    moments = sorted(series, key=lambda one: (one.at, one.run))
    times = [one.latency_us for one in moments if one.latency_us is not None and math.isfinite(one.latency_us)]
    frame = Frame(
        width=WIDTH,
        height=HEIGHT,
        x=scale("linear", [0.5, max(len(moments), FEWEST_PLACES) + 0.2], LEFT, WIDTH - RIGHT),
        y=scale("linear", [time / 1e6 for time in times], HEIGHT - BOTTOM, TOP),
        x_label="runs, the oldest left",
        y_label="time of one call",
        y_unit="s",
    )
    places = [(frame.x.at(number), _height(frame, one)) for number, one in enumerate(moments, 1)]
    timed = [place for place, one in zip(places, moments, strict=True) if one.latency_us is not None]
    path = "L".join(f"{x} {y}" for x, y in timed)
    parts = [_axes(frame, moments), f'<path class="line s0" d="M{path}"/>' if len(timed) > 1 else ""]
    parts += [_moment(one, *place) for one, place in zip(moments, places, strict=True)]
    label = f"{title}: {figures.counted(len(moments), 'run')}, {figures.counted(len(times), 'time')}"
    table = Table(caption=f"{title} over runs", columns=COLUMNS, rows=tuple(moments[::-1]))
    return Drawing(
        title=title,
        svg=picture(WIDTH, HEIGHT, label, parts, "long", links=any(one.href for one in moments)),
        table=table,
        wide=True,
    )


def _height(frame: Frame, one: Moment) -> float:
    return frame.y.start if one.latency_us is None else frame.y.at(one.latency_us / 1e6)


def _axes(frame: Frame, moments: Sequence[Moment]) -> str:
    """The axes, with dates instead of numbers below."""
    places = [(frame.y.at(tick), tick) for tick in frame.y.ticks()]
    grid = "".join(f"M{frame.x.start} {place}H{frame.x.end}" for place, _ in places)
    left, below = frame.x.start - 6, frame.y.start + 15
    texts = [
        f'<text x="{left}" y="{place + 4}" text-anchor="end">{figures.duration(tick * 1e6) if tick else 0}</text>'
        for place, tick in places
    ]
    numbers = range(0, len(moments), -(-len(moments) // MOST_DATES))
    dates = [(frame.x.at(number + 1), f"{moments[number].at:%m-%d %H:%M}") for number in numbers]
    texts += tick_texts(dates, below, WIDTH)
    return (
        f'<path class="grid" d="{grid}"/>'
        f'<path class="axis" d="M{frame.x.start} {frame.y.end}V{frame.y.start}H{frame.x.end}"/>{"".join(texts)}'
        f'<text class="label" x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">{frame.x_label}</text>'
        f'<text class="label" x="4" y="12">{frame.y_label}</text>'
    )


def _moment(one: Moment, x: float, y: float) -> str:
    """The verdict's glyph on a disc in its colour."""
    glyph, word = WORDS[one.verdict]
    time = "not timed" if one.latency_us is None else figures.duration(one.latency_us)
    text = safe(f"{one.at:%Y-%m-%d %H:%M} UTC, run {one.run}: {word}, {time}")
    inside = (
        f'<g class="moment {one.verdict}"><title>{text}</title><circle cx="{x}" cy="{y}" r="8"/>'
        f'<text x="{x}" y="{y + 4}" text-anchor="middle">{glyph}</text></g>'
    )
    return f'<a href="{safe(one.href)}" aria-label="{text}">{inside}</a>' if one.href else inside
