"""What history says of the times of a verdict: the runs on the judged stack beside those on the stacks before it.

Each case is compared on one card only, and in two ways: relative to the other cases of the same run, and relative to
the ceilings that the same run measured. The interval encloses both results. A change that slows every case alike shows
only relative to the ceilings. A kernel that changed while the others became faster shows only relative to the others.
In both situations the case neither passes nor fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from qualify.facts.case import Case
from qualify.facts.clock import is_future
from qualify.facts.duel import DuelVerdict
from qualify.facts.environment import environment_of
from qualify.facts.outcome import Measured, Outcome, card_of, evidence_of
from qualify.facts.performance import CellChange
from qualify.facts.run import Record, Run
from qualify.judge.anchored import Anchors, CaseTime, times_of_runs
from qualify.judge.judged import Judged
from qualify.judge.seals import Seals
from qualify.seal.keys import PublicKey
from qualify.statistics.levels import (
    KNOWN_ERROR,
    LEAST_BEFORE,
    LEAST_SINCE,
    MOST_BEFORE,
    LevelChange,
    enclosing,
    level_change,
)
from qualify.statistics.verdicts import margin_of, significant
from qualify.store.store import Store
from qualify.verdict.changes import is_wrong

LOOKED_AT = 60
"""newest runs of a whole matrix at one level that count as its history, with those around the last change"""
SEARCHED = 600
"""newest of these runs among which the last change is looked for"""
IsSame = Callable[[Run, str], bool]
"""asked of a run and a kernel"""
SHARED = "while another process used the card"
ALONE = "with the card to itself"
AT_BEST = f"history cannot tell a change below {KNOWN_ERROR:.1%} from noise; a duel can"


@dataclass(frozen=True, kw_only=True, slots=True)
class Levels:
    """What history says of each case."""

    cells: tuple[CellChange, ...]
    """in plan order"""
    gone: tuple[CellChange, ...]
    """cases that earlier runs timed and that the judged run could not run to their end, in plan order"""
    before: str
    """fingerprint of the newest stack before the judged one; empty where there is none"""
    notes: tuple[str, ...]
    """which times do not count because somebody edited them, and what became of those that shared cards gave"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Past:
    """The runs of one matrix and level whose times count, oldest first."""

    runs: Sequence[Run]
    times: Mapping[str, Mapping[str, CaseTime]]
    """by run and case"""
    anchors: Mapping[str, Anchors]
    """by card"""
    edited: str
    """which times do not count, because somebody edited them; empty for none"""
    is_same: IsSame
    """whether a run had the stack and the code that are judged"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sides:
    """One case's runs on one card."""

    before: Sequence[Run]
    since: Sequence[Run]
    """on the stack and the code that are judged"""
    left_out: tuple[str, ...]
    """for each run whose time of it does not count: why, in words"""
    shared: int
    """times that count although another process used the card meanwhile"""
    change: LevelChange | None
    """None where one side has too few runs"""
    before_us: float | None


def levels(store: Store, judged: Judged, *, now: datetime, keys: Sequence[PublicKey] = ()) -> Levels:
    """What the stored runs say of the judged cases.

    Args:
        keys: one of these must have sealed a run; empty = it needs no seal.
    """
    past = _past(store, judged, now, keys)
    cases = [record for record in judged.records if isinstance(record.outcome, Measured) and not record.case.incident]
    sides = {record.case.id: _sides(record, past, judged.run) for record in cases}
    changes = {name: side.change for name, side in sides.items() if side.change is not None}
    slower = significant({name: change.slower for name, change in changes.items()})
    faster = significant({name: change.faster for name, change in changes.items()})
    cells = [_cell(record.case, sides[record.case.id], slower, faster) for record in cases]
    newest = max((side.before[-1] for side in sides.values() if side.before), key=_began, default=None)
    before = newest.stack.fingerprint if newest and newest.stack else ""
    lost = [it for it in judged.records if evidence_of(it.outcome) is None and not it.case.incident]
    gone = [cell for record in lost if (cell := _gone(record, past, _uuid(judged.run)))]
    notes = tuple(filter(None, (past.edited, *_of_shared_cards(sides.values()))))
    return Levels(cells=tuple(cells), gone=tuple(gone), before=before, notes=notes)


def _of_shared_cards(sides: Iterable[_Sides]) -> Iterator[str]:
    """Sentences about times that were taken while another process used the card: such times are longer."""
    known = list(sides)
    if count := sum(side.left_out.count(SHARED) for side in known):
        yield f"history leaves out what was timed {SHARED}: {_times(count)}"
    if count := sum(side.shared for side in known):
        yield (
            f"history counts only what was timed {SHARED}, because too few others are there: {_times(count)}. Such "
            "times may hide a slowdown, or show one that is none. Run on a free card, or let a duel decide"
        )


