"""What numerical tolerance is accepted across backend upgrades?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from qualify.facts.accuracy import CALLED, E_LIMIT, R_LIMIT
from qualify.facts.checks import findings_about, findings_shown_by
from qualify.facts.outcome import FindingVerdict, Measured, Statistics
from qualify.report.columns import Column, Limited, Table
from qualify.report.figures import all_counted, counted, text
from qualify.report.questions.interface import Answer, Line, Link
from qualify.report.views import CaseView, ModelView

NUMERIC = findings_about("numbers")
"""findings that judge numbers; a case that fails one may have no statistics, for example where its output is all NaN"""
LSE = findings_shown_by("lse")
"""findings that judge the LSE"""


WORDS = (
    "E is the largest error of one element over what rounding allows there: it finds one wrong element.",
    "R is the error of the worst row over the spread that rounding gives a row: it finds one wrong row.",
    "G is the same over many rows together: it finds a result that is a little wrong everywhere.",
    "β is the share by which all results are too large or too small: it finds a bias that averages hide.",
)
"""the statistics in plain words; docs/numerics.md defines them"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The statistics of one input kind of one case."""

    view: CaseView
    statistics: Statistics


def lse_limit(view: CaseView) -> float:
    """The LSE limit of the card, taken from a finding about the LSE; infinite where no finding names it."""
    limits = (finding.values.get("limit") for finding in view.findings if finding.check in LSE)
    return next((float(limit) for limit in limits if isinstance(limit, int | float)), math.inf)


def _lse(sample: Sample) -> Limited | None:
    value = sample.statistics.lse_rel
    return None if value is None else Limited(value=value, limit=lse_limit(sample.view))


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """One statistic and where its limit comes from."""

    key: str
    title: str
    of: Callable[[Sample], Limited | None]
    varies: bool = False
    """whether the limit differs from case to case"""


