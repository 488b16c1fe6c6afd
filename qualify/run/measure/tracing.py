"""What a call launches, read from the events that a host recorded (:mod:`qualify.run.measure.recording`).

A range that a kernel opens by itself (``record_function``) is no operator, whatever its name. Device records are
assigned to a call's range by correlation id, on the CPU operators by time. A trace is believed only if it is complete
(see :func:`read_trace`), otherwise the case is repeated in a fresh process and, after three attempts, UNPROVEN.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qualify.facts.outcome import Launch
from qualify.run.measure.kernel_names import Identity, identify
from qualify.run.measure.recording import (
    CALLS,
    COPIES,
    ELEMENTS,
    MEMORY,
    OPERATOR,
    PRODUCTS,
    RANGE,
    RECORDS,
    RUNTIME,
    high_water,
)
from qualify.text import clipped

_LAUNCH = re.compile(r"Launch(Kernel|CooperativeKernel)|GraphLaunch")
_NAMES = 2000
"""different kernels and operators that a session may have; many cards' patterns are tried on each"""
_NAME_CHARACTERS = 1_000_000
"""characters that their names may have together: all may stand in one outcome, which is one message"""
NAMED = 120
"""characters of a kernel's name in a sentence"""
_MOST = 1 << 53
"""largest number that an event may hold"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """What one session saw of one case."""

    calls: tuple[tuple[Launch, ...], ...]
    """launches of each traced call, equal names merged, in order of first appearance"""
    defect: str
    """why the trace is not to be believed; empty where it is"""
    peak_bytes: int | None
    """CPU only: allocator high-water mark within a call"""
    inputs: Mapping[str, int | None] | None = None
    """CPU only: elements of the tensors that the operators of each name took in one call; None where they cannot be
    counted. An operator that took no tensor is missing."""
    products: Mapping[str, str] = field(default_factory=dict)
    """CPU only: by attention operator the first matrix product or softmax that ran within it as an operator"""


def read_trace(events: list[dict[str, Any]], *, count: int, cuda: bool, calls: int = CALLS) -> list[Trace]:
    """Assign the events of a session to its ranges.

    A range is defective if a launch has no device record, a record has no time, nothing was launched, or a kernel
    opened a range of the same name. Every range is defective if a sentinel is missing: then the profiler lost the
    beginning or the end of the session. The same holds where no profiler can have made the events: to read them would
    take for ever.
    """
    session = _Session(events)
    read = _cuda_calls if cuda else _cpu_calls
    lost = [name for name in ("open", "close") if not session.sentinel_seen(name, cuda=cuda)]
    names_of = [[f"qualify#{index}#{number}" for number in range(calls)] for index in range(count)]
    forged = session.forged([name for own in names_of for name in own])
    traces = []
    for own in names_of:
        spans = [session.ranges.get(name) for name in own]
        if forged or lost or not all(spans):
            defect = forged or f"the profiler lost the session's {' and '.join(lost) or 'ranges'}"
            traces.append(Trace(calls=(), defect=defect, peak_bytes=None))
            continue
        parts = [read(session, span) for span in spans if span]
        defects = [f"the kernel opened a range {name}, as the witness does" for name in own if name in session.doubled]
        defects += [part.defect for part in parts if part.defect]
        if not defects and (differing := _differing(parts)):
            defects = [differing]
        traces.append(
            Trace(
                calls=tuple(part.launches for part in parts),
                defect=defects[0] if defects else "",
                peak_bytes=max((part.peak_bytes for part in parts if part.peak_bytes is not None), default=None),
                inputs=parts[-1].inputs,
                products=parts[-1].products,
            )
        )
    return traces


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """What one range holds; the fields are those of :class:`Trace`."""

    launches: tuple[Launch, ...]
    defect: str
    peak_bytes: int | None = None
    inputs: Mapping[str, int | None] | None = None
    products: Mapping[str, str] = field(default_factory=dict)


def _differing(parts: Sequence[_Call]) -> str:
    """Which kernel calls launched differently often, and how often each; empty where all launched the same."""
    counts = [Counter({launch.name: launch.count for launch in part.launches}) for part in parts]
    names = dict.fromkeys(name for one in counts for name in one)
    differ = [name for name in names if len({one[name] for one in counts}) > 1]
    if not differ:
        return ""
    name = clipped(differ[0], NAMED)
    times = ", ".join(str(one[differ[0]]) for one in counts)
    more = f", and {len(differ) - 1} more" if len(differ) > 1 else ""
    return f"the {len(parts)} traced calls launched different kernels: {name} {times} times{more}"


class _Session:
    """The events of one session by time, by range and by correlation id."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.events = sorted((event for event in events if "ts" in event), key=lambda event: float(event["ts"]))
        self.times = [float(event["ts"]) for event in self.events]
        self.ranges: dict[str, dict[str, Any]] = {}
        self.doubled: set[str] = set()
        """names that several ranges have"""
        self.records: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for event in self.events:
            cat = event.get("cat")
            if cat == RANGE:
                self.doubled |= {event["name"]} & self.ranges.keys()
                self.ranges[event["name"]] = event
            elif cat in RECORDS:
                self.records[_correlation(event)].append(event)

    def forged(self, ranges: Sequence[str]) -> str:
        """Why no profiler can have made these events; empty where one can.

        Calls run one after another, so that an event lies in one range, and a launch has records of its own.
        """
        spans = [self.ranges[name] for name in ranges if name in self.ranges]
        most = 2 * len(self.events)
        if sum(last - first for first, last in map(self._bounds, spans)) > most:
            return "the ranges of calls that ran one after another overlap"
        launches = Counter(map(_correlation, (event for event in self.events if event.get("cat") in RUNTIME)))
        if sum(count * len(self.records.get(number, ())) for number, count in launches.items()) > most:
            return "many launches have the same records of the device"
        names = {event["name"] for event in self.events if event.get("cat") in {OPERATOR, *RECORDS}}
        if len(names) > _NAMES:
            return f"more than {_NAMES:,} different kernels ran"
        if sum(map(len, names)) > _NAME_CHARACTERS:
            return f"the names of the kernels that ran have more than {_NAME_CHARACTERS:,} characters"
        return ""

    def _bounds(self, span: dict[str, Any]) -> tuple[int, int]:
        """Numbers of the first event that begins inside a range, and of the first one after it."""
        begin = float(span["ts"])
        return bisect_left(self.times, begin), bisect_right(self.times, begin + float(span["dur"]))

    def within(self, span: dict[str, Any]) -> list[dict[str, Any]]:
        """Events that begin inside a range, without the range itself."""
        first, last = self._bounds(span)
        return [event for event in self.events[first:last] if event is not span]

    def sentinel_seen(self, name: str, *, cuda: bool) -> bool:
        """Whether the sentinel's work was recorded."""
        span = self.ranges.get(f"qualify#{name}")
        if span is None:
            return False
        inside = self.within(span)
        if not cuda:
            return any(event["name"] == "aten::sin" for event in inside)
        return any(self.records.get(_correlation(event)) for event in inside if _LAUNCH.search(event["name"]))


