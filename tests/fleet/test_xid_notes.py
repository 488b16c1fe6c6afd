"""A run on one machine reads what the driver reports, and the case that the card was at has a note of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import stored_runs as stored
from cli_process import write_cards, write_matrix

from qualify.cards.load import load_kernels
from qualify.errors import UsageError
from qualify.facts.outcome import Crashed, NotRun, Outcome, card_of, findings_of, on_card
from qualify.facts.run import Record, Run
from qualify.fleet import judges
from qualify.fleet.filing import Progress, Show
from qualify.fleet.local import execute, new_run
from qualify.fleet.request import Asked, Request, make_request
from qualify.fleet.xid_notes import XidNotes
from qualify.judge.judged import Judged, judge
from qualify.run.machine.xids import KernelLog, NvmlXids, XidWatch
from qualify.store.store import Store

pytestmark = pytest.mark.usefixtures("forked")

LINE = "4,1,1,-;NVRM: Xid (PCI:0000:{0}:00): {1}, pid=1, name=python, words of the driver\n"
FELL = "Xid 79 (the GPU has fallen off the bus)"


class Places(NvmlXids):
    """Two cards have places on the bus."""

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self.buses = {"0000:3b:00": uuid, "0000:af:00": "GPU-other"}


class Machine:
    """A store, a matrix, and a driver whose log the test writes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *kernels: str, seqlens=(8, 9)) -> None:
        self.log = folder / "kmsg"
        self.log.touch()
        self.cards = write_cards(folder / "cards", *kernels)
        matrix = write_matrix(folder / "m.yaml", *kernels, seqlens=seqlens)
        self.asked = Asked(matrix=str(matrix), cards=(self.cards,), device="cpu")
        monkeypatch.setattr(judges, "XidWatch", lambda: XidWatch(KernelLog(self.log), Places(self.request.host.name)))

    @property
    def request(self) -> Request:
        """What a command would ask for now."""
        return make_request(self.asked)

    def report(self, *numbers: int, bus: str = "3b") -> None:
        """The driver tells of errors."""
        with self.log.open("a") as file:
            file.writelines(LINE.format(bus, number) for number in numbers)

    def run(self, store: Store, show: Show) -> Run:
        """One run to its end."""
        request = self.request
        run = new_run(request)
        execute(request, store, run, show)
        return store.run(run.id)

    def judged(self, store: Store, run: Run) -> Judged:
        """As the gate does."""
        return judge(store, run.id, load_kernels((self.cards,)), now=datetime.now(UTC))


def after(count: int, report: Callable[[], None]) -> Show:
    """Calls ``report`` once, when so many cases are stored."""
    done: set[str] = set()

    def show(step: Progress) -> None:
        if step.record and step.final and len(done) < count:
            done.add(step.case_id)
            if len(done) == count:
                report()

    return show


def noted_in(store: Store, run: Run) -> list[list[object]]:
    """The errors that each case has notes of, in the order of the plan."""
    return [
        [it.values["xid"] for it in findings_of(record.outcome) if it.check == "xid"]
        for record in store.records(run.id)
    ]


@pytest.mark.parametrize(
    ("number", "whose", "verdict"),
    [
        (31, "a program on the card caused it", "FAIL"),
        (79, "nothing that the card measured", "INCONCLUSIVE"),
        (154, "nobody", "PASS"),
    ],
)
def test_the_case_has_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, whose: str, verdict: str
) -> None:
    """Of this card and of the case that it was at, once; the errors of another card are left out."""
    machine = Machine(tmp_path, monkeypatch, "slow")
    (machine.cards / "hold").touch()

    def report() -> None:
        machine.report(number)
        machine.report(94, bus="af")
        time.sleep(0.5)
        (machine.cards / "hold").unlink()

    begun = threading.Event()

    def show(step: Progress) -> None:
        if step.case_id.endswith("/slow") and not step.compiling and not begun.is_set():
            begun.set()
            threading.Thread(target=report).start()

    with Store.open(str(tmp_path / "s.db")) as store:
        run = machine.run(store, show)
        assert run.stack is not None
        assert (verdict, [[number], []]) == (machine.judged(store, run).conclusion.verdict, noted_in(store, run))
        note = findings_of(store.records(run.id)[0].outcome)[-1]
    assert begun.is_set()
    assert ("note", True) == (note.verdict, whose in note.detail)


def reporting(machine: Machine, number: int) -> Show:
    """The driver tells of an error while the first case runs, which then ends."""
    begun = threading.Event()
    (machine.cards / "hold").touch()

    def report() -> None:
        machine.report(number)
        time.sleep(0.5)
        (machine.cards / "hold").unlink()

    def show(step: Progress) -> None:
        if step.case_id.endswith("/slow") and not step.compiling and not begun.is_set():
            begun.set()
            threading.Thread(target=report).start()

    return show


