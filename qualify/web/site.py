"""What the routes show, read from the store: pages and their JSON twins."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from threading import BoundedSemaphore
from typing import Any

from qualify.cards.load import LoadedKernel
from qualify.errors import UsageError
from qualify.facts import codec
from qualify.facts.comparison import Comparison
from qualify.facts.typed import PLAIN, Typed
from qualify.judge.against import compare_with
from qualify.judge.beside import beside_baseline
from qualify.report.context import ReportContext, report_context
from qualify.report.diff_page import diff_page
from qualify.report.differences import SCHEMA as DIFF_SCHEMA
from qualify.report.differences import to_data
from qualify.report.document import to_json
from qualify.report.page import render_html, render_page
from qualify.report.site import RunsPage, canaries_data, canaries_page, runs_data, with_verdicts
from qualify.store.store import Store
from qualify.web.verdicts import Verdicts

SHOWN, MOST = 50, 800
"""runs on a page: at first, and at most"""
FIRES = 200
AT_ONCE = 2
"""reports that are made at the same time; one of 5,000 cases takes seconds and 100 MB"""


class Site:
    """The stored evidence as pages; UsageError for what is not stored, StoreError where the store fails."""

    def __init__(self, store: Store, kernels: Mapping[str, LoadedKernel], typed: Typed = PLAIN) -> None:
        self.store = store
        self._typed = typed
        self.verdicts = Verdicts(store, kernels)
        self._kernels = kernels
        self._free = BoundedSemaphore(AT_ONCE)

    def runs(self, limit: int, *, twin: bool) -> str:
        """The newest runs."""
        limit = max(1, min(limit, MOST))
        found = self.store.runs(limit=limit + 1)
        told = {run.id: self.verdicts.summary(run) for run in found[:limit]}
        verdicts = {run_id: summary.verdict for run_id, summary in told.items()}
        rows = with_verdicts(found[:limit], verdicts, [run_id for run_id, it in told.items() if it.demonstration])
        if twin:
            return _json("runs", {"runs": runs_data(rows)})
        older = f"/?limit={limit * 4}" if len(found) > limit and limit < MOST else ""
        return render_page("runs.html", RunsPage(title="Runs", twin="/runs.json", rows=rows, older=older))

    def report(self, run: str, *, twin: bool) -> str:
        """The report of a run."""
        with self._free:
            context = self._context(self.store.resolve(run))
            return to_json(context) if twin else render_html(context)

    def diff(self, after: str, before: str, *, twin: bool) -> str:
        """What changed between two runs."""
        with self._free:
            comparison = self._compared(self.store.resolve(after), before)
            if twin:
                return codec.to_json({"schema": DIFF_SCHEMA, **to_data(comparison)})
            return render_page("diff.html", diff_page(comparison))

    def canaries(self, name: str, *, twin: bool) -> str:
        """What one canary did, or all."""
        canaries = self.store.canaries
        fires = canaries.fires(name or None, FIRES)
        holds, leases = canaries.holds(name or None), canaries.leases()
        if name and not fires and not holds:
            raise UsageError(f"canary {name!r} has not fired here. What has: /canaries")
        dead = [alert for alert in canaries.alerts("dead") if name in ("", alert.canary)]
        page = canaries_page(name, fires, holds, dead, leases)
        if twin:
            return _json("canaries", canaries_data(page, leases, canaries.alert_counts()))
        return render_page("canaries.html", page)

    def _context(self, run_id: str) -> ReportContext:
        judged = self.verdicts.judged(run_id)
        beside = beside_baseline(self.store, judged)
        shown = (judged.selftest, judged.against, beside.slower, self._typed, beside.weaker)
        # The verdict is the run's own, as in the list of runs: the baseline may be newer.
        return report_context(judged.run, judged.records, judged.conclusion, *shown)

    def _compared(self, after: str, before: str) -> Comparison:
        judged = self.verdicts.judged(after)
        against = compare_with(self.store, judged, before, self._kernels, now=datetime.now(UTC)).against
        assert against is not None, "it was just compared"
        return against.comparison


def _json(kind: str, data: dict[str, Any]) -> str:
    return codec.to_json({"schema": f"qualify.{kind}/1", **data})
