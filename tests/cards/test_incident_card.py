"""Incidents in a matrix: what an entry holds, what is refused with its place, and what is shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qualify.cards.incident import ENDINGS
from qualify.cards.load import load_kernels, load_matrix
from qualify.cards.matrix import MatrixCard
from qualify.errors import CardError

TEXT = """\
matrix: replay
kernels: ["*"]
incidents:
  - incident: pytorch-195910
    issue: "pytorch/pytorch#195910"
    title: Three of four rows saw the future.
    trigger: causal
    shown_by: [suffix, crash]
    calls:
      - {heads_q: 4, head_dim: 64, seqlens_q: 64}
"""


def load(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "replay.yaml"
    path.write_text(text)
    return load_matrix(str(path))


def problems(tmp_path: Path, text: str) -> list[str]:
    """What is said about a wrong matrix, each with line and column."""
    with pytest.raises(CardError) as caught:
        load(tmp_path, text)
    return [f"{place.line}:{place.column} {message}" for place, message in caught.value.problems]


def test_an_incident_needs_no_models(tmp_path) -> None:
    """Heads, dimensions, keys and scale follow from what is given."""
    (incident,) = load(tmp_path, TEXT).card.incidents
    (call,) = incident.calls
    assert (4, 64, 0.125, True, (-1, -1)) == (call.heads_kv, call.head_dim_v, call.scale, call.causal, call.window)
    assert ((64,), (64,)) == call.lengths
    assert (("bf16",), ("*",)) == (incident.dtypes, incident.kernels)


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ("seqlens_q: [1, 2], seqlens_k: [7, 8]", ((1, 2), (7, 8))),
        ("seqlens_q: [1, 2], seqlens_k: 9", ((1, 2), (9, 9))),
        ("seqlens_q: 3, batch: 4", ((3,) * 4, (3,) * 4)),
        ("seqlens_q: [1, 0], seqlens_k: [5, 5], batch: 2", ((1, 0, 1, 0), (5, 5, 5, 5))),
    ],
)
def test_lengths(tmp_path, given, lengths) -> None:
    """One length stands for all, and the batch repeats the list; equal lengths are no repeat."""
    (incident,) = load(tmp_path, TEXT.replace("seqlens_q: 64", given)).card.incidents
    assert lengths == incident.calls[0].lengths


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("heads_q: 4,", "heads_q: 4, heads_kv: 3,", "10:32 incidents[0].calls[0].heads_kv: is 3 and does not divide"),
        ("seqlens_q: 64", "seqlens_q: [1, 2], seqlens_k: [1, 2, 3]", "has 3 lengths, and seqlens_q has 2"),
        ("seqlens_q: 64", "seqlens_q: [0, 0]", "has no query at all"),
        ("seqlens_q: 64", "seqlens_q: 64, window: [3]", "window: must be the two numbers [left, right]"),
        ("seqlens_q: 64", "seqlens_q: 64, window: [-2, 0]", "must be at least -1"),
        ('"pytorch/pytorch#195910"', "pytorch 195910", "5:12 incidents[0].issue"),
        ("suffix, crash", "sufix", "8:16 incidents[0].shown_by"),
        ("trigger", "triger", "unknown key; perhaps you meant trigger"),
        (
            "    calls",
            "    kernels: [flash-atn-3]\n    calls",
            "no kernel matches flash-atn-3; perhaps you meant flash-attn-3",
        ),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(tmp_path, old, new, said) -> None:
    """Line, column, the way to the value, and what is wrong."""
    found = problems(tmp_path, TEXT.replace(old, new, 1))
    assert any(said in problem for problem in found), found


def test_an_incident_is_named_once(tmp_path) -> None:
    """Two entries of one name would share their case ids."""
    entry = TEXT.partition("incidents:\n")[2]
    assert any("names pytorch-195910 again, after incidents[0]" in text for text in problems(tmp_path, TEXT + entry))


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ("seqlens_q: [4, 4]", "seqlens_q: 4, batch: 2"),
        ("seqlens_q: [4, 5, 4, 5], batch: 3", "seqlens_q: [4, 5], batch: 6"),
        ("seqlens_q: [1, 2], seqlens_k: 9", "seqlens_q: [1, 2], seqlens_k: [9, 9]"),
        ("seqlens_q: 4", "seqlens_q: [4], seqlens_k: 4, heads_kv: 4, scale: 0.125, window: [-1, -1]"),
    ],
)
def test_a_call_is_written_once(tmp_path, first, again) -> None:
    """However it is spelled: the second case would have the id of the first one."""
    calls = f"{{heads_q: 4, head_dim: 64, {first}}}\n      - {{heads_q: 4, head_dim: 64, {again}}}"
    found = problems(tmp_path, TEXT.replace("{heads_q: 4, head_dim: 64, seqlens_q: 64}", calls))
    assert ["11:9 incidents[0].calls[1]: repeats calls[0]; remove one of them"] == found


def test_an_incident_has_a_kernel_of_its_matrix(tmp_path) -> None:
    """Else none of its calls would be replayed, silently; one of its kernels is enough."""
    named = TEXT.replace("    calls", "    kernels: [flash-attn-3, flash-attn-2]\n    calls")
    found = problems(tmp_path, named.replace('["*"]', "[tiled-torch]"))
    message = "has no kernel of this matrix, so no call would be replayed; add one of them to the matrix, or remove"
    assert [f"9:14 incidents[0].kernels: {message} the incident"] == found
    assert load(tmp_path, named.replace('["*"]', '["flash-attn-2"]')).card.incidents


def test_models_still_need_phases_and_dtypes(tmp_path) -> None:
    """Half of a product is an error, with incidents beside it or not; so is a matrix of nothing."""
    found = problems(tmp_path, TEXT.replace("incidents:", "models: [llama-3.1-8b]\nincidents:"))
    assert ["dtypes: is missing", "phases: is missing"] == sorted(
        text.split(" ", 1)[1].split(" (")[0] for text in found
    )
    assert 3 == len(problems(tmp_path, 'matrix: replay\nkernels: ["*"]\n'))


def test_the_shipped_incidents() -> None:
    """At least 40, each with its report, and what it names for a shipped kernel exists."""
    incidents = load_matrix("incidents").card.incidents
    assert 40 <= len(incidents)
    assert isinstance(MatrixCard.model_fields["incidents"].default, tuple)
    numbers = {issue for incident in incidents for issue in incident.issue}
    assert {"pytorch/pytorch#195910", "Dao-AILab/flash-attention#2374"} <= numbers
    assert all(issue.rpartition("/")[2] for issue in numbers)
    assert {word for incident in incidents for word in incident.shown_by} & set(ENDINGS) == set(ENDINGS)
    assert load_kernels()
