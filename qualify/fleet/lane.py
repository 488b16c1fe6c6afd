"""The process of one lane: one run on one card, or on several that share it, with a store of its own.

Its order comes as JSON on stdin, its answers go as lines of JSON to stdout, what libraries print goes to stderr. It
ends with the process that started it. SIGTERM ends it as Ctrl-C ends ``qualify run``: what was measured is stored.
Every few seconds it writes what it has measured so far into a file, so that a machine that dies takes little along.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

from qualify.cards.load import load_kernels
from qualify.errors import INTERRUPTED, QualifyError, UsageError
from qualify.facts import codec
from qualify.facts.fleet import FINAL, INTERIM, NodePlan
from qualify.facts.outcome import card_of
from qualify.facts.placement import Placement
from qualify.facts.run import Verdict
from qualify.fleet.filing import Progress
from qualify.fleet.inventory import kind_of
from qualify.fleet.local import execute, new_run
from qualify.fleet.request import Asked, make_request
from qualify.judge.judged import judge
from qualify.run.process.folder import remove_folder
from qualify.run.process.parent import die_with
from qualify.store import transfer
from qualify.store.archive import RunArchive
from qualify.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneOrder:
    """What a lane shall do."""

    plan: NodePlan
    uuids: tuple[str, ...]
    db: str
    """file of its store"""
    folder: str
    """where its run is exported to"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneBegun:
    """Its run exists."""

    run: str
    cases: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneAt:
    """One of its cards begins a case."""

    case: str
    since_s: float
    """by the machine's monotonic clock"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneFinished:
    """Its run is complete, judged and exported."""

    run: str
    verdict: Verdict
    ran: tuple[str, ...]
    """cards that gave an outcome, where several shared the run"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneStopped:
    """It could not go on; the message says why."""

    message: str
    exit_code: int


Answer = LaneBegun | LaneAt | LaneFinished | LaneStopped
ANSWERS: Mapping[str, type[Answer]] = {
    "begun": LaneBegun,
    "at": LaneAt,
    "finished": LaneFinished,
    "stopped": LaneStopped,
}


class _Said:
    """Lines to the parent, on a descriptor that no library knows."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def send(self, answer: Answer) -> None:
        event = next(name for name, kind in ANSWERS.items() if isinstance(answer, kind))
        self._stream.write(json.dumps({"event": event, **codec.to_data(answer)}).encode() + b"\n")
        self._stream.flush()


class _Places:
    """Tells the parent at which case the lane is, and the log what its store refuses."""

    def __init__(self, said: _Said) -> None:
        self._said = said
        self._case = ""

    def __call__(self, step: Progress) -> None:
        if step.told:
            print(f"qualify: {step.told}", file=sys.stderr, flush=True)
        if step.case_id and step.case_id != self._case:
            self._case = step.case_id
            self._said.send(LaneAt(case=step.case_id, since_s=time.monotonic()))


class _Interim(Thread):
    """Exports what the run has, whenever that is more than the last time."""

    def __init__(self, store: Store, run_id: str, folder: Path, pause_s: float) -> None:
        super().__init__(name="interim", daemon=True)
        self._store, self._run_id = store, run_id
        self._path = folder / f"{run_id}{INTERIM}"
        self._pause_s = pause_s
        self._done = Event()
        self._count = 0

    def run(self) -> None:
        """Until it is stopped. A file that cannot be written now is tried again."""
        while not self._done.wait(self._pause_s):
            with suppress(QualifyError):
                self._export()

    def stop(self) -> None:
        """Stop exporting: the run has ended."""
        self._done.set()
        self.join()

    def remove(self) -> None:
        """Remove the file, or what a kernel has put in its place: the final one, which holds more, is written."""
        remove_folder(self._path)

    def _export(self) -> None:
        done = len(self._store.done(self._run_id))
        if done > self._count:
            transfer.write(interrupted(self._store.evidence(self._run_id)), self._path)
            self._count = done


def interrupted(found: RunArchive) -> RunArchive:
    """The run as it would be if nothing more came: interrupted, without a seal, with what was measured so far."""
    if found.run.state != "running":
        return found
    run = replace(found.run, state="interrupted", finished_at=datetime.now(UTC))
    return replace(found, run=run, seal=None)


def main() -> int:
    """Obeys the order on stdin; the argument is the parent's process id."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    die_with(int(sys.argv[1]))
    said = _Said()
    order: LaneOrder = codec.from_data(LaneOrder, json.load(sys.stdin))
    try:
        with Store.open(order.db) as store:
            said.send(_run(order, store, said))
    except QualifyError as error:
        said.send(LaneStopped(message=str(error), exit_code=error.exit_code))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _run(order: LaneOrder, store: Store, said: _Said) -> LaneFinished:
    """Plan, execute, export, judge."""
    plan, folder = order.plan, Path(order.folder)
    request = make_request(_asked(order))
    if plan.matrix_hash and request.matrix.content_hash != plan.matrix_hash:
        raise UsageError(
            f"{plan.matrix} is another matrix here (sha256 {request.matrix.content_hash[:12]}) than the one that the "
            f"fleet was planned with ({plan.matrix_hash[:12]}). Install the same version of qualify on all nodes."
        )
    run = new_run(request)
    said.send(LaneBegun(run=run.id, cases=len(request.plan.cases)))
    interim = _Interim(store, run.id, folder, plan.interim_s)
    interim.start()
    try:
        execute(request, store, run, _Places(said))
    finally:
        interim.stop()
        with suppress(QualifyError):  # the node tries again, and says what cannot be exported
            transfer.write(interrupted(store.evidence(run.id)), folder / f"{run.id}{FINAL}")
            interim.remove()
    kernels = load_kernels(tuple(map(Path, plan.cards)))
    judged = judge(store, run.id, kernels, now=datetime.now(UTC), part=True)
    ran = {card_of(record.outcome) for record in judged.records} - {""}
    return LaneFinished(run=run.id, verdict=judged.conclusion.verdict, ran=tuple(sorted(ran)))


def _asked(order: LaneOrder) -> Asked:
    plan = order.plan
    return Asked(
        matrix=plan.matrix,
        cards=tuple(map(Path, plan.cards)),
        select=plan.select,
        kernel=plan.kernel,
        level=plan.level,
        device=kind_of(plan.device),
        uuids=order.uuids,
        placement=Placement(
            node=plan.node, spread=plan.spread, cards=order.uuids, fleet=plan.fleet, attempt=plan.attempt
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
