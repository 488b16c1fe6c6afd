"""Two equal GPUs of one host: both covered, a shared run in less time, and a card that spoils results named.

The matrix is ``hopper``; TWO_CARDS_MATRIX names another one and TWO_CARDS_SELECT narrows it, for a first try. Figures
are printed: ``pytest tests/gpu/test_two_cards.py --gpu -s``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fleet_examples import write_plan, write_spoiling, write_toy

from qualify.facts.outcome import card_of
from qualify.store.store import Store

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

MATRIX = os.environ.get("TWO_CARDS_MATRIX", "hopper")
SELECT = os.environ.get("TWO_CARDS_SELECT", "")
LIMIT_S = 3000
LEAST_SHARE = 0.6
"""of the time of one card that two may take"""
VERDICTS = {0, 1, 5}
"""exit codes of a run that ended: what it says of the kernels is not asked here"""


@pytest.fixture(scope="session")
def cards() -> list[str]:
    """UUIDs of two equal cards."""
    from qualify.errors import DeviceError
    from qualify.fleet.inventory import list_cards

    try:
        found = list_cards("cuda:all")
    except DeviceError as error:
        pytest.skip(str(error))
    if len(found) != 2 or found[0].name != found[1].name:
        pytest.skip(f"needs a host with two equal GPUs, this one has {len(found)}")
    return [card.uuid for card in found]


def qualify(*arguments: object, cwd: Path, **variables: str) -> tuple[int, str, float]:
    """Exit code, stdout and wall seconds of a command."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "qualify", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode in VERDICTS, done.stdout[-2000:]
    return done.returncode, done.stdout, time.monotonic() - began


def narrowed(*arguments: object) -> list[object]:
    """The arguments, with --select where it is asked for."""
    return [*arguments, *(["--select", SELECT] if SELECT else [])]


def test_two_cards_share_a_matrix_in_less_time(cards: list[str], tmp_path: Path) -> None:
    """Both cards gave outcomes, with the same verdict, in at most 0.6 of the time of one. Compiling comes before."""
    times: dict[str, float] = {}
    told: dict[str, Any] = {}
    qualify(*narrowed("run", MATRIX, "--device", "cuda", "--db", "warm.db", "--json"), cwd=tmp_path)
    for name, device in (("one", "cuda"), ("two", "cuda:all")):
        arguments = narrowed("run", MATRIX, "--device", device, "--db", f"{name}.db", "--fresh", "--json")
        _, out, times[name] = qualify(*arguments, cwd=tmp_path)
        told[name] = json.loads(out)
    with Store.open(str(tmp_path / "two.db"), create=False) as store:
        run = store.run(told["two"]["run"])
        records = store.records(run.id)
    by_card = {uuid: sum(card_of(record.outcome) == uuid for record in records) for uuid in cards}
    share = times["two"] / times["one"]
    print(f"\n{MATRIX}: one card {times['one']:.1f} s, two {times['two']:.1f} s, share {share:.2f}, cases {by_card}")
    assert min(by_card.values()) > 0
    assert told["one"]["counts"]["outcomes"] == told["two"]["counts"]["outcomes"]
    assert share <= LEAST_SHARE


def test_every_card_runs_all_and_no_bits_differ(cards: list[str], tmp_path: Path) -> None:
    """Both UUIDs are covered, each by a run of its own; the shipped deterministic kernels agree bit by bit."""
    arguments = narrowed("run", os.environ.get("TWO_CARDS_MATRIX", "smoke"), "--device", "cuda:all")
    _, out, took = qualify(*arguments, "--spread", "repeat", "--db", "s.db", "--json", cwd=tmp_path)
    told = json.loads(out)
    print(f"\nrepeat: {took:.1f} s, votes: {json.dumps(told['votes'], indent=1)}")
    assert [(uuid, "COVERED") for uuid in cards] == [(card["uuid"], card["state"]) for card in told["cards"]]
    assert 2 == len({card["run"] for card in told["cards"]})
    assert [] == [vote for vote in told["votes"] if vote["kind"] == "outlier card"]


def test_a_fault_planted_on_one_card_is_named(cards: list[str], tmp_path: Path) -> None:
    """The vote names the card by its UUID, whichever of the two it is."""
    matrix = write_toy(tmp_path, 128, 256, kernel="spoiling")
    folder = write_spoiling(tmp_path / "cards")
    for bad in cards:
        plan = write_plan(tmp_path, matrix, device="cuda:all", cards=[str(folder)])
        code, out, _ = qualify("node", plan, "--out", f"runs-{bad}", cwd=tmp_path, SPOILED_CARD=bad)
        told = json.loads(out)
        (vote,) = told["votes"]
        print(f"\nspoiled {bad}: {vote['kind']}: {vote['who']}: {vote['detail']}")
        assert (1, "outlier card", bad) == (code, vote["kind"], vote["who"])


def test_a_judge_on_another_card_than_its_own_runs_nothing(cards: list[str], tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES of the command's own environment does not move a judge from its card."""
    plan = write_plan(tmp_path, write_toy(tmp_path, 64), device="cuda:all", expected=[cards[1]])
    code, out, _ = qualify("node", plan, cwd=tmp_path, CUDA_VISIBLE_DEVICES=cards[0])
    told = json.loads(out)
    assert (0, cards[1], "COVERED") == (code, told["cards"][0]["uuid"], told["cards"][0]["state"])