@pytest.mark.parametrize(("number", "left"), [(79, True), (154, False)])
def test_nothing_more_runs_on_a_card_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, left: bool
) -> None:
    """What it would measure counts for nothing: the run ends after the case at hand, and its other cases say why."""
    machine = Machine(tmp_path, monkeypatch, "slow")
    with Store.open(str(tmp_path / "s.db")) as store:
        run = machine.run(store, reporting(machine, number))
        first, second = (record.outcome for record in store.records(run.id))
        told = machine.judged(store, run).conclusion
    assert run.stack is not None
    assert (left, "completed", 5 if left else 0) == (isinstance(second, NotRun), run.state, told.exit_code)
    assert [number] == [it.values["xid"] for it in findings_of(first) if it.check == "xid"]
    if isinstance(second, NotRun):
        assert f"card {run.stack.device.uuid} failed: {FELL}. Nothing more was run on it" == second.reason


def test_the_other_cards_take_the_cases_of_one_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case has an outcome, and of the card that failed there are few."""
    cards = ("CPU-n-0", "CPU-n-1")
    machine = Machine(tmp_path, monkeypatch, "slow", seqlens=tuple(range(8, 20)))
    machine.asked = replace(machine.asked, uuids=cards)
    monkeypatch.setattr(judges, "XidWatch", lambda: XidWatch(KernelLog(machine.log), Places(cards[0])))
    with Store.open(str(tmp_path / "s.db")) as store:
        run = machine.run(store, reporting(machine, 79))
        ran = [card_of(record.outcome) for record in store.records(run.id)]
        assert [cards[0]] == [*machine.judged(store, run).failed_cards]
    assert (12, True) == (ran.count(cards[0]) + ran.count(cards[1]), 1 <= ran.count(cards[0]) <= 3), ran


@pytest.mark.parametrize(("number", "verdict"), [(31, "FAIL"), (79, "INCONCLUSIVE"), (154, "PASS")])
def test_an_error_after_the_last_case_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, verdict: str
) -> None:
    """It is noted at the last case of its card."""
    machine = Machine(tmp_path, monkeypatch, "correct")
    with Store.open(str(tmp_path / "s.db")) as store:
        run = machine.run(store, after(2, lambda: machine.report(number)))
        assert [[], [number]] == noted_in(store, run)
        assert verdict == machine.judged(store, run).conclusion.verdict


def test_no_case_of_a_card_that_failed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its cases are inconclusive, and the verdict names the card, the error, and what to do."""
    machine = Machine(tmp_path, monkeypatch, "correct")
    with Store.open(str(tmp_path / "s.db")) as store:
        run = machine.run(store, after(2, lambda: machine.report(79)))
        told = machine.judged(store, run)
    assert run.stack
    card = run.stack.device.uuid
    assert ["INCONCLUSIVE"] * 2 == [it.verdict for it in told.conclusion.judgements]
    assert all(FELL in it.reasons[0] and card in it.reasons[0] for it in told.conclusion.judgements)
    assert [card] == [*told.failed_cards]
    (note,) = [note for note in told.notes if FELL in note]
    assert f"card {card} failed" in note


def test_a_run_whose_card_failed_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has measured would never count; the refusal says so, and what to do."""
    machine = Machine(tmp_path, monkeypatch, "correct")

    def stop() -> None:
        machine.report(79)
        raise KeyboardInterrupt

    with Store.open(str(tmp_path / "s.db")) as store:
        request = machine.request
        run = new_run(request)
        with pytest.raises(KeyboardInterrupt):
            execute(request, store, run, after(1, stop))
        assert [[], [79]] == sorted(noted_in(store, run))
        with pytest.raises(UsageError, match=r"fallen off the bus\).*Start a new run"):
            execute(request, store, store.run(run.id), after(1, lambda: None), resume=True)


def test_each_of_several_cards_has_its_case(tmp_path: Path) -> None:
    """Two cards share a run; what comes when its case is filed already, or was refused, is noted at the next one."""
    log = tmp_path / "kmsg"
    log.touch()
    watch = XidWatch(KernelLog(log), Places("GPU-one"))
    notes = XidNotes(watch)
    first, second, third = stored_cases(tmp_path)

    def report(bus: str, number: int) -> None:
        with log.open("a") as file:
            file.write(LINE.format(bus, number))
        until = time.monotonic() + 60
        while number not in [it.number for it in watch.found] and time.monotonic() < until:
            time.sleep(0.02)

    def numbers(record: Record, card: str, outcome: Outcome = stored.PASSED) -> list[object]:
        placed = Record(case=record.case, outcome=on_card(outcome, card))
        return [it.values["xid"] for it in findings_of(notes.noted(placed, card, "").outcome) if it.check == "xid"]

    notes.at(first.case.id, "GPU-one")
    notes.at(second.case.id, "GPU-other")
    report("af", 31)
    assert [[], [31]] == [numbers(first, "GPU-one"), numbers(second, "GPU-other")]
    report("af", 13)
    notes.at(third.case.id, "GPU-other")
    assert [[], [13]] == [
        numbers(third, "GPU-other", NotRun(reason="refused")),
        numbers(third, "GPU-other", Crashed(stage="call", error="SIGSEGV", log="", attempt=1)),
    ]
    notes.close()


def stored_cases(folder: Path) -> list[Record]:
    """Three of a plan."""
    (folder / "serving.yaml").write_text(stored.MATRIX)
    with Store.open(str(folder / "plan.db")) as store:
        return store.records(stored.store_run(store, folder / "serving.yaml", stored.PASSED).id)[:3]
