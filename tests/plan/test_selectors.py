"""Globs that match nothing are never silent: where they stand, and what they were perhaps meant to be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from builders import make_kernel

from qualify.cards.load import load_kernels, load_matrix
from qualify.cards.named import matrix_names
from qualify.errors import CardError, NothingSelected
from qualify.plan.plan import Plan, Selection, make_plan
from qualify.plan.selectors import nearest

KERNELS = {name: make_kernel(name) for name in ("tiled-torch", "torch-cpu-math")}
MATRIX = """\
matrix: serving
models:
  - model: toy
    geometry: {groups: [{layers: [0], heads_q: 2, heads_kv: 2, head_dim: 32, mask: causal}]}
phases: {prefill: {seqlen: [8, 9]}}
dtypes: [bf16]
kernels: [tiled-torch, torch-cpu-math]
"""
EACH = 'expect:\n  - {select: "*q8*", kernel: tiled-torch}\n  - {select: "*q9*", kernel: tiled-torch}\n'


def planned(folder: Path, text: str, **selection: Any) -> Plan:
    """The plan of the matrix with more lines."""
    path = folder / "serving.yaml"
    path.write_text(MATRIX + text)
    return make_plan(load_matrix(str(path)), KERNELS, selection=Selection(**selection))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'exclude: ["*/q8/*"]\n',
            '8:11: exclude[0]: "*/q8/*" matches no case of this matrix; correct it, or remove it',
        ),
        (
            'exclude:\n  - "*/tiled-torch"\n  - "*/tiled-troch"\n',
            '10:5: exclude[1]: "*/tiled-troch" matches no case of this matrix; perhaps you meant one like toy.tp1/pre',
        ),
        (
            'expect:\n  - {select: "tow.tp1/prefill/*", kernel: tiled-torch}\n',
            '9:14: expect[0].select: "tow.tp1/prefill/*" matches no case of this matrix; perhaps you meant one',
        ),
        (
            'expect: [{select: "*q8*", kernel: tiled-torch}]\nexclude: ["*q8*"]\n',
            '8:19: expect[0].select: "*q8*" matches only cases that exclude leaves out; correct one of the two',
        ),
        (
            'expect:\n  - {select: "*", kernel: tiled-torch}\n  - {select: "*q8*", kernel: torch-cpu-math}\n',
            '10:14: expect[1].select: "*q8*" matches only cases that expect[0] matches too, and the first entry that',
        ),
        (
            EACH + '  - {select: "*/causal", kernel: torch-cpu-math}\n',
            '11:14: expect[2].select: "*/causal" matches only cases that expect[0] and expect[1] match too, and the',
        ),
    ],
)
def test_a_glob_without_any_match_is_a_wrong_card(tmp_path: Path, text: str, message: str) -> None:
    """File, line and column, the glob, and the nearest case; whatever --select leaves."""
    for select in ("", "*q9*"):
        with pytest.raises(CardError, match=re.escape(f"serving.yaml:{message}")):
            planned(tmp_path, text, select=select)


def test_an_expectation_that_no_incident_tries_is_a_wrong_card(tmp_path: Path) -> None:
    """A glob for all cases is right: it counts for the production shapes, and for incidents that try the kernel."""
    text = (
        "incidents:\n  - {incident: pytorch-1, issue: pytorch/pytorch#1, title: wrong, trigger: a call,"
        " shown_by: census, kernels: torch-*, calls: [{heads_q: 2, head_dim: 32, seqlens_q: 8}]}\n"
    )
    planned(tmp_path, text + 'expect: [{select: "*", kernel: tiled-torch}]\n')
    planned(tmp_path, text + 'expect: [{select: "incidents/*", kernel: torch-cpu-math}]\n')
    message = (
        'serving.yaml:10:19: expect[0].select: "incidents/*" matches only incidents that do not try tiled-torch; '
        "add it to their kernels, or expect one of those"
    )
    with pytest.raises(CardError, match=re.escape(message)):
        planned(tmp_path, text + 'expect: [{select: "incidents/*", kernel: tiled-torch}]\n')


def test_a_glob_that_matches_only_refused_cases_matches(tmp_path: Path) -> None:
    """A kernel that refuses a case, or is not installed, makes no card wrong."""
    refusing = {**KERNELS, "tiled-torch": make_kernel("tiled-torch", head_dim={"max": 16})}
    path = tmp_path / "serving.yaml"
    path.write_text(
        MATRIX + 'expect: [{select: "*/tiled-torch", kernel: tiled-torch}]\nexclude: ["*q9*/tiled-torch"]\n'
    )
    found = make_plan(load_matrix(str(path)), refusing)
    assert (2, 1) == (len(found.cases), len(found.refused))


def test_an_expectation_that_an_earlier_one_leaves_a_case_counts(tmp_path: Path) -> None:
    """The order of exceptions first and the rest last is right."""
    text = 'expect:\n  - {select: "*q8*", kernel: tiled-torch}\n  - {select: "*", kernel: torch-cpu-math}\n'
    assert 4 == len(planned(tmp_path, text).cases)


def test_a_model_without_any_call_is_a_wrong_card(tmp_path: Path) -> None:
    """It would be in the matrix and in no verdict."""
    text = MATRIX.replace("dtypes", "  decode: {context: 9}\ndtypes").replace("{prefill: {seqlen: [8, 9]}}", "")
    path = tmp_path / "serving.yaml"
    path.write_text(text.replace("mask: causal", "mask: full, phases: [prefill, varlen]"))
    message = "serving.yaml:3:5: models[0]: toy makes no call in decode, only in prefill and varlen"
    with pytest.raises(CardError, match=re.escape(message)):
        make_plan(load_matrix(str(path)), KERNELS)


def test_a_part_of_the_kernels_blames_no_glob(tmp_path: Path) -> None:
    """With --kernel an exclusion may be about the others."""
    assert 2 == len(planned(tmp_path, 'exclude: ["*/tiled-torch"]\n', kernel="torch-cpu-math").cases)


def test_a_selection_without_any_match_names_the_closest(tmp_path: Path) -> None:
    """Up to three ids; and an exclude that leaves nothing is said to do so."""
    with pytest.raises(NothingSelected, match=r"Closest: toy.tp1/prefill/b1.q8.k8/bf16/causal/tiled-torch, toy"):
        planned(tmp_path, "", select="tov.tp1/prefill/*")
    with pytest.raises(NothingSelected, match="its exclude leaves out everything"):
        planned(tmp_path, 'exclude: ["*"]\n')


@pytest.mark.parametrize("glob", ["q8", "toy.tp1/decode/*/tiled-torch", "toy.tp1/prefil/*", "*/torch-cpu-mth"])
def test_the_nearest_ids_are_like_the_glob(tmp_path: Path, glob: str) -> None:
    """A glob that lacks its stars, or has a wrong letter."""
    ids = [case.id for case in planned(tmp_path, "").cases]
    found = nearest(glob, ids)
    assert found
    assert set(found) <= set(ids)


def test_no_shipped_matrix_has_a_glob_without_a_match() -> None:
    """Each is planned as it stands."""
    kernels = load_kernels()
    for name in matrix_names():
        make_plan(load_matrix(name), kernels)
