"""The pages that take seconds: reports of runs and comparisons, kept for each state of what they show."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from qualify.cards.load import LoadedKernel
from qualify.errors import UsageError
from qualify.facts import codec
from qualify.facts.comparison import Comparison
from qualify.facts.overview import RunHead
from qualify.facts.typed import Typed
from qualify.judge.against import compare_with
from qualify.judge.judged import Judged
from qualify.report.beside import beside_of
from qualify.report.context import ReportContext, report_context
from qualify.report.diff_page import diff_page
from qualify.report.differences import SCHEMA, to_data
from qualify.report.document import to_json
from qualify.report.page import render_html, render_page
from qualify.report.site import SiteFrame
from qualify.report.sitepages.parts import case_address, run_address
from qualify.report.sitepages.run_cases import CaseLine, lines_of
from qualify.report.views import join
from qualify.store.store import Store
from qualify.web.rendered import Packed, Rendered, pack
from qualify.web.verdicts import Verdicts

MOST_BYTES = 128 << 20
"""most bytes of reports and comparisons in memory"""
AT_ONCE = 2
"""reports and comparisons that are made at the same time; one of 5,000 cases takes seconds and 100 MB"""


class Reports:
    """Reports and comparisons; UsageError for what is not stored.

    Args:
        typed: options that printed commands repeat.
    """

    def __init__(self, store: Store, verdicts: Verdicts, kernels: Mapping[str, LoadedKernel], typed: Typed) -> None:
        self._store = store
        self._verdicts = verdicts
        self._kernels = kernels
        self._typed = typed
        self._kept = Rendered(most_bytes=MOST_BYTES, at_once=AT_ONCE)

    def head(self, run: str) -> RunHead:
        """The run given by its id, the beginning of one, or ``latest``. Raises UsageError, NoVerdict as the store."""
        found = self._store.overview.head(run) or self._store.overview.head(self._store.resolve(run))
        if found is None:
            raise UsageError(f"run {run!r} has been removed meanwhile")
        return found

    def report(self, run: str, *, twin: bool) -> Packed:
        """The report of a run."""
        head = self.head(run)

        def render() -> str:
            context = self._context(self._verdicts.judged(self.head(head.id)))
            return to_json(context) if twin else render_html(context, _frame(run_address(head.id)))

        return self._made(("report", twin), head, (), render)

    def lines(self, run: str) -> list[CaseLine]:
        """The cases of a run for their list, the worst first."""
        head = self.head(run)

        def render() -> str:
            judged = self._verdicts.judged(self.head(head.id))
            return codec.to_json(lines_of(join(judged.records, judged.conclusion)))

        made = self._made(("cases",), head, (), render)
        return [CaseLine(**line) for line in json.loads(gzip.decompress(made.content))]

    def diff(self, after: str, before: str, *, twin: bool) -> Packed:
        """What changed between two runs."""
        head, accepted = self.head(after), before.partition(":")[0] == "baseline"
        other = before if accepted else self.head(before).id

        def render() -> str:
            comparison = self._compared(self.head(head.id), other)
            if twin:
                return codec.to_json({"schema": SCHEMA, **to_data(comparison)})
            at = f"{run_address(head.id)}/against/{other if accepted else comparison.before.id}"
            return render_page("diff.html", diff_page(comparison, case=case_address), frame=_frame(at, "/compare"))

        return self._made(("diff", other, twin), head, () if accepted else (other,), render)

    def _made(
        self, kind: tuple[Hashable, ...], head: RunHead, others: tuple[str, ...], render: Callable[[], str]
    ) -> Packed:
        """A page about a run and others, made again where one of them changed, or the verdict on the first."""

        def state() -> Hashable | None:
            versions = [self._store.overview.version(it) for it in (head.id, *others)]
            key = self._verdicts.key(self.head(head.id))
            return (key, *versions) if key else None

        return self._kept.get((*kind, head.id), state, lambda: pack(render()))

    def _context(self, judged: Judged) -> ReportContext:
        shown = beside_of(replace(judged, typed=self._typed))
        context = report_context(judged.run, judged.records, judged.conclusion, shown)
        at = run_address(judged.run.id)
        return replace(context, decide=f"{at}/decision", cases_at=f"{at}/cases")

    def _compared(self, after: RunHead, before: str) -> Comparison:
        judged = self._verdicts.judged(after)
        against = compare_with(self._store, judged, before, self._kernels, now=datetime.now(UTC)).against
        assert against is not None, "it was just compared"
        return against.comparison


def _frame(at: str, here: str = "/runs") -> SiteFrame:
    return SiteFrame(here=here, twin=f"{at}.json")
