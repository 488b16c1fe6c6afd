"""Which exact attention kernel handles every production shape?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qualify.facts.case import Phase
from qualify.facts.outcome import Launch, Substituted
from qualify.report.columns import Column, Table
from qualify.report.figures import all_counted, counted
from qualify.report.names import short_name
from qualify.report.questions.interface import Answer, Line, Link, State
from qualify.report.views import CaseView, ModelView, ShapeView


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """A kernel card that proves shapes of one phase, and what it launched there."""

    phase: Phase
    kernel: str
    launches: tuple[Launch, ...]
    """one launch for each distinct name of an attention kernel"""
    proven: int
    shapes: int
    """number of shapes of the phase"""
    fastest: int
    """number of shapes where no other proven kernel was faster"""
    unproven: int
    """number of shapes of the phase where a case of this card failed or is undecided"""
    fallbacks: int
    """number of shapes where another kernel than the card's did the work, as the matrix allows"""
    example: CaseView

    @property
    def names(self) -> str:
        """Short names of the launched attention kernels."""
        return ", ".join(_unique(short_name(launch.name) for launch in self.launches))

    @property
    def family(self) -> str:
        """Families of the launched kernels, with their generation."""
        described = (", ".join(filter(None, (launch.family, launch.generation))) for launch in self.launches)
        return "; ".join(_unique(described)) or "unknown"


COLUMNS: tuple[Column[Path], ...] = (
    Column(key="phase", title="Phase", cell=lambda path: path.phase),
    Column(key="kernel", title="Kernel card", cell=lambda path: path.kernel),
    Column(
        key="launched",
        title="Launched attention kernels",
        cell=lambda path: path.names,
        link=lambda path: path.example.anchor,
        code=True,
    ),
    Column(key="family", title="Family, generation", cell=lambda path: path.family),
    Column(key="proven", title="Shapes proven", unit="count", cell=lambda path: path.proven),
    Column(key="shapes", title="Shapes of the phase", unit="count", cell=lambda path: path.shapes),
    Column(key="unproven", title="Failed or undecided on", unit="count", cell=lambda path: path.unproven),
    Column(key="fastest", title="Fastest on", unit="count", cell=lambda path: path.fastest),
)


def answer(model: ModelView) -> Answer:
    """Per phase: the attention kernels that were launched on a proven path, and the shapes that lack theirs.

    The answer is good only where no case of the model failed or stayed open, and no shape lacks its path by a waiver. A
    kernel that could serve a proven shape and computes the wrong thing is evidence against the release too.
    """
    paths = {phase: _paths(phase, shapes) for phase, shapes in model.phases()}
    required = [shape for shape in model.shapes if shape.required]
    missing = [shape for shape in required if not shape.proven]
    return Answer(
        state=_state(model, required),
        headline=_headline(model, required, missing),
        lines=(*(_line(phase, shapes, paths[phase]) for phase, shapes in model.phases()), *_spare(model, required)),
        notes=(
            (
                "A path is proven where a kernel was measured, the trace showed the card's kernel and no other "
                "attention kernel, and every check passed, or where the matrix allows the fallback that was seen. "
                "Where the matrix expects a kernel for a shape, only that kernel counts."
            ),
        ),
        tables=(
            Table(
                caption="Proven paths by phase and kernel card",
                columns=COLUMNS,
                rows=tuple(path for group in paths.values() for path in group),
            ),
        ),
        links_title="Shapes that lack their proven path" if missing else "",
        links=tuple(Link(text=_missing_text(shape), anchor=shape.anchor) for shape in missing),
    )


def _state(model: ModelView, required: Sequence[ShapeView]) -> State:
    ends = {shape.judgement.verdict for shape in required}
    if "FAIL" in ends or model.ended("FAIL"):
        return "bad"
    if ends & {"INCONCLUSIVE", "WAIVED"} or model.ended("INCONCLUSIVE"):
        return "open"
    return "good" if required else "untested"


def _headline(model: ModelView, required: Sequence[ShapeView], missing: Sequence[ShapeView]) -> str:
    if not required:
        text = "No shape is required"
    elif missing:
        text = f"{len(required) - len(missing):,} of {counted(len(required), 'shape')} proven"
    else:
        text = f"{all_counted(len(required), 'shape')} proven"
    failed, undecided = len(model.ended("FAIL")), len(model.ended("INCONCLUSIVE"))
    text += f"; {counted(failed, 'case')} failed" if failed else ""
    text += f"; {counted(undecided, 'case')} undecided" if undecided else ""
    waived = sum(shape.judgement.verdict == "WAIVED" for shape in required)
    return text + (f"; {counted(waived, 'shape')} waived" if waived else "")


def _spare(model: ModelView, required: Sequence[ShapeView]) -> list[Line]:
    spare = len(model.shapes) - len(required)
    return [Line(term="not required", text=counted(spare, "shape"))] if spare else []


def _missing_text(shape: ShapeView) -> str:
    return f"{shape.label} ({shape.judgement.reasons[0]})" if shape.judgement.reasons else shape.label


def _paths(phase: Phase, shapes: Sequence[ShapeView]) -> list[Path]:
    """The proven paths of a phase. Kernels that fail on none of its shapes come first, the fastest of them first."""
    by_kernel: dict[str, list[CaseView]] = {}
    wins: dict[str, int] = {}
    for shape in shapes:
        timed = [(view.timing.latency_us, view.case.kernel) for view in shape.proving if view.timing]
        if timed:
            winner = min(timed)[1]
            wins[winner] = wins.get(winner, 0) + 1
        for view in shape.proving:
            by_kernel.setdefault(view.case.kernel, []).append(view)
    paths = [
        Path(
            phase=phase,
            kernel=kernel,
            launches=tuple({launch.name: launch for view in views for launch in view.attention}.values()),
            proven=len(views),
            shapes=len(shapes),
            unproven=len({id(shape) for shape in shapes if _stains(shape, kernel)}),
            fastest=wins.get(kernel, 0),
            fallbacks=sum(isinstance(view.outcome, Substituted) for view in views),
            example=views[0],
        )
        for kernel, views in by_kernel.items()
    ]
    return sorted(paths, key=lambda path: (path.unproven > 0, -path.fastest, -path.proven))


def _stains(shape: ShapeView, kernel: str) -> bool:
    """Whether a case of the card on this shape failed or is undecided."""
    return any(view.case.kernel == kernel and view.verdict in ("FAIL", "INCONCLUSIVE") for view in shape.cases)


def _line(phase: Phase, shapes: Sequence[ShapeView], paths: Sequence[Path]) -> Line:
    required = [shape for shape in shapes if shape.required]
    term = f"{phase} {sum(shape.proven for shape in required):,}/{len(required):,}" if required else phase
    if not paths:
        return Line(term=term, text="no proven path" if required else "not required")
    first, whole = paths[0], [path for path in paths[1:] if not path.unproven]
    own = f"; failed or undecided on {counted(first.unproven, 'shape')}" if first.unproven else ""
    more = f"; {counted(len(whole), 'other card')} proven too" if whole else ""
    return Line(term=term, text=first.names, note=f"{first.family}{own}{more}", code=True)


def _unique(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]
