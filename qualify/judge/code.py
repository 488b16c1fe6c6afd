"""Whether stored evidence was made by the code that is here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qualify.cards.load import LoadedKernel
from qualify.cards.terms import terms_by_kernel
from qualify.facts.code import Code, code_change
from qualify.facts.differing import stack_words
from qualify.facts.environment import environment_of
from qualify.facts.outcome import ran_code
from qualify.facts.run import Record, Run
from qualify.facts.stack import Device, Stack
from qualify.facts.terms import terms_change
from qualify.plan.code import CodeHere
from qualify.plan.host import Host, machine_refusals
from qualify.plan.interpreter import environment_change, find_interpreters


def code_here(
    here: CodeHere | None, kernels: Iterable[str], cards: Mapping[str, LoadedKernel]
) -> Mapping[str, Code | None]:
    """The installed code of the kernels, which evidence is compared with; empty where nothing is compared."""
    return here.of(cards[name].card for name in dict.fromkeys(kernels) if name in cards) if here else {}


def available_here(
    here: CodeHere | None, kernels: Iterable[str], cards: Mapping[str, LoadedKernel], device: Device
) -> frozenset[str]:
    """The kernels that this machine can run, installed as it is now; empty where its code is not compared.

    Args:
        device: what the evidence ran on, as this machine has it.

    Raises:
        UsageError: an interpreter does not answer.
    """
    if here is None or not here.every:
        return frozenset()
    host = Host(kind=device.kind, name=device.name, compute_capability=device.compute_capability)
    used = {environment_of(kernel) for kernel in kernels}
    interpreters = find_interpreters({name: python for name, python in here.environments.items() if name in used})
    asked = [name for name in kernels if environment_of(name) in {"", *interpreters}]
    return frozenset(name for name in asked if not machine_refusals(cards[name].card, host, interpreters))


def changed_code(run: Run, code: Mapping[str, Code | None]) -> dict[str, str]:
    """By kernel, why the run's evidence of it does not count; kernels whose evidence counts are left out."""
    known = run.code
    if known is None:
        return {name: code_change(None, now) for name, now in code.items()}
    found = {name: code_change(known[name], now) for name, now in code.items() if name in known}
    return {name: why for name, why in found.items() if why}


def foreign_environments(run: Run, stacks: Mapping[str, Stack | None], kernels: Iterable[str]) -> dict[str, str]:
    """By kernel in an environment, why the run's evidence of it does not count; the others are left out.

    Evidence of an environment belongs to the stack that its host reported. Without a stack it counts for nothing.

    Args:
        stacks: by environment, the stack that must have made the evidence. A missing environment is not compared.
    """
    found = {}
    for kernel in kernels:
        name = environment_of(kernel)
        stack, wanted = run.stack_of(name), stacks.get(name)
        if name and name not in run.environments:
            found[kernel] = f"it had no environment {name}"
        elif name and stack is None:
            found[kernel] = f"nobody reported what environment {name} ran on"
        elif name and stack and wanted and not stack.agrees_with(wanted):
            found[kernel] = f"environment {name} was another stack: {stack_words(stack, wanted)}"
    return found


def changed_environments(run: Run, interpreters: Mapping[str, str], kernels: Iterable[str]) -> dict[str, str]:
    """By kernel, why it must run again: its environment has other code now.

    Args:
        interpreters: of the environments that are compared, by name.

    Raises:
        UsageError: an interpreter does not answer.
    """
    found: dict[str, str] = {}
    for name, python in interpreters.items():
        members = [kernel for kernel in kernels if environment_of(kernel) == name]
        stack = run.stack_of(name)
        why = environment_change(stack, name, python) if members and stack else ""
        found |= dict.fromkeys(members, why) if why else {}
    return found


def changed_cards(run: Run, kernels: Iterable[str], cards: Mapping[str, LoadedKernel]) -> dict[str, str]:
    """By kernel, how its card promises something else than when the run was made; the others are left out.

    The card of a kernel that is not here, and a run of a qualify that did not note the cards, are not compared.
    """
    then = run.terms or {}
    now = terms_by_kernel(cards, sorted(set(kernels) & then.keys()))
    found = {name: terms_change(then[name], terms) for name, terms in now.items()}
    return {name: f"its card changed since: {why}" for name, why in found.items() if why}


def ran_kernels(records: Iterable[Record]) -> set[str]:
    """The kernels whose code has run, so that the records are evidence of it."""
    return {record.case.kernel for record in records if ran_code(record.outcome)}
