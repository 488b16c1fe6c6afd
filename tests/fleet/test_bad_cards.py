"""Xids while a node runs: a fault of the card stops it and blames no kernel; a fault of a program is the kernel's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import write_cards, write_matrix

from qualify.facts.fleet import CARD_STATES, CardResult, NodePlan, NodeVerdict
from qualify.facts.xid import Xid
from qualify.fleet import node
from qualify.fleet.bad_cards import set_aside, with_xids
from qualify.report.fleets import CLASSES, GLYPHS
from qualify.run.machine.xids import KernelLog, NvmlXids, XidWatch

COVERED = CardResult(uuid="GPU-a", name="H100", state="COVERED", run="r", verdict="PASS")


def xid(number: int) -> Xid:
    """Seen during a case."""
    return Xid(number=number, card="GPU-a", bus="", seen_s=1.0, text="words of the driver", case="m/decode/b1")


@pytest.mark.parametrize(
    ("numbers", "state", "verdict", "words"),
    [
        ([], "COVERED", "PASS", ""),
        ([31], "COVERED", "FAIL", "Xid 31 (GPU memory page fault) during m/decode/b1: a kernel faulted"),
        ([79, 45], "BAD", "INCONCLUSIVE", "Xid 79 (the GPU has fallen off the bus) during m/decode/b1; Xid 45"),
        ([154], "COVERED", "PASS", "the driver reported Xid 154 (words of the driver) during m/decode/b1"),
    ],
)
def test_what_an_xid_means(numbers: list[int], state: str, verdict: str, words: str) -> None:
    """A failed card decides nothing about kernels, even where a kernel's context went with it."""
    found = with_xids(COVERED, tuple(map(xid, numbers)))
    assert (state, verdict, numbers) == (found.state, found.verdict, [it.number for it in found.xids])
    assert words in found.reason


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> NodeVerdict:
    """A real node with a logical card whose driver reports an Xid as soon as its first case runs."""
    log = tmp_path / "kmsg"
    log.touch()

    class Places(NvmlXids):
        """The logical card has a place on the bus."""

        def __init__(self) -> None:
            super().__init__()
            self.buses = {"0000:3b:00": "CPU-n-0"}

    monkeypatch.setattr(node, "XidWatch", lambda: XidWatch(KernelLog(log), Places()))
    cards = write_cards(tmp_path / "cards", "slow")
    (cards / "hold").touch()
    matrix = write_matrix(tmp_path / "m.yaml", "slow", seqlens=(8, 9))
    plan = NodePlan(matrix=str(matrix), device="cpu:1", cards=(str(cards),), node="n", level="smoke")

    def report() -> None:
        until(lambda: "at" in heard)
        with log.open("a") as file:
            file.write(f"4,1,1,-;NVRM: Xid (PCI:0000:3b:00): {number}, pid=1, name=python, words\n")
        time.sleep(0.5)
        (cards / "hold").unlink()

    heard: set[str] = set()
    hear = node._hear

    def listen(lane: node._Lane, say: Callable[[str], None], detail: Callable[[str], None]) -> bool:
        more = hear(lane, say, detail)
        heard.update(["at"] * any(case for _, case in lane.cases))
        return more

    monkeypatch.setattr(node, "_hear", listen)
    driver = threading.Thread(target=report)
    driver.start()
    try:
        return node.run_node(plan, tmp_path / "out", print)
    finally:
        driver.join()


def until(there: Callable[[], bool]) -> None:
    """Waits at most a minute."""
    end = time.monotonic() + 60
    while not there() and time.monotonic() < end:
        time.sleep(0.05)


@pytest.mark.usefixtures("forked_commands")
def test_a_card_that_fails_is_bad_and_its_run_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped; no file for a store is left; the verdict names the Xid and the case."""
    found = run(tmp_path, monkeypatch, 79)
    (card,) = found.cards
    assert ("BAD", "INCONCLUSIVE", "INCONCLUSIVE", 5, ()) == (
        card.state, card.verdict, found.verdict, found.exit_code, found.files
    )  # fmt: skip
    assert [(79, "toy.tp1/prefill/b1.q8.k8/fp32/causal/slow")] == [(it.number, it.case) for it in card.xids]
    assert [f"{card.run}.bad"] == [path.name for path in (tmp_path / "out").iterdir() if path.is_file()]


def test_a_card_that_shared_the_run_of_a_bad_one_is_lost(tmp_path: Path) -> None:
    """The run was complete when the driver told of the error: it is set aside, so nothing of it covers a card."""
    (tmp_path / "r1.jsonl.gz").touch()
    (tmp_path / "r2.jsonl.gz").touch()
    told = {
        "GPU-a": with_xids(replace(COVERED, run="r1"), (xid(79),)),
        "GPU-b": replace(COVERED, uuid="GPU-b", run="r1"),
        "GPU-c": replace(COVERED, uuid="GPU-c", run="r2"),
    }
    cards = tuple(set_aside(told.values(), tmp_path))
    found = node._concluded(NodePlan(matrix="m", node="n"), cards, tmp_path, (), 1.0)
    assert [("BAD", "INCONCLUSIVE"), ("LOST", None), ("COVERED", "PASS")] == [
        (it.state, it.verdict) for it in found.cards
    ]
    assert "card GPU-a" in found.cards[1].reason
    assert ("r2.jsonl.gz",) == found.files
    assert ["r1.bad", "r2.jsonl.gz"] == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.usefixtures("forked_commands")
def test_a_fault_of_a_program_fails_its_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on to its end, and its file is there."""
    found = run(tmp_path, monkeypatch, 31)
    (card,) = found.cards
    assert ("COVERED", "FAIL", 1, (f"{card.run}.jsonl.gz",)) == (card.state, card.verdict, found.exit_code, found.files)
    assert "Xid 31 (GPU memory page fault) during toy.tp1/prefill/b1.q8.k8/fp32/causal/slow" in card.reason


def test_every_state_of_a_card_has_a_style_and_a_sign() -> None:
    """The page of fleets shows all of them."""
    assert set(CARD_STATES) == set(CLASSES) == set(GLYPHS)
