"""The traffic file, and the key of a matrix that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qualify import assets
from qualify.cards.load import load_kernels, load_matrix
from qualify.cards.traffic import load_traffic
from qualify.errors import CardError, UsageError
from qualify.plan.plan import make_plan

CHAT = """\
traffic: chat
source: counted by hand
buckets:
  - {phase: prefill, seqlen: 256, weight: 3}
  - {phase: prefill, seqlen: 64, weight: 1.5, batch: 2}
  - {phase: decode, context: 300, batch: 4, page_size: 16, weight: 100}
  - {phase: verify, draft: 4, context: 300, weight: 1}
"""
MATRIX = """\
matrix: served
models: [llama-3.2-1b, whisper-large]
phases: {prefill: {seqlen: 64, batch: [1, 2]}}
dtypes: bf16
kernels: [tiled-torch]
traffic: chat.yaml
"""


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    """A matrix with traffic beside it."""
    (tmp_path / "chat.yaml").write_text(CHAT)
    path = tmp_path / "served.yaml"
    path.write_text(MATRIX)
    return path


def test_the_calls_of_the_traffic_are_planned_once(matrix: Path) -> None:
    """Shapes of the phases first, then those that only the traffic has."""
    made = make_plan(load_matrix(str(matrix)), load_kernels())
    shapes = [f"{case.phase}/{case.shape}" for case in made.cases if case.model == "llama-3.2-1b.tp1"]
    assert [
        *("prefill/b1.q64.k64", "prefill/b2.q64.k64", "prefill/b1.q256.k256"),
        *("decode/b4.q1.k300.p16", "verify/b1.q5.k304"),
    ] == shapes


def test_a_cache_without_pages_that_is_written_in_two_ways_is_planned_once(matrix: Path, tmp_path: Path) -> None:
    """Two cases of one id cannot be stored."""
    (tmp_path / "chat.yaml").write_text(
        CHAT + "  - {phase: verify, draft: 4, context: 300, page_size: contiguous, weight: 2}\n"
    )
    ids = [case.id for case in make_plan(load_matrix(str(matrix)), load_kernels()).cases]
    assert len(ids) == len(set(ids))


def test_the_limit_counts_the_traffic(matrix: Path) -> None:
    """Two shapes of the phases and four buckets, counted before it shows that two of them are the same."""
    matrix.write_text(MATRIX.replace(", whisper-large", "") + "policy: {limit_cases: 5}\n")
    with pytest.raises(UsageError, match=r"expands to 6 cases, more than policy\.limit_cases = 5"):
        make_plan(load_matrix(str(matrix)), load_kernels())


def test_a_case_of_the_traffic_names_the_line_of_the_traffic(matrix: Path) -> None:
    """Whoever asks where a case is from opens the matrix there."""
    cases = make_plan(load_matrix(str(matrix)), load_kernels()).cases
    line = MATRIX.splitlines().index("traffic: chat.yaml") + 1
    assert {line} == {case.line for case in cases if case.phase in ("decode", "verify")}


def test_phases_may_be_left_to_the_traffic(matrix: Path) -> None:
    """Without phases the traffic alone says which calls are made; with neither, phases are missing."""
    matrix.write_text(MATRIX.replace("phases: {prefill: {seqlen: 64, batch: [1, 2]}}\n", ""))
    assert 4 == len(
        {
            (case.phase, case.shape)
            for case in make_plan(load_matrix(str(matrix)), load_kernels()).cases
            if case.model == "llama-3.2-1b.tp1"
        }
    )
    matrix.write_text(matrix.read_text().replace("traffic: chat.yaml\n", ""))
    with pytest.raises(CardError, match="phases: is missing"):
        load_matrix(str(matrix))


def test_other_traffic_is_another_matrix(matrix: Path, tmp_path: Path) -> None:
    """A run is not gone on with when the traffic has changed."""
    before = load_matrix(str(matrix)).content_hash
    (tmp_path / "chat.yaml").write_text(CHAT.replace("weight: 100", "weight: 101"))
    assert before != load_matrix(str(matrix)).content_hash


def test_traffic_counts_against_the_limit(matrix: Path) -> None:
    """The cases that it adds are counted before they are made."""
    matrix.write_text(MATRIX.replace("phases: {", "policy: {limit_cases: 3}\nphases: {"))
    with pytest.raises(UsageError, match=r"expands to \d+ cases, more than policy.limit_cases = 3"):
        make_plan(load_matrix(str(matrix)), load_kernels())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("weight: 3", "weight: 0"), "chat.yaml:4:43: buckets[0].weight: must be more than 0, but is 0"),
        (("seqlen: 256", "seqlen: 0"), "buckets[0].seqlen: must be at least 1, but is 0"),
        (("seqlen: 256", "context: 256"), "buckets[0]: is a bucket of prefill, which needs seqlen"),
        (("draft: 4, ", ""), "buckets[3]: is a bucket of verify, which needs draft"),
        (("draft: 4", "draft: 4, chunk: 3"), "buckets[3].chunk: has no meaning in verify"),
        (("phase: verify", "phase: varlen"), "buckets[3].phase: must be one of prefill, chunked, decode, verify"),
        (("seqlen: 64, weight: 1.5, batch: 2", "seqlen: 256, weight: 9"), "buckets[1]: is the same call as buckets[0]"),
        (("seqlen: 256", "seqlen: 256, page_size: 16"), "buckets[0].page_size: has no meaning in prefill"),
        (
            ("phase: decode, context: 300", "phase: decode, context: 0"),
            "buckets[2].context: must be at least 1, but is 0",
        ),
        (("source", "sorce"), "sorce: unknown key; perhaps you meant source"),
        (("phase: decode", "phase: decod"), 'but is "decod"; perhaps you meant decode'),
    ],
)
def test_wrong_traffic(matrix: Path, tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    """Every problem names file, line, key and value."""
    (tmp_path / "chat.yaml").write_text(CHAT.replace(*change))
    with pytest.raises(CardError) as caught:
        load_matrix(str(matrix))
    assert expected in str(caught.value)


def test_traffic_that_is_not_there(matrix: Path) -> None:
    """The place of the key, and the path that was looked for."""
    matrix.write_text(MATRIX.replace("chat.yaml", "chats.yaml"))
    with pytest.raises(CardError, match=r"served.yaml:6:10: traffic: no such file .*chats.yaml"):
        load_matrix(str(matrix))


def test_traffic_weighs_the_own_masks(matrix: Path) -> None:
    """Layers would count twice under two masks."""
    matrix.write_text(MATRIX + "masks: [model, full]\n")
    with pytest.raises(CardError, match="masks: must be model where the matrix names traffic"):
        load_matrix(str(matrix))


@pytest.mark.parametrize("path", sorted(assets.shipped("traffic").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_traffic_loads(path: Any) -> None:
    """And is called as its file is."""
    card, _ = load_traffic(path)
    assert path.stem == card.traffic
