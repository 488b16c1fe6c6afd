"""The plan of a run: which cases will use the device, and which are refused beforehand, with reasons."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field

from qualify.cards.environments import interpreters_of
from qualify.cards.load import LoadedKernel, LoadedMatrix, in_environments
from qualify.cards.model import LayerGroup
from qualify.cards.problems import meant
from qualify.cards.source import parse
from qualify.cards.waivers import refuse_broad
from qualify.errors import CardError, NothingSelected, UsageError
from qualify.facts.case import Case, Phase
from qualify.facts.environment import AT
from qualify.facts.typed import PLAIN, Typed
from qualify.plan.cases import CaseRefusals, expand_cases
from qualify.plan.geometry import PROMPT
from qualify.plan.globs import Globs
from qualify.plan.host import Host
from qualify.plan.interpreter import Interpreter, interpreter
from qualify.plan.offered import unoffered
from qualify.plan.selection import Selection, matched_words, selected_by
from qualify.plan.selectors import nearest, unmatched
from qualify.plan.shapes import count_sequences, count_shapes

LIMIT_SEQUENCES = 4_000_000
"""most sequences of all shapes of a matrix together; the largest batch that a shipped kernel claims has 65535"""
ALL = Selection()
REASONS = 3
"""reasons that a message names; `qualify plan` has all"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Cases to run and cases refused, in the matrix's order."""

    matrix: str
    cases: tuple[Case, ...]
    refused: tuple[tuple[Case, tuple[str, ...]], ...]
    matched: str = ""
    """what --select matched, in words; empty where nothing was selected"""
    excluded: str = ""
    """what the matrix's exclude leaves out, in words; empty where it has none, or with --kernel"""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels that shall run, in the order of the cases."""
        return tuple(dict.fromkeys(case.kernel for case in self.cases))

    @property
    def calls(self) -> int:
        """Different calls among the cases: equal ones run once."""
        return len({case.content_hash for case in self.cases})

    def why_refused(self, among: Container[str] | None = None) -> str:
        """The most frequent reasons of the refusals.

        Args:
            among: ids of the refused cases that count; None = all.
        """
        counts = Counter(
            reason for case, reasons in self.refused if among is None or case.id in among for reason in reasons
        )
        shown = "; ".join(reason for reason, _ in counts.most_common(REASONS))
        more = f"; and {len(counts) - REASONS} more" if len(counts) > REASONS else ""
        return f"{shown}{more}"


def make_plan(
    matrix: LoadedMatrix,
    kernels: dict[str, LoadedKernel],
    *,
    host: Host | None = None,
    selection: Selection = ALL,
    typed: Typed = PLAIN,
) -> Plan:
    """Expand, select and refuse.

    Args:
        host: the device to plan for; None leaves out refusals that depend on the machine.
        typed: options that printed commands repeat.

    Raises:
        CardError: an exclusion, an expectation or a model of the matrix is about no case, a waiver covers more cases
            than the policy allows, or nothing here provides the adapter of a kernel that is otherwise installed.
        UsageError: more cases than ``policy.limit_cases``, an unknown ``--kernel``, or an environment whose interpreter
            does not answer.
        NothingSelected: the selection matches no case.
    """
    chosen = _chosen_kernels(matrix, kernels, selection)
    _refuse_explosion(matrix, len(chosen))
    _refuse_sequences(matrix)
    interpreters = {} if host is None else _interpreters(chosen, matrix)
    matches = selected_by(selection.select)
    refusals = CaseRefusals(chosen, host, interpreters)
    if host is not None:
        _refuse_unoffered(refusals, interpreters)
    sorted_ = _sort(expand_cases(matrix, refusals), matrix.card.exclude, matches)
    # With --kernel a glob that matches nothing may be about the kernels that are left out.
    if not selection.kernel and (problems := unmatched(matrix, sorted_.ids, sorted_.kept, sorted_.excluding)):
        raise CardError(problems)
    refuse_broad(matrix.waivers, matrix.card.policy.waivers, sorted_.kept)
    if not sorted_.cases and not sorted_.refused:
        raise _nothing_selected(matrix, selection, sorted_.kept, typed)
    return Plan(
        matrix=matrix.card.matrix,
        cases=tuple(sorted_.cases),
        refused=tuple(sorted_.refused),
        matched=matched_words(selection.select, sorted_.selected, sorted_.kept) if matches else "",
        excluded="" if selection.kernel else _excluded_words(sorted_.ids, sorted_.kept),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sorted:
    """The cases of a matrix by what becomes of them, each list in the matrix's order."""

    ids: list[str] = field(default_factory=list)
    """of all cases"""
    kept: list[str] = field(default_factory=list)
    """ids of those that no exclusion leaves out"""
    cases: list[Case] = field(default_factory=list)
    """selected, to run"""
    refused: list[tuple[Case, tuple[str, ...]]] = field(default_factory=list)
    """selected, and refused"""
    excluding: set[int] = field(default_factory=set)
    """numbers of the exclusions that match a case"""

    @property
    def selected(self) -> list[str]:
        """Ids of what was selected."""
        return [*(case.id for case in self.cases), *(case.id for case, _ in self.refused)]