def _correlation(event: dict[str, Any]) -> int:
    return int(event.get("args", {}).get("correlation", -1))


def _cuda_calls(session: _Session, span: dict[str, Any]) -> _Call:
    """Device kernels that the launches of one range started."""
    found: list[Launch] = []
    defect = ""
    for event in session.within(span):
        if event.get("cat") not in RUNTIME:
            continue
        own = session.records.get(_correlation(event), [])
        if _LAUNCH.search(event["name"]) and not own:
            defect = f"{event['name']} has no device record"
        found += [_device_launch(record) for record in own]
    if any(launch.duration_us <= 0 for launch in found):
        defect = "a device record has no duration"
    if not found and not defect:
        defect = "no kernel was launched"
    return _Call(launches=_merge(found), defect=defect)


def _device_launch(record: dict[str, Any]) -> Launch:
    args = record.get("args", {})
    identity = identify(record["name"])

    def triple(name: str) -> tuple[int, int, int] | None:
        value = args.get(name)
        return (_count(value[0]), _count(value[1]), _count(value[2])) if value else None

    def number(name: str) -> int | None:
        return _count(args[name]) if name in args else None

    return Launch(
        name=record["name"],
        count=1,
        role="auxiliary" if record.get("cat") in COPIES else identity.role,
        family=identity.family,
        generation=identity.generation,
        grid=triple("grid"),
        block=triple("block"),
        registers=number("registers per thread"),
        shared_bytes=number("shared memory"),
        stream=number("stream"),
        duration_us=float(record.get("dur", 0.0)),
    )


