"""From the words of a command line to a run that can start, or go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from qualify.cards.load import LoadedKernel, LoadedMatrix, in_environments, load_kernels, load_matrix
from qualify.errors import DeviceError, UsageError
from qualify.facts.case import USUAL_LEVEL, Level
from qualify.facts.devices import HOST, DeviceKind
from qualify.facts.placement import Placement
from qualify.facts.run import Run
from qualify.facts.typed import PLAIN, Typed
from qualify.fleet.probe import find_host
from qualify.plan.host import Host, gpu_kernels
from qualify.plan.interpreter import check_interpreter
from qualify.plan.plan import Plan, make_plan
from qualify.plan.selection import Selection
from qualify.seal.keys import SigningKey, signing_key
from qualify.verdict.origin import MAX_AGE

NAMED = 3
"""kernels that a message names"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A run as the command line asks for it; None where it leaves something open."""

    matrix: str
    cards: tuple[Path, ...] = ()
    select: str | None = None
    kernel: str | None = None
    level: Level | None = None
    device: str | None = None
    """``auto``, ``cpu`` or ``cuda``"""
    environments: Mapping[str, str] = field(default_factory=dict)
    """interpreters by name, besides those of the matrix"""
    typed: Typed = PLAIN
    """options that printed commands repeat"""
    anew: bool = False
    """every file behind a kernel is read, whatever is remembered of it, also below level full"""
    max_age: timedelta = MAX_AGE
    """oldest evidence that the run takes over from earlier runs"""
    uuids: tuple[str, ...] = ()
    """cards that share the run, or the only one; empty = the first card of the machine"""
    placement: Placement | None = None
    """node, cards and fleet, for the run's record"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A run to start or to go on with."""

    matrix: LoadedMatrix
    kernels: dict[str, LoadedKernel]
    plan: Plan
    level: Level
    host: Host
    selection: Selection
    import_paths: tuple[str, ...]
    """the --cards folders: the entries of their kernels stand there"""
    environments: Mapping[str, str] = field(default_factory=dict)
    """the interpreters, by name, of the environments that cases run in"""
    anew: bool = False
    """every file behind a kernel is read, whatever is remembered of it"""
    signing_key: SigningKey | None = None
    """what seals the run; None = it is not sealed"""
    max_age: timedelta = MAX_AGE
    """oldest evidence that the run takes over from earlier runs; an age counts from the end of the case"""
    uuids: tuple[str, ...] = ()
    """as in :class:`Asked`"""
    placement: Placement | None = None

    @property
    def device(self) -> DeviceKind:
        """Where it runs."""
        return self.host.kind

    @property
    def demonstration(self) -> bool:
        """Whether a CPU stands in for the GPU that kernels of the matrix need."""
        return self.device == HOST and bool(gpu_kernels(self.matrix.card, self.kernels))


def make_request(asked: Asked, begun: Run | None = None) -> Request:
    """Load the cards and make the plan, the kernels of every environment included.

    Args:
        begun: the run to go on with; what the command line leaves open is taken from it.

    Raises:
        UsageError: a card or an option is wrong, does not fit the run to go on with, or names no interpreter that could
            run anything.
        NothingSelected: the selection matches no case.
        DeviceError: no GPU where the matrix names kernels that need one and nobody asked for a CPU; or nothing of the
            matrix can run on this machine.
    """
    environments = asked.environments
    if begun is not None:
        environments = {name: one.python for name, one in begun.environments.items()} | dict(environments)
    matrix = load_matrix(asked.matrix, asked.cards, environments)
    kernels = in_environments(load_kernels(asked.cards), matrix.environments)
    if begun is not None:
        _refuse_other_run(asked, matrix, begun)
        selection, level = Selection(select=begun.select, kernel=begun.kernel), begun.level
        host = find_host(begun.device)
    else:
        selection = Selection(select=asked.select or "", kernel=asked.kernel or "")
        level, host = asked.level or USUAL_LEVEL, find_host(asked.device or "auto")
        if host.kind == HOST and asked.device != HOST:
            _refuse_silent_cpu(asked, matrix, kernels)
    plan = make_plan(matrix, kernels, host=host, selection=selection, typed=asked.typed)
    # Where nodes share a matrix, a node may get a shape that no kernel takes here: the share's verdict says so.
    if not plan.cases and not (asked.placement and asked.placement.fleet and asked.placement.spread == "shard"):
        _refuse_wrong_machine(matrix, plan, make_plan(matrix, kernels, selection=selection), host, asked.typed)
    return Request(
        matrix=matrix,
        kernels=kernels,
        plan=plan,
        level=level,
        host=host,
        selection=selection,
        import_paths=tuple(str(folder.resolve()) for folder in asked.cards),
        environments=_used(matrix, plan, lambda: make_plan(matrix, kernels, selection=selection)),
        anew=asked.anew or level == "full",
        signing_key=signing_key(),
        max_age=asked.max_age,
        uuids=asked.uuids,
        placement=asked.placement,
    )


