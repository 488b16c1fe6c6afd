"""Records how the inputs of a call were made, as torch operations that a script can repeat.

A check seeds generators, draws, slices, overwrites and launches. Below autograd, all of that is a sequence of
operations on storages. The recorder keeps that sequence. :meth:`Recorder.program` selects the operations that some
launches need: every operation that made or wrote a storage that they read, and every earlier draw from the same
generator. So a check need not describe its inputs, and the script has them bit for bit. A tensor that no recorded
operation made (numbers from Python, draws without a generator) is written out as a literal.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from qualify.run.adapters.interface import AttentionCall
from qualify.run.host.interface import Bound, CallPlace, Kernel

WRITTEN_OUT = 64
"""most elements of a literal that is a list of numbers; a longer literal is compressed bytes"""
DULL = ("pin_memory", "layout")
"""keywords that the program leaves out, because checks always use their defaults"""
Key = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""what identifies the bytes of a tensor: storage, offset, shape, strides, dtype"""


@dataclass(kw_only=True, slots=True)
class Step:
    """One line of the program."""

    text: str
    makes: set[str] = field(default_factory=set)
    """names that it defines"""
    reads: set[str] = field(default_factory=set)
    """names that it uses"""
    storages: set[int] = field(default_factory=set)
    """storages that it reads"""
    writes: set[int] = field(default_factory=set)
    """storages that it changes"""
    generator: str = ""
    """generator that it draws from"""
    launch: int | None = None
    """number of the launch whose call the line makes"""


@dataclass(kw_only=True, slots=True)
class RecordedLaunch:
    """One launch of the kernel: the call, and what the kernel returned."""

    call: AttentionCall
    out: object = None
    lse: object = None


