"""The messages between a judge and a host: dataclasses of plain data, each a line of JSON.

A host answers each request with one message: Accepted, Returned, Numbers or Sampled as the request says, or Raised. The
events of a profiler session may take several. Before the answer to TraceCalls it says Began once for each call. All of
them have the number of the request: what comes late, or unasked, answers nothing. Everything here needs the standard
library only, because a host may be another Python in which nothing is installed but torch and the library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, Literal

from qualify.facts.stack import ComponentKind
from qualify.text import one_line

SPIN_S = 3e-4
"""how long judge and host of a GPU look for a message before they sleep until it comes: longer than a launch takes"""
RETURNED_PARTS = 16
"""most parts of what a kernel returned that a host tells"""
NAME_KEPT = 80
"""characters of the name of a class"""
TEXT_KEPT = 2000
"""characters of what an exception says"""
PLACE_KEPT = 200
"""characters of the name of a file with its line"""
LOG_KEPT = 4000
"""characters of a traceback's end"""
LAUNCH_KEPT = 4000
"""characters of the name of a kernel or operator: C++ writes out all parameters of a template"""
SOFTWARE_KEPT = 4000
"""characters of a name, version, digest or variable; a list of folders may be long"""
MOST_ITEMS = 500_000
"""items that lists and mappings of an answer may have together: those of the longest part of a trace do"""
MOST = 1 << 53
"""largest number that a host may send: a larger one fits no column of the store, and arithmetic with it may not end"""
Spec = tuple[int, int, int, int, str, tuple[int, ...], tuple[int, ...]]
"""a tensor in shared memory: segment, first byte and bytes of what it is a view of, its own first byte from there,
dtype, shape, strides in elements"""
Region = tuple[int, int, int]
"""segment, first byte, bytes"""


@dataclass(frozen=True, kw_only=True)
class HostRequest:
    """What a judge asks."""

    asked: int = 0
    """number of the request"""
    drop: tuple[int, ...] = ()
    """numbers of prepared calls, results and graphs that nobody needs any more"""
    free: tuple[tuple[int, int], ...] = ()
    """segment and first byte of inputs that are gone"""


@dataclass(frozen=True, kw_only=True)
class Start(HostRequest):
    """The first message. Accepted."""

    device: str
    import_paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class OpenMemory(HostRequest):
    """Memory of the device that the judge shares. Accepted."""

    handle: str
    """CUDA's inter-process handle in hexadecimal digits"""
    bytes: int


@dataclass(frozen=True, kw_only=True)
class CloseMemory(HostRequest):
    """The judge wants a segment back. Numbers: whether nobody here holds a part of it."""

    segment: int


@dataclass(frozen=True, kw_only=True)
class GiveBack(HostRequest):
    """Free what the allocator keeps. Accepted."""


@dataclass(frozen=True, kw_only=True)
class Load(HostRequest):
    """Load a kernel's library or entry. Accepted."""

    kernel: str
    adapter: str
    entry: str
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Describe(HostRequest):
    """Describe the software. HostSoftware."""


@dataclass(frozen=True, kw_only=True)
class Control(HostRequest):
    """Trace PyTorch's math path, the witness's negative control. Events."""

    warm_up: bool
    """whether what is slow at its first launch gets ready afterwards; the judge has other work meanwhile"""


@dataclass(frozen=True, kw_only=True)
class OfKernel(HostRequest):
    """A request about a loaded kernel."""

    kernel: str
    place: Mapping[str, Any] = field(default_factory=dict)
    """fields of a ``CallPlace`` that do not have their default"""


@dataclass(frozen=True, kw_only=True)
class Prepare(OfKernel):
    """Prepare a call. Accepted."""

    number: int
    """number that the prepared call gets"""
    call: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunOnce(OfKernel):
    """Prepare, launch, result, in dirty memory. Returned."""

    call: Mapping[str, Any]
    region: Region


@dataclass(frozen=True, kw_only=True)
class Render(OfKernel):
    """A script of a failure. Script."""

    title: str
    text: str
    program: tuple[str, ...]
    shows: str
    """name of a function of qualify.run.repro.standalone"""
    given: tuple[str, ...]
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class OfCall(HostRequest):
    """A request about a prepared call."""

    number: int
    place: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PrepareTurned(OfCall):
    """Prepare the call on copies of its inputs, with queries that have moved on. Accepted."""

    numbers: tuple[int, ...]
    """numbers that the prepared calls get"""
    rows: tuple[int, ...]
    """by how many rows the queries of each have moved on"""


