"""Pages of one run's cases: a list with a filter, and one case with all its evidence. They need no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic_core import to_jsonable_python

from qualify.facts.overview import RunHead
from qualify.facts.run import VERDICTS, Verdict
from qualify.facts.typed import Typed
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.document import case_data
from qualify.report.inventory import inventory
from qualify.report.sections import Section, kernel_label, section
from qualify.report.sitepages.parts import (
    Form,
    FormField,
    PageLink,
    PagePart,
    PartsPage,
    address,
    case_address,
    last_offset,
    run_address,
    run_case_address,
    tone_of,
    verdict_words,
)
from qualify.report.views import SEVERITY, CaseView

REPEATED: tuple[Verdict, ...] = ("FAIL", "INCONCLUSIVE", "WAIVED")
"""verdicts of cases for which the page names the command that repeats them"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseQuery:
    """Which cases of a run are listed; empty words select all."""

    text: str = ""
    """words that must all occur in the id, the outcome, the launched kernels or the reason"""
    verdict: str = ""
    model: str = ""
    kernel: str = ""
    offset: int = 0
    limit: int = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseLine:
    """A case as the list shows it."""

    case: str
    """id of the case"""
    model: str
    kernel: str
    verdict: Verdict
    outcome: str
    latency_us: float | None
    why: str
    """the first reason"""
    launched: str
    """short names of the attention kernels that ran"""

    @property
    def words(self) -> str:
        """The text in which a search looks for words, in small letters."""
        return f"{self.case} {self.outcome} {self.launched} {self.why}".lower()


def lines_of(views: Sequence[CaseView]) -> list[dict[str, Any]]:
    """The cases of a run for the list, the worst first, each as the JSON data of a :class:`CaseLine`."""
    ordered = sorted(views, key=lambda view: SEVERITY.index(view.verdict))
    return [asdict(_line(view)) for view in ordered]


def _line(view: CaseView) -> CaseLine:
    return CaseLine(
        case=view.case.id,
        model=view.case.model,
        kernel=view.case.kernel,
        verdict=view.verdict,
        outcome=view.outcome.outcome.replace("_", " "),
        latency_us=view.timing.latency_us if view.timing else None,
        why=next(iter(view.reasons or view.why), ""),
        launched=kernel_label(view),
    )


def _columns(run: str) -> tuple[Column[CaseLine], ...]:
    return (
        Column(
            key="verdict",
            title="Verdict",
            cell=lambda it: verdict_words(it.verdict),
            tone=lambda it: tone_of(it.verdict),
        ),
        Column(
            key="case", title="Case", cell=lambda it: it.case, code=True, page=lambda it: run_case_address(run, it.case)
        ),
        Column(key="latency_us", title="Time", unit="us", cell=lambda it: it.latency_us),
        Column(key="launched", title="Kernel that ran", cell=lambda it: it.launched, sentence=True),
        Column(key="outcome", title="Outcome", cell=lambda it: it.outcome),
        Column(key="why", title="Why", cell=lambda it: it.why, sentence=True),
    )


def run_cases_page(head: RunHead, lines: Sequence[CaseLine], query: CaseQuery) -> PartsPage:
    """One page of the list of cases."""
    found = [line for line in lines if _matches(line, query)]
    query = replace(query, offset=last_offset(query.offset, query.limit, len(found)))
    shown = found[query.offset : query.offset + query.limit]
    table: AnyTable = Table(caption="Cases, the worst first", columns=_columns(head.id), rows=tuple(shown))
    part = PagePart(
        key="cases",
        heading="Cases",
        count=f"{query.offset + 1:,} to {query.offset + len(shown):,} of {len(found):,}" if shown else "none",
        table=table,
        empty="No case matches. Try other words.",
        forms=(_search(head, lines, query),),
        links=(*_turns(head, query, len(found)), PageLink(text="Report of the run", href=run_address(head.id))),
    )
    return PartsPage(
        title=f"Cases of run {head.id}",
        here="/runs",
        twin=_place(head, ".json", query),
        csv=_place(head, ".csv", replace(query, offset=0, limit=CaseQuery().limit)),
        parts=(part,),
        more={"run": head.id, "total": len(found), "offset": query.offset},
    )