@dataclass(kw_only=True, slots=True)
class _Generator:
    name: str
    seed: int
    state: bytes
    """state of the generator after its last recorded draw"""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives its base no types
    """While it is active, it records every operation on tensors. A launch of the kernel is recorded as one step."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.steps: list[Step] = []
        self.launches: list[RecordedLaunch] = []
        self._names: dict[Key, str] = {}
        self._alive: dict[int, Any] = {}
        """weak references to storages, so that the number of a freed storage is not used for another one"""
        self._generators: list[_Generator] = []
        self._counts: dict[str, int] = {}
        self._step_of: list[Step] = []
        """the step of each launch"""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler, which takes a second, to keep it away from what nobody compiles."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record one operation and carry it out."""
        kwargs = kwargs or {}
        if func is torch.ops.aten.lift_fresh.default:
            return func(*args, **kwargs)
        tensors = list(_tensors((args, kwargs)))
        step = Step(text="", reads={self.name(tensor) for tensor in tensors})
        step.storages = {self._storage(tensor) for tensor in tensors}
        step.writes = {self._storage(tensor) for tensor in _written(func, args, kwargs)}
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if draws and kwargs.get("generator") is not None:
            step.generator = self._generator(kwargs["generator"])
        text = self._operation(func, args, kwargs, step)
        result = func(*args, **kwargs)
        if step.generator:
            self._advance(step.generator, kwargs["generator"])
        if step.generator or not draws:
            self._add(step, text, result)
        return result

    def _add(self, step: Step, text: str, result: Any) -> None:
        """Give names to the results of an operation, and keep its line. A short index tensor becomes a literal."""
        made = list(_tensors(result))
        keys = [self._key(tensor) for tensor in made]
        if not step.writes and all(key in self._names for key in keys):
            return  # no new tensor: the result is a view of bytes that have a name already
        for key in keys:
            if key not in self._names:
                self._names[key] = self._new("t")
        names = [self._names[key] for key in keys]
        step.makes = set(names)
        if step.writes:
            step.text = text
        elif len(made) == 1 and _is_index(made[0]) and not step.generator and keys[0][0] not in step.storages:
            step.text, step.reads, step.storages = f"{names[0]} = {literal(made[0], self.device)}", set(), set()
        else:
            comma = "," if isinstance(result, tuple | list) and len(made) == 1 else ""
            step.text = f"{', '.join(names)}{comma} = {text}"
        self.steps.append(step)

    def _operation(self, func: Any, args: Any, kwargs: dict[str, Any], step: Step) -> str:
        shown = [self._shown(item, step) for item in args]
        shown += [f"{key}={self._shown(item, step)}" for key, item in kwargs.items() if key not in DULL]
        return f"{str(func).replace('.default', '')}({', '.join(shown)})"

    def _shown(self, value: Any, step: Step) -> str:
        """A value as Python source."""
        if isinstance(value, Tensor):
            return self.name(value)
        if isinstance(value, torch.Generator):
            return step.generator or "None"
        if isinstance(value, torch.device):
            return "device" if value.type == self.device.type else f'"{value.type}"'
        if isinstance(value, float) and (value != value or abs(value) == float("inf")):  # noqa: PLR0124 - NaN
            return f'float("{value}")'
        if isinstance(value, list | tuple):
            inner = ", ".join(self._shown(item, step) for item in value)
            lone = "," if len(value) == 1 else ""
            return f"({inner}{lone})" if isinstance(value, tuple) else f"[{inner}]"
        return repr(value)

    def name(self, tensor: Tensor) -> str:
        """Name of a tensor in the program; a tensor that no recorded operation made becomes a literal here."""
        key = self._key(tensor)
        if key not in self._names:
            self._names[key] = name = self._new("t")
            self.steps.append(Step(text=f"{name} = {literal(tensor, self.device)}", makes={name}))
        return self._names[key]

    def _key(self, tensor: Tensor) -> Key:
        return (
            self._storage(tensor),
            int(tensor.storage_offset()),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.dtype,
        )

    def _storage(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        number = int(storage._cdata)
        if number not in self._alive:
            self._alive[number] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        return number

    def _new(self, prefix: str) -> str:
        number = self._counts.get(prefix, 0)
        self._counts[prefix] = number + 1
        return f"{prefix}{number}"

    def _generator(self, generator: torch.Generator) -> str:
        """Name of a generator, identified by its state after the last draw; empty where its history is unknown."""
        seed, state = generator.initial_seed(), _state(generator)
        if state == _state(torch.Generator(generator.device).manual_seed(seed)):
            known = _Generator(name=self._new("g"), seed=seed, state=state)
            self._generators.append(known)
            where = self._shown(generator.device, Step(text=""))
            text = f"{known.name} = torch.Generator({where}).manual_seed({seed})"
            self.steps.append(Step(text=text, makes={known.name}, generator=known.name))
            return known.name
        found = [item.name for item in self._generators if item.seed == seed and item.state == state]
        return found[-1] if found else ""

    def _advance(self, name: str, generator: torch.Generator) -> None:
        for known in self._generators:
            if known.name == name:
                known.state = _state(generator)

    def launch(self, call: AttentionCall) -> int:
        """Record a launch of the kernel; returns its number. :meth:`returned` adds the result."""
        number = len(self.launches)
        self.launches.append(RecordedLaunch(call=call))
        tensors = [getattr(call, item.name) for item in fields(call) if isinstance(getattr(call, item.name), Tensor)]
        values = {item.name: self._shown(getattr(call, item.name), Step(text="")) for item in fields(call)}
        shown = "".join(f"    {name}={value},\n" for name, value in values.items())
        text = f"call{number} = AttentionCall(\n{shown})"
        reads, storages = {self.name(tensor) for tensor in tensors}, {self._storage(tensor) for tensor in tensors}
        self._step_of.append(Step(text=text, reads=reads, storages=storages, launch=number))
        self.steps.append(self._step_of[number])
        return number

    def returned(self, number: int, out: object, lse: object) -> None:
        """Note the result of a launch."""
        self.launches[number].out, self.launches[number].lse = out, lse
        for name, value in (("out", out), ("lse", lse)):
            if isinstance(value, Tensor):
                self._names.setdefault(self._key(value), f"{name}{number}")
                self._step_of[number].makes.add(f"{name}{number}")

    def gave(self, number: int, pair: object) -> None:
        """Note whatever a launch returned: (out, lse), out alone, or something else."""
        out, lse = pair if isinstance(pair, tuple) and len(pair) == 2 else (pair, None)
        self.returned(number, out, lse)

    def program(self, wanted: Iterable[int], *, launched: bool = True) -> list[str]:
        """The lines of the program that some launches need, in order.

        Args:
            wanted: numbers of launches.
            launched: False only makes the wanted calls, without launching them; earlier launches whose results they
                need are kept.
        """
        chosen = set(wanted)
        names: set[str] = set()
        storages: set[int] = set()
        generators: set[str] = set()
        kept: list[str] = []
        for step in reversed(self.steps):
            needed: object = step.launch in chosen or step.makes & names or step.writes & storages
            needed = needed or step.generator in generators
            if not needed:
                continue
            names |= step.reads
            storages |= step.storages
            generators |= {step.generator} if step.generator else set()
            if step.launch is not None and (launched or step.launch not in chosen):
                kept.append(f"out{step.launch}, lse{step.launch} = run(kernel, call{step.launch})")
            kept.append(step.text)
        return kept[::-1]


class RecordingKernel:
    """A kernel whose launches are recorded, and whose own operations are not."""

    def __init__(self, kernel: Kernel, recorder: Recorder) -> None:
        self.kernel = kernel
        self.recorder = recorder

    def prepare(self, call: AttentionCall) -> Bound:
        """As the kernel. The first launch counts from here on, because adapters launch once when they prepare."""
        number = self.recorder.launch(call)
        with _disable_current_modes():
            return RecordingBound(self.kernel.prepare(call), call, self.recorder, number)

    def run(self, call: AttentionCall) -> Any:
        """As the kernel."""
        number = self.recorder.launch(call)
        with _disable_current_modes():
            pair = self.kernel.run(call)
        self.recorder.gave(number, pair)
        return pair

    def at(self, place: CallPlace) -> AbstractContextManager[None]:
        """As the kernel. The place is not recorded, because a script makes all its calls from one place."""
        return self.kernel.at(place)

    def read_back(self, call: AttentionCall) -> None:
        """As the kernel. It is not recorded, because the kernel wrote these bytes, and no operation of the check."""
        with _disable_current_modes():
            self.kernel.read_back(call)

    def in_use(self, *, collect: bool) -> tuple[int, ...]:
        """As the kernel."""
        return self.kernel.in_use(collect=collect)

    def counts_bytes(self) -> bool:
        """As the kernel."""
        return self.kernel.counts_bytes()


class RecordingBound:
    """A prepared call whose launches are recorded."""

    def __init__(self, bound: Bound, call: AttentionCall, recorder: Recorder, number: int) -> None:
        self.bound = bound
        self.call = call
        self.recorder = recorder
        self.first = [number]

    def launch(self) -> tuple[int, Any]:
        """The number of the launch, and what it returned."""
        turn = self.first.pop() if self.first else self.recorder.launch(self.call)
        with _disable_current_modes():
            return turn, self.bound.launch()

    def result(self, native: tuple[int, Any]) -> Any:
        """As the kernel."""
        turn, returned = native
        with _disable_current_modes():
            pair = self.bound.result(returned)
        self.recorder.gave(turn, pair)
        return pair

    def __getattr__(self, name: str) -> Any:
        """Other attributes, which measure, are those of the bound call and are not recorded."""
        return getattr(self.bound, name)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of an argument or result, in order; torch's ``tree_flatten`` takes longer than most operations."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an operation's schema says it changes."""
    values = [args[at] if at < len(args) else kwargs.get(name) for at, name in _changed(func)]
    return list(_tensors(values))


@cache
def _changed(func: Any) -> list[tuple[int, str]]:
    """Position and name of the arguments that an operation's schema says it changes."""
    every = enumerate(func._schema.arguments)
    return [(at, one.name) for at, one in every if one.alias_info is not None and one.alias_info.is_write]


def _needs_bits(tensor: Tensor) -> bool:
    """Whether a literal must hold bytes, not numbers: for NaN, which has many bit patterns, and for 8-bit formats."""
    return tensor.is_floating_point() and (tensor.element_size() == 1 or bool(tensor.isnan().any()))


def _is_index(tensor: Tensor) -> bool:
    """Whether a tensor is short and holds positions or flags, which a reader wants to see as numbers."""
    return not tensor.is_floating_point() and tensor.numel() <= WRITTEN_OUT


def _state(generator: torch.Generator) -> bytes:
    return bytes(generator.get_state().numpy().tobytes())


def literal(tensor: Tensor, device: torch.device) -> str:
    """A tensor's values as Python source: a short one as numbers, a long one as compressed bytes."""
    where = "device" if tensor.device.type == device.type else f'"{tensor.device.type}"'
    if not tensor.numel():
        return f"torch.empty({list(tensor.shape)}, dtype={tensor.dtype}, device={where})"
    if tensor.numel() <= WRITTEN_OUT and not _needs_bits(tensor):
        numbers = str(tensor.tolist()).replace("inf", 'float("inf")')
        return f"torch.tensor({numbers}, dtype={tensor.dtype}, device={where})"
    data = tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()
    text = base64.b64encode(zlib.compress(data, 9)).decode()
    return f'unpack("{text}", {tensor.dtype}, {list(tensor.shape)}, {where})'