@dataclass(frozen=True, kw_only=True)
class LaunchBound(OfCall):
    """Launch. Accepted."""

    native: int
    """number that what it returns gets"""


@dataclass(frozen=True, kw_only=True)
class FetchResult(OfCall):
    """The contract's form of what a launch returned. Returned."""

    native: int
    region: Region


@dataclass(frozen=True, kw_only=True)
class Measure(OfCall):
    """Numbers: ``host_us``, ``peak_bytes`` or ``traced_peak_bytes`` of a launch."""

    what: Literal["host_us", "peak_bytes", "traced_peak_bytes"]


@dataclass(frozen=True, kw_only=True)
class Capture(OfCall):
    """Capture a launch. Accepted."""

    warm_up: int
    graph: int
    native: int


@dataclass(frozen=True, kw_only=True)
class ReplayGraph(HostRequest):
    """Replay a graph. Accepted."""

    graph: int


@dataclass(frozen=True, kw_only=True)
class Behind(OfCall):
    """A launch on another stream behind copies into its inputs. Returned."""

    replaced: tuple[tuple[Spec, Spec], ...]
    region: Region


@dataclass(frozen=True, kw_only=True)
class TraceCalls(HostRequest):
    """Launch calls under the profiler. Began for each, Events."""

    numbers: tuple[int, ...]
    times: int
    memory: bool


@dataclass(frozen=True, kw_only=True)
class TimeCalls(HostRequest):
    """Time launches of calls in turn. Sampled."""

    numbers: tuple[int, ...]
    native: int
    blocks: int
    block_us: float
    launches: int


@dataclass(frozen=True, kw_only=True)
class PrepareBlocks(HostRequest):
    """Prepare blocks of launches of calls in turn. Numbers: µs of a launch, roughly."""

    numbers: tuple[int, ...]
    """of the prepared calls"""
    number: int
    """number that the blocks get"""
    graph: bool
    block_us: float
    plant: float
    """share of its time that a block spins"""
    like_us: float
    """of a launch on the other side; 0 = unknown"""


@dataclass(frozen=True, kw_only=True)
class TimeBlock(HostRequest):
    """Time one block. Numbers: µs of one launch, on the device or of the host that issues it."""

    number: int
    host: bool


@dataclass(frozen=True, kw_only=True)
class Memory(HostRequest):
    """Numbers: bytes in use by each counter, of inputs that are gone and still held, and whether they are counted."""

    collect: bool


@dataclass(frozen=True, kw_only=True)
class Wait(HostRequest):
    """Wait for everything that was launched, and say whether the device computes. Numbers."""


@dataclass(frozen=True, kw_only=True)
class HostAnswer:
    """What a host says."""

    to: int = 0
    """number of the request"""


@dataclass(frozen=True, kw_only=True)
class Accepted(HostAnswer):
    """It is done."""


@dataclass(frozen=True, kw_only=True)
class Began(HostAnswer):
    """The call of that place in the list is launched next."""

    index: int


@dataclass(frozen=True, kw_only=True)
class ReturnedPart:
    """One part of what a kernel returned."""

    kind: str
    """name of its class"""
    dtype: str = ""
    """empty where it is no tensor"""
    shape: tuple[int, ...] = ()
    device: str = ""
    offset: int = -1
    """first byte of its elements, in order and without gaps, in the region; -1 where they did not fit"""


@dataclass(frozen=True, kw_only=True)
class Returned(HostAnswer):
    """What a kernel returned: one tensor, or several parts."""

    several: bool
    parts: tuple[ReturnedPart, ...]


@dataclass(frozen=True, kw_only=True)
class Raised(HostAnswer):
    """An exception of the kernel or its library."""

    kind: Literal["refusal", "import", "memory", "other"]
    name: str
    """of its class"""
    text: str
    log: str
    place: str
    """``file.py:LINE`` in the kernel's own code, where it was raised; empty where that is not known"""


