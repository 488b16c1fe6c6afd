"""Wrong kernels that try to be taken for right ones, and two that may be: ``correct`` and ``calls_the_reference``.

The tests copy this file into a ``--cards`` folder; the function's name is the kernel's, with underscores.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch
from third_party import attend

calls = []
remembered = {}
spoilers = []
MANY = 1 << 62
CASE = "toy.tp1/prefill/b1.q8.k8/fp32/causal/"
PASSED = {"check": "budget", "verdict": "pass", "detail": "", "values": {}}
"""a finding"""


def correct(call):
    return attend(call)


correct_later = correct


def wrong(call):
    """Twenty percent off."""
    return attend(call) * 1.2


def note(name, found):
    """What a kernel got hold of, for the test; whole also where the host ends meanwhile."""
    Path(__file__).with_name(f"{name}.new").write_text(json.dumps(found))
    Path(__file__).with_name(f"{name}.new").replace(Path(__file__).with_name(f"{name}.found"))


def once(step):
    """Do it at the first call of the process; which call this is."""
    calls.append(1)
    if len(calls) == 1:
        step()
    return len(calls)


def asked(*names):
    """Whether one of these functions of qualify's waits for this call."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False


# The judge's code, as it is imported here


def patches_checks(call):
    def patch():
        from qualify.run.checks.registry import CHECKS

        for check in CHECKS:
            type(check).run = lambda *_: []
            type(check).skips = lambda *_: "nobody need look"

    once(patch)
    return wrong(call)


def patches_findings(call):
    def patch():
        from qualify.facts import outcome

        made = outcome.Finding.__init__
        outcome.Finding.__init__ = lambda self, **given: made(self, **{**given, "verdict": "pass"})

    once(patch)
    return wrong(call)


def patches_golden(call):
    def patch():
        from qualify.run.checks import interface
        from qualify.run.golden import accuracy, reference

        reference.golden = interface.golden = lambda *_, **__: None
        accuracy.judge = accuracy.errors_in = lambda *_, **__: None

    once(patch)
    return wrong(call)


def patches_comparison(call):
    def patch():
        from qualify.run.checks import difference

        difference.difference = difference.far_apart = lambda *_, **__: None
        difference.same_bits = lambda a, _: torch.ones_like(a, dtype=torch.bool)
        torch.allclose = torch.equal = lambda *_, **__: True
        torch.Tensor.__eq__ = lambda a, _: torch.ones(a.shape, dtype=torch.bool)
        torch.Tensor.__ne__ = lambda a, _: torch.zeros(a.shape, dtype=torch.bool)

    once(patch)
    return wrong(call)


def patches_host(call):
    """The code that prepares and launches: whole calls are right, those of a prepared call wrong."""

    def patch():
        from qualify.run.host.local import LocalBound

        LocalBound.launch = lambda self: torch.zeros_like(attend(call))

    once(patch)
    return attend(call)


def patches_clocks(call):
    def patch():
        ticks = iter(range(1 << 60))
        time.perf_counter_ns = time.monotonic_ns = lambda: next(ticks)
        time.perf_counter = time.monotonic = lambda: next(ticks) / 1e9
        torch.cuda.Event.elapsed_time = lambda *_: 1e-6

    once(patch)
    return wrong(call)


def patches_profilers(call):
    """No session records anything, and forged events are said instead."""

    def patch():
        from qualify.run.host import local

        names = [f"qualify#0#{number}" for number in range(3)]
        spans = [("qualify#open", 0), *((name, 10 + 10 * at) for at, name in enumerate(names)), ("qualify#close", 90)]
        events = [{"name": name, "ts": ts, "dur": 9.0, "cat": "user_annotation"} for name, ts in spans]
        inner = [("aten::sin", 1), ("aten::sin", 91), *(("aten::_flash_attention", 11 + 10 * at) for at in range(3))]
        events += [
            {"name": name, "ts": ts, "dur": 5.0, "cat": "cpu_op", "args": {"Input elements": 1 << 20}}
            for name, ts in inner
        ]
        local.recording.record = lambda *_, **__: events
        torch.profiler.profile = torch.autograd.profiler.profile = None

    once(patch)
    return wrong(call)


