"""A fire's child process and its parent: messages, and what comes between them."""

from __future__ import annotations

import os
import time
from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cli_process import write_matrix
from clocks import turn_back
from fire_examples import GOOD, ORDER, TORCH
from stored_runs import IDS, MATRIX, NOW, PASSED, WRONG, shipped_kernels, store_run, write_waivers

from qualify.canary.advice import Counsel, advise
from qualify.canary.child import failure_of, report
from qualify.canary.firing import Ended, Firing
from qualify.canary.log import plain_log
from qualify.canary.messages import DuelSeen, Failed, FromChild, RunBegun, decode, encode
from qualify.canary.seeing import judge_run, seen_of
from qualify.errors import INFRASTRUCTURE, NOTHING_SELECTED, USAGE, NothingSelected, UsageError
from qualify.facts.baseline import Baseline
from qualify.facts.canary import Fire
from qualify.facts.lines import WrongMessage
from qualify.judge.judged import judge
from qualify.store import Store

THEN = datetime(2026, 1, 1, tzinfo=UTC)
FIRE = Fire(
    id=1,
    lease="canary",
    canary="nightly",
    scheduled_for=THEN,
    trigger="cron",
    reason="",
    changes=(),
    state="running",
    epoch=1,
    node="n",
    attempts=1,
    created_at=THEN,
    started_at=THEN,
    finished_at=None,
    matrix="smoke",
    run_id=None,
    variant="",
    verdict=None,
    advice=None,
    reasons=(),
    numerics_only=(),
)


@pytest.mark.parametrize(
    "message",
    [
        RunBegun(run="run-1"),
        replace(GOOD, stack=(TORCH,), expired=("w0",), duel=DuelSeen(id="duel-1", suspects=("a/b",), slower=("b",))),
        Failed(message="no such \ndc80 card", exit_code=2),
    ],
)
def test_a_message_comes_back_as_it_was(message: FromChild) -> None:
    """One line each."""
    line = encode(message)
    assert (message, 1) == (decode(line), line.count(b"\n"))


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"{}",
        b"3",
        b"[]",
        b'"begun"',
        b'{"event": 3}',
        b'{"event": []}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_message_is_told_from_one(line: bytes) -> None:
    """By its first bytes, whatever is wrong with it."""
    with pytest.raises(WrongMessage) as found:
        decode(line)
    assert repr(line[:40]) == str(found.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"event": "ended", "run": "a"}', "unknown event 'ended'"),
        (b'{"event": "begun"}', "event 'begun', run: Field required"),
        (b'{"event": "begun", "run": 1}', "event 'begun', run: Input should be a valid string"),
    ],
)
def test_a_message_with_something_wrong_in_it_says_what(line: bytes, said: str) -> None:
    """The event, the field and what is wrong with it."""
    with pytest.raises(WrongMessage) as found:
        decode(line)
    assert said == str(found.value)


def test_a_folder_of_cards_that_is_away_ends_no_fire_for_good(tmp_path: Path) -> None:
    """A mount may come back, so another attempt can succeed; what is wrong in cards that are there stays wrong."""
    error = UsageError("--cards: no such folder")
    there, gone = replace(ORDER, cards=(str(tmp_path),)), replace(ORDER, cards=(str(tmp_path / "gone"),))
    beside = replace(there, matrix=str(tmp_path / "gone" / "m.yaml"))
    (tmp_path / "mount").mkdir()
    empty = replace(there, cards=(str(tmp_path / "mount"),))
    assert USAGE == failure_of(error, there).exit_code
    assert {INFRASTRUCTURE} == {failure_of(error, order).exit_code for order in (gone, beside, empty)}
    assert NOTHING_SELECTED == failure_of(NothingSelected("no case"), gone).exit_code