@dataclass(frozen=True, kw_only=True)
class Numbers(HostAnswer):
    """Some numbers, in the order that the request names."""

    values: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Events(HostAnswer):
    """Events of a profiler session, or a part of them; :mod:`qualify.run.host.events` writes and reads them."""

    names: tuple[str, ...]
    kinds: tuple[dict[str, Any], ...]
    """fields that many events share, as in Chrome's trace format, with the number of their name"""
    rows: tuple[tuple[int, float, float | None, int | None], ...]
    """number of its kind, begin and duration in µs, correlation id"""
    more: bool = False
    """another message follows with others"""


@dataclass(frozen=True, kw_only=True)
class Sampled(HostAnswer):
    """What a clock said."""

    samples_us: tuple[float, ...]
    launches_per_block: int
    host_us: float


@dataclass(frozen=True, kw_only=True)
class HostSoftware(HostAnswer):
    """The software of the host, files that matter and are mapped, and the variables that steer dispatch."""

    components: tuple[tuple[ComponentKind, str, str, str], ...]
    """(kind, name, version, digest)"""
    binaries: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Script(HostAnswer):
    """A script that calls the kernel."""

    text: str
    """empty where its function has no source to give"""


def _has_default(item: Field[Any]) -> bool:
    return item.default is not MISSING or item.default_factory is not MISSING


REQUESTS: Mapping[str, type[HostRequest]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(
            Start,
            OpenMemory,
            CloseMemory,
            GiveBack,
            Load,
            Describe,
            Control,
            Prepare,
            RunOnce,
            Render,
            PrepareTurned,
            LaunchBound,
            FetchResult,
            Measure,
            Capture,
            ReplayGraph,
            Behind,
        ),
        *(TraceCalls, TimeCalls, PrepareBlocks, TimeBlock, Memory, Wait),
    )
}
Answer = Accepted | Began | Returned | Raised | Numbers | Events | Sampled | HostSoftware | Script
ANSWERS: Mapping[str, type[Answer]] = {
    kind.__name__.lower(): kind
    for kind in (Accepted, Began, Returned, Raised, Numbers, Events, Sampled, HostSoftware, Script)
}


def bounded(answer: Answer) -> Answer:
    """The answer without the rest of texts that are too long.

    A host cuts what it says, so that a line is no longer than a line may be. The judge cuts what it hears, because what
    a kernel raises, returns or launches is stored, and its host need not keep to anything.
    """
    match answer:
        case Raised(name=name, text=text, log=log, place=place):
            name, text, place = one_line(name)[:NAME_KEPT], text[:TEXT_KEPT], place[:PLACE_KEPT]
            return replace(answer, name=name, text=text, log=log[-LOG_KEPT:], place=place)
        case Returned(parts=parts):
            return replace(answer, parts=tuple(replace(part, kind=part.kind[:NAME_KEPT]) for part in parts))
        case Events(names=names):
            return replace(answer, names=tuple(name[:LAUNCH_KEPT] for name in names))
        case HostSoftware(components=components, environment=variables):
            return replace(
                answer,
                components=tuple(
                    (kind, name[:SOFTWARE_KEPT], version[:SOFTWARE_KEPT], digest[:SOFTWARE_KEPT])
                    for kind, name, version, digest in components
                ),
                environment={name[:SOFTWARE_KEPT]: value[:SOFTWARE_KEPT] for name, value in variables.items()},
            )
    return answer


USUAL: Mapping[type, Mapping[str, Any]] = {
    kind: {item.name: {} if item.default is MISSING else item.default for item in fields(kind) if _has_default(item)}
    for kind in (*REQUESTS.values(), *ANSWERS.values())
}
"""values that fields of messages usually have: they are not sent"""
_to_host = json.JSONEncoder(separators=(",", ":"), default=vars).encode
_to_judge = json.JSONEncoder(separators=(",", ":"), default=vars, ensure_ascii=False).encode


def encode(message: HostRequest | Answer) -> bytes:
    """The message as a line, without what is as usual."""
    usual = USUAL[type(message)]
    data = {name: value for name, value in vars(message).items() if name not in usual or value != usual[name]}
    data["event"] = type(message).__name__.lower()
    text = _to_host(data) if isinstance(message, HostRequest) else _to_judge(data)
    return text.encode("utf-8", "replace") + b"\n"


def decode_request(line: bytes) -> HostRequest:
    """What the judge sent; lists where it had tuples."""
    data = json.loads(line.decode())
    return REQUESTS[data.pop("event")](**data)