def names_operators(call):
    with torch.profiler.record_function("aten::_scaled_dot_product_flash_attention_for_cpu"):
        return wrong(call)


# Messages


def lines(*messages):
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def outcome_lines():
    """As a judge would write them to the process that started it."""
    measured = {
        "outcome": "measured",
        "evidence": {
            "findings": [PASSED],
            "statistics": [],
            "witness": {"state": "proven", "reason": "", "expected": [], "launches": [], "calls": 3},
            "timing": None,
            "first_call_us": 1.0,
            "peak_temporary_bytes": None,
            "wall_s": 1.0,
            "attempt": 1,
        },
    }
    names = ("writes-an-outcome", "writes-an-outcome-upstairs")
    parts = [{"event": "outcome", "case": CASE + name, "outcome": measured, "fresh": True} for name in names]
    return lines(*parts, {"event": "idle"})


def write_to(folder, text):
    """To every pipe that a process has open; the numbers of those that could be written to."""
    reached = []
    for entry in Path(folder).iterdir():
        try:
            if not str(entry.readlink()).startswith("pipe:"):
                continue
            descriptor = os.open(entry, os.O_WRONLY | os.O_NONBLOCK)
            reached.append((entry.name, os.write(descriptor, text)))
        except OSError:
            continue
    return reached


def writes_an_outcome(call):
    for descriptor in range(3, 256):
        try:
            os.write(descriptor, outcome_lines())
        except OSError:
            continue
    os._exit(0)


def ancestors():
    """The judge, and whoever started it."""
    found, pid = [], os.getppid()
    while pid > 1 and len(found) < 2:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def writes_an_outcome_upstairs(call):
    reached = []
    for pid in ancestors():
        try:
            reached += write_to(f"/proc/{pid}/fd", outcome_lines())
        except OSError:
            continue
    note("writes_an_outcome_upstairs", reached)
    os._exit(0)


def own_pipe():
    return int(sys.argv[2])


def answers_in_advance(call):
    """A right call's result, again and again, before anybody asks; then nobody is there."""
    part = {"kind": "Tensor", "dtype": "float32", "shape": [8, 2, 32], "device": "cpu", "offset": 0}
    returned = {"event": "returned", "several": False, "parts": [part]}
    os.write(
        own_pipe(),
        lines(*[{"event": "accepted"}, {"event": "accepted"}, returned, {"event": "numbers", "values": [1]}] * 8),
    )
    os._exit(0)


def answers_beside(call):
    """One answer more than was asked for, at the first call."""
    once(lambda: os.write(own_pipe(), lines({"event": "accepted"})))
    return wrong(call)


def leaves_an_answering_child(call):
    if os.fork() == 0:
        os.setsid()
        for _ in range(200):
            os.write(own_pipe(), lines({"event": "accepted"}))
            time.sleep(0.05)
        os._exit(0)
    os._exit(0)


def says_part(**changes):
    """Every result is described otherwise than it is."""
    from dataclasses import replace

    from qualify.run.host import serve

    honest = serve.Server._returned

    def returned(self, value, region):
        said = honest(self, value, region)
        return replace(said, parts=tuple(replace(part, **changes) for part in said.parts))

    serve.Server._returned = returned


def says_not_there(call):
    once(lambda: says_part(offset=-1))
    return wrong(call)


def says_huge(call):
    once(lambda: says_part(offset=-1, shape=(1 << 40, 1 << 40)))
    return wrong(call)


def says_vast(call):
    """More than a judge has memory for."""
    once(lambda: says_part(offset=-1, shape=(1 << 20, 1 << 10, 32)))
    return wrong(call)


def says_negative(call):
    once(lambda: says_part(shape=(-8, 2, -32)))
    return wrong(call)


def says_outside(call):
    once(lambda: says_part(offset=1 << 40))
    return wrong(call)


def says_another_dtype(call):
    once(lambda: says_part(dtype="qint8"))
    return wrong(call)


def says_many_parts(call):
    """The same bytes again and again: the judge would copy them each time."""

    def patch():
        from qualify.run.host import messages, serve

        part = messages.ReturnedPart(kind="Tensor", dtype="uint8", shape=(1 << 20,), device="cpu", offset=0)
        serve.Server._returned = lambda *_: messages.Returned(several=True, parts=(part,) * 200)

    once(patch)
    return wrong(call)