def _sort(
    cases: Iterable[tuple[Case, tuple[str, ...]]], exclude: Iterable[str], matches: Callable[[str], bool] | None
) -> _Sorted:
    """Sort the cases of a matrix, each given with its refusals, by what becomes of them."""
    excluded = Globs(exclude)
    found = _Sorted()
    for case, reasons in cases:
        found.ids.append(case.id)
        if numbers := excluded.matching(case.id):
            found.excluding.update(numbers)
            continue
        found.kept.append(case.id)
        if matches and not matches(case.id):
            continue
        if reasons:
            found.refused.append((case, reasons))
        else:
            found.cases.append(case)
    return found


def _excluded_words(ids: list[str], kept: list[str]) -> str:
    """How many cases exclude leaves out, and of which calls it leaves out every kernel."""
    count = len(ids) - len(kept)
    if not count:
        return ""
    left = {name.rpartition("/")[0] for name in kept}
    gone = [cell for cell in dict.fromkeys(name.rpartition("/")[0] for name in ids) if cell not in left]
    told = f"exclude leaves out {count} of {len(ids)} cases"
    if gone:
        told += f"; {len(gone)} {'call has' if len(gone) == 1 else 'calls have'} no kernel left, for example {gone[0]}"
    return told


def _nothing_selected(matrix: LoadedMatrix, selection: Selection, kept: list[str], typed: Typed) -> NothingSelected:
    """The error where nothing is selected, with what the selection was perhaps meant to be."""
    name = matrix.card.matrix
    if not kept:
        return NothingSelected(f"{name} has no case: its exclude leaves out everything. Correct it in {matrix.path}.")
    near = ", ".join(nearest(selection.select, kept))
    return NothingSelected(
        f"no case of {name} matches --select {selection.select!r}. A word matches a part of the id "
        f"(model/phase/shape/dtype/mask/kernel), a glob whole parts of it. {f'Closest: {near}. ' if near else ''}"
        f"`{typed.command('plan', matrix.typed)}` lists them."
    )


def _chosen_kernels(
    matrix: LoadedMatrix, kernels: dict[str, LoadedKernel], selection: Selection
) -> dict[str, LoadedKernel]:
    """The kernels that the matrix's globs and --kernel leave, in the matrix's order; then those of each environment."""
    own = {name: kernel for name, kernel in kernels.items() if not kernel.card.environment}
    selected: dict[str, LoadedKernel] = {}
    for glob in matrix.card.kernels:
        for name in sorted(fnmatch.filter(own, glob)):
            selected.setdefault(name, own[name])
    chosen = in_environments(selected, matrix.environments)
    if not selection.kernel:
        return chosen
    named = fnmatch.filter(chosen, selection.kernel)
    if not named and AT in selection.kernel and not matrix.environments:
        raise UsageError(
            f"--kernel {selection.kernel}: matrix {matrix.card.matrix} has no environment. Give it one: "
            "--environment NAME=PYTHON, or the key environments of the matrix."
        )
    if not named:
        raise UsageError(
            f"--kernel {selection.kernel}: not a kernel of matrix {matrix.card.matrix}"
            f"{meant(selection.kernel, chosen)}. It has {', '.join(chosen)}."
        )
    return {name: chosen[name] for name in named}


