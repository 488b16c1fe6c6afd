"""Are the gains in prefill, in decode, or in both?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from qualify.facts.case import Phase
from qualify.report.columns import Column, Table
from qualify.report.figures import counted, ratio, text
from qualify.report.questions.interface import Answer, Line, Link
from qualify.report.views import CaseView, ModelView, ShapeView

DEFAULT_KERNEL = "torch-sdpa"
"""kernel that a model gets where nobody chose one"""
NEXT_KERNEL = "next kernel"
GENERATION: frozenset[Phase] = frozenset({"decode", "verify"})
"""phases that make tokens; the other phases read prompts"""
MIN_EFFECT = 0.02
"""a median ratio below 1 + MIN_EFFECT counts as no gain"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The fastest passing kernel of a shape, and the kernel that it is compared with."""

    shape: ShapeView
    fastest: CaseView
    other: CaseView
    ratio: float
    """time of the other over time of the fastest"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """The gain of one phase over its shapes."""

    phase: Phase
    pairs: tuple[Pair, ...]
    """one pair for each compared shape, the lowest ratio first"""
    against: str

    @property
    def ratio(self) -> float:
        """Median ratio over the shapes."""
        return median(pair.ratio for pair in self.pairs)

    @property
    def kernels(self) -> str:
        """The fastest kernels, with the number of shapes."""
        counts = Counter(pair.fastest.case.kernel for pair in self.pairs)
        return ", ".join(f"{kernel} ({count:,})" for kernel, count in counts.most_common())


def _share(views: Sequence[CaseView]) -> float | None:
    return median([view.timing.ceiling_share for view in views if view.timing] or [float("nan")])


COLUMNS: tuple[Column[Gain], ...] = (
    Column(key="phase", title="Phase", cell=lambda gain: gain.phase),
    Column(key="shapes", title="Shapes compared", unit="count", cell=lambda gain: len(gain.pairs)),
    Column(key="fastest", title="Fastest passing kernel (shapes)", sentence=True, cell=lambda gain: gain.kernels),
    Column(key="against", title="Against", cell=lambda gain: gain.against),
    Column(key="ratio", title="Median ratio", number=True, cell=lambda gain: gain.ratio),
    Column(
        key="lowest",
        title="Lowest",
        number=True,
        cell=lambda gain: gain.pairs[0].ratio,
        link=lambda gain: gain.pairs[0].fastest.anchor,
    ),
    Column(
        key="highest",
        title="Highest",
        number=True,
        cell=lambda gain: gain.pairs[-1].ratio,
        link=lambda gain: gain.pairs[-1].fastest.anchor,
    ),
    Column(
        key="ceiling_share",
        title="Fastest reaches of the ceiling",
        unit="share",
        cell=lambda gain: _share([pair.fastest for pair in gain.pairs]),
    ),
    Column(
        key="other_ceiling_share",
        title="The other reaches",
        unit="share",
        cell=lambda gain: _share([pair.other for pair in gain.pairs]),
    ),
)


def answer(model: ModelView) -> Answer:
    """Per phase: the fastest passing kernel against torch-sdpa, or against the next kernel where that is missing."""
    phases = model.phases()
    rows = {phase: row for phase, shapes in phases if (row := _gain(phase, shapes)) is not None}
    timed = [view for view in model.cases if view.timed]
    if not rows:
        return _no_comparison(timed)
    compared = sum(len(row.pairs) for row in rows.values())
    return Answer(
        state="good" if compared == len(model.shapes) else "open",
        headline=f"{_gained(rows, whole=compared == len(model.shapes))}; {_of(compared, model.shapes)} compared",
        lines=tuple(line for phase, shapes in phases for line in _lines(phase, rows.get(phase), shapes)),
        notes=(
            (
                "Medians of one run, one kernel after the other, passing cases only. A ratio above 1 means that the "
                f"fastest kernel is faster; below {ratio(1 + MIN_EFFECT)} it is called no gain."
            ),
        ),
        tables=(Table(caption="Gains by phase", columns=COLUMNS, rows=tuple(rows.values())),),
        links_title="Highest gain",
        links=tuple(
            Link(text=f"{phase}: {row.pairs[-1].shape.label}", anchor=row.pairs[-1].shape.anchor)
            for phase, row in rows.items()
        ),
    )


def _no_comparison(timed: Sequence[CaseView]) -> Answer:
    if not timed:
        return Answer(state="untested", headline="Not timed", lines=(Line(term="timed", text="no passing case"),))
    names = dict.fromkeys(view.case.kernel for view in timed)
    if len(names) > 1:
        return Answer(
            state="open",
            headline="No comparison",
            lines=(Line(term="timed", text="no shape with two passing kernels"),),
        )
    return Answer(
        state="untested",
        headline="One kernel only",
        lines=(
            Line(term="timed", text=", ".join(names), note=f"{counted(len(timed), 'shape')}, nothing to compare with"),
        ),
        links=tuple(Link(text=view.case.id, anchor=view.anchor) for view in timed[:1]),
        links_title="Example",
    )


def _pair(shape: ShapeView, against: str) -> Pair | None:
    timed = sorted(
        ((view.timing.latency_us, view.case.kernel, view) for view in shape.cases if view.timing and view.timed),
        key=lambda entry: entry[:2],
    )
    if len(timed) < 2:
        return None
    others = timed[1:2] if against == NEXT_KERNEL else [entry for entry in timed if entry[1] == against]
    if not others:
        return None
    return Pair(shape=shape, fastest=timed[0][2], other=others[0][2], ratio=others[0][0] / timed[0][0])


def _gain(phase: Phase, shapes: Sequence[ShapeView]) -> Gain | None:
    for against in (DEFAULT_KERNEL, NEXT_KERNEL):
        pairs = [pair for shape in shapes if (pair := _pair(shape, against)) is not None]
        if pairs:
            return Gain(phase=phase, pairs=tuple(sorted(pairs, key=lambda pair: pair.ratio)), against=against)
    return None


def _of(compared: int, shapes: Sequence[ShapeView]) -> str:
    return f"{compared:,} of {counted(len(shapes), 'shape')}"


def _gained(rows: dict[Phase, Gain], *, whole: bool) -> str:
    """Where the gains are, in words.

    Args:
        whole: whether every shape was compared; without that the words "only" and "neither" would claim too much.
    """
    gained = {phase for phase, row in rows.items() if row.ratio >= 1 + MIN_EFFECT}
    decode = bool(gained & GENERATION)
    prefill = bool(gained - GENERATION)
    if decode and prefill:
        return "In both"
    if not set(rows) & GENERATION:
        return "In prefill; decode is not compared" if prefill else "None in prefill; decode is not compared"
    if not set(rows) - GENERATION:
        return "In decode; prefill is not compared" if decode else "None in decode; prefill is not compared"
    if not gained:
        return "In neither" if whole else "None seen"
    return ("In decode" if decode else "In prefill") + (" only" if whole else "")


def _lines(phase: Phase, row: Gain | None, shapes: Sequence[ShapeView]) -> list[Line]:
    """The gain of a phase, then its shapes that were not compared, by layout, because a layout may lack a baseline."""
    compared = {id(pair.shape) for pair in row.pairs} if row else set()
    lines = [_gain_line(phase, row, shapes)] if row else []
    rest: dict[str, list[ShapeView]] = {}
    for shape in shapes:
        if id(shape) not in compared:
            rest.setdefault(shape.cases[0].case.workload.layout, []).append(shape)
    return [*lines, *(_rest_line(f"{phase}, {layout}", its) for layout, its in rest.items())]


def _gain_line(phase: Phase, row: Gain, shapes: Sequence[ShapeView]) -> Line:
    share = text(_share([pair.fastest for pair in row.pairs]), "share")
    note = f"{row.kernels} vs {row.against}; {share} of the ceiling; {_of(len(row.pairs), shapes)} compared"
    return Line(term=phase, text=ratio(row.ratio), note=note)


def _rest_line(term: str, shapes: Sequence[ShapeView]) -> Line:
    """Shapes without a kernel to compare with, and the fastest kernels there."""
    fastest = Counter(shape.fastest.case.kernel for shape in shapes if shape.fastest)
    note = f"none of {counted(len(shapes), 'shape')} compared"
    if not fastest:
        return Line(term=term, text="not timed", note=note)
    names = ", ".join(f"{kernel} ({count:,})" for kernel, count in fastest.most_common(3))
    several = any(sum(view.timed for view in shape.cases) > 1 for shape in shapes)
    return Line(term=term, text="no baseline" if several else "one kernel only", note=f"fastest {names}; {note}")
