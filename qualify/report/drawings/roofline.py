"""The roofline: the rate that calls reach, below the limits of memory and arithmetic that the run measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qualify.report import figures
from qualify.report.drawings.svg import Drawing, Frame, LegendKey, mark, picture, safe, scale

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 24, 44
LINE = 13
"""height of a label"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """One call, or the median of several."""

    kernel: str
    number: int
    """number of the kernel's series"""
    intensity: float
    """FLOP divided by the bytes that the call must move at least"""
    flops_per_s: float
    """rate that the call reaches"""
    title: str


def roofline(
    title: str, dots: Sequence[Dot], matmul_flops_per_s: Mapping[str, float], copy_bytes_per_s: float
) -> Drawing | None:
    """Calls under the measured roofs; None where there is none.

    Args:
        matmul_flops_per_s: measured rate of matrix products by dtype.
        copy_bytes_per_s: measured rate of copies, read plus write.
    """
    if not dots or not matmul_flops_per_s or copy_bytes_per_s <= 0:
        return None
    peaks = {dtype: peak for dtype, peak in matmul_flops_per_s.items() if peak > 0}
    ridges = [peak / copy_bytes_per_s for peak in peaks.values()]
    frame = Frame(
        width=WIDTH,
        height=HEIGHT,
        x=scale("log", [*(dot.intensity for dot in dots), *ridges], LEFT, WIDTH - RIGHT),
        y=scale("log", [*(dot.flops_per_s for dot in dots), *peaks.values()], HEIGHT - BOTTOM, TOP),
        x_label="FLOP per byte that must move",
        y_label="FLOP/s reached",
    )
    parts = [frame.axes(), *_roofs(frame, peaks, copy_bytes_per_s)]
    parts += [mark(dot.number, frame.x.at(dot.intensity), frame.y.at(dot.flops_per_s), dot.title) for dot in dots]
    keys = tuple(
        LegendKey(name=name, number=number) for name, number in dict.fromkeys((d.kernel, d.number) for d in dots)
    )
    return Drawing(
        title=title,
        svg=picture(WIDTH, HEIGHT, f"{title}: {len(dots)} points under {len(peaks)} measured roofs", parts),
        keys=(*keys, LegendKey(name="what this device was measured to allow", number=0, line=True)),
        note=(
            f"Left of the bend memory limits a call ({figures.text(copy_bytes_per_s, 'bytes_per_s')}), right of it "
            "arithmetic does. The closer to the line, the better."
        ),
    )


def _roofs(frame: Frame, peaks: Mapping[str, float], copy_bytes_per_s: float) -> list[str]:
    """The slope of the memory and one flat roof for each distinct peak, with its dtypes."""
    parts = []
    named: dict[int, list[str]] = {}
    for dtype, peak in peaks.items():
        named.setdefault(round(frame.y.at(peak) / 10), []).append(dtype)
    top = max(peaks.values())
    low = max(frame.x.low, frame.y.low / copy_bytes_per_s)
    ridge = min(top / copy_bytes_per_s, frame.x.high)
    slope = f"M{frame.x.at(low)} {frame.y.at(low * copy_bytes_per_s)}L{frame.x.at(ridge)} "
    parts.append(f'<path class="limit" d="{slope}{frame.y.at(ridge * copy_bytes_per_s)}"/>')
    free = 0.0
    roofs = ((max(peaks[dtype] for dtype in dtypes), dtypes) for dtypes in named.values())
    for peak, dtypes in sorted(roofs, reverse=True):
        start, place = frame.x.at(min(peak / copy_bytes_per_s, frame.x.high)), frame.y.at(peak)
        parts.append(f'<path class="limit" d="M{start} {place}H{frame.x.end}"/>')
        rates = dict.fromkeys(figures.text(rate, "flops_per_s") for rate in sorted(peaks[dtype] for dtype in dtypes))
        text = f"{', '.join(dtypes)}: {' to '.join([*rates][:: max(1, len(rates) - 1)])}"
        # A label stands above its roof. Where that of a higher roof does already, it stands below both.
        y = place - 4 if place - 4 >= free else max(place + LINE - 2, free)
        free = y + LINE
        parts.append(f'<text class="roof" x="{frame.x.end}" y="{y}" text-anchor="end">{safe(text)}</text>')
    return parts
