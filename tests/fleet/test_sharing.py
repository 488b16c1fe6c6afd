"""Equal calls of different models run once, and each model's shape is covered by that evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import make_case, make_evidence
from cli_process import Ended, call, write_cards

from qualify.facts.outcome import Crashed, Measured, Outcome, Refused, TimedOut, findings_of
from qualify.facts.run import Record
from qualify.fleet.sharing import calls_of, first_of_each, shared
from qualify.store.store import Store

MATRIX = """\
matrix: two
models:
  - {model: one, geometry: {groups: [{layers: [0, 1], heads_q: 2, heads_kv: 2, head_dim: 32, mask: causal}]}}
  - {model: other, geometry: {groups: [
      {layers: [0], heads_q: 2, heads_kv: 2, head_dim: 32, mask: causal},
      {layers: [1], heads_q: 2, heads_kv: 2, head_dim: 32, mask: full}]}}
phases:
  prefill: {seqlen: [8]}
  varlen: {lengths: [[8]]}
dtypes: [fp32]
kernels: [correct, wrong-shape]
"""
FIRST = "one.tp1/prefill/b1.q8.k8/fp32/causal"
OTHERS = ("one.tp1/varlen/l8/fp32/causal", "other.tp1/prefill/b1.q8.k8/fp32/causal", "other.tp1/varlen/l8/fp32/causal")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it ran."""
    place = tmp_path_factory.mktemp("sharing")
    write_cards(place / "cards", "correct", "wrong_shape")
    (place / "two.yaml").write_text(MATRIX)
    return place


@pytest.fixture(scope="module")
def ended(folder: Path) -> Ended:
    """Two models in two phases on a right and a wrong kernel: 12 cases, 4 calls."""
    return call("run", "two.yaml", "--cards", "cards", "--db", "evidence.db", "--device", "cpu", "--json", cwd=folder)


def test_what_is_planned_and_run_is_said(folder: Path, ended: Ended) -> None:
    """The number of different calls, by the plan and by the run."""
    planned = call("plan", "two.yaml", "--cards", "cards", "--json", cwd=folder).data
    assert {"cases": 12, "calls": 4, "refused": 0} == planned["counts"]
    assert "12 cases (4 calls)" in ended.err


def test_every_case_of_a_call_has_its_evidence(folder: Path, ended: Ended) -> None:
    """The very samples of the one that ran, and a note that says where they were taken."""
    with Store.open(str(folder / "evidence.db"), create=False) as store:
        records = {record.case.id: record for record in store.records(store.resolve("latest"))}
    first = records[f"{FIRST}/correct"].outcome
    assert isinstance(first, Measured)
    assert "shared" not in {finding.check for finding in first.evidence.findings}
    for cell in OTHERS:
        outcome = records[f"{cell}/correct"].outcome
        assert isinstance(outcome, Measured)
        assert (first.evidence.timing, first.evidence.wall_s) == (outcome.evidence.timing, outcome.evidence.wall_s)
        *same, note = outcome.evidence.findings
        assert list(first.evidence.findings) == same
        assert ("shared", "note", {"case": f"{FIRST}/correct"}) == (note.check, note.verdict, dict(note.values))


def test_a_wrong_call_fails_every_model_that_makes_it(ended: Ended) -> None:
    """A shared case hides nothing: each case of the wrong kernel is FAIL, each of the right one PASS."""
    cases = {case["id"]: case for case in ended.data["cases"]}
    assert 1 == ended.code
    for cell in (FIRST, *OTHERS):
        assert ("PASS", "FAIL") == (cases[f"{cell}/correct"]["verdict"], cases[f"{cell}/wrong-shape"]["verdict"])


def test_only_one_case_of_a_call_is_run_again_on_resume(folder: Path, ended: Ended) -> None:
    """A completed run has nothing left, with its shared cases among what is done."""
    again = call(
        "run", "two.yaml", "--cards", "cards", "--db", "evidence.db", "--resume", "latest", "--json", cwd=folder
    )
    assert (1, ended.data["counts"]) == (again.code, again.data["counts"])
    assert "nothing is left to run" in again.err


OUTCOMES: list[Outcome] = [
    Measured(evidence=make_evidence()),
    Crashed(stage="call", error="e", log="l", attempt=1),
    TimedOut(stage="call", limit_s=1.0, attempt=1),
    Refused(by="library", reasons=("no",)),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.outcome)
def test_each_kind_of_outcome_is_shared(outcome: Outcome) -> None:
    """The same outcome for each case; where it has findings, with the note."""
    cell = "small.tp1/prefill/b1.q70.k70/bf16/causal"
    cases: list[Any] = [
        make_case(cell=cell, content_hash="a"),
        make_case(cell=cell.replace("small", "other"), content_hash="a"),
        make_case(cell=cell.replace("small", "third"), content_hash="b"),
    ]
    assert [cases[0], cases[2]] == first_of_each(cases)
    first, second = shared(Record(case=cases[0], outcome=outcome), calls_of(cases))
    assert (cases[0], outcome, cases[1]) == (first.case, first.outcome, second.case)
    assert outcome.outcome == second.outcome.outcome
    notes = [finding.check for finding in findings_of(second.outcome)][len(findings_of(outcome)) :]
    assert ([] if isinstance(outcome, Refused) else ["shared"]) == notes