def says_a_long_shape(call):
    """Its product takes a judge very long."""
    once(lambda: says_part(shape=(MANY,) * 2000))
    return wrong(call)


def cuts_the_shared_memory(call):
    """After the result was copied there, and before the judge reads it."""

    def patch():
        from qualify.run.host import serve

        honest = serve.Server._returned

        def returned(self, value, region):
            said = honest(self, value, region)
            with suppress(PermissionError):
                os.ftruncate(int(sys.argv[4]), 0)
            return said

        serve.Server._returned = returned

    once(patch)
    return wrong(call)


def says_no_parts(call):
    def patch():
        from qualify.run.host import messages, serve

        serve.Server._returned = lambda *_: messages.Returned(several=False, parts=())

    once(patch)
    return wrong(call)


def say_samples(values, launches=1):
    from qualify.run.host import local
    from qualify.run.host.interface import Samples

    honest = local.sample

    def sample(given, effort, processor):
        _, native = honest(given, effort, processor)
        return Samples(samples_us=values, launches_per_block=launches, host_us=1.0), native

    local.sample = sample


def say_events(change):
    from qualify.run.host import local

    honest = local.recording.record
    local.recording.record = lambda *given, **named: change(honest(*given, **named))


def says_times_that_are_none(call):
    """Right numbers, and times that are no times."""
    once(lambda: say_samples((math.nan, math.nan, math.nan)))
    return attend(call)


def says_negative_times(call):
    once(lambda: say_samples((-5.0, -5.0, -5.0)))
    return attend(call)


def says_no_times(call):
    """It takes no time at all."""
    once(lambda: say_samples((0.0, 0.0, 0.0)))
    return attend(call)


def says_times_of_ages(call):
    """Longer than the whole question took."""
    once(lambda: say_samples((1.7e308, 1.7e308, 1.7e308)))
    return attend(call)


def says_endless_launches(call):
    once(lambda: say_samples((5.0, 5.0, 5.0), launches=10**30))
    return attend(call)


def says_events_without_time(call):
    once(lambda: say_events(lambda events: [{**event, "dur": math.nan} for event in events]))
    return attend(call)


def say_parts(part):
    from qualify.run.host import serve

    serve.packed = lambda events: [part(serve.says)] * 60


def says_endless_events(call):
    """Each message of a trace says that another one follows."""
    once(lambda: say_parts(lambda says: says.Events(names=(), kinds=(), rows=(), more=True)))
    return attend(call)


def says_events_of_no_kind(call):
    once(lambda: say_parts(lambda says: says.Events(names=("x",), kinds=({"name": 0},), rows=((7, 1.0, 1.0, 1),))))
    return attend(call)


def says_events_of_many_fields(call):
    """A judge that kept them for each event would need a hundred times the message's memory."""
    fields = {f"field {number}": 0 for number in range(1000)}
    once(
        lambda: say_parts(lambda says: says.Events(names=("x",), kinds=({"name": 0, **fields},), rows=((0, 1, 1, 1),)))
    )
    return attend(call)


def says_events_without_arguments(call):
    once(
        lambda: say_parts(lambda says: says.Events(names=("x",), kinds=({"name": 0, "args": 5},), rows=((0, 1, 1, 1),)))
    )
    return attend(call)


def says_endless_memory(call):
    """More bytes than a column of the store holds."""

    def change(events):
        began = next(event["ts"] for event in events if event["name"] == "qualify#0#0")
        return [*events, *[{"name": "[memory]", "ts": began, "args": {"Bytes": 1 << 53}}] * 2]

    once(lambda: say_events(change))
    return attend(call)


# What the kernel's own process and others hold


def looks_for_its_case():
    """The case, its seed and golden results in all that its process holds and was started with."""
    said = " ".join([*sys.argv, *os.environ.values(), *os.environ])
    held = [item for item in gc.get_objects() if type(item).__module__.startswith("qualify")]
    kinds = {type(item).__name__ for item in held} & {"Golden", "Subject", "Inputs", "Case", "CaseRequest", "Session"}
    frame, named = sys._getframe(), []
    while frame is not None:
        named += [name for name in frame.f_locals if "seed" in name or "golden" in name]
        frame = frame.f_back
    # Its own text holds the case too.
    started = CASE in said or "seed" in said.lower()
    note("looks_for_its_case", {"started": started, "kinds": sorted(kinds), "frames": named})


