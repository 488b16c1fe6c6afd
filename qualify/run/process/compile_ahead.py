"""Compiles the kernels of just-in-time libraries before a run, in several processes at once.

FlashInfer takes 8 to 80 s for a kernel and FlashAttention-4 3 to 5 s for a specialisation, one core each. A
library keeps what it compiles in a cache of its own on disk. So it is enough that some process makes the call once:
the run's worker then loads what is there. What every call cost here is its first-call cost.

A remembered list of what was compiled with which library versions saves the processes when the caches are warm. If
it is wrong (somebody emptied a library's cache), the run's worker compiles, and takes longer: nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
from collections import defaultdict, deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from packaging.requirements import Requirement

from qualify.facts import codec
from qualify.facts.case import Case
from qualify.files import replacing
from qualify.plan.host import installed_version
from qualify.plan.interpreter import interpreter
from qualify.run.process.child import POLL_S, Child, Gone, worker
from qualify.run.process.messages import CallCompiled, CaseRequest, Chunk, Ready, StageBegun, Unusable
from qualify.run.process.setup import Settings

PROCESSES = 12
"""most processes: each holds a CUDA context and its inputs on the card"""
CORES_SHARE = 0.75
"""share of the cores that is used: a compiler takes one, and now and then a second"""
LOST_PROCESSES = 8
"""processes that may die before compiling ahead is given up; the run then finds out which case it was"""
COMPILER_BYTES = 3_000_000_000
"""host memory that one of a library's compilers may need: FlashInfer 0.6.12 for FA3 takes more than 2 GB (``ps`` beside
``qualify run hopper --kernel flashinfer-fa3`` on an H200's host, 2026-11-28)"""
JOBS = "MAX_JOBS"
"""environment variable with the most compilers that torch's extensions and FlashInfer start at once; without it, they
start two more than there are cores"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiling:
    """A call of a just-in-time library was compiled ahead, or could not be."""

    case_id: str
    done: int
    total: int
    first_call_us: float | None
    """None where the call failed: the run will say how"""


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenUp:
    """Too many processes ended, so the run compiles what is left."""

    error: str
    """how the last one ended"""


class Remembered:
    """Which calls were compiled on this machine with which versions; in the user's cache folder."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.path = folder / "compiled.json"
        self.settings = settings
        self.known = self._read()

    def has(self, case: Case) -> bool:
        """Whether the call was compiled before."""
        return self._key(case) in self.known

    def add(self, case: Case) -> None:
        """Remember it."""
        self.known.add(self._key(case))

    def save(self) -> None:
        """Write the list if its folder can be written, with what other runs wrote meanwhile; it only saves time."""
        self.known |= self._read()
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as file:
                file.write(json.dumps(sorted(self.known)).encode())

    def _read(self) -> set[str]:
        try:
            return set(json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            return set()

    def _key(self, case: Case) -> str:
        names = ["torch", *(Requirement(text).name for text in self.settings.cards[case.kernel].shipped_by)]
        python = self.settings.environments.get(case.environment)
        where = interpreter(case.environment, python) if python else None
        versions = [f"{name}=={installed_version(name, where)}" for name in names]
        parts = [self.settings.device_name, case.kernel, codec.to_data(case.workload), versions]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


class Queue:
    """Calls to compile: one of each specialisation first; the rest of a specialisation waits until that is done.

    Neighbours differ as far as they can. A library may build one module for many of our specialisations, and a process
    that wants a module which another one builds can only wait for it.
    """

    def __init__(self, cases: Iterable[Case]) -> None:
        self.waiting: dict[str, list[Case]] = defaultdict(list)
        for case in cases:
            self.waiting[specialisation(case)].append(case)
        firsts: dict[tuple[object, ...], list[Case]] = defaultdict(list)
        for members in self.waiting.values():
            firsts[_module(members[0])].append(members.pop(0))
        self.ready = deque(case for row in zip_longest(*firsts.values()) for case in row if case)
        self.modules = len(firsts)
        """about how many modules are built"""
        self.total = len(self.ready) + sum(len(members) for members in self.waiting.values())

    def finish(self, case: Case) -> None:
        """A call is done; what shares its specialisation may now run anywhere."""
        self.ready.extend(self.waiting.pop(specialisation(case), ()))


def specialisation(case: Case) -> str:
    """What a library may compile a kernel of its own for: everything but lengths, batch and the number of heads."""
    workload = case.workload
    group = workload.heads_q // workload.heads_kv
    shape = replace(workload, seqlens_q=(), seqlens_k=(), heads_q=group, heads_kv=1)
    return f"{case.kernel}|{_one_query(case)}|{codec.to_data(shape)}"


def _module(case: Case) -> tuple[object, ...]:
    """Calls that differ in this hardly ever share a module of a library."""
    workload = case.workload
    return case.kernel, _one_query(case), workload.dtype, workload.head_dim, workload.mask.kind


def _one_query(case: Case) -> bool:
    return max(case.workload.seqlens_q) == 1


def left_to_compile(settings: Settings, cases: Iterable[Case]) -> list[Case]:
    """The cases whose kernels this machine has to compile first."""
    some = [case for case in cases if settings.cards[case.kernel].jit != "never" and not case.unclaimed]
    memory = Remembered(settings.hash_cache.parent, settings)
    return [case for case in some if not memory.has(case)]


def compilers(memory_bytes: int) -> int:
    """Compilers that fit into so much host memory, as far as there are cores for them; at least one."""
    allowed = os.environ.get(JOBS, "")
    cores = len(os.sched_getaffinity(0))
    most = min(cores, int(allowed)) if allowed.isdecimal() else cores
    return max(1, min(most, memory_bytes // COMPILER_BYTES))


def compile_ahead(settings: Settings, cases: Iterable[Case]) -> Generator[Compiling | GivenUp | None, None, None]:
    """Compile the calls of just-in-time kernels that this machine has not compiled yet.

    Yields what was compiled, or None when nothing happened for a moment. Closing the generator ends the processes.
    """
    todo = left_to_compile(settings, cases)
    if not todo:
        return
    memory = Remembered(settings.hash_cache.parent, settings)
    queue = Queue(todo)
    pool = _Pool(settings, queue)
    try:
        done = 0
        while pool.busy():
            finished = pool.step()
            for case, first_call_us in finished:
                done += 1
                if first_call_us is not None:  # a call that found the card full is tried again
                    memory.add(case)
                yield Compiling(case_id=case.id, done=done, total=queue.total, first_call_us=first_call_us)
            if not finished:
                yield None
        if pool.error and done < queue.total:
            yield GivenUp(error=pool.error)
    finally:
        pool.stop()
        memory.save()


class _Pool:
    """Worker processes that only prepare calls."""

    def __init__(self, settings: Settings, queue: Queue) -> None:
        self.settings = settings
        self.queue = queue
        self.size = max(1, min(PROCESSES, int(len(os.sched_getaffinity(0)) * CORES_SHARE), len(queue.ready)))
        self.at: dict[Child, Case | None] = {}
        """what each process compiles; None while it starts or waits"""
        self.free: set[Child] = set()
        self.lost = 0
        self.error = ""
        """how the process ended that was lost last"""

    def busy(self) -> bool:
        """Hand out what is ready, to new processes too; whether anything is left to wait for."""
        while self.queue.ready and self.free:
            self._hand_out(self.free.pop())
        starting = sum(case is None for case in self.at.values()) - len(self.free)
        while len(self.at) < self.size and len(self.queue.ready) > starting and self.lost < LOST_PROCESSES:
            self._start()
            starting += 1
        return bool(self.queue.ready and self.at) or any(self.at.values())

    def _start(self) -> None:
        building = min(self.size, self.queue.modules)  # the others wait for a module
        variables = {**self.settings.place, JOBS: str(compilers(self.settings.memory_bytes // building))}
        try:
            child = Child(self.settings.memory_bytes, worker(variables))
        except OSError as error:
            self.lost, self.error = LOST_PROCESSES, f"no room for another process: {error}"
            return
        self.at[child] = None
        try:
            child.send(self.settings.compile_setup(), self.settings.compile_timeout_s)
        except Gone as gone:
            self._lose(child, gone.error)

    def _hand_out(self, child: Child) -> None:
        case = self.queue.ready.popleft()
        try:
            child.send(Chunk(requests=(CaseRequest(case=case, attempt=1),)), self.settings.timeout_s)
        except Gone as gone:
            self.queue.ready.appendleft(case)
            self._lose(child, gone.error)
        else:
            self.at[child] = case

    def step(self) -> list[tuple[Case, float | None]]:
        """Wait a moment for messages; the calls that are done, with their first-call times."""
        finished: list[tuple[Case, float | None]] = []
        with selectors.DefaultSelector() as selector:
            for child in self.at:
                selector.register(child.incoming, selectors.EVENT_READ, child)
            heard = {key.data for key, _ in selector.select(timeout=POLL_S)}
        for child in list(self.at):
            case = self.at[child]
            try:
                done = self._hear(child, case, readable=child in heard)
            except Gone as gone:
                self._lose(child, gone.error)
                finished += [(case, None)] if case else []
                continue
            if done is None:
                continue
            if isinstance(done, Unusable):  # so would a new process say; the run tells why
                self._lose(child)
                self.lost = LOST_PROCESSES
                continue
            self.at[child] = None
            self.free.add(child)
            finished += [(case, done.first_call_us)] if case and isinstance(done, CallCompiled) else []
        for case, _ in finished:
            self.queue.finish(case)
        self._make_room()
        return finished

    def _make_room(self) -> None:
        """Where all together use more memory than a process may, end the one that uses most: its call comes again.

        From then on there are fewer side by side. Libraries keep what they had built, so little is lost.
        """
        if len(self.at) < 2 or sum(child.used_bytes for child in self.at) <= self.settings.memory_bytes:
            return
        heaviest = max(self.at, key=lambda child: child.used_bytes)
        case = self.at.pop(heaviest)
        self.free.discard(heaviest)
        heaviest.stop()
        self.size = len(self.at)
        if case:
            self.queue.ready.appendleft(case)

    def _hear(self, child: Child, case: Case | None, *, readable: bool) -> Ready | Unusable | CallCompiled | None:
        """What ends a process's start, or the case that it compiles; None if it goes on.

        Raises:
            Gone: the process ended, or must not be trusted any more.
        """
        if not readable and not child.buffer:
            child.watch(self.settings.compile_timeout_s)
            return None
        message = child.receive(self.settings.compile_timeout_s)
        match message:
            case None | StageBegun():
                return None
            case Ready() | Unusable() if case is None and child not in self.free:
                return message
            case CallCompiled() if case is not None and message.case == case.id:
                return message
            case _:
                raise child.unexpected(message)

    def _lose(self, child: Child, error: str = "") -> None:
        self.lost += 1
        self.error = error
        del self.at[child]
        self.free.discard(child)
        child.stop()

    def stop(self) -> None:
        """End every process."""
        for child in self.at:
            child.stop()
        self.at.clear()