def _times(count: int) -> str:
    return "1 time" if count == 1 else f"{count} times"


def _past(store: Store, judged: Judged, now: datetime, keys: Sequence[PublicKey]) -> _Past:
    """The whole runs of the judged matrix and level up to the judged one; what is not sealed by a key is left out."""
    seals = Seals(store, keys)
    own = store.runs_of(judged.runs).values()
    newest = max((run.started_at for run in own), default=judged.run.started_at)
    stored = store.whole_runs(judged.run.matrix, judged.run.level, newest, SEARCHED)
    dated = [run for run in sorted(stored, key=_began) if run.stack is not None and not is_future(run.started_at, now)]
    is_same = _same_as(judged.run)
    kernels = dict.fromkeys(record.case.kernel for record in judged.records)
    runs = [run for run in _around_changes(dated, kernels, is_same) if not seals.why_not(run)]
    times, edited = times_of_runs(
        (run.id, seals.records(run.id) if keys else store.records(run.id, "times")) for run in runs
    )
    by_card: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for run in runs:
        for name, time in times[run.id].items():
            by_card[time.card or _uuid(run)].setdefault(run.id, {})[name] = time.us
    anchors = {card: Anchors(it) for card, it in by_card.items()}
    return _Past(runs=runs, times=times, anchors=anchors, edited=edited, is_same=is_same)


def _around_changes(runs: Sequence[Run], kernels: Iterable[str], is_same: IsSame) -> list[Run]:
    """The newest runs, and for each kernel those around its last change, however many came after it."""
    chosen = set(range(max(0, len(runs) - LOOKED_AT), len(runs)))
    for kernel in kernels:
        split = _split(runs, kernel, is_same)
        chosen |= set(range(max(0, split - MOST_BEFORE), min(split + LEAST_SINCE, len(runs))))
    return [runs[at] for at in sorted(chosen)]


def _split(runs: Sequence[Run], kernel: str, is_same: IsSame) -> int:
    """The index of the first of the newest runs that all had the stack and the code that are judged."""
    split = len(runs)
    while split and is_same(runs[split - 1], kernel):
        split -= 1
    return split


def _sides(record: Record, past: _Past, judged: Run) -> _Sides:
    """The runs that timed the same call on one card: the newest with the judged stack and code, and those before.

    A cold cache and a warm one give two times of one kernel, so only runs count that measured it as the judged one did.
    Nor does a time of wrong results count, except where the judged ones are wrong, too. Times of a shared card count
    only where there are too few others, and then the others do not: side by side they would look like a change.
    """
    case, card = record.case, card_of(record.outcome) or _uuid(judged)
    evidence = evidence_of(record.outcome)
    sound = evidence is not None and not is_wrong(evidence)
    cold = evidence.timing.cold if evidence and evidence.timing else None
    timed = {run.id: time for run in past.runs if (time := _time_of(case, past, card, run)) is not None}
    why_not = {name: _why_not(time, sound=sound, cold=cold) for name, time in timed.items()}
    comparable = [run for run in past.runs if why_not.get(run.id) == ""]
    on_shared = [run for run in comparable if timed[run.id].shared]
    own = alone = [run for run in comparable if not timed[run.id].shared]
    if not _enough(alone, case.kernel, past.is_same) and _enough(on_shared, case.kernel, past.is_same):
        own = on_shared
    why_not |= {
        run.id: ALONE if own is on_shared else SHARED
        for run in comparable
        if timed[run.id].shared != (own is on_shared)
    }
    split = _split(own, case.kernel, past.is_same)
    before, since = own[:split], own[split:]
    times = {run.id: past.times[run.id][case.id] for run in own}
    found = [level_change(values[:split], values[split:]) for values in _relative(case, own, times, past.anchors, card)]
    changes = [change for change in found if change is not None]
    return _Sides(
        before=before,
        since=since,
        left_out=tuple(filter(None, why_not.values())),
        shared=sum(time.shared for time in times.values()),
        change=enclosing(changes[0], changes[-1]) if changes else None,
        before_us=median(times[run.id].us for run in before) if before else None,
    )


def _enough(runs: Sequence[Run], kernel: str, is_same: IsSame) -> bool:
    """Whether each side of the change has as many runs as a verdict needs."""
    split = _split(runs, kernel, is_same)
    return split >= LEAST_BEFORE and len(runs) - split >= LEAST_SINCE


