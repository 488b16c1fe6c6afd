"""`qualify profile` where there are no counters to read."""

from __future__ import annotations

from pathlib import Path

from cli_process import call
from stored_runs import IDS, MATRIX, store_run

from qualify.store.store import Store


def test_a_case_of_a_cpu_has_no_counters(store: Store, tmp_path: Path, empty_sqlite: str) -> None:
    """Exit 2, and what to name instead; an unknown case is told as everywhere."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    run = store_run(store, tmp_path / "serving.yaml")
    ended = call("profile", IDS[0], "--db", empty_sqlite, cwd=tmp_path)
    assert 2 == ended.code, ended.err
    assert f"{IDS[0]} ran on a CPU in run {run.id}, and Nsight Compute reads counters of NVIDIA GPUs" in ended.err
    assert "--run RUN" in ended.err
    assert 2 == call("profile", "no/such/case", "--db", empty_sqlite, cwd=tmp_path).code
