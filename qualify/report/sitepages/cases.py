"""One case with its history: its verdict and time in each run, and what people say about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qualify.facts.outcome import evidence_of
from qualify.facts.overview import CaseInRun
from qualify.facts.people import Comment
from qualify.facts.run import Judgement
from qualify.judge.summary import Summary
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.drawings.history import Moment
from qualify.report.drawings.history import history as draw_history
from qualify.report.drawings.svg import Drawing
from qualify.report.names import short_name
from qualify.report.sitepages.parts import (
    Form,
    FormField,
    PageLink,
    PagePart,
    PartsPage,
    address,
    case_address,
    run_address,
    run_case_address,
    run_words,
    tone_of,
    verdict_words,
)
from qualify.report.views import anchor


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseRow:
    """A case in one run."""

    found: CaseInRun
    judgement: Judgement | None
    """the gate's verdict on the case in that run; None where the gate can no longer read the matrix or the waivers"""
    summary: Summary | None
    """summary of the run; None where the run is being judged"""

    @property
    def latency_us(self) -> float | None:
        """Time of the case in µs; None where it was not timed."""
        evidence = evidence_of(self.found.record.outcome)
        return evidence.timing.latency_us if evidence and evidence.timing else None

    @property
    def launched(self) -> str:
        """The attention kernels that ran, by short name."""
        evidence = evidence_of(self.found.record.outcome)
        return ", ".join(dict.fromkeys(map(short_name, evidence.witness.attention_names))) if evidence else ""


def _why(reasons: Sequence[str]) -> str:
    """The most important reason, and how many more the report has."""
    more = f" (and {len(reasons) - 1} more in the report)" if reasons[1:] else ""
    return f"{reasons[0]}{more}" if reasons else ""


def _report(row: CaseRow) -> str:
    return f"{run_address(row.found.head.id)}#{anchor('case', row.found.record.case.id)}"


COLUMNS: tuple[Column[CaseRow], ...] = (
    Column(
        key="verdict",
        title="Verdict",
        cell=lambda row: verdict_words(row.judgement.verdict) if row.judgement else "– not judged",
        tone=lambda row: tone_of(row.judgement.verdict if row.judgement else None),
        page=lambda row: run_case_address(row.found.head.id, row.found.record.case.id),
    ),
    Column(key="run", title="Run", cell=lambda row: row.found.head.id, code=True, page=_report),
    Column(
        key="run_verdict",
        title="Whole run",
        cell=lambda row: run_words(row.summary),
        tone=lambda row: tone_of(row.summary.shown if row.summary else None),
    ),
    Column(key="began", title="Began (UTC)", cell=lambda row: f"{row.found.head.started_at:%Y-%m-%d %H:%M}"),
    Column(key="latency_us", title="Time", unit="us", cell=lambda row: row.latency_us),
    Column(
        key="why",
        title="Why",
        sentence=True,
        cell=lambda row: _why(row.judgement.reasons) if row.judgement else "",
    ),
    Column(key="launched", title="Kernel that ran", cell=lambda row: row.launched, sentence=True),
    Column(key="outcome", title="Outcome", cell=lambda row: row.found.record.outcome.outcome.replace("_", " ")),
    Column(key="matrix", title="Matrix", cell=lambda row: row.found.head.matrix),
    Column(
        key="stack",
        title="Stack",
        cell=lambda row: row.found.head.stack[:12],
        code=True,
        page=lambda row: address("stacks", row.found.head.stack) if row.found.head.stack else "",
    ),
    Column(key="device", title="Device", name=True, cell=lambda row: row.found.head.variant),
)


def _drawings(rows: Sequence[CaseRow]) -> tuple[Drawing, ...]:
    """Times and verdicts over the runs of each device model: times of two models are not compared."""
    series: defaultdict[str, list[Moment]] = defaultdict(list)
    for row in rows:
        if row.judgement:
            head = row.found.head
            moment = Moment(
                run=head.id,
                at=head.started_at,
                verdict=row.judgement.verdict,
                latency_us=row.latency_us,
                href=run_address(head.id),
            )
            series[head.variant].append(moment)
    drawn = (draw_history(f"Over runs on {variant}", moments) for variant, moments in series.items())
    return tuple(replace(drawing, table=None) for drawing in drawn if drawing)


def case_page(case_id: str, rows: Sequence[CaseRow], comments: Sequence[Comment], *, may_write: bool) -> PartsPage:
    """The page of a case."""
    model, _, rest = case_id.partition("/")
    history: AnyTable = Table(caption="The newest runs that have this case", columns=COLUMNS, rows=tuple(rows))
    form = Form(
        title="Add a comment",
        action="/comments",
        button="Comment",
        fields=(
            FormField(name="case", kind="hidden", value=case_id, longest=2000),
            FormField(name="text", label="What others must know of this case", kind="textarea", longest=4000),
        ),
    )
    parts = (
        PagePart(
            key="history",
            heading="History",
            drawings=_drawings(rows),
            table=history,
            links=(
                PageLink(text=f"model {model}", href=address("models", model)),
                PageLink(text=f"kernel {rest.rpartition('/')[2]}", href=address("kernels", rest.rpartition("/")[2])),
            ),
        ),
        comments_part(comments, (form,) if may_write else ()),
    )
    at = case_address(case_id)
    return PartsPage(title=f"Case {case_id}", here="/runs", twin=f"{at}.json", csv=f"{at}.csv", parts=parts)


COMMENTS: tuple[Column[Comment], ...] = (
    Column(key="by", title="By", cell=lambda it: f"{it.by} (from {it.origin})" if it.origin else it.by),
    Column(key="at", title="When (UTC)", cell=lambda it: f"{it.at:%Y-%m-%d %H:%M}"),
    Column(key="text", title="Comment", cell=lambda it: it.text, sentence=True),
)


def comments_part(comments: Sequence[Comment], forms: tuple[Form, ...]) -> PagePart:
    """What people say about a case or a run."""
    table: AnyTable = Table(caption="Comments, the oldest first", columns=COMMENTS, rows=tuple(comments))
    return PagePart(key="comments", heading="Comments", table=table, empty="Nobody has commented.", forms=forms)
