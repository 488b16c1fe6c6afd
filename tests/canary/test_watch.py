"""The stack of a node: what a look finds, and when a change of it has settled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cli_process import environment
from stored_runs import make_stack

from qualify.canary.watch import decide, look
from qualify.facts.canary import Watched
from qualify.facts.differing import changes_words
from qualify.facts.stack import Stack

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SETTLE = timedelta(minutes=10)
OLD, NEW, NEWER = make_stack(), make_stack(torch="2.12.0"), make_stack(torch="2.13.0")


class Node:
    """One canary on one node, looked at again and again."""

    def __init__(self, first: Stack) -> None:
        self.known = Watched(
            lease="l@n", canary="c", node="n", stack=first, seen_at=START, changing_to="", changing_since=None
        )

    def look(self, stack: Stack, minute: float) -> tuple[list[str], list[str]]:
        """Names of what was noticed and of what fired."""
        decision = decide(self.known, stack, START + timedelta(minutes=minute), SETTLE)
        self.known = decision.watched or self.known
        return [change.component for change in decision.noticed], [change.component for change in decision.fire]


def test_the_same_stack_fires_nothing() -> None:
    """However often it is looked at."""
    node = Node(OLD)
    assert ([], []) == node.look(OLD, 0)
    assert ([], []) == node.look(OLD, 60)
    assert OLD == node.known.stack


def test_a_change_is_noticed_at_once_and_fires_when_it_settled() -> None:
    """It is noticed in the first look that sees it, and fires once."""
    node = Node(OLD)
    assert (["torch"], []) == node.look(NEW, 1)
    assert ([], []) == node.look(NEW, 10.9)
    assert ([], ["torch"]) == node.look(NEW, 11)
    assert ([], []) == node.look(NEW, 30)


def test_an_upgrade_in_progress_fires_once() -> None:
    """Each step begins the time anew; what counts is all that changed since the last fire."""
    node = Node(OLD)
    both = make_stack(torch="2.13.0", triton="3.7.0")
    assert ["torch"] == node.look(NEW, 1)[0]
    assert ["torch"] == node.look(NEWER, 8)[0]
    assert ["torch", "triton"] == node.look(both, 16)[0]
    assert ([], []) == node.look(both, 25)
    assert ([], ["torch", "triton"]) == node.look(both, 26)


def test_a_change_that_is_undone_fires_nothing() -> None:
    """Rolled back before it settled."""
    node = Node(OLD)
    node.look(NEW, 1)
    assert ([], []) == node.look(OLD, 5)
    assert "" == node.known.changing_to
    assert (["torch"], []) == node.look(NEW, 20)
    assert ([], []) == node.look(NEW, 29)


def test_a_clock_set_back_begins_the_time_anew() -> None:
    """A change does not wait for a moment that lies days ahead."""
    node = Node(OLD)
    node.look(NEW, 5000)
    assert ([], []) == node.look(NEW, 1)
    assert ([], ["torch"]) == node.look(NEW, 11)


def test_changes_in_one_sentence() -> None:
    """From what to what, and how many more."""
    node = Node(OLD)
    changed = make_stack(**{f"part{number}": "1" for number in range(9)})
    decision = decide(node.known, changed, START, SETTLE)
    text = changes_words(decision.noticed)
    assert text.startswith("part0 absent → 1, ")
    assert text.endswith(", and 3 more")
    assert "torch 2.11.0 → 2.12.0" == changes_words(decide(node.known, NEW, START, SETTLE).noticed)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of packages with an attention distribution in it, whose file is not what its RECORD says."""
    folder = tmp_path / "site"
    write_distribution(folder, "2.8.0", b"first")
    return folder


def write_distribution(folder: Path, version: str, content: bytes) -> None:
    """The distribution flash-attn of that version, with one shared object."""
    for old in folder.glob("flash_attn-*"):
        for path in old.iterdir():
            path.unlink()
        old.rmdir()
    info = folder / f"flash_attn-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {version}\n")
    (info / "RECORD").write_text("flash_attn_2_cuda.so,,\n")
    (folder / "flash_attn_2_cuda.so").write_bytes(content)


LOOKER = """
import json, sys
from qualify.canary.watch import look
from qualify.facts import codec
for line in sys.stdin:
    print(json.dumps(codec.to_data(look())), flush=True)
"""


def test_one_process_sees_what_is_installed_while_it_runs(installed: Path, tmp_path: Path) -> None:
    """An upgrade in place, a file exchanged under the same version: both are seen without a restart, without torch."""
    paths = os.pathsep.join([str(installed), environment()["PYTHONPATH"]])
    given = environment(PYTHONPATH=paths, XDG_CACHE_HOME=str(tmp_path), QUALIFY_IMAGE="registry/x@sha256:1", VLLM_X="1")
    code = f"{LOOKER}\nassert 'torch' not in sys.modules"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def seen() -> dict[str, str]:
            process.stdin.write("\n")
            process.stdin.flush()
            data = json.loads(process.stdout.readline())
            assert "1" == data["environment"]["VLLM_X"]
            parts = data["components"]
            return {part["name"]: part["version"] or part["digest"] for part in parts}

        first = seen()
        assert first == seen()
        assert ("2.8.0", "registry/x@sha256:1") == (first["flash-attn"], first["image"])
        write_distribution(installed, "2.8.1", b"first")
        second = seen()
        assert "2.8.1" == second["flash-attn"]
        (installed / "flash_attn_2_cuda.so").write_bytes(b"another")
        third = seen()
        assert {"flash_attn_2_cuda.so"} == {name for name in third if third[name] != second[name]}
        process.stdin.close()
    assert 0 == process.returncode


def test_a_look_names_what_kernels_come_from() -> None:
    """Libraries with their hashes, and the machine."""
    stack = look()
    names = {part.name for part in stack.components}
    assert {"torch", "python", "kernel", "libtorch_cpu.so"} <= names
    assert stack.fingerprint == look().fingerprint
    assert stack.fingerprint != replace(stack, environment={"VLLM_X": "1"}).fingerprint
