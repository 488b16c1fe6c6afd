"""What the routes show, read from the store: pages, whose JSON and CSV come from the same parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from qualify.cards.load import LoadedKernel
from qualify.errors import QualifyError, UsageError
from qualify.facts import codec
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.fleet import Coverage
from qualify.facts.overview import RunHead, RunQuery
from qualify.facts.run import Run
from qualify.facts.typed import PLAIN, Typed
from qualify.judge.duels import check_duel
from qualify.judge.judged import Judged
from qualify.judge.newer import newer_failure_note
from qualify.judge.signing import Person, signed_as, why_not_signed
from qualify.plan.code import code_of_cards
from qualify.report.columns import AnyTable
from qualify.report.fleets import fleets_data, fleets_page
from qualify.report.page import render_page
from qualify.report.selftest import SCHEMA as SELFTEST_SCHEMA
from qualify.report.selftest import page_of, released
from qualify.report.selftest import to_data as selftest_data
from qualify.report.site import MessagePage, SiteFrame
from qualify.report.sitepages import canaries as canary_pages
from qualify.report.sitepages import duels as duel_pages
from qualify.report.sitepages import home as home_page
from qualify.report.sitepages import models as model_pages
from qualify.report.sitepages import people as people_pages
from qualify.report.sitepages import runs as run_pages
from qualify.report.sitepages import stacks as stack_pages
from qualify.report.sitepages.fleet import CardQuery, fleet_page
from qualify.report.sitepages.parts import PartsPage, last_offset, render_parts
from qualify.report.sitepages.standing import unfinished
from qualify.store.store import Store
from qualify.web.cases import Cases
from qualify.web.claims import about, claims_of
from qualify.web.duels import Duels
from qualify.web.fleets import ComparedFleets
from qualify.web.newest import FRESH_S, NewestRuns
from qualify.web.rendered import Packed, Rendered, pack
from qualify.web.reports import Reports
from qualify.web.verdicts import Verdicts

SHOWN, MOST = 50, 800
"""runs on a page: at first, and at most"""
PREPARED_S = 0.5
"""seconds that the start spends on judging the newest runs"""
FIRES = 200
FLEETS = 5
DUELS, DUELS_NOW = 200, 5
"""duels in their list, and on the first page"""
RUNS_OF_DUEL = 5
LINES = 200
"""lines of the audit log on a page"""
PIECE = 400
"""rows of a long list that are in memory at the same time while it is sent"""
MOST_BYTES = 32 << 20
"""most bytes of pages in memory, beside reports and comparisons"""
AT_ONCE = 16
"""pages that are made at the same time"""


class Site:
    """The stored evidence as pages; UsageError for what is not stored, StoreError where the store fails."""

    def __init__(
        self,
        store: Store,
        kernels: Mapping[str, LoadedKernel],
        typed: Typed = PLAIN,
        *,
        folders: Sequence[Path] = (),
    ) -> None:
        """A site.

        Args:
            folders: the --cards folders, whose functions must have made what somebody signs.
        """
        self.store = store
        self._folders = folders
        self._kernels = kernels
        self._typed = typed
        self.verdicts = Verdicts(store, kernels)
        self.shown_fleets = ComparedFleets(store, kernels)
        self._duels = Duels(store)
        self._reports = Reports(store, self.verdicts, kernels, typed)
        self.cases = Cases(store, self.verdicts, self._reports, kernels, typed)
        self._lists = Rendered(most_bytes=MOST_BYTES, at_once=AT_ONCE, fresh_s=FRESH_S)
        self._newest = NewestRuns(store, self.verdicts)

    def prepare(self) -> None:
        """Makes before the first request what answers need: templates, statements, connections, the newest verdicts.

        Where the store does not answer now, the first request does that work.
        """
        render_parts(PartsPage(title="", parts=()))
        with suppress(QualifyError):
            query = RunQuery(limit=SHOWN)
            self.verdicts.summaries(self.store.overview.runs(query).heads, budget_s=PREPARED_S)
            render_parts(self.runs(query))
            render_parts(self.home())

    def kept(self, key: Hashable, render: Callable[[], str]) -> Packed:
        """A page that is rendered anew where somebody wrote into the store, and each second: so new verdicts are seen.

        Args:
            key: which page it is; it holds everything that it depends on beside the store: filters, rights, format.
        """
        return self._lists.get(key, self._state, lambda: pack(render()))

    def _state(self) -> Hashable | None:
        """The state of the store; None where nobody can tell whether it changes."""
        return self.store.mark()

    def head(self, run: str) -> RunHead:
        """The run given by its id, the beginning of one, or ``latest``. Raises UsageError, NoVerdict as the store."""
        return self._reports.head(run)

    def home(self) -> PartsPage:
        """What needs attention now."""
        service = self.store.canaries
        states = self._newest.states(self._signed)
        now, overdue = service.now(), service.owed()
        told = home_page.ServiceState(
            holds=self._holds(""),
            dead=service.alerts("dead"),
            leases=service.leases(),
            overdue={canary: at for (_, canary), at in sorted(overdue.items()) if at < now},
        )
        counts, duels = self.store.overview.counts(), self._duels.rows(DUELS_NOW)
        open_runs = unfinished(self.store.overview.runs(RunQuery(limit=SHOWN)).heads)
        return home_page.home_page(states, told, now, counts, duels, open_runs, self._ended_fleets())

    def _ended_fleets(self) -> list[Coverage]:
        """Of the newest fleets, the newest one of each matrix that has ended."""
        ended = [fleet for fleet in self.store.fleets.fleets(FLEETS) if fleet.state == "ended"]
        newest = {fleet.matrix: fleet for fleet in reversed(ended)}
        return [self.shown_fleets.coverage(fleet) for fleet in newest.values()]

    def runs(self, query: RunQuery) -> PartsPage:
        """One page of the list of runs."""
        overview = self.store.overview
        query = replace(query, limit=max(1, min(query.limit, MOST)), offset=max(0, min(query.offset, 10**9)))
        found = overview.runs(query)
        if not found.heads and found.total:
            query = replace(query, offset=last_offset(query.offset, query.limit, found.total))
            found = overview.runs(query)
        rows = self._rows(found.heads)
        trends = {}
        if query.matrix:
            pairs = {pair: heads for pair, heads in self._newest.runs().items() if pair[0] == query.matrix}
            known = self.verdicts.summaries([head for heads in pairs.values() for head in heads])
            trends = {
                f"Trend on {pair[1]}": run_pages.trend([known.get(it.id) for it in heads])
                for pair, heads in pairs.items()
            }
        return run_pages.runs_page(query, found, rows, overview.matrices(), trends)

    def run_tables(self, query: RunQuery) -> Iterator[AnyTable]:
        """All runs that a query asks for, in pieces; at least one."""
        ids = self.store.overview.run_ids(query)
        for start in range(0, max(1, len(ids)), PIECE):
            yield run_pages.for_machines(self._rows(self.store.overview.heads(ids[start : start + PIECE])))

    def compare(self, after: str, before: str) -> PartsPage:
        """Which two runs to compare."""
        return run_pages.compare_page(self._rows(self.store.overview.runs(RunQuery(limit=20)).heads), after, before)

    def report(self, run: str, *, twin: bool) -> Packed:
        """The report of a run."""
        return self._lists.get(("report", run, twin), self._state, lambda: self._reports.report(run, twin=twin))

    def diff(self, after: str, before: str, *, twin: bool) -> Packed:
        """What changed between two runs."""
        return self._lists.get(
            ("diff", after, before, twin), self._state, lambda: self._reports.diff(after, before, twin=twin)
        )

    def decision(
        self, run: str, *, roles: Sequence[str], may_write: bool, proven: bool, person: Person | None = None
    ) -> PartsPage:
        """Where people sign a run and comment.

        Args:
            person: who asks; None = somebody who has signed nothing.
        """
        judged = self.judged(run)
        head = self.head(judged.run.id)
        return people_pages.decision_page(
            people_pages.Decision(
                judged=judged,
                sha256=self.store.evidence(head.id).sha256,
                comments=self.store.people.comments(run_id=head.id),
                accepted=self.store.baseline(head.matrix, head.variant) is not None,
                why_not=why_not_signed(judged),
                newer=self._failed_since(judged.run),
                roles=roles,
                done=signed_as(judged, person) if person else frozenset(),
                may_write=may_write,
                proven=proven,
            )
        )

    def judged(self, run: str) -> Judged:
        """A run with the verdict of ``gate --run``, as a person signs it."""
        return self.verdicts.judged(self.head(run), code_of_cards(self._folders))

    def _failed_since(self, run: Run) -> Sequence[str]:
        """A note where a newer run on the same stack is not qualified."""

        def exit_code(other: str) -> int:
            return self.verdicts.summary(self.head(other)).exit_code

        return newer_failure_note(self.store, run, exit_code, datetime.now(UTC), replace(self._typed, db=""))

    def fleets(self, *, twin: bool) -> str:
        """The newest fleets."""
        found = [self.shown_fleets.coverage(fleet) for fleet in self.store.fleets.fleets(FLEETS)]
        if twin:
            return codec.to_json({"schema": "qualify.fleets/1", **fleets_data(found)})
        page = fleets_page(found)
        return render_page("fleets.html", page, frame=page)

    def fleet(self, name: str, query: CardQuery, *, most: int = MOST) -> PartsPage:
        """One fleet, given by its id, the beginning of one, or ``latest``.

        Args:
            most: cards that the page lists at most.
        """
        query = replace(query, limit=max(1, min(query.limit, most)))
        return fleet_page(self.shown_fleets.coverage(self.store.fleets.fleet(name)), query)

    def models(self) -> PartsPage:
        """Every model of the newest runs."""
        return model_pages.names_page("models", self._newest.details(), {})

    def model(self, name: str) -> PartsPage:
        """One model."""
        return _there(model_pages.model_page(name, self._newest.details()), "model", name, "/models")

    def kernels(self) -> PartsPage:
        """Every kernel, of cards and of the newest runs."""
        notes = {name: about(kernel) for name, kernel in self._kernels.items()}
        return model_pages.names_page("kernels", self._newest.details(), notes)

    def kernel(self, name: str) -> PartsPage:
        """One kernel: claimed, measured, found."""
        card = self._kernels.get(name)
        return _there(
            model_pages.kernel_page(name, claims_of(card) if card else (), self._newest.details()),
            "kernel",
            name,
            "/kernels",
        )

    def findings(self) -> PartsPage:
        """What is wrong now."""
        return model_pages.findings_page(self._newest.details())

    def waivers(self) -> PartsPage:
        """The waivers of the newest runs."""
        return model_pages.waivers_page(self._newest.details(), datetime.now(UTC).date())

    def duels(self) -> PartsPage:
        """The newest duels."""
        return duel_pages.duels_page(self._duels.rows(DUELS))

    def duel(self, name: str) -> PartsPage:
        """One duel, and the newest runs that its verdict is about."""
        found = self.store.duel(self.store.resolve_duel(name))
        query = RunQuery(matrix=found.duel.matrix, stack=found.duel.stack_b.fingerprint, limit=RUNS_OF_DUEL)
        runs = self._rows(self.store.overview.runs(query).heads)
        linked = self.store.overview.with_history([cell.b for cell in found.duel.cells])
        why_not = check_duel(found.duel).why_not
        return duel_pages.duel_page(found.duel, runs, linked, sealed=found.seal is not None, why_not=why_not)

    def stacks(self) -> PartsPage:
        """Every stack."""
        return stack_pages.stacks_page(self.store.overview.stacks())

    def stack(self, fingerprint: str) -> PartsPage:
        """One stack."""
        found = self.store.overview.runs(RunQuery(stack=fingerprint, limit=SHOWN))
        stack = self.store.overview.stack(fingerprint)
        if stack is None:
            raise UsageError(f"no run is of the stack {fingerprint!r}. All stacks: /stacks")
        return stack_pages.stack_page(stack, self._rows(found.heads))

    def canaries(self, name: str) -> PartsPage:
        """What one canary did, or all."""
        service = self.store.canaries
        fires, holds = service.fires(name or None, FIRES), self._holds(name)
        if name and not fires and not holds:
            raise UsageError(f"canary {name!r} has not fired here. What has: /canaries")
        dead = [alert for alert in service.alerts("dead") if name in ("", alert.canary)]
        return canary_pages.canaries_page(
            name,
            canary_pages.CanaryState(
                fires=fires, holds=holds, dead=dead, leases=service.leases(), alerts=service.alert_counts()
            ),
        )

    def holds(self) -> PartsPage:
        """Every hold."""
        return canary_pages.holds_page(self._holds("", released=True))

    def hold(self, number: int, *, may_act: bool) -> PartsPage:
        """One hold."""
        row = next((it for it in self._holds("", released=True) if it.hold.id == number), None)
        if row is None:
            raise UsageError(f"there is no hold {number}. All holds: /holds")
        return canary_pages.hold_page(row, may_act=may_act)

    def has_hold(self, number: int) -> bool:
        """Whether there is a hold of that number, open or not."""
        return any(hold.id == number for hold in self.store.canaries.holds(released=True))

    def selftest(self, *, twin: bool) -> str:
        """The newest result of the selftest for these checks; the release's where nobody ran it here."""
        here = self.store.selftest(CHECK_VERSION)
        result = here or released(CHECK_VERSION)
        if result is None and twin:
            return codec.to_json({"schema": SELFTEST_SCHEMA, "check_version": CHECK_VERSION, "faults": None})
        if result is None:
            text = f"Nobody has run the selftest of check version {CHECK_VERSION} here. Run it: qualify selftest"
            page = MessagePage(title="Selftest", text=text, here="/selftest", twin="/selftest.json")
            return render_page("message.html", page, frame=page)
        shipped = here is None
        if twin:
            return codec.to_json({"schema": SELFTEST_SCHEMA, "shipped": shipped, **selftest_data(result)})
        frame = SiteFrame(here="/selftest", twin="/selftest.json")
        return render_page("selftest.html", page_of(result, shipped=shipped), frame=frame)

    def audit(self, before: int | None) -> PartsPage:
        """One page of the audit log."""
        entries = self.store.people.audit(LINES, before)
        return people_pages.audit_page(entries, entries[-1].id if len(entries) == LINES else None)

    def audit_tables(self, before: int | None) -> Iterator[AnyTable]:
        """The whole audit log, or what is older than the line of a number, in pieces; at least one."""
        while entries := self.store.people.audit(PIECE, before):
            yield people_pages.audit_table(entries)
            before = entries[-1].id
        yield people_pages.audit_table(())

    def _rows(self, heads: Sequence[RunHead]) -> list[run_pages.RunRow]:
        summaries, before, signed = (
            self.verdicts.summaries(heads),
            self.store.overview.before(heads),
            self._signed(heads),
        )
        return [
            run_pages.RunRow(
                head=head, summary=summaries.get(head.id), before=before.get(head.id, ""), signed=signed[head.id]
            )
            for head in heads
        ]

    def _signed(self, heads: Sequence[RunHead]) -> Counter[str]:
        found = self.store.people.signoffs([head.id for head in heads])
        return Counter(it.run_id for it in found if it.revoked is None and it.proven)

    def _holds(self, name: str, *, released: bool = False) -> tuple[canary_pages.HoldRow, ...]:
        holds = self.store.canaries.holds(name or None, released=released)
        actions = self.store.people.hold_actions([hold.id for hold in holds])
        return canary_pages.hold_rows(holds, actions, self.store.canaries.runs_of([hold.fire_id for hold in holds]))


def _there(page: PartsPage | None, what: str, name: str, everything: str) -> PartsPage:
    if page is None:
        raise UsageError(f"no newest run has the {what} {name!r}, or it is being judged still. All: {everything}")
    return page