def test_a_report_that_has_no_room_takes_no_verdict_along(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A roll back must be heard of, whatever becomes of its page: the log says how to make the page again."""
    run = store_run(store, write_matrix(tmp_path / "m.yaml", "tiled-torch"))
    judged = judge(store, run.id, shipped_kernels(), now=NOW)
    (tmp_path / "out").touch()
    report(replace(ORDER, out=str(tmp_path / "out")), judged)
    assert f"The evidence of run {run.id} is stored" in capsys.readouterr().err


def test_a_canary_asks_the_clock_of_the_store(empty_postgres: str, tmp_path: Path) -> None:
    """A machine that is a day ahead promotes nothing by evidence from tomorrow, which no gate would believe."""
    turn_back(empty_postgres, "1 day")
    with Store.open(empty_postgres) as store:
        matrix = write_matrix(tmp_path / "m.yaml", "tiled-torch")
        run = store_run(store, matrix, age=NOW - datetime.now(UTC))
        counsel = advise(seen_of(judge_run(ORDER, store, run.id), 0.1))
    assert ("INCONCLUSIVE", "hold") == (counsel.verdict, counsel.advice)
    assert any("the run gave no verdict (INCONCLUSIVE): it is dated" in reason for reason in counsel.reasons)


def test_a_canary_hears_of_code_that_changed(store: Store, tmp_path: Path) -> None:
    """Files of the kernel's own, which no stack shows; a distribution that changed is the stack's."""
    matrix = write_matrix(tmp_path / "m.yaml", "tiled-torch")
    own = {"tiled-torch": {"tiled.py": "0" * 64, "torch 2.11.0": "1" * 64}}
    first = store_run(store, matrix, code=own, age=timedelta(hours=2))
    assert first.stack is not None
    facts = {"variant": first.stack.device.variant, "reason": "first", "accepted_by": "me", "accepted_at": NOW}
    store.accept(Baseline(matrix=first.matrix, run_id=first.id, waivers=None, **facts))
    edited = {"tiled-torch": {"tiled.py": "2" * 64, "torch 2.11.0": "1" * 64}}
    upgraded = {"tiled-torch": {"tiled.py": "0" * 64, "torch 2.13.0": "1" * 64}}
    seen = [
        seen_of(judge_run(ORDER, store, store_run(store, matrix, code=code).id), 0.1).code
        for code in (own, edited, upgraded)
    ]
    assert [(), ("tiled-torch",), ()] == seen


def test_a_canary_says_a_failure_once(store: Store, tmp_path: Path) -> None:
    """Its finding stands where the run failed; of the change against the baseline, how it looked before is new."""
    (tmp_path / "m.yaml").write_text(MATRIX)
    first = store_run(store, tmp_path / "m.yaml", PASSED, age=timedelta(hours=2))
    assert first.stack is not None
    facts = {"variant": first.stack.device.variant, "reason": "first", "accepted_by": "me", "accepted_at": NOW}
    store.accept(Baseline(matrix=first.matrix, run_id=first.id, waivers=None, **facts))
    run = store_run(store, tmp_path / "m.yaml", lambda case: WRONG if case.id in IDS[:4] else PASSED)
    reasons = advise(seen_of(judge_run(ORDER, store, run.id), 0.1)).reasons
    assert (
        *(f"the run failed: {case}: census: row 3 sees key 9" for case in IDS[:3]),
        "regressions against the baseline: 4 in verdicts",
        *(f"{case}: verdicts: pass -> fail: new failure" for case in IDS[:3]),
    ) == reasons[:-1]


def test_what_is_printed_while_python_starts_is_no_message(tmp_path: Path) -> None:
    """The child goes on, and its own word counts."""
    (tmp_path / "sitecustomize.py").write_text("print('{}', 3, 'hello', sep='\\n', flush=True)")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "QUALIFY_DB": str(tmp_path / "none.db")}
    firing = Firing(FIRE, ORDER, environment, 60.0, (), lambda: None, plain_log(print))
    ended: Ended | None = None
    while ended is None:
        time.sleep(0.05)
        ended = firing.poll()
    assert (INFRASTRUCTURE, None) == (ended.exit_code, ended.seen)
    assert "none.db" in ended.why


def test_a_child_that_hangs_after_its_result_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library or a driver may keep a process from ending: nobody waits for that until the limit."""
    monkeypatch.setattr("qualify.canary.firing.GRACE_S", 0.5)
    (tmp_path / "sitecustomize.py").write_text("import atexit, time\natexit.register(time.sleep, 3600)")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "QUALIFY_DB": str(tmp_path / "none.db")}
    firing = Firing(FIRE, ORDER, environment, 60.0, (), lambda: None, plain_log(print))
    ended: Ended | None = None
    while ended is None:
        time.sleep(0.05)
        ended = firing.poll()
    assert INFRASTRUCTURE == ended.exit_code, ended
    assert "none.db" in ended.why


def test_the_end_of_a_waiver_rolls_no_stack_back(store: Store, tmp_path: Path) -> None:
    """What it accepted failed before, too: the canary holds and names the waiver. Another failure counts as ever."""
    path = tmp_path / "serving.yaml"
    path.write_text(MATRIX + "waivers: w.yaml\n")
    shape = IDS[0].rpartition("/")[0]
    write_waivers(tmp_path / "w.yaml", {"select": f"{shape}/*", "expires": "2026-11-20"}, {"select": IDS[2]})

    def advised(*failing: str) -> Counsel:
        run = store_run(store, path, lambda case: WRONG if case.id in failing else PASSED)
        seen = seen_of(judge(store, run.id, shipped_kernels(), now=NOW), 0.1)
        return advise(replace(seen, baseline="before", stack=(TORCH,)))

    told = f"{tmp_path}/w.yaml:2: waiver w0 has expired"
    assert ("hold", "FAIL", (told,)) == astuple(advised())
    assert ("hold", "FAIL", (f"{told}, and 2 cases that it accepted fail, first {IDS[0]}",)) == astuple(
        advised(*IDS[:2])
    )
    other = advised(*IDS[:2], IDS[3])
    assert ("roll back", "FAIL") == (other.advice, other.verdict)
    assert [f"the run failed: {IDS[3]}: census: row 3 sees key 9"] == [*other.reasons[:1]]
    assert not any(IDS[0] in reason for reason in other.reasons if "the run failed" in reason)
