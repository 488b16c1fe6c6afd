"""The evidence weighted by the traffic: which kernels serve it, how long attention takes, and what no kernel serves.

A bucket of the traffic is one production shape for each group of layers. The kernel that the matrix expects serves it,
if that kernel proved the shape. Otherwise the fastest kernel that proved the shape serves it. A **fallback** is one of
these:

* a kernel serves the shape, but the matrix expects another one
* the matrix expects no kernel, and the kernel that serves most calls of the model refused this shape
* the library launched another kernel than the card names
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from qualify.cards.load import parse_matrix
from qualify.cards.traffic import parse_traffic
from qualify.facts.dtypes import Dtype
from qualify.facts.outcome import Refused, Substituted
from qualify.facts.run import Run
from qualify.plan.shapes import Shape, asks, bucket_shapes
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.questions.gains import GENERATION
from qualify.report.views import CaseView, ModelView, ShapeView
from qualify.verdict.performance import reaches
from qualify.verdict.policy import Rules

UNSERVED = "no proven path"
Part = Literal["prompts", "tokens"]
PARTS: tuple[Part, ...] = ("prompts", "tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficCell:
    """One group of layers in one bucket."""

    shape: ShapeView
    serving: CaseView | None
    """the case of the kernel that serves it; None where no kernel proved the shape"""
    layers: int
    fallback: bool = False

    @property
    def kernel(self) -> str:
        """Name of the serving kernel."""
        return self.serving.case.kernel if self.serving else UNSERVED

    @property
    def us(self) -> float:
        """Microseconds of one call in all layers of the group; infinite where no kernel serves it or none was timed."""
        timing = self.serving.timing if self.serving else None
        return timing.latency_us * self.layers if timing else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficStep:
    """One bucket for one model: one call of each of its layers."""

    part: Part
    calls: float
    """weight of the bucket: how often the call is made"""
    sequences: float
    """sequences that pass through the step: calls times batch"""
    cells: tuple[TrafficCell, ...]

    @property
    def us(self) -> float:
        """Microseconds of attention in all layers."""
        return sum(cell.us for cell in self.cells)


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTraffic:
    """The part of one model's traffic that one kernel serves. All shares are weighted by the traffic."""

    model: str
    dtype: Dtype
    kernel: str
    prompts: float | None
    """share of requests whose prompt meets the kernel in at least one layer; None where the traffic has no prompt"""
    tokens: float | None
    """share of generated tokens that meet the kernel in at least one layer; None where the traffic generates none"""
    layers: float
    """share of the calls, where each layer counts as one call"""
    time: float | None
    """share of the predicted attention time; None where some time is unknown"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """The attention time of one model's prompts, or of its generated tokens."""

    model: str
    dtype: Dtype
    part: Part
    p50: float
    """median over the sequences of: microseconds of one call in all layers"""
    p95: float
    p99: float
    fallback: float
    """share of the calls, where each layer counts as one call, that a fallback serves"""
    unserved: float
    """share of the calls that no kernel serves"""
    worst: ShapeView
    """the cell that takes most of the time at p99"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """The section about the traffic."""

    name: str
    source: str
    served: AnyTable
    times: AnyTable


SERVED: tuple[Column[KernelTraffic], ...] = (
    Column(key="model", title="Model", cell=lambda row: row.model),
    Column(key="dtype", title="Dtype", cell=lambda row: row.dtype),
    Column(key="kernel", title="Served by", cell=lambda row: row.kernel),
    Column(key="requests_share", title="Requests", unit="share", cell=lambda row: row.prompts),
    Column(key="tokens_share", title="Generated tokens", unit="share", cell=lambda row: row.tokens),
    Column(key="layers_share", title="Layer calls", unit="share", cell=lambda row: row.layers),
    Column(key="time_share", title="Attention time", unit="share", cell=lambda row: row.time),
)

TIMES: tuple[Column[Times], ...] = (
    Column(key="model", title="Model", cell=lambda row: row.model),
    Column(key="dtype", title="Dtype", cell=lambda row: row.dtype),
    Column(key="part", title="Part", cell=lambda row: row.part),
    Column(key="p50_us", title="p50", unit="us", cell=lambda row: row.p50),
    Column(key="p95_us", title="p95", unit="us", cell=lambda row: row.p95),
    Column(key="p99_us", title="p99", unit="us", cell=lambda row: row.p99),
    Column(key="fallback_share", title="Fallback", unit="share", cell=lambda row: row.fallback),
    Column(key="unserved_share", title="Unserved", unit="share", cell=lambda row: row.unserved),
    Column(
        key="dominates",
        title="Dominates p99",
        cell=lambda row: row.worst.judgement.cell,
        link=lambda row: row.worst.anchor,
        code=True,
    ),
)


def weigh(run: Run, models: Sequence[ModelView]) -> Traffic | None:
    """The evidence weighted by the traffic that the run's matrix names; None where it names none."""
    if not run.traffic_source:
        return None
    card = parse_traffic(run.traffic_source, run.matrix_path)
    rules = Rules(matrix=parse_matrix(run.matrix_source, run.matrix_path), patterns={}, partial=False)
    buckets = [(shape, bucket.weight) for shape, bucket in zip(bucket_shapes(card), card.buckets, strict=True)]
    served: list[KernelTraffic] = []
    times: list[Times] = []
    for model in models:
        for dtype in dict.fromkeys(case.case.dtype for case in model.cases):
            steps = _with_fallbacks(list(_steps(model, dtype, buckets, rules)), rules)
            if steps:
                served += _served(model.model, dtype, steps)
                times += [_times(model.model, dtype, part, found) for part in PARTS if (found := _of(steps, part))]
    return Traffic(
        name=card.traffic,
        source=card.source,
        served=Table(caption="What each kernel serves of the traffic", columns=SERVED, rows=tuple(served)),
        times=Table(caption="Attention time of one call in all layers", columns=TIMES, rows=tuple(times)),
    )


