"""The last case of a plan and the last finding of an outcome are counted: whoever deletes one is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import answered, make_evidence, make_finding
from sqlalchemy import create_engine, text
from stored_runs import IDS, MATRIX, NOW, PASSED, Record, shipped_kernels, store_run, write_waivers

from qualify.cards.load import load_matrix
from qualify.errors import StoreError, UsageError
from qualify.facts.outcome import Measured, Outcome
from qualify.facts.run import Run
from qualify.judge.evidence import Fresh
from qualify.judge.gathered import gather
from qualify.judge.judged import Judged, judge
from qualify.store import transfer
from qualify.store.address import parse
from qualify.store.store import Store
from qualify.text import shell_word
from qualify.verdict.consistency import contradictions_of

SUSPECT = make_finding("fail", "another window", check="suspects")
"""what a check says that no level asks for"""
ANSWERED = answered(PASSED, "smoke")
WRONG = Measured(evidence=replace(ANSWERED.evidence, findings=(*ANSWERED.evidence.findings, SUSPECT)))
"""every check passes, and it says so last"""
LAST_FINDING = "DELETE FROM findings WHERE verdict = 'fail'"
TOLD = "its evidence contradicts itself: somebody deleted a finding of this case: its run stored {}, and {} are there"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The matrix of two shapes and two kernels."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path / "serving.yaml"


@pytest.fixture
def edit(empty_store: str) -> Iterator[Callable[..., None]]:
    """What somebody does with sqlite3 or psql."""
    engine = create_engine(parse(empty_store))

    def run(*statements: str) -> None:
        with engine.begin() as connection:
            for statement in statements:
                assert connection.execute(text(statement)).rowcount > 0, statement

    yield run
    engine.dispose()


def judged(store: Store, run: Run, **more: Any) -> Judged:
    """The verdict on the run."""
    return judge(store, run.id, shipped_kernels(), now=NOW, **more)


def reasons(found: Judged) -> list[str]:
    """Why cases give no verdict."""
    return [why for item in found.conclusion.judgements if item.verdict == "INCONCLUSIVE" for why in item.reasons]


def without(case: str) -> list[str]:
    """Statements that delete a case with all that hangs on it."""
    key = f"SELECT key FROM cases WHERE case_id = '{case}'"
    parts = f"SELECT id FROM outcomes WHERE case_key IN ({key})"
    return [
        *(f"DELETE FROM {name} WHERE outcome_id IN ({parts})" for name in ("findings", "launches")),
        f"DELETE FROM outcomes WHERE case_key IN ({key})",
        f"DELETE FROM cases WHERE case_id = '{case}'",
    ]


def first_is(outcome: Outcome) -> Callable[[Any], Outcome]:
    """The first case has this outcome, the others pass."""
    return lambda case: outcome if case.id == IDS[0] else PASSED


def test_the_last_finding_is_counted(store: Store, path: Path, edit: Callable[..., None], tmp_path: Path) -> None:
    """A failing check that no level asks for: without its finding the case would pass."""
    run = store_run(store, path, first_is(WRONG))
    assert 1 == judged(store, run).conclusion.exit_code
    before = len(store.records(run.id)[0].outcome.evidence.findings)  # type: ignore[union-attr]
    edit(LAST_FINDING)
    found = judged(store, run)
    assert (5, [TOLD.format(before, before - 1)]) == (found.conclusion.exit_code, reasons(found))
    told = contradictions_of(run, store.evidence(run.id).records)
    assert [f"{IDS[0]}: {TOLD.format(before, before - 1).partition(': ')[2]}"] == told
    # The file of it says the same wherever it is imported.
    store.export_run(run.id, tmp_path / "run.jsonl.gz")
    with Store.open(str(tmp_path / "other.db")) as other:
        other.import_run(tmp_path / "run.jsonl.gz")
        assert (5, reasons(found)) == (judged(other, run).conclusion.exit_code, reasons(judged(other, run)))


def test_a_waiver_covers_no_deleted_finding(
    store: Store, path: Path, edit: Callable[..., None], tmp_path: Path
) -> None:
    """Of two failures the waived one stays: the other was not waived."""
    both = make_evidence(make_finding("fail", "row 3 sees key 9"), SUSPECT)
    run = store_run(store, path, first_is(Measured(evidence=both)))
    waivers = write_waivers(tmp_path / "waivers.yaml", {"checks": ["census"]})
    edit("""DELETE FROM findings WHERE "check" = 'suspects'""")
    found = judged(store, run, waivers=waivers)
    assert 1 == found.conclusion.exit_code
    assert any("only census, not store" in why for item in found.conclusion.judgements for why in item.reasons)


def test_an_added_finding_is_counted(store: Store, path: Path, edit: Callable[..., None]) -> None:
    """Whoever adds the answer that is missing is seen, too."""
    run = store_run(store, path)
    last = "SELECT max(outcome_id), 1000, 'census', 'pass', '', '{}' FROM findings"
    edit(f"""INSERT INTO findings (outcome_id, position, "check", verdict, detail, "values") {last}""")
    (why,) = reasons(judged(store, run))
    assert "somebody deleted a finding" in why  # the place has a gap before it
    edit("UPDATE findings SET position = (SELECT count(*) FROM findings f WHERE f.outcome_id = findings.outcome_id) - 1"
         " WHERE position = 1000")  # fmt: skip
    (why,) = reasons(judged(store, run))
    assert "its evidence contradicts itself: somebody added a finding of this case: its run stored " in why


@pytest.mark.parametrize("case", [IDS[0], IDS[-1]])
def test_every_case_of_a_plan_is_counted(
    store: Store, path: Path, edit: Callable[..., None], tmp_path: Path, case: str
) -> None:
    """The last one as well as one between others; the run neither qualifies nor leaves the store."""
    run = store_run(store, path)
    store.export_run(run.id, tmp_path / "whole.jsonl.gz")
    edit(*without(case))
    found = judged(store, run)
    told = "1 case of its plan is missing"
    assert (5, f"run {run.id} contradicts itself: {told}") == (found.conclusion.exit_code, found.notes[0])
    evidence = store.evidence(run.id)
    assert told in contradictions_of(evidence.run, evidence.records)
    with pytest.raises(StoreError, match=f"run {run.id} contradicts itself: {told}"):
        store.export_run(run.id, tmp_path / "part.jsonl.gz")
    with pytest.raises(UsageError, match=r"has run .* with other content") as refused:
        store.import_run(tmp_path / "whole.jsonl.gz")
    assert f"Look: qualify verify {run.id} --db {shell_word(store._database.address)}. " in str(refused.value)


def test_a_file_without_a_case_is_not_imported(store: Store, path: Path, tmp_path: Path) -> None:
    """Whoever edits a file and its digest is seen by the count of its run."""
    run = store_run(store, path)
    whole = store.evidence(run.id)
    kept = whole.outcomes[: len(IDS) - 1]
    transfer.write(replace(whole, cases=whole.cases[:-1], outcomes=kept), tmp_path / "part.jsonl.gz")
    with (
        Store.open(str(tmp_path / "other.db")) as other,
        pytest.raises(UsageError, match="its run contradicts itself: 1 case of its plan is missing"),
    ):
        other.import_run(tmp_path / "part.jsonl.gz")


def test_a_gate_on_a_matrix_passes_over_a_run_that_lacks_a_case(
    store: Store, path: Path, edit: Callable[..., None]
) -> None:
    """An older pass does not stand for the failure that was deleted, unless all of its run is there; a note says so."""
    run = store_run(store, path, lambda case: WRONG if case.id == IDS[-1] else PASSED)
    edit(*without(IDS[-1]))
    wanted = Fresh(now=NOW, max_age=timedelta(hours=24), level="smoke")
    found = gather(store, load_matrix(str(path)), shipped_kernels(), wanted, waivers=(), waivers_path="")
    told = f"evidence does not count: it contradicts itself: 1 case of its plan is missing (run {run.id})"
    assert (5, True) == (found.conclusion.exit_code, told in found.notes)


def test_evidence_of_before_is_believed(store: Store, path: Path, edit: Callable[..., None]) -> None:
    """It has no counts: it qualifies as it did, and a gap between its cases is seen as it was."""
    run = store_run(store, path)
    edit("UPDATE runs SET planned = NULL", "UPDATE outcomes SET finding_count = NULL")
    assert (0, ()) == (judged(store, store.run(run.id)).conclusion.exit_code, judged(store, run).notes)
    edit(*without(IDS[0]))
    assert "1 case of its plan is missing" in judged(store, run).notes[0]


def test_a_run_that_goes_on_is_whole(store: Store, path: Path) -> None:
    """Its plan is counted once, its outcomes one by one, and another attempt counts its own findings."""
    run = store_run(store, path, first_is(WRONG))
    store.finish(run.id, "interrupted", NOW)
    store.resume(run.id)
    (first, *_) = store.records(run.id)
    store.add(run.id, [Record(case=first.case, outcome=store.records(run.id)[1].outcome)])
    store.finish(run.id, "completed", NOW)
    assert (len(IDS), 0) == (store.run(run.id).planned, judged(store, run).conclusion.exit_code)
    assert [] == contradictions_of(store.run(run.id), store.records(run.id))
