"""Errors of the driver that nothing explains: the noted case fails, in a run of one card and in one of several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import stored_runs as stored
from builders import make_xid
from cli_process import call

from qualify.facts.outcome import Crashed, Outcome, Refused, TimedOut, findings_of, noted, on_card
from qualify.facts.run import Judgement, Record
from qualify.store.store import Store
from qualify.verdict.faults import with_faults

CRASHED = Crashed(stage="call", error="SIGSEGV", log="", attempt=2)
HUNG = TimedOut(stage="call", limit_s=60.0, attempt=2)
KERNEL, CARD, UNKNOWN = 31, 79, 154


def xid(outcome: Outcome, number: int) -> Outcome:
    """The outcome with the note of a run."""
    return noted(outcome, make_xid(number))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """A plan's cases, all of which passed."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "serving.yaml").write_text(stored.MATRIX)
    with Store.open(str(folder / "s.db")) as store:
        return store.records(stored.store_run(store, folder / "serving.yaml", stored.PASSED).id)


def _failed(outcome: Outcome) -> bool:
    return isinstance(outcome, Crashed | TimedOut) or any(it.verdict == "fail" for it in findings_of(outcome))


def verdicts(cases: list[Record], outcomes: list[Outcome]) -> list[str]:
    """Of the first cases with other outcomes. A failure of a case that its card does not claim is not required."""
    records = [replace(record, outcome=outcome) for record, outcome in zip(cases, outcomes, strict=False)]
    judged = [
        Judgement(
            case_id=it.case.id,
            verdict="NOT_REQUIRED" if it.case.unclaimed else "FAIL" if _failed(it.outcome) else "PASS",
            reasons=(),
        )
        for it in records
    ]
    return [it.verdict for it in with_faults(records, judged, "GPU-1")]


def test_a_fault_that_nothing_explains_fails_its_case(cases: list[Record]) -> None:
    """Where a case of that card failed, it is the one that faulted."""
    passed = stored.PASSED
    assert ["PASS", "FAIL"] == verdicts(cases, [passed, xid(passed, KERNEL)])
    assert ["FAIL", "PASS"] == verdicts(cases, [CRASHED, xid(passed, KERNEL)])
    assert ["FAIL", "FAIL"] == verdicts(cases, [on_card(CRASHED, "GPU-1"), xid(on_card(passed, "GPU-2"), KERNEL)])
    assert ["FAIL", "PASS"] == verdicts(cases, [on_card(CRASHED, "GPU-1"), xid(passed, KERNEL)])
    assert ["FAIL", "FAIL"] == verdicts(cases, [stored.WRONG, xid(passed, KERNEL)]), "a wrong result faults nothing"
    assert ["FAIL", "PASS"] == verdicts(cases, [HUNG, xid(passed, KERNEL)])
    assert ["PASS", "PASS"] == verdicts(cases, [passed, xid(passed, UNKNOWN)])


def test_a_crash_beyond_the_claims_explains_a_fault_as_any_other(cases: list[Record]) -> None:
    """The replay of an incident that its card does not claim is not required, and may crash all the same."""
    beyond = replace(cases[0], case=replace(cases[0].case, unclaimed=("softcap is not claimed",)))
    passed = xid(stored.PASSED, KERNEL)
    assert ["NOT_REQUIRED", "PASS"] == verdicts([beyond, cases[1]], [CRASHED, passed])
    assert ["NOT_REQUIRED", "FAIL"] == verdicts([beyond, cases[1]], [stored.WRONG, passed])


def test_nothing_counts_that_a_card_measured_which_failed(cases: list[Record]) -> None:
    """Neither its passes nor its failures; other cards of the run go on counting. What never ran is judged as it is."""
    passed, other = stored.PASSED, on_card(stored.PASSED, "GPU-2")
    assert ["INCONCLUSIVE"] * 3 == verdicts(cases, [passed, CRASHED, xid(passed, CARD)])
    assert ["INCONCLUSIVE"] * 2 == verdicts(cases, [on_card(passed, "GPU-1"), xid(passed, CARD)])
    assert ["INCONCLUSIVE", "PASS"] == verdicts(cases, [xid(passed, CARD), other])
    assert ["PASS", "INCONCLUSIVE"] == verdicts(cases, [passed, xid(other, CARD)])
    assert ["INCONCLUSIVE"] * 2 == verdicts(cases, [xid(xid(passed, CARD), KERNEL), xid(passed, KERNEL)])
    assert ["INCONCLUSIVE", "FAIL"] == verdicts(cases, [xid(passed, CARD), xid(other, KERNEL)])
    assert ["PASS", "INCONCLUSIVE"] == verdicts(cases, [Refused(by="plan", reasons=("no",)), xid(passed, CARD)])


def test_the_gate_fails_and_no_waiver_covers_it(tmp_path: Path) -> None:
    """The reason names the error; a waiver of the same case accepts other failures."""
    (tmp_path / "serving.yaml").write_text(stored.MATRIX)

    def outcome(case: object) -> Outcome:
        return xid(stored.PASSED, KERNEL) if getattr(case, "id", "") == stored.IDS[0] else stored.PASSED

    with Store.open(str(tmp_path / "s.db")) as store:
        stored.store_run(store, tmp_path / "serving.yaml", outcome)
    waivers = stored.write_waivers(tmp_path / "w.yaml", {"select": "*", "checks": ["crash", "substitution"]})
    gate = call("gate", "--db", tmp_path / "s.db", "--waivers", waivers, cwd=tmp_path)
    assert 1 == gate.code, gate.out
    assert (
        "Xid 31 (GPU memory page fault); a program on the card caused it, and nothing crashed or hung on the card"
        in gate.out
    )
