"""What an engine's task does on its node: list its cards, or run a plan and hand on what comes of it.

It imports little, because it starts on every node. The node runner is a process of its own, which ends with its task.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qualify.facts import codec
from qualify.facts.fleet import FINAL, ListedCard
from qualify.fleet.inventory import NoDriver, list_cards
from qualify.run.machine.variables import started_with

BOOT = (
    "import sys; from qualify.run.process.parent import die_with; die_with(int(sys.argv.pop(1))); "
    "from qualify.cli import main; main()"
)
LOOK_S = 0.5
"""seconds between two looks at the files of a node"""
SAID = 2000
"""characters of a node's log that are told where it does not answer"""


def cards_here(device: str, node: str) -> Any:
    """The cards of this node; empty where it has no driver, for example on the head node of a cluster."""
    try:
        found = list_cards(device, node)
    except NoDriver:
        found = ()
    return codec.to_data(found, tuple[ListedCard, ...])


def run_plan(plan: Mapping[str, Any], program: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Run the plan in a process of its own; hand on its files as they come, at last its verdict."""
    with tempfile.TemporaryDirectory(prefix="qualify-node-") as place:
        folder = Path(place)
        (folder / "plan.json").write_text(json.dumps(dict(plan)))
        own = program or (sys.executable, "-P", "-c", BOOT, str(os.getpid()), "node")
        with (folder / "answer").open("wb") as answer, (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*own, str(folder / "plan.json"), "--out", str(folder / "runs")],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=log,
                env=_environment(),
            )
        try:
            yield ("begun",)
            sent: dict[str, int] = {}
            while not _ended(process):
                yield from _new_files(folder / "runs", sent)
            yield from _new_files(folder / "runs", sent)
            said = (folder / "log").read_text(errors="replace")[-SAID:]
            yield ("done", (folder / "answer").read_text(errors="replace"), said)
        finally:
            process.kill()
            process.wait()


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended; waits up to ``LOOK_S`` for its end."""
    try:
        process.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _new_files(folder: Path, sent: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """Files that are new, or have changed since they were sent."""
    for path in sorted(folder.glob(f"*{FINAL}")):
        with suppress(OSError):  # the whole run's file has taken its place
            version = path.stat().st_mtime_ns
            if sent.get(path.name) != version:
                content = path.read_bytes()
                sent[path.name] = version
                yield ("file", path.name, content)


def _environment() -> dict[str, str]:
    """The variables that the node itself was started with: those that Ray adds would look like another stack."""
    return {
        name: value
        for name, value in started_with().items()
        if not name.startswith("RAY_") and name != "CUDA_VISIBLE_DEVICES"
    }
