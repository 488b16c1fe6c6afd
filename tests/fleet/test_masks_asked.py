"""A kind of mask from the matrix to the verdict, in the real command."""

from __future__ import annotations

from pathlib import Path

from cli_process import call

from qualify.facts.outcome import findings_of
from qualify.masks import parse
from qualify.store.store import Store

MATRIX = """\
matrix: gaps
models:
  - model: toy
    geometry: {groups: [{layers: [0], heads_q: 4, heads_kv: 2, head_dim: 64, mask: causal}]}
phases:
  prefill: {seqlen: 90}
  decode: {context: 150, batch: 2, page_size: [16]}
dtypes: [fp32]
masks: [dilated64x2]
kernels: [tiled-torch, torch-cpu-math]
policy: {timeout_s: 60, compile_timeout_s: 60}
"""


def test_a_dilated_mask_is_planned_run_and_judged(tmp_path: Path) -> None:
    """Tiled-torch passes on the CPU; a kernel that does not claim the mask is refused by its card, with the mask."""
    (tmp_path / "gaps.yaml").write_text(MATRIX)
    planned = call("plan", "gaps.yaml", "--json", cwd=tmp_path)
    assert 0 == planned.code, planned.err
    assert 2 == planned.out.count("mask=dilated (torch-cpu-math claims ")
    ended = call("run", "gaps.yaml", "--device", "cpu", "--db", "evidence.db", cwd=tmp_path)
    assert 0 == ended.code, ended.out + ended.err
    with Store.open(str(tmp_path / "evidence.db"), create=False) as store:
        (run,) = store.runs()
        records = [record for record in store.records(run.id) if record.case.kernel == "tiled-torch"]
    assert [("decode", "dilated64x2"), ("prefill", "dilated64x2")] == sorted(
        (record.case.phase, record.case.mask) for record in records
    )
    assert {parse("dilated64x2")} == {record.case.workload.mask for record in records}
    found = {finding.verdict for record in records for finding in findings_of(record.outcome)}
    assert {"pass", "note"} >= found > set()
