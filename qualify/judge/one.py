"""The verdict on one case of a run, as the gate gives it, without the evidence of the run's other cases."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from qualify.cards.load import LoadedKernel, in_environments, parse_matrix
from qualify.cards.matrix import MatrixCard
from qualify.cards.waivers import refuse_broad
from qualify.errors import CardError
from qualify.facts.run import Judgement, Record, Run
from qualify.judge.judged import rules_of, waivers_of
from qualify.store.store import Store
from qualify.verdict.gate import conclude


class CaseJudge:
    """Judges a case in several runs, each by its own matrix and waivers; equal matrices are read once.

    The other cases of a run are read only where the driver reported an error during it, because they count there.

    Args:
        now: its day decides which waivers are in force.
        noted: ids of the runs in which a case has a finding ``xid``.
    """

    def __init__(
        self, store: Store, kernels: Mapping[str, LoadedKernel], now: datetime, noted: Collection[str]
    ) -> None:
        self._store = store
        self._kernels = kernels
        self._now = now
        self._noted = noted
        self._matrices: dict[tuple[str, str], MatrixCard] = {}

    def judge(self, run: Run, record: Record) -> Judgement | None:
        """What the gate says of the case; None where it refuses the run's matrix or waivers."""
        try:
            card = self._matrix(run)
            _, items, _ = waivers_of(card, run, None, card.policy.waivers)
            if items and card.policy.waivers.max_cases is not None:
                refuse_broad(items, card.policy.waivers, self._store.case_ids(run.id))
        except CardError:
            return None
        kernels = in_environments(self._kernels, run.environments)
        records = self._store.records(run.id) if run.id in self._noted else [record]
        judgements = conclude(records, rules_of(run, card, kernels, items, self._now)).judgements
        return next(judgement for judgement in judgements if judgement.case_id == record.case.id)

    def _matrix(self, run: Run) -> MatrixCard:
        key = run.matrix_source, run.matrix_path
        if key not in self._matrices:
            self._matrices[key] = parse_matrix(*key)
        return self._matrices[key]
