"""The error tree: one class per exit code, so a caller never has to parse a message.

::

    QualifyError
    ├── UsageError           2    the command line is wrong
    │   ├── CardError        2    a card is wrong: file:line:column, value, cause, next step
    │   └── NotAllowed       2    the person may not do that
    ├── NothingSelected      3    the selection matched no case
    ├── InfrastructureError  4    device, driver or database is not there
    │   ├── DeviceError      4
    │   ├── RunBusy          4    another process writes the run
    │   ├── SigningFailed    4    a key gives no signature, or the store does not hold the evidence to sign
    │   ├── StdoutLost       4    the result cannot be written to stdout
    │   └── StoreError       4
    │       └── LeaseLost    4    another process leads the canary service, or writes the run, now
    └── NoVerdict            5    stored evidence is missing, stale or incomplete

Exit codes 0 (qualified) and 1 (not qualified) are verdicts, not errors; 130 is an interrupt.

Every message answers four questions: what happened, with which value, what is the likely cause, and what to
type next.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

QUALIFIED = 0
NOT_QUALIFIED = 1
USAGE = 2
NOTHING_SELECTED = 3
INFRASTRUCTURE = 4
NO_VERDICT = 5
INTERRUPTED = 130


class QualifyError(Exception):
    """Anything that qualify reports to its user without a traceback."""

    exit_code = INFRASTRUCTURE


class UsageError(QualifyError):
    """The command line cannot be carried out as it was typed."""

    exit_code = USAGE


class NotAllowed(UsageError):
    """The access file does not give the person that right or that role; nothing was done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where in a file something stands; line and column count from 1, 0 means unknown."""

    path: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        path = self.path.replace("\n", "\\n")  # a message is one line, whatever a file is called
        return f"{path}:{self.line}:{self.column}" if self.line else path


class CardError(UsageError):
    """A card (kernel, matrix, model, …) is wrong; carries every problem found in it."""

    told_alike = 12
    """problems of one kind that the message shows in full"""

    def __init__(self, problems: list[tuple[Place, str]]) -> None:
        self.problems = problems
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """A line for each problem; of many entries of one list that are wrong alike, the first and a count."""
        alike = [f"{place.path} {_kind(message)}" for place, message in self.problems]
        totals, told, lines = Counter(alike), Counter[str](), list[str]()
        for (place, message), kind in zip(self.problems, alike, strict=True):
            told[kind] += 1
            if told[kind] <= self.told_alike:
                lines.append(f"{place}: {message}")
            if told[kind] == self.told_alike and (more := totals[kind] - self.told_alike):
                lines.append(f"  and {more:,} more like this")
        return lines


def _kind(message: str) -> str:
    """What a problem has in common with others: the way to its value without indices, and how its sentence begins."""
    way, _, sentence = message.partition(": ")
    begins = " ".join(sentence.split()[:2])
    where = way.rpartition(".")[0] if begins.startswith("unknown key") else way
    return f"{re.sub('[0-9]+', '', where)}: {begins}"


class NothingSelected(QualifyError):
    """The selection matched no case."""

    exit_code = NOTHING_SELECTED


class InfrastructureError(QualifyError):
    """Something that qualify needs and does not own is missing or broken."""

    exit_code = INFRASTRUCTURE


class DeviceError(InfrastructureError):
    """No usable device: absent, driver too old, or lost."""


class RunBusy(InfrastructureError):
    """Another process writes the run; nothing was run or written here."""


class SigningFailed(InfrastructureError):
    """A key gives no signature, or the store does not hold the evidence to sign; what was measured is stored."""


class StoreError(InfrastructureError):
    """The evidence store cannot be opened, read or written.

    ``happened`` is the message without the driver's words. Those differ from one attempt to the next while a server
    goes and comes, so a program that tries again and again compares ``happened``, and says the same message only once.
    ``passing`` says whether the reason may pass by itself, so that the same attempt may succeed in a moment.
    """

    def __init__(self, message: str, happened: str = "", *, passing: bool = False) -> None:
        super().__init__(message)
        self.happened = happened or message
        self.passing = passing


class StdoutLost(InfrastructureError):
    """The result cannot be written to stdout; ``happened`` says no more than that, and why."""

    def __init__(self, happened: str, told: str) -> None:
        super().__init__(f"{happened}. {told}")
        self.happened = happened


class LeaseLost(StoreError):
    """Another process leads the canary service, or writes the run, now; nothing was written."""


class NoVerdict(QualifyError):
    """There is evidence missing for a verdict."""

    exit_code = NO_VERDICT
