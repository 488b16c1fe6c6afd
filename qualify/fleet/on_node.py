"""What an engine's task does on its node: list its cards, or run a plan and hand on what comes of it.

It imports little, because it starts on every node. The node runner is a process of its own, which ends with its task.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from qualify.facts import codec
from qualify.facts.fleet import FINAL, ListedCard
from qualify.files import open_regular
from qualify.fleet.inventory import NoDriver, list_cards, node_name
from qualify.run.machine.variables import started_with
from qualify.run.process.folder import remove_folder

BOOT = (
    "import sys; from qualify.run.process.parent import die_with; die_with(int(sys.argv.pop(1))); "
    "from qualify.cli import main; main()"
)
LOOK_S = 0.5
"""seconds between two looks at the files of a node"""
PLACE = "qualify-node-"
"""how the names of the folders begin in which plans are run"""
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
    _remove_left()
    place = Path(tempfile.mkdtemp(prefix=PLACE))
    try:
        with _held(place):
            yield from _run_in(place, plan, program)
    finally:
        remove_folder(place)


def _run_in(folder: Path, plan: Mapping[str, Any], program: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Run the plan in a folder, which kernels can find: nothing is opened anew that could have become a pipe."""
    (folder / "plan.json").write_text(json.dumps(dict(plan)))
    own = program or (sys.executable, "-P", "-c", BOOT, str(os.getpid()), "node")
    with (folder / "answer").open("w+b") as answer, (folder / "log").open("w+b") as log:
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
            yield ("done", _said(answer), _said(log)[-SAID:])
        finally:
            process.kill()
            process.wait()


def _said(file: BinaryIO) -> str:
    """What a process has written into a file."""
    file.seek(0)
    return file.read().decode(errors="replace")


def _lock_of(folder: Path) -> Path:
    """The lock of a folder. It names the machine, because some shared file systems lock for one machine alone."""
    return folder / f"{node_name()}.lock"


def _held(folder: Path) -> BinaryIO:
    """The folder's lock, which is free as soon as this process ends, however it ends. It appears when it is held."""
    lock = (folder / "lock").open("wb")
    with suppress(OSError):  # a file system without locks: then the folder stays if this process is killed
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / "lock").rename(_lock_of(folder))
    return lock


def _remove_left() -> None:
    """Remove the folders of this user's tasks that were killed, as Ray ends a cancelled task."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PLACE}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid():
                with _lock_of(folder).open("r+b") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_folder(folder)


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
                with open_regular(path) as file:
                    content = file.read()
                sent[path.name] = version
                yield ("file", path.name, content)


def _environment() -> dict[str, str]:
    """The variables that the node itself was started with: those that Ray adds would look like another stack."""
    return {
        name: value
        for name, value in started_with().items()
        if not name.startswith("RAY_") and name != "CUDA_VISIBLE_DEVICES"
    }
