"""The verdict on one case is that of the gate on its run, also where another case decides it."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import make_xid
from stored_runs import IDS, MATRIX, NOW, PASSED, WRONG, shipped_kernels, store_run

from qualify.facts.case import Case
from qualify.facts.outcome import Outcome, noted
from qualify.judge.judged import judge
from qualify.judge.one import CaseJudge
from qualify.store.store import Store


@pytest.mark.parametrize("number", [31, 154, 79])
@pytest.mark.parametrize("failing", ["", IDS[3]])
def test_errors_of_the_driver_count_for_each_case_as_for_the_run(
    store: Store, tmp_path: Path, number: int, failing: str
) -> None:
    """A card that failed takes all its cases along; a failure explains an error that is noted elsewhere."""
    (tmp_path / "serving.yaml").write_text(MATRIX)

    def outcome(case: Case) -> Outcome:
        return WRONG if case.id == failing else noted(PASSED, make_xid(number)) if case.id == IDS[1] else PASSED

    runs = [store_run(store, tmp_path / "serving.yaml", it) for it in (outcome, PASSED)]
    one = CaseJudge(store, shipped_kernels(), NOW, {runs[0].id})
    for run in runs:
        expected = judge(store, run.id, shipped_kernels(), now=NOW).conclusion.judgements
        assert list(expected) == [one.judge(run, record) for record in store.records(run.id)]
