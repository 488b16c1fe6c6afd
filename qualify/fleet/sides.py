"""From what was typed to a duel that can begin: what the two sides are, and which cells both of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qualify.assets import digest_cache
from qualify.cards.folders import declares
from qualify.cards.load import LoadedKernel, LoadedMatrix, in_environments, load_kernels, load_matrix
from qualify.cards.named import kernel_names, matrix_names
from qualify.cards.problems import meant
from qualify.errors import DeviceError, NothingSelected, UsageError
from qualify.facts.case import Case
from qualify.facts.code import Code
from qualify.facts.devices import KINDS, DeviceKind
from qualify.facts.duel import DuelTask
from qualify.facts.environment import AT, HERE, is_environment_name, kernel_in
from qualify.facts.typed import PLAIN, Typed
from qualify.files import is_file
from qualify.fleet.duel import MOST_PAIRS, DuelRequest
from qualify.fleet.probe import available_memory, find_host
from qualify.plan.code import CodeHere
from qualify.plan.interpreter import check_interpreter
from qualify.plan.plan import Plan, make_plan
from qualify.plan.selection import Selection, selected_by
from qualify.run.process.messages import DuelEffort, DuelSetup, HostLimits
from qualify.verdict.open_cell import LEAST_PAIRS

HERE_WORD = "here"
"""what the default environment is called on the command line"""
MEMORY_SHARE = 0.4
"""share of the machine's free memory that one host may take"""
QUADS = {"small": 2, "large": 4}
"""quads of the way that decides, for each pair of processes"""
BLOCK_US = {"small": 4_000.0, "large": 6_000.0}
"""device time of a block"""
ASIDE = 0.5
"""share of that time for a block of a way that does not decide"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelAsked:
    """A duel as the command line asks for it."""

    a: str
    b: str
    matrix: str
    select: str = ""
    device: str = "auto"
    cards: tuple[Path, ...] = ()
    environments: Mapping[str, str] = field(default_factory=dict)
    null: bool = False
    plant: float = 0.0
    margin: float | None = None
    pairs: int = LEAST_PAIRS
    most_pairs: int = MOST_PAIRS
    deadline_s: float | None = None
    typed: Typed = PLAIN
    label_a: str = ""
    """what the result calls A; empty = as it was typed"""
    label_b: str = ""


def make_duel(asked: DuelAsked) -> DuelRequest:
    """Load the cards, plan both sides and pair their cases.

    Raises:
        UsageError: a side is nothing that can be compared, or both are the same one without ``null``.
        NothingSelected: the sides have no cell in common.
        DeviceError: this machine can run none of them.
    """
    host = find_host(asked.device)
    _refuse_third_kernel(asked)
    matrix = load_matrix(asked.matrix, asked.cards, asked.environments)
    kernels = in_environments(load_kernels(asked.cards), matrix.environments)
    for name, python in matrix.environments.items():
        check_interpreter(name, python)
    a, b = (side_of(word, kernels, matrix.environments, asked.cards) for word in (asked.a, asked.b))
    if a.is_kernel != b.is_kernel:
        raise UsageError(
            f"{asked.a} is {a} and {asked.b} is {b}: compare two kernels, or two environments. "
            f"One kernel in two environments: KERNEL and KERNEL{AT}NAME."
        )
    # A stored stack that this interpreter still has is another label: a policy that requires a duel may ask for that.
    if a == b and asked.label_a == asked.label_b and not asked.null:
        raise UsageError(
            f"A and B are both {a}, so their duel shows only noise. Name another B, or count the false alarms: "
            f"{asked.typed.command('duel', '--null', asked.a, matrix.typed)}"
        )
    plan = make_plan(matrix, kernels, host=host, selection=Selection(), typed=asked.typed)
    tasks = [task for task in pair_up(plan, a, b, plant=asked.plant) if _selects(asked.select, task)]
    if not tasks:
        raise _nothing(asked, matrix, plan, a, b)
    timed, alike = first_of_each(tasks)
    names = dict.fromkeys(name for task in timed for name in (task.a.kernel, task.b.kernel))
    return DuelRequest(
        matrix=matrix.card.matrix,
        matrix_hash=matrix.content_hash,
        select=asked.select,
        a=asked.label_a or asked.a,
        b=asked.label_b or asked.b,
        null=asked.null,
        tasks=timed,
        alike=alike,
        setup=_setup(asked, host.kind, matrix, {name: kernels[name] for name in names}),
        only_a=_only(plan, a, b, asked.select),
        only_b=_only(plan, b, a, asked.select),
        code=_code_of(asked, matrix, [kernels[name] for name in dict.fromkeys(task.b.kernel for task in tasks)]),
        least_pairs=asked.pairs,
        most_pairs=max(asked.most_pairs, asked.pairs),
        margin=asked.margin,
        deadline_s=asked.deadline_s,
    )


def _refuse_third_kernel(asked: DuelAsked) -> None:
    """Raises UsageError where a kernel stands in the place of the matrix."""
    name = asked.matrix
    if name not in kernel_names(asked.cards) or name in matrix_names(asked.cards):
        return
    if asked.null:
        raise UsageError(
            f"--null compares {asked.a} with itself, and {name} is another kernel: leave out --null to compare the two"
        )
    raise UsageError(f"{name} is a kernel, and a matrix stands behind both sides: qualify duel A B [MATRIX]")


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelSide:
    """One side: a kernel, or an environment with all its kernels."""

    kernel: str = ""
    """a glob that means one name; empty = an environment"""
    environment: str = ""

    @property
    def is_kernel(self) -> bool:
        """Whether it is one kernel."""
        return bool(self.kernel)

    def __str__(self) -> str:
        if self.kernel:
            return f"the kernel {self.kernel}"
        return f"the environment {self.environment}" if self.environment else HERE

    def has(self, case: Case) -> bool:
        """Whether a case is one of its own."""
        return case.kernel == self.kernel if self.kernel else case.environment == self.environment

    def key(self, case: Case) -> str:
        """What a cell of the duel is called."""
        return case.cell if self.kernel else f"{case.cell}/{kernel_in(case.kernel)}"


def side_of(
    word: str, kernels: Mapping[str, LoadedKernel], environments: Mapping[str, str], cards: tuple[Path, ...]
) -> DuelSide:
    """What a word on the command line means. Raises UsageError where it means nothing."""
    if word in kernels:
        return DuelSide(kernel=word)
    name = word.removeprefix(AT)
    if word == HERE_WORD:
        return DuelSide()
    if name in environments:
        return DuelSide(environment=name)
    if AT in word and kernel_in(word) in kernels:
        raise UsageError(
            f"{word}: there is no environment {word.partition(AT)[2]!r}. Name its interpreter: "
            f"--environment {word.partition(AT)[2]}=PYTHON"
        )
    if word in matrix_names(cards) or (is_file(Path(word)) and declares(Path(word), "matrix")):
        raise UsageError(
            f"{word} is a matrix, and stands in the place of a kernel or an environment. Is B missing? "
            f"`qualify duel A B {word}` compares two sides, `qualify duel --null A {word}` one with itself."
        )
    known = [*kernels, HERE_WORD, *environments]
    hint = f" An environment needs its interpreter: --environment {name}=PYTHON." if is_environment_name(name) else ""
    raise UsageError(
        f"{word!r} is no kernel and no environment{meant(word, known)}; `qualify kernels` lists the kernels, "
        f"{HERE_WORD!r} is this interpreter.{hint}"
    )


def pair_up(plan: Plan, a: DuelSide, b: DuelSide, *, plant: float = 0.0) -> list[DuelTask]:
    """The cells that both sides can run, in the plan's order."""
    mine, theirs = _cells(plan, a), _cells(plan, b)
    return [DuelTask(name=cell, a=case, b=theirs[cell], plant=plant) for cell, case in mine.items() if cell in theirs]


