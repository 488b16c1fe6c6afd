"""A library that was replaced and looks the same: level full and canaries read it, whatever is remembered of it."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_process import write_card, write_matrix
from stored_runs import NOW, PASSED, store_run

from qualify.assets import digest_cache
from qualify.canary.child import _asked
from qualify.canary.messages import Order
from qualify.cards.load import load_kernels
from qualify.cli.gate import GateOptions, _code_here
from qualify.facts.case import Level
from qualify.facts.typed import PLAIN
from qualify.fleet.judges import settings_of
from qualify.fleet.local import code_of
from qualify.fleet.request import Asked, Request, make_request
from qualify.judge.judged import Judged, judge
from qualify.plan.code import CodeHere
from qualify.plan.digests import digests_of
from qualify.store.store import Store

SOLD, SENT = b"\x7fELF" + b"a" * 60, b"\x7fELF" + b"b" * 60
"""what the library was, and what lies in its place"""
PAST_S = 1_700_000_000


def sha256(content: bytes) -> str:
    """The digest of a content."""
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library beside a third party's function, whose digest is remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mykernels").mkdir()
    write_card(tmp_path / "mykernels", "correct", "module_of_a_stranger")
    (tmp_path / "mykernels" / "module_of_a_stranger.py").write_text("attend = None\n")
    write_matrix(tmp_path / "mine.yaml", "correct")
    path = tmp_path / "mykernels" / "fast.so"
    path.write_bytes(SOLD)
    os.utime(path, (PAST_S, PAST_S))
    return path


def replace_it(path: Path) -> None:
    """Another file of the same size and time, and a memory that takes it for the one that was there."""
    path.unlink()
    path.write_bytes(SENT)
    os.utime(path, (PAST_S, PAST_S))
    seen = path.stat()
    mark = f"{seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns} {seen.st_ino}"
    digest_cache().parent.mkdir(parents=True, exist_ok=True)
    digest_cache().write_text(json.dumps({str(path): [mark, sha256(SOLD)]}))
    assert {str(path): sha256(SOLD)} == digests_of([str(path)], digest_cache())


def request_of(**changes: Any) -> Request:
    """The matrix on this machine."""
    return make_request(Asked(matrix="mine.yaml", cards=(Path("mykernels"),), device="cpu", **changes))


@pytest.mark.parametrize(("changes", "found"), [({"level": "full"}, SENT), ({"anew": True}, SENT), ({}, SOLD)])
def test_a_run_reads_what_lies_there(library: Path, changes: Any, found: bytes) -> None:
    """At level full, and where it was asked; a smoke run believes the memory."""
    replace_it(library)
    request = request_of(**changes)
    assert sha256(found) == code_of(request)["correct"]["fast.so"]
    setup = settings_of(request).run_setup()
    assert ("" if found == SENT else str(digest_cache())) == setup.hash_cache


def test_a_canary_reads_what_lies_there(library: Path) -> None:
    """Whatever the level of its card is."""
    order = Order(
        matrix="mine.yaml",
        cards=("mykernels",),
        select=None,
        kernel=None,
        level="smoke",
        device="cpu",
        resume=None,
        out="reports",
        slower=0.1,
        lease="canary",
        epoch=1,
        lease_s=30,
        node="here",
        fire=1,
    )
    replace_it(library)
    assert sha256(SENT) == code_of(make_request(_asked(order)))["correct"]["fast.so"]


def judged(store: Store, level: Level, library: Path) -> Judged:
    """A run of that level, judged after the library was replaced."""
    run = store_run(store, Path("mine.yaml"), PASSED, cards=(library.parent,), level=level, age=timedelta(hours=1))
    replace_it(library)
    here = CodeHere(folders=(str(library.parent),), cache=digest_cache(), every=False)
    return judge(store, run.id, load_kernels((library.parent,)), now=NOW, code=here)


def test_a_gate_of_a_full_run_reads_what_lies_there(library: Path, store: Store) -> None:
    """The evidence is of another library: no verdict, and the file is named."""
    found = judged(store, "full", library)
    assert (5, True) == (found.conclusion.exit_code, found.stale)
    assert "correct must run again: its code changed since: fast.so" in found.notes


def test_a_gate_of_a_smoke_run_believes_the_memory(library: Path, store: Store) -> None:
    """That is what level smoke is: quick, and no guard against who can write the memory."""
    assert not judged(store, "smoke", library).stale


@pytest.mark.parametrize(("level", "believes"), [("full", False), ("smoke", True)])
def test_a_gate_on_full_evidence_reads_what_lies_there(library: Path, level: str, believes: bool) -> None:
    """`gate --matrix M --level full` believes nothing that is remembered."""
    wanted = GateOptions(
        run="",
        matrix="mine.yaml",
        max_age=None,
        stack="here",
        level=level,
        against="",
        waivers=None,
        cards=(library.parent,),
        environments={},
        typed=PLAIN,
        keys=(),
        require_duel=False,
    )
    replace_it(library)
    card = load_kernels((library.parent,))["correct"].card
    code = _code_here(wanted, {}).of([card])["correct"]
    assert code is not None
    assert sha256(SOLD if believes else SENT) == code["fast.so"]