def _cpu_calls(session: _Session, span: dict[str, Any]) -> _Call:
    """Operators of one range: attention as a whole, and what else ran outside of it, by self time."""
    inside = session.within(span)
    operators = [event for event in inside if event.get("cat") == OPERATOR]
    found: list[Launch] = []
    inputs: dict[str, int | None] = {}
    products: dict[str, str] = {}
    attention, covered_until = "", -1.0
    for event, alone_us in zip(operators, _own_us(operators), strict=True):
        name, start, duration = event["name"], float(event["ts"]), float(event["dur"])
        identity = identify(name)
        if start < covered_until:
            if identity.role in PRODUCTS:
                products.setdefault(attention, name)
            continue
        if identity.role == "attention":
            attention, covered_until = name, start + duration
        own_us = duration if identity.role == "attention" else alone_us
        if ELEMENTS in event["args"]:
            known, more = inputs.get(name, 0), event["args"][ELEMENTS]
            inputs[name] = None if known is None or more is None else known + more
        found.append(_operator_launch(name, identity, own_us))
    defect = "" if found else "no operator ran"
    return _Call(launches=_merge(found), defect=defect, peak_bytes=_peak(inside), inputs=inputs, products=products)


def _operator_launch(name: str, identity: Identity, duration_us: float) -> Launch:
    """An operator on a CPU, which has no grid."""
    return Launch(
        name=name,
        count=1,
        role=identity.role,
        family=identity.family,
        generation=identity.generation,
        grid=None,
        block=None,
        registers=None,
        shared_bytes=None,
        stream=None,
        duration_us=duration_us,
    )


def _own_us(operators: list[dict[str, Any]]) -> list[float]:
    """Time of each operator without its direct children's (events are sorted by start)."""
    own = [float(event["dur"]) for event in operators]
    around: list[int] = []
    """numbers of the operators that have not ended, the outermost first"""
    for number, event in enumerate(operators):
        while around and float(event["ts"]) >= _end(operators[around[-1]]):
            around.pop()
        if around:
            own[around[-1]] -= float(event["dur"])
        around.append(number)
    return [max(0.0, us) for us in own]


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"]) + float(event["dur"])


def _peak(inside: list[dict[str, Any]]) -> int | None:
    """High-water mark of the allocations within a range."""
    events = [event for event in inside if event["name"] == MEMORY]
    if not events:
        return None
    return _count(high_water(int(event.get("args", {}).get("Bytes", 0)) for event in events))


def _count(value: Any) -> int:
    """A whole number that an event says; raises ValueError where nothing can be so much."""
    number = int(value)
    if abs(number) > _MOST:
        raise ValueError("an event of the profiler has a number that counts nothing")
    return number


def _merge(launches: list[Launch]) -> tuple[Launch, ...]:
    """Launches with the same name and grid, counted; in order of first appearance."""
    alike: dict[tuple[object, ...], list[Launch]] = defaultdict(list)
    for launch in launches:
        alike[launch.name, launch.grid].append(launch)
    return tuple(
        replace(same[0], count=sum(each.count for each in same), duration_us=sum(each.duration_us for each in same))
        for same in alike.values()
    )