def reads_the_judge(call):
    """Its memory, descriptors, environment and arguments, by every way that Linux has; and that of who started it.

    And what says which case this is.
    """
    looks_for_its_case()
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    for pid in ancestors():
        for name, mode in (("mem", "r+b"), ("environ", "rb"), ("maps", "rb"), ("pagemap", "rb")):
            try:
                with Path(f"/proc/{pid}/{name}").open(mode) as file:
                    if name == "mem" or file.read(1):
                        found.append(name)
            except OSError:
                continue
        with suppress(OSError):
            found += [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        if libc.ptrace(0x4206, pid, 0, 0) == 0:  # PTRACE_SEIZE
            found.append("ptrace")
            libc.ptrace(17, pid, 0, 0)  # PTRACE_DETACH
        here = ctypes.create_string_buffer(8)
        vector = (ctypes.c_uint64 * 2)(ctypes.addressof(here), 8)
        if libc.process_vm_writev(pid, vector, 1, vector, 1, 0) == 8:
            found.append("process_vm_writev")
    note("reads_the_judge", found)
    return wrong(call)


def scribbles_on_siblings(call):
    """A thread that fills what other hosts share with their judge, as long as this host lives."""

    def scribble():
        seen, reached = set(), []
        while True:
            for pid in filter(has_begun, siblings()):
                seen.add(pid)
                for entry in range(3, 32):
                    path = Path(f"/proc/{pid}/fd/{entry}")
                    try:
                        if "memfd:qualify-arena" in str(path.readlink()):
                            with path.open("r+b", buffering=0) as arena:
                                arena.write(b"\x42" * (1 << 16))
                            reached.append(entry)
                    except OSError:
                        continue
            note("scribbles_on_siblings", [bool(seen), len(reached)])
            time.sleep(0.1)

    once(lambda: threading.Thread(target=scribble, daemon=True).start())
    return wrong(call)


def siblings():
    """Other hosts of the same judge."""
    listed = Path(f"/proc/{os.getppid()}/task").glob("*/children")
    return [int(pid) for children in listed for pid in children.read_text().split() if int(pid) != os.getpid()]


def has_begun(pid):
    """Whether a host is beyond its first milliseconds: it hides what it maps, or has torch there, which comes later."""
    try:
        return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True


def kills_siblings(call):
    def kill():
        for pid in siblings():
            os.kill(pid, signal.SIGKILL)

    once(kill)
    return wrong(call)


def kills_the_judge(call):
    os.kill(os.getppid(), signal.SIGKILL)
    return wrong(call)


# Results that change


def mends_it_later(call):
    """Returns at once, and a thread writes the right numbers when nobody should be waiting any more."""
    out = torch.zeros(*call.q.shape[:2], call.v.shape[-1])
    threading.Timer(0.2, lambda: out.copy_(attend(call))).start()
    return out


def spoils_it_later(call):
    """What the engine reads is not what came back: a thread spoils it, at the latest moment that a judge can see."""
    for began, spoiler in spoilers:
        began.set()
        spoiler.join()
    spoilers.clear()
    out = attend(call)
    began = threading.Event()
    spoiler = threading.Thread(target=lambda: began.wait() and out.mul_(1.2), daemon=True)
    spoiler.start()
    spoilers.append((began, spoiler))
    return out


def returns_one_buffer(call):
    out = attend(call)
    buffer = remembered.setdefault(out.shape, torch.empty_like(out))
    return buffer.copy_(out)


def returns_the_first(call):
    """The very first result of a shape, whatever the values are."""
    key = tuple(call.q.shape), tuple(call.k.shape), call.q.dtype
    if key not in remembered:
        remembered[key] = attend(call)
    return remembered[key].clone()


def makes_itself_right(call):
    """Zeros over zeros: a reference that reads these inputs agrees."""
    for tensor in (call.q, call.k, call.v):
        tensor.zero_()
    return torch.zeros(*call.q.shape[:2], call.v.shape[-1])


class Lying(torch.Tensor):
    """Equal to everything."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in {torch.equal, torch.allclose, torch.Tensor.__eq__, torch.Tensor.isfinite}:
            return True
        return super().__torch_function__(func, types, args, kwargs or {})


def returns_a_subclass(call):
    return wrong(call).as_subclass(Lying)


class Lazy(torch.Tensor):
    """Other values each time it is read."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, device=values.device)

    def __init__(self, values):
        self.values = values

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def read(item):
            if not isinstance(item, cls):
                return item
            item.values = item.values * 1.2
            return item.values

        return func(*map(read, args), **{name: read(item) for name, item in (kwargs or {}).items()})


def returns_a_lazy_tensor(call):
    return Lazy(attend(call))


# Right only sometimes


def right_three_times(call):
    return attend(call) if once(lambda: None) <= 3 else wrong(call)


def right_twenty_times(call):
    return attend(call) if once(lambda: None) <= 20 else wrong(call)


def patterned(call):
    """Whether the values are a probe's: few different ones."""
    return call.v.float().unique().numel() < call.v.numel() / 4


def hides_a_failure(call):
    """Wrong in its first process, where it also spoils the trace: that case begins anew."""
    mark = Path(__file__).with_name("hides_a_failure.pid")
    if not mark.exists():
        mark.write_text(str(os.getpid()))
    if mark.read_text() != str(os.getpid()):
        return attend(call)
    with torch.profiler.record_function("qualify#0#0"):
        return wrong(call)


def right_for_patterns(call):
    return attend(call) if patterned(call) else wrong(call)


def right_for_random_values(call):
    return wrong(call) if patterned(call) else attend(call)


def right_in_the_main_thread(call):
    return attend(call) if threading.current_thread() is threading.main_thread() else wrong(call)


def nothing_while_timed(call):
    """It returns at once, with whatever the memory holds."""
    if asked("sample", "host_us"):
        return torch.empty(*call.q.shape[:2], call.v.shape[-1])
    return attend(call)


def remembers_addresses_while_timed(call):
    """What it gave for these tensors, found by where they are."""
    key = call.q.data_ptr(), call.k.data_ptr(), tuple(call.q.shape)
    if not asked("sample", "host_us"):
        return attend(call)
    if key not in remembered:
        remembered[key] = attend(call)
    return remembered[key]


def refuses_the_rest(call):
    """Wrong once, and after that it will not take any call."""
    from qualify.run.adapters.interface import LibraryRefusal

    if once(lambda: None) > 1:
        raise LibraryRefusal("not today")
    return wrong(call)


def refuses_while_checked(call):
    """It answers as often as the profiler and the clock ask, and refuses whole calls."""
    from qualify.run.adapters.interface import LibraryRefusal

    if asked("run"):
        raise LibraryRefusal("not today")
    return wrong(call)


def refuses_until_timed(call):
    """It takes its own call again only once the checks are over."""
    from qualify.run.adapters.interface import LibraryRefusal

    if asked("sample", "host_us"):
        remembered["timed"] = True
    elif asked("run") and "timed" not in remembered:
        raise LibraryRefusal("not today")
    return wrong(call)


def has_no_memory_while_checked(call):
    if asked("run"):
        raise torch.OutOfMemoryError("no room")
    return wrong(call)


def fills_the_disk(call):
    """Some of it: files that nobody asked for, left behind."""

    def fill():
        for number in range(8):
            with tempfile.NamedTemporaryFile(prefix=f"qualify-forgery-{number}-", delete=False) as file:
                file.write(bytes(8 << 20))
            remembered[number] = file.name

    once(fill)
    note("fills_the_disk", list(remembered.values()))
    return wrong(call)


def calls_the_reference(call):
    """Right, by qualify's own golden results: nobody can see that from outside."""
    from qualify.run.golden.reference import golden

    found = golden(call, dtype=torch.float64, underflow=False, row_limit=1 << 20)
    out = torch.zeros(*call.q.shape[:2], call.v.shape[-1], dtype=torch.float64)
    out[found.rows] = found.out
    return out.to(call.out_dtype)
