"""Whether stored evidence was made by the code that is here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qualify.cards.load import LoadedKernel
from qualify.facts.code import Code, code_change
from qualify.facts.outcome import NotRun, Outcome, Refused
from qualify.facts.run import Record, Run
from qualify.plan.code import CodeHere


def code_here(
    here: CodeHere | None, kernels: Iterable[str], cards: Mapping[str, LoadedKernel]
) -> Mapping[str, Code | None]:
    """The code of the kernels that evidence is compared with; none where nothing is."""
    return here.of(cards[name].card for name in dict.fromkeys(kernels) if name in cards) if here else {}


def changed_code(run: Run, code: Mapping[str, Code | None]) -> dict[str, str]:
    """Why the run's evidence does not count, by the name of each compared kernel of the run for which it does not."""
    known = run.code
    if known is None:
        return {name: code_change(None, now) for name, now in code.items()}
    found = {name: code_change(known[name], now) for name, now in code.items() if name in known}
    return {name: why for name, why in found.items() if why}


def ran_code(outcome: Outcome) -> bool:
    """Whether the outcome depends on the kernel's code: a refusal of the plan does not."""
    return not isinstance(outcome, NotRun) and not (isinstance(outcome, Refused) and outcome.by == "plan")


def ran_kernels(records: Iterable[Record]) -> set[str]:
    """The kernels of whose code the records are evidence."""
    return {record.case.kernel for record in records if ran_code(record.outcome)}
