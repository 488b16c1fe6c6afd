"""A run on one machine reads what the driver reports, and the case that the card was at has a note of it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from cli_process import write_cards, write_matrix

from qualify.facts.outcome import findings_of
from qualify.fleet import local
from qualify.fleet.local import Progress, execute, new_run
from qualify.fleet.request import Asked, make_request
from qualify.run.machine.xids import KernelLog, NvmlXids, XidWatch
from qualify.store.store import Store

LINE = "4,1,1,-;NVRM: Xid (PCI:0000:{0}:00): {1}, pid=1, name=python, words of the driver\n"


class Places(NvmlXids):
    """Two cards have places on the bus."""

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self.buses = {"0000:3b:00": uuid, "0000:af:00": "GPU-other"}


@pytest.mark.parametrize(("number", "whose"), [(31, "a program on the card caused it"), (79, "the card failed")])
def test_the_case_has_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, whose: str) -> None:
    """Of this card and of the case that it was at, once; the errors of another card are left out."""
    log = tmp_path / "kmsg"
    log.touch()
    cards = write_cards(tmp_path / "cards", "slow")
    (cards / "hold").touch()
    matrix = write_matrix(tmp_path / "m.yaml", "slow", seqlens=(8, 9))
    request = make_request(
        Asked(matrix=str(matrix), cards=(cards,), select=None, kernel=None, level="smoke", device="cpu")
    )
    watched = KernelLog(log)

    def report() -> None:
        with log.open("a") as file:
            file.write(LINE.format("3b", number) + LINE.format("af", 94))
        time.sleep(0.5)
        (cards / "hold").unlink()

    begun = threading.Event()

    def show(step: Progress) -> None:
        if step.case_id.endswith("/slow") and not step.compiling and not begun.is_set():
            begun.set()
            threading.Thread(target=report).start()

    with Store.open(str(tmp_path / "s.db")) as store:
        run = new_run(request)
        monkeypatch.setattr(local, "XidWatch", lambda: XidWatch(watched, Places(request.host.name)))
        execute(request, store, run, show)
        assert store.run(run.id).stack is not None
        notes = {
            it.case.id: [one for one in findings_of(it.outcome) if one.check == "xid"] for it in store.records(run.id)
        }
    assert begun.is_set()
    assert [1, 0] == [len(found) for found in notes.values()]
    (note,) = next(iter(notes.values()))
    assert ("note", number, True) == (note.verdict, note.values["xid"], whose in note.detail)
