"""Canaries whose fires could only fail: told with the place in the card, before the night."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import call

from qualify.canary import idle
from qualify.canary.idle import refuse_idle
from qualify.cards.load import load_canary
from qualify.errors import QualifyError
from qualify.plan.plan import Plan, make_plan

MATRIX = """\
matrix: own
models: [llama-3.1-8b]
phases: {prefill: {batch: [1], seqlen: [64]}}
dtypes: [fp32]
kernels: [tiled-torch, flashmla]
"""


def refused(folder: Path, more: str, matrix: str = MATRIX) -> str:
    """What is said about a canary with these lines; empty where it runs something."""
    (folder / "own.yaml").write_text(matrix)
    card = folder / "night.yaml"
    card.write_text(f"canary: night\nmatrix: ./own.yaml\ncron: '0 3 * * *'\n{more}")
    try:
        refuse_idle(load_canary(card, []), ())
    except QualifyError as error:
        return str(error).removeprefix(f"{folder}/")
    return ""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("select: decod", "night.yaml:4:9: select: no case of own matches --select 'decod'."),
        ("kernel: tiled-torhc", "night.yaml:4:9: kernel: --kernel tiled-torhc: not a kernel of matrix own; perhaps"),
        ("kernel: flash-attn-3", "night.yaml:4:9: kernel: --kernel flash-attn-3: not a kernel of matrix own"),
        ("kernel: flashmla", "night.yaml:4:9: kernel: its only case is refused on every machine: "),
        ("select: flashmla", "night.yaml:4:9: select: its only case is refused on every machine: "),
        (
            "kernel: tiled-torch\nselect: flashmla",
            "night.yaml:5:9: select: no case of own matches --select 'flashmla'.",
        ),
        (
            "duel: {against: nxt}",
            "night.yaml:4:17: duel.against: own has no environment nxt, so no duel could run; write baseline, or name",
        ),
    ],
)
def test_a_canary_that_would_run_nothing(tmp_path: Path, more: str, expected: str) -> None:
    """The key of its card is the cause."""
    assert refused(tmp_path, more).startswith(expected), refused(tmp_path, more)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (MATRIX.replace("tiled-torch, ", ""), "night.yaml:2:9: matrix: its only case is refused on every machine: "),
        (MATRIX.replace("fp32", "fp23"), "own.yaml:4:10: dtypes[0]: must be one of"),
        (f'{MATRIX}exclude: ["*/decod/*"]\n', "own.yaml:6:11: exclude[0]: "),
    ],
)
def test_a_matrix_that_would_run_nothing(tmp_path: Path, matrix: str, expected: str) -> None:
    """What is wrong in the matrix has its place there."""
    assert refused(tmp_path, "", matrix).startswith(expected), refused(tmp_path, "", matrix)


@pytest.mark.parametrize("more", ["", "select: prefill", "kernel: tiled-*", "duel: {against: baseline}"])
def test_a_canary_that_runs_something(tmp_path: Path, more: str) -> None:
    """Nothing is said."""
    assert refused(tmp_path, more) == ""


@pytest.mark.parametrize("more", ["", "kernel: tiled-*", "kernel: tiled-*\nselect: prefill"])
def test_a_canary_that_runs_something_is_planned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """A plan of a large matrix takes a second; only where nothing runs, it is looked for the key that is the cause."""
    made: list[Plan] = []

    def counting(*arguments: Any, **named: Any) -> Plan:
        made.append(make_plan(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(idle, "make_plan", counting)
    assert refused(tmp_path, more) == ""
    assert 1 == len(made)


@pytest.mark.parametrize("options", [(), ("--no-wait",), ("--on", "every-node")])
def test_a_fire_by_hand_of_it_leaves_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    """No fire, no hold and no store: what could only fail is refused first."""
    (tmp_path / "night.yaml").write_text("canary: night\nmatrix: smoke\nselect: decdoe\n")
    ended = call("canary", "fire", "night", "--cards", tmp_path, "--db", "evidence.db", *options, cwd=tmp_path)
    assert (2, True) == (ended.code, "night.yaml:3:9: select: no case of smoke matches" in ended.err), ended.err
    assert ["night.yaml"] == [path.name for path in tmp_path.iterdir()]


def test_explain_refuses_it(tmp_path: Path) -> None:
    """Exit 2, and no table of times that nobody should wait for."""
    (tmp_path / "night.yaml").write_text("canary: night\nmatrix: smoke\nselect: decdoe\n")
    ended = call("canary", "explain", "night", "--cards", tmp_path, cwd=tmp_path)
    assert (2, True) == (ended.code, "night.yaml:3:9: select: no case of smoke matches" in ended.err), ended.err
