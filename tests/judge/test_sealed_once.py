"""What must be sealed is read once: the evidence that was checked is the evidence that is judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
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
from qualify.judge.seals import Seals
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
    """Also where the gate compares with it and says what is weaker; an unsealed one is no verdict, said once."""
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


def test_a_run_that_is_written_meanwhile_does_not_count_yet(store: Store, tmp_path: Path) -> None:
    """It was listed while it ran, and is sealed now: what is judged must be what the seal is about."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    pair, run = new_pair(tmp_path), store_run(store, tmp_path / "serving.yaml")
    seal_run(store, run.id, pair.signing)
    running = replace(run, state="running", finished_at=None)
    assert ["", "it is being written"] == [Seals(store, pair.trusted).why_not(it) for it in (run, running)]
    assert "" == Seals(store).why_not(running)


def test_the_note_says_who_sealed_a_run_or_why_it_does_not_count(store: Store, tmp_path: Path) -> None:
    """Without keys nobody asked, and nothing is said."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    pair, stranger = new_pair(tmp_path), new_pair(tmp_path, "stranger")
    run = store_run(store, tmp_path / "serving.yaml")
    assert [] == Seals(store).note(run)
    (unsealed,) = Seals(store, pair.trusted).note(run)
    assert unsealed.startswith(f"the evidence of run {run.id} does not count: it is not sealed")
    seal_run(store, run.id, pair.signing)
    (sound,), (strange,) = (Seals(store, it.trusted).note(run) for it in (pair, stranger))
    assert sound.startswith(f"run {run.id} is sealed by ")
    assert sound.endswith(f" ({pair.signing.public.id[:12]}), and unchanged")
    assert strange.startswith(f"the evidence of run {run.id} does not count: ")