LIMITS: tuple[Limit, ...] = (
    Limit(key="E", title="Worst element, E ≤ 1", of=lambda sample: Limited(value=sample.statistics.E, limit=E_LIMIT)),
    Limit(key="R", title="Worst row, R ≤ 3", of=lambda sample: Limited(value=sample.statistics.R, limit=R_LIMIT)),
    Limit(
        key="G",
        title="All rows, G / limit",
        varies=True,
        of=lambda sample: Limited(value=sample.statistics.G, limit=sample.statistics.G_limit),
    ),
    Limit(
        key="beta",
        title="Bias, |β| / limit",
        varies=True,
        of=lambda sample: Limited(value=sample.statistics.beta, limit=sample.statistics.beta_limit),
    ),
    Limit(key="lse_rel", title="LSE / limit", varies=True, of=_lse),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Worst:
    """The sample whose value comes closest to its limit, or breaks it most."""

    sample: Sample
    value: Limited


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """Accepted and seen accuracy of one dtype."""

    dtype: str
    samples: tuple[Sample, ...]
    worst: dict[str, Worst]
    """worst sample of each statistic, by key of :data:`LIMITS`"""
    over: tuple[CaseView, ...]
    """cases that break a limit, or whose numbers failed a check"""

    @property
    def declared(self) -> str:
        """Declared accuracy classes, with the number of input sets."""
        return _counts(sample.statistics.declared_class for sample in self.samples)

    @property
    def measured(self) -> str:
        """Tightest classes that hold, with the number of input sets."""
        return _counts(sample.statistics.measured_class or "none" for sample in self.samples)


def _counts(names: Iterable[str]) -> str:
    counts = Counter(names)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{name} ({count:,})" for name, count in counts.most_common()) or "unknown"


def _column(limit: Limit) -> Column[Accuracy]:
    def cell(row: Accuracy) -> Limited | None:
        return row.worst[limit.key].value if limit.key in row.worst else None

    def link(row: Accuracy) -> str:
        return row.worst[limit.key].sample.view.anchor if limit.key in row.worst else ""

    return Column(key=limit.key, title=limit.title, unit=limit.key, cell=cell, link=link, show_limit=limit.varies)


COLUMNS: tuple[Column[Accuracy], ...] = (
    Column(key="dtype", title="Dtype", cell=lambda row: row.dtype),
    Column(key="declared", title="Declared class", cell=lambda row: row.declared),
    Column(key="measured", title="Measured class", cell=lambda row: row.measured),
    Column(key="input_sets", title="Input sets", unit="count", cell=lambda row: len(row.samples)),
    *(_column(limit) for limit in LIMITS),
    Column(key="over", title="Cases over a limit", unit="count", cell=lambda row: len(row.over)),
)


def answer(model: ModelView) -> Answer:
    """Per dtype: the declared and the measured accuracy class, and the worst of each statistic against its limit."""
    rows = _rows(model.cases)
    if not rows:
        return Answer(state="untested", headline="Not measured", lines=(Line(term="statistics", text="none"),))
    over = tuple({view.anchor: view for row in rows for view in row.over}.values())
    judged = {view.anchor for row in rows for view in (*row.over, *(sample.view for sample in row.samples))}
    undecided = sum(view.claimed and _says(view, "inconclusive") for view in model.cases)
    headline = f"{all_counted(len(judged), 'case')} within limits"
    if over:
        headline = f"{len(over):,} of {counted(len(judged), 'case')} over a limit"
    if undecided and not over:
        headline = f"Not proven: {counted(undecided, 'case')} undecided"
    return Answer(
        state="bad" if over else "open" if undecided else "good",
        headline=headline,
        lines=tuple(_line(row) for row in rows),
        notes=(
            (
                "These limits define what is accepted. They follow from the number formats, not from an earlier "
                "version. Error is taken against a golden result in high precision on the exact inputs. The measured "
                "class is the tightest whose limits hold."
            ),
            *WORDS,
        ),
        tables=(Table(caption="Accuracy by dtype: the worst of all input sets", columns=COLUMNS, rows=rows),),
        links_title="Cases over a limit" if over else "",
        links=tuple(Link(text=view.case.id, anchor=view.anchor) for view in over),
    )


def _rows(views: Sequence[CaseView]) -> tuple[Accuracy, ...]:
    by_dtype: dict[str, tuple[list[Sample], list[CaseView]]] = {}
    for view in views:
        # A substituted case has measured another kernel, so it says nothing about this kernel's tolerance.
        if isinstance(view.outcome, Measured) and view.claimed:
            samples, failed = by_dtype.setdefault(view.case.dtype, ([], []))
            samples += [Sample(view=view, statistics=item) for item in view.outcome.evidence.statistics]
            failed += [view] if _says(view, "fail") else []
    return tuple(_accuracy(dtype, *found) for dtype, found in by_dtype.items() if any(found))


def _says(view: CaseView, verdict: FindingVerdict) -> bool:
    return any(finding.verdict == verdict and finding.check in NUMERIC for finding in view.findings)


def _accuracy(dtype: str, samples: Sequence[Sample], failed: Sequence[CaseView]) -> Accuracy:
    worst: dict[str, Worst] = {}
    over = {view.anchor: view for view in failed}
    for limit in LIMITS:
        judged = [Worst(sample=sample, value=value) for sample in samples if (value := limit.of(sample)) is not None]
        if judged:
            worst[limit.key] = max(judged, key=lambda entry: _badness(entry.value))
        over |= {entry.sample.view.anchor: entry.sample.view for entry in judged if entry.value.over}
    return Accuracy(dtype=dtype, samples=tuple(samples), worst=worst, over=tuple(over.values()))


def _badness(value: Limited) -> tuple[float, float]:
    """Sort key, the largest is the worst: NaN, then the share of the limit, then the value where there is no limit."""
    if math.isnan(value.value):
        return (math.inf, math.inf)
    return (abs(value.value) / value.limit if value.limit else math.inf, abs(value.value))


def _line(row: Accuracy) -> Line:
    """The errors with their limits, ``worst element 0.62/1 · worst row 1.70/3``; β and LSE as shares of theirs."""
    fixed = [
        f"{CALLED[key]}\N{NO-BREAK SPACE}{text(worst.value.value)}/{worst.value.limit:.3g}"
        for key in ("E", "R", "G")
        if (worst := row.worst.get(key))
    ]
    shares = [
        f"{name} {text(abs(worst.value.value) / worst.value.limit, 'share')} of its limit"
        for key, name in (("beta", "|β|"), ("lse_rel", "LSE"))
        if (worst := row.worst.get(key)) and math.isfinite(worst.value.limit) and worst.value.limit
    ]
    return Line(
        term=row.dtype,
        text=" · ".join(fixed) or "no statistics",
        note="; ".join([*shares, f"declared {row.declared}, measured {row.measured}"]),
    )
