"""A host process: holds kernels, and does with them what its judge asks.

It is started by the path of this file's package and needs the standard library, torch and the kernels' libraries.
Nothing that it says decides: results go into shared memory, and the judge compares them with numbers of its own.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel

from qualify.facts.devices import HOST
from qualify.masks import Mask
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal, SlowAtFirst
from qualify.run.adapters.registry import create_adapter
from qualify.run.host import messages as says
from qualify.run.host.blocks import Blocks
from qualify.run.host.events import packed
from qualify.run.host.interface import CallPlace, Effort
from qualify.run.host.local import LocalBound, LocalHost, LocalKernel, in_use
from qualify.run.host.memory import DeviceMemory, SharedFile, closed, opened, typed
from qualify.run.host.origin import place_of
from qualify.run.host.sources import import_from_source
from qualify.run.machine.device import processor_of
from qualify.run.machine.software import promised_distributions, system
from qualify.run.machine.stack import mapped_binaries
from qualify.run.machine.variables import dispatch_environment, started_with
from qualify.run.measure import recording
from qualify.run.process.folder import without_usual_caches
from qualify.run.repro import script, standalone
from qualify.run.repro.script import Claim

MOST_HELD = 256
"""once more inputs than this are gone, those that nobody holds any more are forgotten"""
Answering = Callable[[Any], says.Answer]


def main() -> None:
    """Serve; the arguments: two descriptors, the judge's process id, the shared file and its size, and a mark."""
    own_in, own_out, _, shared, size = (int(argument) for argument in sys.argv[1:6])
    for descriptor in (own_in, own_out, shared):
        if descriptor >= 0:
            # What a library starts must not hold the pipe open after this process has gone.
            os.set_inheritable(descriptor, False)
    segments: list[SharedFile | DeviceMemory | None] = [SharedFile(shared, size)] if shared >= 0 else []
    with os.fdopen(own_in, "rb") as requests, os.fdopen(own_out, "wb") as answers:
        Server(answers, segments).serve(requests)
    # A library's exit handlers may hang or crash on a context that a kernel has broken; nothing is left to do.
    os._exit(0)


