"""What must be sealed is read once: the evidence that was checked is the evidence that is judged."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sealing import new_pair, seal_run
from stored_runs import MATRIX, NOW, PASSED, shipped_kernels, store_run

from qualify.facts.baseline import Baseline
from qualify.judge.against import compare_with
from qualify.judge.beside import beside_baseline
from qualify.judge.judged import judge
from qualify.store.store import Store


class Counting(Store):
    """A store that counts how often each run's evidence is read."""

    read: Counter[str]

    def evidence(self, run_id: str) -> Any:
        """All of a run, counted."""
        self.read[run_id] += 1
        return super().evidence(run_id)


@pytest.mark.parametrize("against", ["baseline", ""])
def test_a_sealed_baseline_is_read_once(empty_sqlite: str, tmp_path: Path, against: str) -> None:
    """Also where the gate compares with it and says what is asked less; an unsealed one is no verdict, said once."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    pair, kernels = new_pair(tmp_path), shipped_kernels()
    with Counting.open(empty_sqlite) as store:
        store.read = Counter()
        first, second = (
            store_run(store, tmp_path / "serving.yaml", PASSED, age=timedelta(hours=hours)) for hours in (3, 1)
        )
        facts = {"variant": first.stack.device.variant, "accepted_by": "jane", "reason": "7", "accepted_at": NOW}
        store.accept(Baseline(matrix=first.matrix, run_id=first.id, **facts))
        seal_run(store, second.id, pair.signing)
        for key, expected in ((None, "INCONCLUSIVE"), (pair.signing, "PASS")):
            if key:
                seal_run(store, first.id, key)
            store.read.clear()
            judged = judge(store, second.id, kernels, now=NOW, keys=pair.trusted)
            if against:
                judged = compare_with(store, judged, against, kernels, now=NOW, keys=pair.trusted)
            judged = beside_baseline(store, judged, keys=pair.trusted)
            assert {first.id: 1, second.id: 1} == store.read
            assert expected == judged.conclusion.verdict
