"""What needs attention now: the first page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from qualify.facts.canary import Alert, Lease
from qualify.facts.fleet import Coverage
from qualify.facts.overview import RunHead
from qualify.facts.run import Verdict
from qualify.judge.summary import Summary
from qualify.report.causes import title
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.figures import counted, proven_paths
from qualify.report.fleets import fleet_address, fleet_words, odd_words
from qualify.report.sitepages.canaries import HoldRow
from qualify.report.sitepages.duels import DuelRow, newest_duels
from qualify.report.sitepages.models import waiver_rows
from qualify.report.sitepages.parts import (
    DEMONSTRATED,
    NO_RUN,
    NOT_YET,
    PENDING,
    PageLink,
    PagePart,
    PartsPage,
    address,
    run_address,
    run_words,
    tone_of,
    verdict_words,
)
from qualify.report.sitepages.runs import proven_shapes, trend
from qualify.report.sitepages.standing import Newest
from qualify.report.sitepages.troubles import told_once, trouble_rows
from qualify.report.views import SEVERITY
from qualify.verdict.origin import oldest

SOON = timedelta(days=14)
"""how long before its last day the page announces a waiver"""
LONGEST = timedelta(days=1)
"""age at which the page reports a run that has not ended"""
OLD = timedelta(days=7)
"""age at which the page calls the newest run of a matrix old"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One thing that somebody should look at."""

    verdict: Verdict
    """verdict whose colour and glyph the item has"""
    what: str
    subject: str
    detail: str
    href: str


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The state of a matrix on a device model."""

    newest: Newest
    """the newest run of the whole matrix; where there is none, the newest run of a part"""
    part: Newest | None
    """the newest run of a part of the matrix; None where ``newest`` is newer"""
    before: tuple[Summary | None, ...]
    """summaries of the newest runs, the newest first; None = the run is being judged"""
    signed: int

    @property
    def where(self) -> str:
        """Matrix and device model."""
        return f"{self.newest.head.matrix} on {self.newest.head.variant}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceState:
    """What the page shows of the canary service."""

    holds: Sequence[HoldRow]
    """the open holds"""
    dead: Sequence[Alert]
    leases: Sequence[Lease]
    overdue: Mapping[str, datetime]
    """canaries that are overdue, each with the moment at which a fire should have happened"""


ITEMS: tuple[Column[Item], ...] = (
    Column(
        key="what",
        title="What",
        cell=lambda it: f"{verdict_words(it.verdict).partition(' ')[0]} {it.what}",
        tone=lambda it: it.verdict,
    ),
    Column(key="subject", title="Where", cell=lambda it: it.subject, page=lambda it: it.href),
    Column(key="detail", title="Detail", cell=lambda it: it.detail, sentence=True),
)
STATES: tuple[Column[State], ...] = (
    Column(
        key="verdict",
        title="Verdict",
        cell=lambda it: run_words(it.newest.summary),
        tone=lambda it: tone_of(it.newest.summary.shown if it.newest.summary else None),
    ),
    Column(
        key="matrix",
        title="Matrix",
        cell=lambda it: it.newest.head.matrix,
        page=lambda it: address("runs", matrix=it.newest.head.matrix),
    ),
    Column(key="device", title="Device", name=True, cell=lambda it: it.newest.head.variant),
    Column(key="trend", title="Trend (newest right)", cell=lambda it: trend(it.before)),
    Column(
        key="proven",
        title="Shapes proven",
        cell=lambda it: proven_shapes(it.newest.head, it.newest.summary),
    ),
    Column(
        key="run",
        title="Run",
        cell=lambda it: it.newest.head.id,
        code=True,
        page=lambda it: run_address(it.newest.head.id),
    ),
    Column(key="began", title="Began (UTC)", cell=lambda it: f"{it.newest.head.started_at:%Y-%m-%d %H:%M}"),
    Column(
        key="signed",
        title="Signed",
        cell=lambda it: it.signed or "nobody",
        page=lambda it: f"{run_address(it.newest.head.id)}/decision",
    ),
)
PART: Column[State] = Column(key="part", title="", cell=lambda it: it.part.head.id if it.part else None)
"""column that only JSON and CSV have; the page has links below the table instead"""


def home_page(
    states: Sequence[State],
    service: ServiceState,
    now: datetime,
    counts: Mapping[str, int],
    duels: Sequence[DuelRow] = (),
    open_runs: Sequence[RunHead] = (),
    fleets: Sequence[Coverage] = (),
) -> PartsPage:
    """What needs attention, the state of each matrix on each device model, and the newest duels.

    Args:
        open_runs: the newest runs of whole matrices that have not ended.
        fleets: the newest fleet of each matrix that has ended.
    """
    items = (
        *_of_runs(states, now),
        *_of_fleets(fleets),
        *_of_open_runs(open_runs, now),
        *_of_service(service),
        *_of_waivers(states, now.date()),
    )
    late = sum(it.newest.summary is None for it in states) + sum(map(_uncompared, fleets))
    told = f"{counted(late, 'verdict is', 'verdicts are')} being worked out; reload the page in a moment."
    nothing = NOT_YET if late else "Nothing needs attention." if states else "Nothing is known yet."
    stored = counted(counts["runs"], "run is", "runs are")
    return PartsPage(
        title="What needs attention",
        summary=f"{counted(len(items), 'thing needs', 'things need')} attention; {stored} stored.",
        here="/",
        twin="/home.json",
        csv="/home.csv",
        notes=(told,) if late else (),
        parts=(_attention(items, nothing), _standing(states), *([newest_duels(duels)] if duels else [])),
    )


def _attention(items: Sequence[Item], nothing: str) -> PagePart:
    """The part that lists what needs attention.

    Args:
        nothing: text where no item needs attention.
    """
    table: AnyTable = Table(caption="What needs attention, the worst first", columns=ITEMS, rows=_worst_first(items))
    return PagePart(key="attention", heading="Now", count=str(len(items)), table=table, empty=nothing)


def _standing(states: Sequence[State]) -> PagePart:
    words = ", ".join(verdict_words(it) for it in ("PASS", "FAIL", "INCONCLUSIVE"))
    runs = "the newest completed run of the whole matrix; where there is none, of a part"
    caption = f"For each matrix and device model, {runs}. Trend: {words}, {DEMONSTRATED}, {PENDING}"
    table: AnyTable = Table(caption=caption, columns=STATES, rows=tuple(states))
    return PagePart(
        key="states",
        heading="How it stands",
        table=replace(table, columns=(*STATES, PART)),
        shown=table,
        empty=NO_RUN,
        links_to="Newer runs of a part: ",
        links=tuple(
            PageLink(text=f"{it.where}: {it.part.head.id}", href=run_address(it.part.head.id))
            for it in states
            if it.part
        ),
    )


def _worst_first(items: Sequence[Item]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=lambda it: SEVERITY.index(it.verdict)))


def _of_runs(states: Sequence[State], now: datetime) -> list[Item]:
    found = []
    for state in states:
        head, newest = state.newest.head, "newest whole run" if state.part else "newest run"
        found += _of_verdict(state.newest, newest, state.where)
        found += _of_times(state.newest, newest, state.where)
        if state.part and state.part.summary and state.part.summary.verdict == "FAIL":
            found += _of_verdict(state.part, "newer run of a part", state.where)
        if (age := now - (since := oldest(head))) > OLD:
            found.append(
                Item(
                    verdict="INCONCLUSIVE",
                    what="old evidence",
                    subject=state.where,
                    detail=f"the {newest} {'came here' if since == head.received_at else 'began'} {age.days} days ago",
                    href=run_address(head.id),
                )
            )
    return found


def _of_verdict(run: Newest, which: str, where: str) -> list[Item]:
    """An item for a run that is not qualified or has no verdict; no item for another run.

    Args:
        which: what the item calls the run, for example "newest run".
        where: matrix and device model.
    """
    head, summary = run.head, run.summary
    if summary is None or summary.verdict not in ("FAIL", "INCONCLUSIVE"):
        return []
    words = "is not qualified" if summary.verdict == "FAIL" else "has no verdict"
    why = _why_not(run, summary)
    return [
        Item(verdict=summary.verdict, what=f"{which} {words}", subject=where, detail=why, href=run_address(head.id))
    ]


def _of_times(run: Newest, which: str, where: str) -> list[Item]:
    """An item for a run that nothing holds back and whose cases became slower: somebody has to accept that."""
    head, summary = run.head, run.summary
    if summary is None or not summary.slower or summary.verdict != "PASS":
        return []
    word, most = ("case is", "") if summary.slower == 1 else ("cases are", " at most")
    detail = f"{summary.slower:,} {word} slower than in run {summary.slower_than}: {summary.slowest:.3g} times as long"
    what = f"{which} became slower"
    return [Item(verdict="WAIVED", what=what, subject=where, detail=f"{detail}{most}", href=run_address(head.id))]


def _why_not(run: Newest, summary: Summary) -> str:
    """How many cases failed or are undecided, their largest groups, and how many shapes have a proven path."""
    against = summary.cases.get(summary.verdict, 0)
    total = sum(count for name, count in summary.cases.items() if name != "NOT_REQUIRED")
    one, more = ("fails", "fail") if summary.verdict == "FAIL" else ("is undecided", "are undecided")
    told = told_once(row for row in trouble_rows([run]) if row.trouble.verdict == summary.verdict)
    groups = [title(row.trouble.kernel, row.trouble.check, row.phases) for row in told]
    return "; ".join(
        [
            *(["only a part of the matrix was selected"] if run.head.narrowed else []),
            *([f"{against:,} of {counted(total, 'case')} {one if against == 1 else more}"] if against else []),
            *groups[:3],
            *([f"and {counted(len(groups) - 3, 'more group')}"] if len(groups) > 3 else []),
            proven_paths(summary.proven, summary.shapes),
        ]
    )


def _uncompared(fleet: Coverage) -> bool:
    """Whether the verdict on a fleet waits until the results of its cards are compared."""
    return fleet.compared is None and fleet.shown != "FAIL"


def _of_fleets(fleets: Sequence[Coverage]) -> list[Item]:
    """Items for fleets that are not qualified or have no verdict: what did not pass, and cards that differ."""
    found = []
    for fleet in fleets:
        if fleet.shown == "PASS" or _uncompared(fleet):
            continue
        words = "is not qualified" if fleet.shown == "FAIL" else "has no verdict"
        odd = odd_words(fleet)
        more = [f"and {counted(len(odd) - 3, 'more card')}"] if len(odd) > 3 else []
        found.append(
            Item(
                verdict=fleet.shown,
                what=f"newest fleet {words}",
                subject=f"fleet {fleet.fleet.id} of {fleet.fleet.matrix}",
                detail="; ".join([fleet_words(fleet), *odd[:3], *more]),
                href=fleet_address(fleet.fleet.id),
            )
        )
    return found


def _of_open_runs(heads: Sequence[RunHead], now: datetime) -> list[Item]:
    """Items for runs that were interrupted, or whose process is probably gone; the shown verdicts are older runs."""
    found = []
    for head in heads:
        began = f"it began on {head.started_at:%Y-%m-%d %H:%M} UTC"
        if head.state == "interrupted":
            what, detail = "newest run was interrupted", f"{began}; cases without a result prove nothing"
        elif now - head.started_at > LONGEST:
            what, detail = "newest run does not end", f"{began}; its process may be gone"
        else:
            continue
        where = f"{head.matrix} on {head.variant}" if head.variant else head.matrix
        found.append(Item(verdict="INCONCLUSIVE", what=what, subject=where, detail=detail, href=run_address(head.id)))
    return found


def _of_service(service: ServiceState) -> list[Item]:
    return [
        *map(_of_hold, service.holds),
        *map(_of_alert, service.dead),
        *(_of_overdue(name, at) for name, at in service.overdue.items()),
        *(_of_trouble(lease) for lease in service.leases if lease.trouble),
    ]


def _of_hold(row: HoldRow) -> Item:
    return Item(
        verdict="INCONCLUSIVE" if row.seen else "FAIL",
        what="acknowledged hold" if row.seen else "hold",
        subject=f"{row.hold.canary} on {row.hold.node or 'every node'}",
        detail=row.hold.reason,
        href=f"/holds/{row.hold.id}",
    )


def _of_alert(alert: Alert) -> Item:
    return Item(
        verdict="FAIL",
        what="alert that nobody got",
        subject=alert.canary,
        detail=f"{alert.target}: {alert.last_error}",
        href=address("canaries", alert.canary),
    )


def _of_overdue(name: str, at: datetime) -> Item:
    due = f"due since {at:%Y-%m-%d %H:%M} UTC"
    return Item(verdict="FAIL", what="overdue canary", subject=name, detail=due, href=address("canaries", name))


def _of_trouble(lease: Lease) -> Item:
    return Item(
        verdict="INCONCLUSIVE",
        what="trouble of the canary service",
        subject=lease.holder,
        detail=lease.trouble,
        href="/canaries",
    )


def _of_waivers(states: Sequence[State], today: date) -> list[Item]:
    found = []
    for row in waiver_rows([it.newest for it in states], today):
        use, left = row.use, (row.use.waiver.expires - today).days
        verdict: Verdict = "WAIVED"
        if use.state == "passing":
            said = "passes again: remove it"
        elif use.state == "elsewhere" or left > SOON.days:
            continue
        elif left < 0:
            said, verdict = f"ended on {use.waiver.expires}", "FAIL"
        else:
            said = f"ends on {use.waiver.expires}, in {counted(left, 'day')}" if left else "ends today"
        found.append(
            Item(
                verdict=verdict,
                what="waiver",
                subject=f"{use.waiver.id} ({use.waiver.owner})",
                detail=said,
                href="/waivers",
            )
        )
    return found