class Server:
    """Answers requests one after another."""

    def __init__(self, answers: IO[bytes], segments: list[SharedFile | DeviceMemory | None]) -> None:
        self.answers = answers
        self.processor = processor_of(HOST)
        self.segments = segments
        self.kernels: dict[str, LocalKernel] = {}
        self.kept: dict[int, Any] = {}
        """prepared calls, results and replays by number"""
        self.inputs: dict[tuple[int, int], dict[says.Spec, Tensor]] = {}
        """tensors by segment and first byte of what they are views of: the same ones as long as the judge has them"""
        self.held: dict[Any, tuple[StorageWeakRef, int, int]] = {}
        """inputs that the judge has no more, with segment and bytes"""
        self.asked = 0
        """number of the present request"""
        self.methods: Mapping[type[says.HostRequest], Answering] = {
            says.Start: self.start,
            says.OpenMemory: self.segment,
            says.CloseMemory: self.close,
            says.GiveBack: self.give_back,
            says.Load: self.load,
            says.Describe: self.describe,
            says.Control: self.control,
            says.Prepare: self.prepare,
            says.RunOnce: self.run,
            says.Render: self.render,
            says.PrepareTurned: self.turned,
            says.LaunchBound: self.launch,
            says.FetchResult: self.result,
            says.Measure: self.measure,
            says.Capture: self.capture,
            says.ReplayGraph: self.replay,
            says.Behind: self.behind,
            says.TraceCalls: self.trace,
            says.TimeCalls: self.sample,
            says.PrepareBlocks: self.prepare_blocks,
            says.TimeBlock: self.time_block,
            says.Memory: self.memory,
            says.Wait: self.wait,
        }

    def serve(self, requests: IO[bytes]) -> None:
        """Answer requests until the judge closes its end."""
        while line := self._next(requests):
            request = says.decode_request(line)
            self.asked = request.asked
            for number in request.drop:
                self.kept.pop(number, None)
            for segment, first in request.free:
                self.forget(segment, first)
            try:
                answer = self.methods[type(request)](request)
            except BaseException as error:  # noqa: BLE001 - whatever a kernel raises is the judge's to judge
                answer = _raised(error)
            self.say(answer)

    def _next(self, requests: IO[bytes]) -> bytes:
        """The next line; empty once the judge has closed its end. Being woken takes longer than a launch."""
        until = time.perf_counter() + (says.SPIN_S if self.processor.kind != HOST else 0.0)
        poll = select.poll()
        poll.register(requests.fileno(), select.POLLIN)
        while time.perf_counter() < until and not poll.poll(0):
            pass
        return requests.readline()

    def say(self, answer: says.Answer) -> None:
        """Send one message about the present request, without the rest of long texts."""
        answer.__dict__["to"] = self.asked
        self.answers.write(says.encode(says.bounded(answer)))
        self.answers.flush()

    def forget(self, segment: int, first: int) -> None:
        """An input is gone; whoever still holds it keeps memory."""
        for spec, tensor in self.inputs.pop((segment, first), {}).items():
            weak = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self.held[weak.cdata] = weak, segment, spec[2]
        if len(self.held) > MOST_HELD:
            self._note_held()

    def _note_held(self) -> None:
        """Forget the inputs that nobody holds any more."""
        self.held = {key: known for key, known in self.held.items() if not known[0].expired()}  # type: ignore[no-untyped-call]

    def start(self, request: says.Start) -> says.Answer:
        """Take the device."""
        import_from_source(request.import_paths)
        self.processor = processor_of(request.device)
        described = self.processor.describe()
        self.host = LocalHost(self.processor)
        if described.kind == HOST:
            _limit_memory(described.memory_bytes)
        return says.Accepted()

    def segment(self, request: says.OpenMemory) -> says.Answer:
        """Open the judge's memory."""
        self.segments.append(opened(request.handle, request.bytes))
        return says.Accepted()

    def close(self, request: says.CloseMemory) -> says.Answer:
        """Give the judge's memory back, unless a kernel still holds a part of it."""
        self._note_held()
        memory = self.segments[request.segment]
        if request.segment in {segment for _, segment, _ in self.held.values()} or not isinstance(memory, DeviceMemory):
            return says.Numbers(values=(0.0,))
        self.processor.synchronize()
        self.segments[request.segment] = None
        closed(memory)
        return says.Numbers(values=(1.0,))

    def give_back(self, _: says.GiveBack) -> says.Answer:
        """Give the allocator's free memory back to the driver."""
        self.processor.give_back()
        return says.Accepted()

    def load(self, request: says.Load) -> says.Answer:
        """Import the library or the entry."""
        adapter = create_adapter(request)
        self.kernels[request.kernel] = LocalKernel(adapter, self.processor)
        return says.Accepted()

    def describe(self, _: says.Describe) -> says.Answer:
        """This process's software, once its libraries are loaded."""
        described = self.processor.describe()
        found = [*system(), *self.processor.runtimes(described), *promised_distributions()]
        return says.HostSoftware(
            components=tuple((part.kind, part.name, part.version, part.digest) for part in found),
            binaries=tuple(map(str, mapped_binaries())),
            environment=dispatch_environment(without_usual_caches(started_with())),
        )

    def control(self, request: says.Control) -> says.Answer:
        """Trace a call that the witness must not take for an attention kernel; then warm up what is slow at first."""
        q = torch.randn(1, 4, 128, 64, device=self.processor.device, dtype=torch.bfloat16)

        def call() -> None:
            with sdpa_kernel([SDPBackend.MATH]):
                torch.nn.functional.scaled_dot_product_attention(q, q, q)

        call()
        events = recording.record([call], self.processor)
        for kernel in self.kernels.values():
            if request.warm_up and isinstance(kernel.adapter, SlowAtFirst):
                with suppress(Exception):  # its first case will raise it again
                    kernel.adapter.warm_up(self.processor.device)
                    self.processor.synchronize()
        return self._events(events)

    def prepare(self, request: says.Prepare) -> says.Answer:
        """Keep the prepared call."""
        kernel = self._kernel(request)
        self.kept[request.number] = kernel.prepare(self._call(request.call))
        return says.Accepted()

    def run(self, request: says.RunOnce) -> says.Answer:
        """One whole call."""
        kernel = self._kernel(request)
        return self._returned(kernel.run(self._call(request.call)), request.region)

    def render(self, request: says.Render) -> says.Answer:
        """A script that calls the kernel; its adapter and its source are here."""
        claim = Claim(
            shows=getattr(standalone, request.shows), given=tuple(request.given), launches=(), values=request.values
        )
        text = script.rendered(
            self.kernels[request.kernel].adapter,
            title=request.title,
            text=request.text,
            device=self.processor.device,
            program=request.program,
            claim=claim,
        )
        return says.Script(text=text)

    def turned(self, request: says.PrepareTurned) -> says.Answer:
        """Keep the prepared calls."""
        self.kept.update(zip(request.numbers, self._bound(request).turned(request.rows), strict=True))
        return says.Accepted()

    def launch(self, request: says.LaunchBound) -> says.Answer:
        """Keep what it returns."""
        self.kept[request.native] = self._bound(request).launch()
        return says.Accepted()

    def result(self, request: says.FetchResult) -> says.Answer:
        """Copy it into shared memory."""
        return self._returned(self._bound(request).result(self.kept[request.native]), request.region)

    def measure(self, request: says.Measure) -> says.Answer:
        """One number of a launch."""
        return says.Numbers(values=(getattr(self._bound(request), request.what)(),))

    def capture(self, request: says.Capture) -> says.Answer:
        """Keep the graph's replay, and what the captured launch returned."""
        replay, native = self._bound(request).capture(request.warm_up)
        self.kept[request.graph], self.kept[request.native] = replay, native
        return says.Accepted()

    def replay(self, request: says.ReplayGraph) -> says.Answer:
        """Launch the graph."""
        self.kept[request.graph]()
        return says.Accepted()

    def behind(self, request: says.Behind) -> says.Answer:
        """Launch behind copies of the values that the judge has placed beside the inputs."""
        bound = self._bound(request)
        pairs = [(self._tensor(into, {}), self._tensor(values, {})) for into, values in request.replaced]
        return self._returned(bound.behind(pairs), request.region)

    def trace(self, request: says.TraceCalls) -> says.Answer:
        """One profiler session."""
        bounds = [self.kept[number] for number in request.numbers]

        def announce(index: int) -> None:
            self.say(says.Began(index=index))

        return self._events(self.host.trace(bounds, announce, times=request.times, memory=request.memory))

    def _events(self, found: list[dict[str, Any]]) -> says.Events:
        """The last message of a session; those before it are sent."""
        *before, last = packed(found)
        for message in before:
            self.say(message)
        return last

    def sample(self, request: says.TimeCalls) -> says.Answer:
        """Times, and keep what the last copy's last launch returned."""
        bounds = [self.kept[number] for number in request.numbers]
        effort = Effort(blocks=request.blocks, block_us=request.block_us, launches=request.launches)
        samples, self.kept[request.native] = self.host.sample(bounds, effort)
        return says.Sampled(**asdict(samples))

    def prepare_blocks(self, request: says.PrepareBlocks) -> says.Answer:
        """Keep the blocks."""
        launches = [self.kept[number].launch for number in request.numbers]
        blocks = Blocks(
            launches,
            self.processor,
            graph=request.graph,
            block_us=request.block_us,
            plant=request.plant,
            like_us=request.like_us,
        )
        self.kept[request.number] = blocks
        return says.Numbers(values=(blocks.launch_us,))

    def time_block(self, request: says.TimeBlock) -> says.Answer:
        """One block."""
        blocks: Blocks = self.kept[request.number]
        return says.Numbers(values=(blocks.host_time() if request.host else blocks.time(),))

    def memory(self, request: says.Memory) -> says.Answer:
        """What is in use here."""
        used = in_use(self.processor, collect=request.collect)
        self._note_held()
        kept = sum(count for _, _, count in self.held.values())
        return says.Numbers(values=(*used, kept, float(self.processor.counts_bytes())))

    def wait(self, _: says.Wait) -> says.Answer:
        """Wait for the device, and check each time that it still computes: a lost context shows here."""
        self.processor.synchronize()
        return says.Numbers(values=(float(self.processor.healthy()),))

    def _kernel(self, request: says.OfKernel) -> LocalKernel:
        kernel = self.kernels[request.kernel]
        kernel.place = CallPlace(**request.place)
        return kernel

    def _bound(self, request: says.OfCall) -> LocalBound:
        bound: LocalBound = self.kept[request.number]
        bound.kernel.place = CallPlace(**request.place)
        return bound

    def _call(self, data: Mapping[str, Any]) -> AttentionCall:
        """The call, whose tensors are views of shared memory."""
        flats: dict[says.Region, Tensor] = {}
        values: dict[str, Any] = dict(data)
        for name, value in data.items():
            if name == "mask":
                values["mask"] = Mask(**{**value, "window": tuple(value["window"])})
            elif name == "out_dtype":
                values["out_dtype"] = getattr(torch, value)
            elif isinstance(value, list):
                values[name] = self._tensor(value, flats)
        return AttentionCall(**values)

    def _tensor(self, data: Any, flats: dict[says.Region, Tensor]) -> Tensor:
        """The tensor of a spec; those of one call that are views of the same memory share its storage."""
        segment, first, count, begin, dtype, shape, strides = data
        spec = (segment, first, count, begin, dtype, tuple(shape), tuple(strides))
        known = self.inputs.setdefault((segment, first), {})
        if spec not in known:
            same = next((tensor for other, tensor in known.items() if other[2] == count), None)
            flat = flats.get((segment, first, count)) if same is None else same
            if flat is None:
                flat = flats[segment, first, count] = self._segment(segment).bytes(first, count)
            known[spec] = typed(flat, begin, getattr(torch, dtype), spec[5], spec[6])
        return known[spec]

    def _segment(self, number: int) -> SharedFile | DeviceMemory:
        memory = self.segments[number]
        assert memory is not None, "the judge uses no memory that it has taken back"
        return memory

    def _returned(self, returned: Any, region: says.Region) -> says.Returned:
        """Copy tensors into the region, and say what they are."""
        several = isinstance(returned, tuple | list)
        parts, at = [], 0
        segment, first, size = region
        for value in returned if several else [returned]:
            if kind := _unlike_a_tensor(value):
                parts.append(says.ReturnedPart(kind=kind))
                continue
            part = says.ReturnedPart(
                kind="Tensor", dtype=str(value.dtype).removeprefix("torch."), shape=tuple(value.shape),
                device=value.device.type,
            )  # fmt: skip
            count = value.numel() * value.element_size()
            if value.device.type == self.processor.kind and at + count <= size:
                if count:
                    flat = value.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
                    self._segment(segment).bytes(first + at, count).copy_(flat)
                part = replace(part, offset=at)
                at += -(-count // ALIGNED) * ALIGNED
            parts.append(part)
        self.processor.synchronize()
        return says.Returned(several=several, parts=tuple(parts[: says.RETURNED_PARTS]))


ALIGNED = 512


def _unlike_a_tensor(value: Any) -> str:
    """What it is instead of a tensor whose elements are numbers in rows and columns; empty for such a tensor."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.is_nested:
        return "nested_tensor"
    if value.is_quantized:
        return "quantized_tensor"
    layout = str(value.layout).removeprefix("torch.").strip("_")
    return "" if layout == "strided" else f"{layout}_tensor"


def _raised(error: BaseException) -> says.Raised:
    """The exception as plain data."""
    kind: Any = "other"
    if isinstance(error, LibraryRefusal):
        kind = "refusal"
    elif isinstance(error, ImportError):
        kind = "import"
    elif isinstance(error, torch.OutOfMemoryError | MemoryError):
        kind = "memory"
    name = _said(lambda: type(error).__name__) or "an exception without a name"
    text = _said(lambda: str(error))
    log = _said(lambda: "".join(traceback.format_exception(error)))
    place = _said(lambda: place_of(error))
    return says.Raised(kind=kind, name=name, text=text, log=log, place=place)


def _said(ask: Callable[[], str]) -> str:
    """What an exception says of itself; empty where it cannot: its methods may be a kernel's own."""
    try:
        return str.__str__(ask())
    except BaseException:  # noqa: BLE001 - they may raise anything
        return ""


def _limit_memory(total: int) -> None:
    """A kernel that allocates everything gets a MemoryError of its own instead of taking the machine along.

    Libraries are mapped already and count too, so the limit is what is mapped now plus the machine's memory.
    """
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped + total if hard == resource.RLIM_INFINITY else min(mapped + total, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