def _why_not(time: CaseTime, *, sound: bool, cold: bool | None) -> str:
    """Why a time cannot be compared with that of a judged outcome, in words; empty where it can.

    Args:
        sound: whether no check of the judged outcome failed.
        cold: whether its cache was cold; None = it has no time.
    """
    if sound and not time.sound:
        return "in which it failed a check"
    return "" if cold in (None, time.cold) else f"with a {'cold' if time.cold else 'warm'} cache"


def _gone(record: Record, past: _Past, card: str) -> CellChange | None:
    """A case that the judged run has no time of, as it was before on the run's card; None where nobody timed it."""
    case = record.case
    timed = (_time_of(case, past, card, run) for run in past.runs)
    times = [time.us for time in timed if time and time.sound]  # a wrong kernel served nothing
    if not times:
        return None
    before_us = median(times[-MOST_BEFORE:])
    return CellChange(
        cell=case.id,
        phase=case.phase,
        verdict="INCONCLUSIVE",
        evidence="history",
        basis=f"{len(times)} runs before",
        change=None,
        low=None,
        high=None,
        before_us=before_us,
        reason=f"it took {before_us:.1f} µs before, and this run has no time of it ({_how(record.outcome)})",
    )


def _how(outcome: Outcome) -> str:
    """How a case without a time ended, in words."""
    return outcome.outcome.replace("_", " ")


def _relative(
    case: Case, own: Sequence[Run], times: Mapping[str, CaseTime], anchors: Mapping[str, Anchors], card: str
) -> Iterator[list[float]]:
    """The series relative to the other cases, where there are any, and relative to the ceilings of each run."""
    names = [run.id for run in own]
    if not names:
        return
    others, anchor = anchors[card].of(case.id, names)
    if others:
        yield [times[name].us / anchor[name] for name in names]
    known = all(times[name].least_us > 0 for name in names)
    yield [times[name].us / (times[name].least_us if known else 1.0) for name in names]


def _time_of(case: Case, past: _Past, card: str, run: Run) -> CaseTime | None:
    """The time of the same call in a run; None where that run did not time it on the card."""
    time = past.times[run.id].get(case.id)
    counts = time is not None and time.content_hash == case.content_hash and (time.card or _uuid(run)) == card
    return time if counts else None


def _same_as(judged: Run) -> IsSame:
    """Whether a run had the stack and the code that are judged; each stack is compared once, however many cases ask."""
    agreed: dict[tuple[str, str], bool] = {}

    def is_same(run: Run, kernel: str) -> bool:
        key = run.id, environment_of(kernel)
        if key not in agreed:
            one, other = run.stack_of(key[1]), judged.stack_of(key[1])
            agreed[key] = one is not None and other is not None and one.agrees_with(other)
        return agreed[key] and (run.code or {}).get(kernel) == (judged.code or {}).get(kernel)

    return is_same


def _cell(case: Case, sides: _Sides, slower: set[str], faster: set[str]) -> CellChange:
    change = sides.change
    verdict = _verdict(case.id, sides, slower, faster)
    reason = _too_few(sides) if change is None else AT_BEST if verdict == "AMBIGUOUS" else ""
    return CellChange(
        cell=case.id,
        phase=case.phase,
        verdict=verdict,
        evidence="history",
        basis=f"{len(sides.before)} runs before and {len(sides.since)} since",
        change=change.change if change else None,
        low=change.low if change else None,
        high=change.high if change else None,
        before_us=sides.before_us,
        reason=reason,
    )


def _verdict(name: str, sides: _Sides, slower: set[str], faster: set[str]) -> DuelVerdict:
    """Never SAME: an interval of history is wider than every margin."""
    if sides.change is None or sides.before_us is None:
        return "INCONCLUSIVE"
    margin = margin_of(sides.before_us)
    if name in slower and sides.change.low > margin:
        return "SLOWER"
    return "FASTER" if name in faster and sides.change.high < -margin else "AMBIGUOUS"


def _too_few(sides: _Sides) -> str:
    why = " or ".join(dict.fromkeys(sides.left_out))
    others = f". Not counted: {len(sides.left_out)} more runs, {why}" if why else ""
    if not sides.before:
        return (
            f"not enough history: no run on this card had another stack before; {len(sides.since)} had this one{others}"
        )
    return (
        f"not enough history on this card: {len(sides.before)} runs before this stack and {len(sides.since)} with it; "
        f"{LEAST_BEFORE} and {LEAST_SINCE} are needed{others}"
    )


def _uuid(run: Run) -> str:
    return run.stack.device.uuid if run.stack else ""


def _began(run: Run) -> datetime:
    return run.started_at
