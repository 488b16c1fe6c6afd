"""What the site shows of cases: the list of a run, one case of a run, and one case with its history."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from qualify.cards.load import LoadedKernel
from qualify.errors import UsageError
from qualify.facts.overview import RunHead
from qualify.facts.run import Judgement, Record
from qualify.facts.typed import Typed
from qualify.facts.xid import XID
from qualify.judge.one import CaseJudge
from qualify.report.sitepages.cases import CaseRow, case_page
from qualify.report.sitepages.parts import PartsPage
from qualify.report.sitepages.run_cases import CaseQuery, run_case_page, run_cases_page
from qualify.report.views import view_of
from qualify.store.store import Store
from qualify.web.reports import Reports
from qualify.web.verdicts import Verdicts

MOST = 800
"""cases on a page"""
HISTORY = 50
"""runs in the history of a case"""
JUDGED = 3
"""how many of them, the newest, get the verdict on the whole run for the page of the case"""


REMEMBERED = 20_000
"""runs for which the site remembers whether the driver reported an error"""


class Cases:
    """Pages of cases; UsageError for what is not stored, StoreError where the store fails."""

    def __init__(
        self, store: Store, verdicts: Verdicts, reports: Reports, kernels: Mapping[str, LoadedKernel], typed: Typed
    ) -> None:
        self._store = store
        self._verdicts = verdicts
        self._reports = reports
        self._kernels = kernels
        self._typed = typed
        self._looked_up: OrderedDict[str, tuple[RunHead, bool]] = OrderedDict()
        """by run id, the run as it was looked up, and whether the driver reported an error in it"""

    def of_run(self, run: str, query: CaseQuery, *, most: int = MOST) -> PartsPage:
        """One page of the list of the cases of a run.

        Args:
            most: cases that it lists at most.
        """
        query = replace(query, limit=max(1, min(query.limit, most)))
        return run_cases_page(self._reports.head(run), self._reports.lines(run), query)

    def in_run(self, run: str, case: str) -> PartsPage:
        """One case of a run with all its evidence."""
        head = self._reports.head(run)
        found, record = self._store.find_case(case, head.id)
        judgement = self._judge([head]).judge(found, record) or self._whole(head, record)
        # A page travels: its command does not say where the evidence is.
        typed = replace(self._typed, db="", environments=found.environment_words)
        return run_case_page(head, view_of(record, judgement), typed)

    def history(self, case_id: str, *, may_write: bool) -> PartsPage:
        """One case with its history."""
        found = self._store.overview.case_history(case_id, HISTORY)
        comments = self._store.people.comments(case_id=case_id)
        if not found and not comments:
            raise UsageError(f"no run has a case {case_id!r}. Models and their cases: /models")
        heads, around = [it.head for it in found], self._verdicts.around()
        # To judge each of these runs only for this page would keep the site busy for minutes.
        summaries = self._verdicts.summaries(heads[:JUDGED])
        judge, runs = self._judge(heads), self._store.runs_of([head.id for head in heads])
        rows = [
            CaseRow(
                found=it,
                judgement=judge.judge(runs[it.head.id], it.record) if it.head.id in runs else None,
                summary=summaries.get(it.head.id) or self._verdicts.known(it.head, around),
            )
            for it in found
        ]
        return case_page(case_id, rows, comments, may_write=may_write)

    def _whole(self, head: RunHead, record: Record) -> Judgement:
        """The judgement on a case from the verdict on the whole run. Raises NotJudged with all that is wrong."""
        found = self._verdicts.judged(head).conclusion.judgements
        return next(it for it in found if it.case_id == record.case.id)

    def _judge(self, heads: Sequence[RunHead]) -> CaseJudge:
        return CaseJudge(self._store, self._kernels, datetime.now(UTC), self._noted(heads))

    def _noted(self, heads: Sequence[RunHead]) -> set[str]:
        """The runs in which the driver reported an error. For a run that has ended, the site looks it up once."""
        seen = {head.id: self._looked_up.get(head.id) for head in heads}
        late = [head for head in heads if head.state == "running" or (it := seen[head.id]) is None or it[0] != head]
        asked = {head.id for head in late}
        found = self._store.overview.with_finding([head.id for head in late], XID)
        self._looked_up.update((head.id, (head, head.id in found)) for head in late)
        while len(self._looked_up) > REMEMBERED:
            self._looked_up.popitem(last=False)
        return found | {name for name, it in seen.items() if it and it[1] and name not in asked}