def traffic_data(traffic: Traffic | None) -> dict[str, Any] | None:
    """The section as JSON."""
    if traffic is None:
        return None
    tables = {"served": traffic.served.data(), "times": traffic.times.data()}
    return {"traffic": traffic.name, "source": traffic.source, **tables}


def _of(steps: Iterable[TrafficStep], part: Part) -> list[TrafficStep]:
    return [step for step in steps if step.part == part]


def _steps(
    model: ModelView, dtype: Dtype, buckets: Sequence[tuple[Shape, float]], rules: Rules
) -> Iterator[TrafficStep]:
    """A step for each bucket that the model has cases of, with a cell for each group of layers."""
    for wanted, weight in buckets:
        shapes = [shape for shape in model.shapes if _is_of(shape.cases[0], wanted, dtype)]
        if shapes:
            yield TrafficStep(
                part="tokens" if wanted.phase in GENERATION else "prompts",
                calls=weight,
                sequences=weight * len(wanted.seqlens_q),
                cells=tuple(_cell(shape, rules) for shape in shapes),
            )


def _is_of(view: CaseView, wanted: Shape, dtype: Dtype) -> bool:
    """Whether a case is the bucket's call.

    A case with images never is: it is a second call of the same layers, and the traffic does not know of images.
    """
    return view.case.dtype == dtype and not view.case.workload.spans and asks(wanted, view.case)


def _cell(shape: ShapeView, rules: Rules) -> TrafficCell:
    expectation = rules.expectation(shape.judgement.cell)
    proving = sorted(shape.proving, key=lambda view: view.timing.latency_us if view.timing else math.inf)
    chosen = [view for view in proving if expectation and view.case.kernel == expectation.kernel]
    serving = next(iter(chosen or proving), None)
    return TrafficCell(shape=shape, serving=serving, layers=shape.cases[0].case.layers)


def _with_fallbacks(steps: list[TrafficStep], rules: Rules) -> list[TrafficStep]:
    """The steps, where each cell that a fallback serves is marked."""
    marked = []
    for part in PARTS:
        members = _of(steps, part)
        calls: defaultdict[str, float] = defaultdict(float)
        for step in members:
            for cell in step.cells:
                calls[cell.kernel] += step.calls * cell.layers if cell.serving else 0
        usual = max(calls, key=lambda kernel: calls[kernel], default="")
        for step in members:
            cells = tuple(replace(cell, fallback=_falls_back(cell, usual, rules)) for cell in step.cells)
            marked.append(replace(step, cells=cells))
    return marked


def _falls_back(cell: TrafficCell, usual: str, rules: Rules) -> bool:
    if cell.serving is None:
        return False
    if isinstance(cell.serving.outcome, Substituted):
        return True
    expectation = rules.expectation(cell.shape.judgement.cell)
    if expectation:
        return cell.kernel != expectation.kernel
    refused = {view.case.kernel for view in cell.shape.cases if isinstance(view.outcome, Refused)}
    return usual in refused


def _served(model: str, dtype: Dtype, steps: list[TrafficStep]) -> list[KernelTraffic]:
    """One row for each kernel, and one for calls that no kernel serves; the row with most layer calls comes first."""
    kernels = dict.fromkeys(cell.kernel for step in steps for cell in step.cells)
    calls = sum(step.calls * cell.layers for step in steps for cell in step.cells)
    time = sum(step.calls * step.us for step in steps)
    rows = []
    for kernel in kernels:
        own = [(step.calls, cell) for step in steps for cell in step.cells if cell.kernel == kernel]
        spent = sum(weight * cell.us for weight, cell in own)
        rows.append(
            KernelTraffic(
                model=model,
                dtype=dtype,
                kernel=kernel,
                prompts=_met(_of(steps, "prompts"), kernel),
                tokens=_met(_of(steps, "tokens"), kernel),
                layers=sum(weight * cell.layers for weight, cell in own) / calls,
                time=spent / time if math.isfinite(time) else None,
            )
        )
    return sorted(rows, key=lambda row: -row.layers)


def _met(steps: list[TrafficStep], kernel: str) -> float | None:
    total = sum(step.sequences for step in steps)
    met = sum(step.sequences for step in steps if any(cell.kernel == kernel for cell in step.cells))
    return met / total if total else None


def _times(model: str, dtype: Dtype, part: Part, steps: list[TrafficStep]) -> Times:
    calls = sum(step.calls * cell.layers for step in steps for cell in step.cells)
    p50, p95, p99 = (quantile(steps, share) for share in (0.5, 0.95, 0.99))
    return Times(
        model=model,
        dtype=dtype,
        part=part,
        p50=p50.us,
        p95=p95.us,
        p99=p99.us,
        fallback=sum(step.calls * cell.layers for step in steps for cell in step.cells if cell.fallback) / calls,
        unserved=sum(step.calls * cell.layers for step in steps for cell in step.cells if cell.serving is None) / calls,
        worst=max(p99.cells, key=lambda cell: cell.us).shape,
    )


def quantile(steps: Sequence[TrafficStep], share: float) -> TrafficStep:
    """The step at a quantile: that share of the sequences takes no more attention time than this step."""
    ordered = sorted(steps, key=lambda step: step.us)
    total, below = sum(step.sequences for step in ordered), 0.0
    for step in ordered:
        below += step.sequences
        if reaches(below, share * total):
            return step
    return ordered[-1]
