"""A process and everything that it started, wherever those processes moved: how much memory they hold, and their end.

A process belongs to the tree of a child when one of these is true. Nobody else's process meets any of them, unless it
copies a mark from the arguments of another child on purpose::

    it is the child                   same id and same start time: an id alone may be somebody else's by now
    its parent belongs
    it was seen as a member before    its parents may have ended since
    it is in the child's session      while a member still holds that session's number
    its environment has the mark      which the child was started with: daemons that left session and parents behind;
                                      of a process that keeps its environment to itself, its arguments
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from qualify.processes import Process, processes, read_process
from qualify.run.process.memory import resident_bytes

GIVE_UP_S = 10.0
"""a process that SIGKILL has not ended by then is stuck in the kernel"""
PAUSE_S = 0.005
WALK_S = 0.25
"""pause between two looks for new members"""
WALK_SHARE = 20
"""... and at least so many times what the last look took: on a machine with thousands of processes it takes long"""


class Tree:
    """One child process and everything that it started."""

    def __init__(self, pid: int, mark: str) -> None:
        """Begin with a child that this process started and has not waited for.

        Args:
            pid: of the child, the leader of a session of its own.
            mark: text that stands in the environment and arguments of the child and of no other tree's processes;
                empty for none.
        """
        self.pid = pid
        self.mark = mark.encode()
        process = read_process(pid)
        self.began = process.started if process else 0
        self.members = {pid: self.began}
        """start times of the processes seen at the last look, by id"""
        self.walk_at = 0.0

    def used_bytes(self, limit_bytes: int, lent_bytes: int | None) -> int:
        """Host memory of all its members; the arguments are those of :func:`resident_bytes`."""
        now = time.monotonic()
        if now >= self.walk_at:
            self.look()
            done = time.monotonic()
            self.walk_at = done + max(WALK_S, WALK_SHARE * (done - now))
        return resident_bytes(self.members, limit_bytes, lent_bytes)

    def look(self) -> list[Process]:
        """Its present members, parents before their children; those that ended and wait for their parent too."""
        table = processes()
        children: defaultdict[int, list[Process]] = defaultdict(list)
        for process in table.values():
            children[process.parent].append(process)
        found: dict[int, Process] = {}
        queue = [process for process in table.values() if self.members.get(process.pid) == process.started]
        # A session's number is not given to another process while the session has a member.
        if any(process.session == self.pid for process in queue):
            queue += [process for process in table.values() if process.session == self.pid]
        queue += [process for process in table.values() if self._marked(process)]
        for process in queue:
            if process.pid not in found and process.pid != os.getpid():
                found[process.pid] = process
                queue += children[process.pid]
        self.members = {process.pid: process.started for process in found.values()}
        return list(found.values())

    def _marked(self, process: Process) -> bool:
        if not self.mark or process.started < self.began or process.ended:
            return False
        for name in ("environ", "cmdline"):
            try:
                return self.mark in Path(f"/proc/{process.pid}/{name}").read_bytes()
            except PermissionError:  # it keeps to itself, or is somebody else's
                continue
            except OSError:  # it ended
                break
        return False

    def end(self) -> None:
        """Kill every member, and wait until none is left.

        All are stopped first, so that none starts another one while this looks for them.
        """
        stopped: set[tuple[int, int]] = set()
        until = time.monotonic() + GIVE_UP_S
        while True:
            members = self.look()
            living = [process for process in members if not process.ended]
            late = time.monotonic() > until
            fresh = [process for process in living if (process.pid, process.started) not in stopped]
            if fresh and not late:
                for process in fresh:
                    _send(process, signal.SIGSTOP)
                    stopped.add((process.pid, process.started))
                continue
            # Children first: the kernel wakes stopped processes whose group loses its last parent.
            for process in reversed(living):
                _send(process, signal.SIGKILL)
            if late or not living:
                break
            time.sleep(PAUSE_S)
        _reap(process for process in members if process.pid != self.pid)


def family(eldest: int) -> set[int]:
    """Ids of a process and of everything below it."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for process in processes().values():
        children[process.parent].append(process.pid)
    found, queue = {eldest}, [eldest]
    while queue:
        below = [pid for pid in children[queue.pop()] if pid not in found]
        found.update(below)
        queue += below
    return found


def end_strays(known: Collection[int]) -> None:
    """End the processes that fell to this one because their own parents ended, and everything that they started.

    Only a process that called ``adopt_orphans`` gets any. A process that it started itself, in its own session, is not
    among them.

    Args:
        known: ids of the children that it started in sessions of their own, and that are to live on.
    """
    until = time.monotonic() + GIVE_UP_S
    while strays := list(_strays(known)):
        for stray in strays:
            Tree(stray.pid, mark="").end()
        _reap(_strays(known))
        if time.monotonic() > until:
            return


def _strays(known: Collection[int]) -> Iterator[Process]:
    own, session = os.getpid(), os.getsid(0)
    for process in processes().values():
        if process.parent == own and process.session != session and process.pid not in known:
            yield process


def _send(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process, and never to a later one of the same id.

    A handle names the process whatever becomes of its id; old kernels have none, and a full table of files neither.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        handle = -1
    try:
        now = read_process(process.pid)
        if now is None or now.started != process.started:
            return
        with suppress(ProcessLookupError, PermissionError):
            if handle >= 0:
                signal.pidfd_send_signal(handle, number)
            else:
                os.kill(process.pid, number)
    finally:
        if handle >= 0:
            os.close(handle)


def _reap(ended: Iterable[Process]) -> None:
    """Wait for ended processes that have become children of this one, so that the kernel forgets them."""
    for process in ended:
        if process.parent == os.getpid() and process.ended:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