def _only(plan: Plan, own: DuelSide, other: DuelSide, select: str) -> tuple[str, ...]:
    """The selected cells that only one side can run, in the plan's order."""
    theirs, selected = _cells(plan, other), selected_by(select)
    found = {cell: case for cell, case in _cells(plan, own).items() if cell not in theirs}
    return tuple(cell for cell, case in found.items() if selected is None or selected(case.id))


def _cells(plan: Plan, side: DuelSide) -> dict[str, Case]:
    """What a side can run, by cell."""
    return {side.key(case): case for case in plan.cases if side.has(case) and not case.incident}


def first_of_each(tasks: Sequence[DuelTask]) -> tuple[tuple[DuelTask, ...], dict[str, tuple[DuelTask, ...]]]:
    """The tasks with different calls, and by the name of each the tasks that repeat its call."""
    first: dict[object, DuelTask] = {}
    alike: dict[str, list[DuelTask]] = {}
    for task in tasks:
        key = (task.a.workload, task.b.workload, task.a.kernel, task.b.kernel, task.a.phase)
        if key in first:
            alike.setdefault(first[key].name, []).append(task)
        else:
            first[key] = task
    return tuple(first.values()), {name: tuple(same) for name, same in alike.items()}


def _selects(select: str, task: DuelTask) -> bool:
    """Whether the id of either side's case is selected."""
    selected = selected_by(select)
    return selected is None or selected(task.a.id) or selected(task.b.id)