def _used(matrix: LoadedMatrix, here: Plan, anywhere: Callable[[], Plan]) -> dict[str, str]:
    """The interpreters that cases of the plan run in, by environment.

    Args:
        matrix: names the interpreters.
        here: the plan of this machine.
        anywhere: makes the plan of a machine that has everything.

    Raises:
        UsageError: an interpreter can run no case of the plan, so it is probably the wrong one.
    """
    names = dict.fromkeys(case.environment for case in (*here.cases, *(case for case, _ in here.refused)))
    found = {name: matrix.environments[name] for name in names if name}
    running = {case.environment for case in here.cases}
    for name, python in found.items():
        check_interpreter(name, python)
        if name not in running and (missing := {it.id for it in anywhere().cases if it.environment == name}):
            check = Typed(environments=(f"{name}={python}",)).command("doctor")
            raise UsageError(
                f"--environment {name}={python}: nothing that is selected of {matrix.card.matrix} can run "
                f"there: {here.why_refused(missing)}. What it has: {check}"
            )
    return found


def _refuse_other_run(asked: Asked, matrix: LoadedMatrix, begun: Run) -> None:
    """One run is evidence about one matrix, one selection, one level and one device."""
    if begun.matrix_hash != matrix.content_hash:
        what = "a matrix of another name" if begun.matrix != matrix.card.matrix else "another version of this matrix"
        raise UsageError(
            f"--resume {begun.id}: that run used {what} ({begun.matrix}, sha256 {begun.matrix_hash[:12]}; "
            f"{matrix.path} is {matrix.card.matrix}, {matrix.content_hash[:12]}). Start a new run: leave out --resume."
        )
    device = None if asked.device == "auto" else asked.device
    for option, typed, stored in (
        ("--level", asked.level, begun.level),
        ("--device", device, begun.device),
        ("--select", asked.select, begun.select),
        ("--kernel", asked.kernel, begun.kernel),
    ):
        if typed is not None and typed != stored:
            raise UsageError(
                f"--resume {begun.id}: that run has {f'{option} {stored}' if stored else f'no {option}'}, and this "
                f"command has {option} {typed}. Leave out {option} to go on as it began, or --resume for a new run."
            )
    for name, python in asked.environments.items():
        before = begun.environments.get(name)
        if before is None or before.python != python:
            stored = f"{name} as {before.python}" if before else f"no environment {name}"
            raise UsageError(
                f"--resume {begun.id}: that run has {stored}, and this command has --environment {name}={python}. "
                "Leave out --environment to go on as it began, or --resume for a new run."
            )


def _refuse_silent_cpu(asked: Asked, matrix: LoadedMatrix, kernels: dict[str, LoadedKernel]) -> None:
    """What a CPU computes says nothing about the kernels that a matrix names for a GPU."""
    needing = gpu_kernels(matrix.card, kernels)
    if matrix.card.portable or not needing:
        return
    more = f" and {len(needing) - NAMED} more" if len(needing) > NAMED else ""
    raise DeviceError(
        f"{matrix.card.matrix} names kernels that need a GPU ({', '.join(needing[:NAMED])}{more}), and no NVIDIA "
        "GPU is visible here (nvidia-smi lists none, or CUDA_VISIBLE_DEVICES hides it). `qualify doctor` checks the "
        "machine. A demonstration on the CPU, which proves nothing about a GPU: "
        f"{asked.typed.command('run', asked.matrix, '--device', 'cpu')}"
    )


def _refuse_wrong_machine(matrix: LoadedMatrix, here: Plan, anywhere: Plan, host: Host, typed: Typed) -> None:
    """Raises DeviceError where this machine can run no case and another one could: that is no verdict on kernels."""
    if not anywhere.cases:
        return
    raise DeviceError(
        f"none of the {len(here.refused)} cases of {here.matrix} can run on this machine, {host}: "
        f"{here.why_refused({case.id for case in anywhere.cases})}. "
        f"`{typed.command('plan', matrix.typed, '--here')}` lists every case, `qualify doctor` checks the machine."
    )
