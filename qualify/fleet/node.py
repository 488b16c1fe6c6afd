"""Runs a plan on the cards of this machine, whichever engine asks: lanes side by side, each a process of its own.

With ``repeat`` every card has a lane; with ``shard`` equal cards share one. A lane that dies, hangs or is late takes no
other one along. What a lane measured lies in a file that any store can take in, also where the lane did not end.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from qualify.errors import NO_VERDICT, NOT_QUALIFIED, QUALIFIED, InfrastructureError, QualifyError, UsageError
from qualify.facts import codec
from qualify.facts.devices import HOST, chosen_by
from qualify.facts.fleet import FINAL, INTERIM, CardResult, CardState, ListedCard, NodePlan, NodeVerdict
from qualify.facts.lines import WrongMessage, decode_line
from qualify.facts.run import Run, Verdict
from qualify.facts.vote import Ballot, Vote
from qualify.facts.xid import Xid
from qualify.fleet.bad_cards import failed_hardware, set_aside, with_xids
from qualify.fleet.inventory import kind_of, list_cards, node_name
from qualify.fleet.lane import ANSWERS, LaneAt, LaneBegun, LaneFinished, LaneOrder, LaneStopped, interrupted
from qualify.fleet.local import undisturbed
from qualify.fleet.shares import of_shard
from qualify.run.machine.xids import XidWatch, at_case, of_cards
from qualify.run.process.child import not_started
from qualify.run.process.folder import remove_folder
from qualify.store import transfer
from qualify.store.store import Store
from qualify.text import shell_line, unsaid
from qualify.verdict.vote import unsteady_kernels, vote

GRACE_S = 20.0
"""seconds that a lane gets to store what it has measured, before it is killed"""
LATE = "it did not end within the deadline of {0:g} s, and was stopped; what it had measured by then is exported"
Say = Callable[[str], None]


@dataclass(kw_only=True, slots=True)
class _Lane:
    """One process and the cards that it runs on."""

    cards: tuple[ListedCard, ...]
    process: subprocess.Popen[bytes]
    db: Path
    begun: LaneBegun | None = None
    finished: LaneFinished | None = None
    why: str = ""
    """why it did not finish: what it said of that, or why it was stopped"""
    cases: list[tuple[float, str]] = field(default_factory=list)
    """when each case began, by the monotonic clock; only of a lane with one card"""
    told: set[str] = field(default_factory=set)
    """cases that the log has named"""
    unsaved: bool = False
    """whether its store alone holds what it measured, because no file can be written"""
    stopped_at: float | None = None
    buffer: bytearray = field(default_factory=bytearray)


def run_node(plan: NodePlan, folder: Path, say: Say, detail: Say = unsaid) -> NodeVerdict:
    """Run the plan; every run lies in ``folder`` as a file, sealed where this process has a signing key.

    Args:
        say: takes a line for the log.
        detail: takes a line for every case that begins.

    Raises:
        NothingSelected: the plan selects no case.
        UsageError: the plan names another kind of device, a shard that it does not have, or what is not here.
        DeviceError: no card can be listed.
        InfrastructureError: no process can be started; what others had measured is exported.
    """
    began = time.monotonic()
    plan = replace(of_shard(plan), node=plan.node or node_name())
    found = {card.uuid: card for card in list_cards(plan.device, plan.node)}
    expected = list(found) if plan.expected is None else list(dict.fromkeys(plan.expected))
    told = dict(_beforehand(expected, found))
    free = [found[uuid] for uuid in expected if uuid not in told]
    folder.mkdir(parents=True, exist_ok=True)
    # Should this process be killed, the stores of its lanes stay in there.
    stores = Path(tempfile.mkdtemp(prefix=".lanes-", dir=folder))
    lanes: list[_Lane] = []
    try:
        xids = _run_lanes(plan, free, folder, stores, lanes, say, detail)
        for lane in lanes:
            own = of_cards((at_case(xid, lane.cases) for xid in xids), [card.uuid for card in lane.cards])
            told |= {result.uuid: with_xids(result, own[result.uuid]) for result in _results(lane, folder, say)}
        told = {result.uuid: result for result in set_aside(told.values(), folder)}
        sound = [lane for lane in lanes if all(told[card.uuid].state != "BAD" for card in lane.cards)]
        votes = votes_of(*_ballots(sound))
    finally:
        if not any(lane.unsaved for lane in lanes):
            remove_folder(stores)
    cards = tuple(told[uuid] for uuid in expected)
    return _concluded(plan, cards, folder, votes, time.monotonic() - began)


def _files(cards: Iterable[CardResult], folder: Path) -> tuple[str, ...]:
    """The exported runs of cards that are not BAD."""
    names = (f"{card.run}{FINAL}" for card in cards if card.run and card.state != "BAD")
    return tuple(name for name in dict.fromkeys(names) if (folder / name).is_file())


def _concluded(
    plan: NodePlan, cards: tuple[CardResult, ...], folder: Path, votes: Sequence[Vote], wall_s: float
) -> NodeVerdict:
    """What the node answers."""
    verdict = verdict_of(cards, votes)
    return NodeVerdict(
        node=plan.node,
        fleet=plan.fleet,
        attempt=plan.attempt,
        matrix=plan.matrix,
        device=kind_of(plan.device),
        verdict=verdict,
        exit_code={"PASS": QUALIFIED, "FAIL": NOT_QUALIFIED}.get(verdict, NO_VERDICT),
        cards=cards,
        files=_files(cards, folder),
        wall_s=wall_s,
        votes=tuple(codec.to_data(one) for one in votes),
    )


def _run_lanes(
    plan: NodePlan,
    free: Sequence[ListedCard],
    folder: Path,
    stores: Path,
    lanes: list[_Lane],
    say: Say,
    detail: Say,
) -> tuple[Xid, ...]:
    """Start the lanes, and wait until all have ended; returns what the driver reported meanwhile."""
    watch = XidWatch()
    watch.start()
    if watch.why_not:
        say(f"{plan.node}: Xids are read from NVML alone, without the driver's words ({watch.why_not})")
    with closing(watch), _tidily(lanes, folder, say):
        for number, cards in enumerate(_shares(plan, free)):
            lanes.append(_start(plan, cards, folder, stores / f"{number}.db"))
            say(f"{plan.node}: {plan.matrix} on {', '.join(card.uuid for card in cards)}")
        _watch(plan, lanes, watch, say, detail)
    return watch.found


def _beforehand(expected: Sequence[str], found: Mapping[str, ListedCard]) -> Iterator[tuple[str, CardResult]]:
    """What is known of cards before anything runs on them."""
    for uuid in expected:
        card = found.get(uuid)
        if card is None:
            here = ", ".join(found) or "none"
            why = f"this node does not have it; its cards: {here}"
            yield uuid, CardResult(uuid=uuid, name="", state="MISSING", reason=why)
        elif card.refusals:
            yield uuid, CardResult(uuid=uuid, name=card.name, state="REFUSED", reason="; ".join(card.refusals))
        elif card.busy:
            yield uuid, CardResult(uuid=uuid, name=card.name, state="BUSY", reason="; ".join(card.busy))


def _shares(plan: NodePlan, cards: Sequence[ListedCard]) -> list[tuple[ListedCard, ...]]:
    """The cards of each lane."""
    if plan.spread == "repeat":
        return [(card,) for card in cards]
    models: dict[tuple[str, str], list[ListedCard]] = {}
    for card in cards:
        models.setdefault((card.name, card.compute_capability), []).append(card)
    return [tuple(some) for some in models.values()]


def _start(plan: NodePlan, cards: tuple[ListedCard, ...], folder: Path, db: Path) -> _Lane:
    uuids = tuple(card.uuid for card in cards)
    order = LaneOrder(plan=plan, uuids=uuids, db=str(db), folder=str(folder))
    kind = kind_of(plan.device)
    variables = {} if kind == HOST else {chosen_by(kind): ",".join(uuids)}
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "qualify.fleet.lane", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
            start_new_session=True,
        )
    except OSError as error:
        raise InfrastructureError(f"no process can be started for {uuids[0]}: {not_started(error)}") from error
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already, which its end tells
        process.stdin.write(json.dumps(codec.to_data(order)).encode())
        process.stdin.close()
    return _Lane(cards=cards, process=process, db=db)


@contextmanager
def _tidily(lanes: list[_Lane], folder: Path, say: Say) -> Iterator[None]:
    """Let every lane end and export what it has, whatever ends this block, Ctrl-C too."""
    try:
        yield
    except BaseException:
        with undisturbed():
            _end(lanes)
            for lane in lanes:
                _export(lane, folder, say)
        raise
    finally:
        for lane in lanes:
            assert lane.process.stdout is not None
            lane.process.stdout.close()


def _end(lanes: Sequence[_Lane]) -> None:
    until = time.monotonic() + GRACE_S
    for lane in lanes:
        _signal(lane, signal.SIGTERM)
    for lane in lanes:
        with suppress(subprocess.TimeoutExpired):
            lane.process.wait(max(0.0, until - time.monotonic()))
        _signal(lane, signal.SIGKILL)
        lane.process.wait()


def _signal(lane: _Lane, number: int) -> None:
    if lane.process.poll() is None:
        lane.process.send_signal(number)


def _watch(plan: NodePlan, lanes: Sequence[_Lane], xids: XidWatch, say: Say, detail: Say) -> None:
    """Hear all lanes until the last has ended, by itself, by the deadline, or because its card failed."""
    until = None if plan.deadline_s is None else time.monotonic() + plan.deadline_s
    with selectors.DefaultSelector() as selector:
        for lane in lanes:
            assert lane.process.stdout is not None
            selector.register(lane.process.stdout, selectors.EVENT_READ, lane)
        while selector.get_map():
            for key, _ in selector.select(0.25):
                if not _hear(key.data, say, detail):
                    selector.unregister(key.fileobj)
            _hurry(plan, [key.data for key in selector.get_map().values()], until, xids.found)
    for lane in lanes:
        code = lane.process.wait()
        if lane.finished is None and not lane.why:
            lane.why = f"its process ended with {_how(code)}, and said nothing of it"
        ended = f"run {lane.finished.run} is complete" if lane.finished else lane.why
        say(f"{', '.join(card.uuid for card in lane.cards)}: {ended}")


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _hurry(plan: NodePlan, lanes: Sequence[_Lane], until: float | None, xids: Sequence[Xid]) -> None:
    """End lanes that are late or have a failed card: first by SIGTERM, after ``GRACE_S`` by SIGKILL."""
    now = time.monotonic()
    late = until is not None and now >= until
    for lane in lanes:
        failed = failed_hardware((card.uuid for card in lane.cards), xids)
        if lane.stopped_at is None and (late or failed):
            lane.stopped_at = now
            lane.why = f"stopped: {failed[0].words}" if failed else LATE.format(plan.deadline_s)
            _signal(lane, signal.SIGTERM)
        elif lane.stopped_at is not None and now - lane.stopped_at > GRACE_S:
            _signal(lane, signal.SIGKILL)


def _hear(lane: _Lane, say: Say, detail: Say) -> bool:
    """Take what a lane says; False where it has said everything."""
    assert lane.process.stdout is not None
    data = os.read(lane.process.stdout.fileno(), 1 << 16)
    lane.buffer += data
    while (end := lane.buffer.find(b"\n")) >= 0:
        text = bytes(lane.buffer[:end])
        del lane.buffer[: end + 1]
        try:
            answer = decode_line(text, ANSWERS)
        except WrongMessage as error:
            say(f"{lane.cards[0].uuid}: its process sent an invalid message ({error})")
            continue
        match answer:
            case LaneBegun():
                lane.begun = answer
            case LaneAt():
                if len(lane.cards) == 1:
                    lane.cases.append((answer.since_s, answer.case))
                if answer.case not in lane.told:
                    lane.told.add(answer.case)
                    detail(f"{', '.join(card.uuid for card in lane.cards)}: {answer.case}")
            case LaneFinished():
                lane.finished = answer
            case LaneStopped():
                lane.why = answer.message
    return bool(data)


def _results(lane: _Lane, folder: Path, say: Say) -> Iterator[CardResult]:
    """What became of the cards of a lane that has ended; exports what it left."""
    run = _export(lane, folder, say)
    kept = (folder / f"{run}{FINAL}").is_file()
    for card in lane.cards:
        state: CardState = "COVERED"
        reason, verdict = "", None
        if lane.finished is None or lane.unsaved:
            state, reason = ("LOST" if lane.begun else "REFUSED"), lane.why
        elif not kept:
            state, reason = "LOST", f"run {run} is not in {folder}: something has removed it, perhaps a kernel"
        elif len(lane.cards) > 1 and card.uuid not in lane.finished.ran:
            state, reason = "REFUSED", "it gave no outcome: it was left out (the log says why), or others were faster"
        else:
            verdict = lane.finished.verdict
        yield CardResult(uuid=card.uuid, name=card.name, state=state, reason=reason, run=run, verdict=verdict)


def _export(lane: _Lane, folder: Path, say: Say) -> str:
    """Export what a lane left that has ended, unless it did so itself; returns its run, empty where it began none."""
    run = lane.begun.run if lane.begun else ""
    if run and not (folder / f"{run}{FINAL}").is_file():
        _rescue(lane, run, folder / f"{run}{FINAL}", say)
    for interim in () if lane.unsaved else folder.glob(f"{run or '-'}{INTERIM}"):
        remove_folder(interim)
    return run


def _rescue(lane: _Lane, run: str, path: Path, say: Say) -> None:
    """Export what a lane that was killed had stored. Where that cannot be done, say how to do it later."""
    try:
        with suppress(UsageError), Store.open(str(lane.db), create=False) as store:  # it may have stored nothing
            transfer.write(interrupted(store.evidence(run)), path)
    except InfrastructureError as error:
        lane.unsaved, lane.why = True, lane.why or str(error)
        again = shell_line(["qualify", "db", "export", run, "--db", str(lane.db), "--out", str(path)])
        say(f"{', '.join(card.uuid for card in lane.cards)}: {error} Free the place, then: {again}")


def _ballots(lanes: Sequence[_Lane]) -> tuple[list[Ballot], list[Run]]:
    """What the cards of all lanes got for each case, and the runs."""
    ballots: list[Ballot] = []
    runs: list[Run] = []
    for lane in lanes:
        if lane.begun:
            with suppress(QualifyError), Store.open(str(lane.db), create=False) as store:
                ballots += store.fleets.ballots([lane.begun.run])
                runs.append(store.run(lane.begun.run))
    return ballots, runs


def votes_of(ballots: Sequence[Ballot], runs: Sequence[Run]) -> list[Vote]:
    """The votes of some runs' ballots; a kernel whose card claims no determinism does not vote."""
    return vote(sorted(ballots, key=lambda ballot: ballot.case), unsteady_kernels(runs))


def verdict_of(cards: Sequence[CardResult], votes: Sequence[Vote]) -> Verdict:
    """FAIL where a run or a card failed; else INCONCLUSIVE where a card is not covered, or a vote not decided."""
    said = {card.verdict for card in cards if card.verdict}
    kinds = {found.kind for found in votes}
    if "FAIL" in said or "outlier card" in kinds or "non-deterministic kernel" in kinds:
        return "FAIL"
    covered = bool(cards) and all(card.state == "COVERED" for card in cards)
    return "PASS" if covered and said == {"PASS"} and "undecided" not in kinds else "INCONCLUSIVE"