def _nothing(asked: DuelAsked, matrix: LoadedMatrix, plan: Plan, a: DuelSide, b: DuelSide) -> Exception:
    """Why there is no cell."""
    name = matrix.card.matrix
    if pair_up(plan, a, b):
        return NothingSelected(
            f"no cell that {a} and {b} share in {name} matches --select {asked.select!r}. "
            f"`{asked.typed.command('plan', matrix.typed)}` lists the cases."
        )
    for side in (a, b):
        if any(side.has(case) for case in plan.cases):
            continue
        refused = {case.id for case, _ in plan.refused if side.has(case)}
        if refused:
            return DeviceError(f"{side} can run nothing of {name} here: {plan.why_refused(refused)}")
        return NothingSelected(f"{name} has no case of {side}: name a matrix that lists it, in its `kernels`.")
    return NothingSelected(f"{a} and {b} have no shape of {name} in common: what one claims the other refuses.")


def _code_of(asked: DuelAsked, matrix: LoadedMatrix, kernels: Sequence[LoadedKernel]) -> dict[str, Code]:
    """The code of kernels on this machine, by name."""
    here = CodeHere(folders=_import_paths(asked), cache=digest_cache(), environments=matrix.environments)
    return here.noted(kernel.card for kernel in kernels)


def _import_paths(asked: DuelAsked) -> tuple[str, ...]:
    return tuple(str(folder.resolve()) for folder in asked.cards)


def _setup(
    asked: DuelAsked, device: DeviceKind, matrix: LoadedMatrix, kernels: Mapping[str, LoadedKernel]
) -> DuelSetup:
    policy = matrix.card.policy
    used = {kernel.card.environment for kernel in kernels.values()}
    return DuelSetup(
        device=device,
        import_paths=_import_paths(asked),
        cards={name: kernel.card for name, kernel in kernels.items()},
        hash_cache=str(digest_cache()),
        hosts=HostLimits(
            timeout_s=policy.timeout_s,
            compile_timeout_s=policy.compile_timeout_s,
            memory_bytes=int(available_memory() * MEMORY_SHARE),
            environments={name: python for name, python in matrix.environments.items() if name in used},
        ),
        effort=DuelEffort(
            quads=QUADS[KINDS[device].scale],
            block_us=BLOCK_US[KINDS[device].scale],
            aside=ASIDE,
            stage_s=policy.timeout_s,
            compile_s=policy.compile_timeout_s,
        ),
    )