def _refuse_unoffered(refusals: CaseRefusals, interpreters: Mapping[str, Interpreter]) -> None:
    """Refuse kernels that nothing but their adapter keeps from running: each of their cases could only crash."""
    running = [kernel for name, kernel in refusals.kernels.items() if not refusals.machine[name]]
    problems = unoffered(running, interpreters.values())
    if problems:
        todo = "Correct it, or install the distribution that offers it"
        raise CardError([(place, f"{message}. {todo}") for place, message in problems])


def _refuse_explosion(matrix: LoadedMatrix, kernels: int) -> None:
    """Count before expanding: a matrix of ten million cells is a mistake, not a plan."""
    card = matrix.card
    shapes = Counter(count_shapes(card.phases) if card.phases else {})
    shapes.update(bucket.phase for bucket in (matrix.traffic.buckets if matrix.traffic else ()))
    count = sum(
        len(entry.tensor_parallel) * _shapes_of(group, shapes)
        for entry in card.models
        for group in matrix.models[entry.model].groups
    )
    count *= len(card.masks) * len(card.dtypes) * kernels
    count += sum(len(incident.calls) * len(incident.dtypes) * kernels for incident in card.incidents)
    if count > card.policy.limit_cases:
        raise UsageError(
            f"{matrix.path}: expands to {count:,} cases, more than policy.limit_cases = {card.policy.limit_cases:,}. "
            "Shorten an axis, or raise the limit if you mean it."
        )


def _refuse_sequences(matrix: LoadedMatrix) -> None:
    """Count before expanding here too: a shape holds the lengths of all its sequences."""
    card = matrix.card
    of_phases = count_sequences(card.phases) if card.phases else 0
    of_traffic = sum(bucket.batch for bucket in (matrix.traffic.buckets if matrix.traffic else ()))
    of_incidents = sum(len(call.seqlens_q) * call.batch for each in card.incidents for call in each.calls)
    # Layers with shapes of their own (qualify.plan.cases) have each shape once more.
    own = sum(
        len(entry.tensor_parallel)
        for entry in card.models
        for group in matrix.models[entry.model].groups
        if group.cross_keys or group.image_tokens
    )
    count = (of_phases + of_traffic) * (1 + own) + of_incidents
    if count > LIMIT_SEQUENCES:
        raise UsageError(
            f"{matrix.path}: its shapes hold {count:,} sequences, more than {LIMIT_SEQUENCES:,} together. "
            "A batch is probably mistyped: lower the largest one, or shorten an axis beside it."
        )


def _shapes_of(group: LayerGroup, shapes: Mapping[Phase, int]) -> int:
    """Shapes that a group of layers takes at most; prompts twice where they may hold an image."""
    return sum(
        count * (2 if group.image_tokens and phase in PROMPT else 1)
        for phase, count in shapes.items()
        if not group.phases or phase in group.phases
    )


def _interpreters(kernels: Mapping[str, LoadedKernel], matrix: LoadedMatrix) -> dict[str, Interpreter]:
    """What the environments have that kernels run in. An interpreter of the matrix that does not answer has a place."""
    names = dict.fromkeys(kernel.card.environment for kernel in kernels.values() if kernel.card.environment)
    written = interpreters_of(matrix.card.environments, matrix.path)
    found: dict[str, Interpreter] = {}
    for name in names:
        python = matrix.environments[name]
        try:
            found[name] = interpreter(name, python)
        except UsageError as error:
            if written.get(name) != python:
                raise
            place = parse(matrix.path, matrix.source).place(("environments", name, "python"))
            raise CardError([(place, str(error))]) from error
    return found