def _matches(line: CaseLine, query: CaseQuery) -> bool:
    return (
        query.verdict in ("", line.verdict)
        and query.model in ("", line.model)
        and query.kernel in ("", line.kernel)
        and all(word in line.words for word in query.text.lower().split())
    )


def _place(head: RunHead, ending: str, query: CaseQuery) -> str:
    """The address of the list for a query, without parameters that have their default."""
    asked = {"q": query.text, "verdict": query.verdict, "model": query.model, "kernel": query.kernel}
    limit = "" if query.limit == CaseQuery().limit else query.limit
    return address("runs", head.id, f"cases{ending}", **asked, offset=query.offset or "", limit=limit)


def _search(head: RunHead, lines: Sequence[CaseLine], query: CaseQuery) -> Form:
    """The filter form above the list."""

    def choice(name: str, options: Sequence[str]) -> FormField:
        """A select with the values that the cases of the run have."""
        return FormField(
            name=name,
            label=name.capitalize(),
            kind="select",
            value=getattr(query, name),
            options=("", *sorted(options)),
            words={verdict: verdict_words(verdict) for verdict in VERDICTS} if name == "verdict" else {},
            required=False,
        )

    return Form(
        title="Filter",
        action=f"{run_address(head.id)}/cases",
        method="get",
        button="Filter",
        fields=(
            FormField(name="q", label="Words", kind="search", value=query.text, required=False),
            choice("verdict", list({line.verdict for line in lines})),
            choice("model", list({line.model for line in lines})),
            choice("kernel", list({line.kernel for line in lines})),
        ),
    )


def _turns(head: RunHead, query: CaseQuery, total: int) -> tuple[PageLink, ...]:
    """Links to the previous and to the next page of the list."""
    before = replace(query, offset=max(0, query.offset - query.limit))
    after = replace(query, offset=query.offset + query.limit)
    links = [PageLink(text="Cases before", href=_place(head, "", before))] if query.offset else []
    more = after.offset < total
    return (*links, *([PageLink(text="More cases", href=_place(head, "", after))] if more else []))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCasePage(PartsPage):
    """One case of one run. All its evidence stands above the parts."""

    section: Section
    repro: str
    """command that shows the failure again; empty where the case did not run or did not fail"""
    cases_at: str = ""
    """always empty, so that the section has no link to the page of the case, which is this page"""


def run_case_page(head: RunHead, view: CaseView, typed: Typed) -> RunCasePage:
    """The page of a case in a run.

    Args:
        typed: options of the command that repeats the case.
    """
    case, at = view.case, run_case_address(head.id, view.case.id)
    links = (
        PageLink(text="Report of the run", href=f"{run_address(head.id)}#{view.anchor}"),
        PageLink(text="All cases of the run", href=f"{run_address(head.id)}/cases"),
        PageLink(text="History and comments", href=case_address(case.id)),
        PageLink(text=f"model {case.model}", href=address("models", case.model)),
        PageLink(text=f"kernel {case.kernel}", href=address("kernels", case.kernel)),
    )
    kernels = inventory((view,))
    again = view.ran and view.verdict in REPEATED
    repro = typed.command("repro", case.id, "--run", head.id) if again else ""
    return RunCasePage(
        title=f"Case {case.id}",
        summary=f"{verdict_words(view.verdict)} in run {head.id}: {view.outcome.outcome.replace('_', ' ')}",
        here="/runs",
        twin=f"{at}.json",
        section=section(view),
        repro=repro,
        parts=(
            PagePart(key="kernels", heading="Kernels", table=kernels, empty="No kernel was traced."),
            PagePart(key="more", heading="See also", links=links),
        ),
        more={"run": head.id, "case": to_jsonable_python(case_data(view)), "repro": repro or None},
    )
