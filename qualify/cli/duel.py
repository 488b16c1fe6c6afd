"""``qualify duel``: is B slower than A?"""

from __future__ import annotations

import math
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualify.cli.shared import (
    CardsOption,
    DbOption,
    DeviceOption,
    EnvironmentOption,
    JsonOption,
    QuietOption,
    SelectOption,
    Talk,
    emit_json,
    joined,
    log_of,
    open_store,
    talk_of,
    typed,
)
from qualify.cli.terminal import emit, kept_elsewhere, say
from qualify.errors import (
    INTERRUPTED,
    NO_VERDICT,
    NOT_QUALIFIED,
    QUALIFIED,
    InfrastructureError,
    StoreError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from qualify.facts.duel import Duel
    from qualify.facts.typed import Typed
    from qualify.fleet.duel import Duelling, DuelProgress
    from qualify.fleet.sides import DuelAsked
    from qualify.seal.keys import SigningKey
    from qualify.store.store import Store

DEFAULT_MATRIX = "smoke"
LINE_S = 5.0
"""seconds between two lines of progress"""

SidesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="A B [MATRIX]",
        help="Two kernels (KERNEL or KERNEL@NAME), or two environments: NAME, `here`, or the fingerprint of a stored "
        "stack that is still installed. Default matrix: smoke.",
    ),
]


MOST_PLANTED = 100
LEAST_MARGIN = 0.01
"""percent; no timing tells less"""
NullOption = Annotated[
    bool,
    typer.Option(
        "--null",
        help="Compare A with itself, `A [MATRIX]`: shows how many false alarms there are, and the smallest change that "
        "the duel finds.",
    ),
]
PlantOption = Annotated[
    float,
    typer.Option(
        "--plant", metavar="PERCENT", help="Slow B down by this share of its time, to see whether the duel finds it."
    ),
]
MarginOption = Annotated[
    float | None,
    typer.Option(
        "--margin",
        metavar="PERCENT",
        help="Least change that counts. Default: 1 from 50 µs on, 2 from 10 µs on, else 3.",
    ),
]
MOST_PAIRS = 200
"""most pairs before a confirmation; qualify.verdict.duelled computes a stored duel again with twice as many at most"""
PairsOption = Annotated[int, typer.Option("--pairs", min=2, max=MOST_PAIRS, help="Fresh pairs that a verdict needs.")]
MostPairsOption = Annotated[
    int | None,
    typer.Option(
        "--most-pairs",
        min=2,
        max=MOST_PAIRS,
        help="Maximum number of pairs. Default: 12, or --pairs where that is more. A slowdown that shows late gets "
        "more, to confirm it: as many as --pairs says.",
    ),
]
DeadlineOption = Annotated[
    str,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="Time limit, for example 8m. Cells that are decided by then keep their verdicts.",
    ),
]
AllowUndecidedOption = Annotated[
    bool, typer.Option("--allow-undecided", help="Exit 0 also where cells are undecided and none is slower.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="A line for every call that ends.")]


def duel(
    sides: SidesArgument,
    select: SelectOption = None,
    null: NullOption = False,
    plant: PlantOption = 0.0,
    margin: MarginOption = None,
    pairs: PairsOption = 5,
    most_pairs: MostPairsOption = None,
    deadline: DeadlineOption = "",
    allow_undecided: AllowUndecidedOption = False,
    device: Annotated[DeviceOption, typer.Option(help="Where to run.")] = "auto",
    environment: EnvironmentOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Time two sides in turns on one card: is B slower than A?

    For each cell it says slower, the same or faster, with a known error rate.

    Exit codes: 0 no cell is slower, 1 a cell is slower, 5 a cell is undecided.
    """
    from qualify.statistics.installed import check_installed

    check_installed("qualify duel")
    from qualify.cards.environments import parse_environments
    from qualify.fleet import duel as fleet_duel
    from qualify.fleet.sides import DuelAsked
    from qualify.report.duel_text import to_text

    talk = talk_of(quiet=quiet, verbose=verbose)
    a, b, matrix = words(sides, null=null)
    check_numbers(plant, margin, pairs, most_pairs)
    asked = DuelAsked(
        a=a,
        b=b,
        matrix=matrix,
        select=joined(select) or "",
        device=device,
        cards=tuple(cards or ()),
        environments=parse_environments(environment or ()),
        null=null,
        plant=plant / 100,
        margin=None if margin is None else margin / 100,
        pairs=pairs,
        most_pairs=most_pairs or fleet_duel.MOST_PAIRS,
        deadline_s=seconds(deadline) if deadline else None,
        typed=typed(cards=cards, db=db, environments=environment),
    )
    found, early = _fight(asked, db, talk)
    code = early.exit_code if early else exit_code(found, allow_undecided=allow_undecided)
    try:
        with kept_elsewhere(told_elsewhere(found, early, asked.typed)):
            if as_json:
                emit_json("duel", to_object(found, early, code))
            else:
                emit(to_text(found))
    finally:
        if early:
            say(f"qualify: {early.told}")
    if early:
        sys.exit(code)
    raise typer.Exit(code)


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedEarly:
    """Why a duel that has times has not all that it should have."""

    told: str
    exit_code: int
    stored: bool = True
    """whether the store has the duel"""


def _fight(asked: DuelAsked, db: str, talk: Talk) -> tuple[Duel, EndedEarly | None]:
    """The duel, which is stored; where something ended it early or kept it out of the store, also what did."""
    from qualify.fleet.duel import Duelling
    from qualify.fleet.sides import make_duel
    from qualify.fleet.stored_stacks import at_stored_stacks, is_fingerprint
    from qualify.report.figures import counted
    from qualify.seal.keys import signing_key

    sides = f"{asked.a} and {asked.b}"
    with ExitStack() as stack:
        if is_fingerprint(asked.a) or is_fingerprint(asked.b):
            asked = at_stored_stacks(asked, stack.enter_context(open_store(db, create=False)))
        request, key = make_duel(asked), signing_key()
        store = stack.enter_context(open_store(db, create=True))
        least, log = request.least_pairs, log_of(quiet=talk == "quiet")
        log(f"duel of {sides}: {counted(len(request.tasks), 'cell')}, {least} pairs of processes each at least")
        duelling = Duelling(request, Lines(talk, least_pairs=least, deadline_s=request.deadline_s))
        found = duelling.fight()
        return found, keep(store, duelling, found, key, log, asked.typed)


def keep(
    store: Store, duelling: Duelling, found: Duel, key: SigningKey | None, log: Callable[[str], None], here: Typed
) -> EndedEarly | None:
    """Store the duel. Returns what ended it early or kept it out of the store; None where nothing did."""
    from qualify.fleet.duel_keeping import keep_duel
    from qualify.fleet.patience import Patience

    broken, patience = duelling.broken, Patience(log)
    early = EndedEarly(told=str(broken).removesuffix("."), exit_code=broken.exit_code) if broken else None
    if duelling.interrupted:
        early = EndedEarly(told="interrupted", exit_code=INTERRUPTED)
        store.hurry()
        patience.end()
    try:
        keep_duel(store, found, key, patience, here)
    except KeyboardInterrupt as interrupt:
        return EndedEarly(told=f"interrupted. {interrupt}", exit_code=INTERRUPTED, stored=False)
    except InfrastructureError as error:
        stored = not isinstance(error, StoreError)
        if early is None:
            return EndedEarly(told=str(error), exit_code=error.exit_code, stored=stored)
        return replace(early, told=f"{early.told}. {error}", stored=stored)
    return early and replace(early, told=f"{early.told}. What was decided is stored and shown above")


def told_elsewhere(found: Duel, early: EndedEarly | None, here: Typed) -> str:
    """Where the duel is, for a message."""
    if early and not early.stored:
        return "The duel is not stored either"
    whole = here.command("db", "export", "--duel", found.id)
    return (
        f"The duel is stored and need not run again. Its page is /duels/{found.id} of `qualify web`; as a file: {whole}"
    )


def to_object(found: Duel, early: EndedEarly | None, code: int) -> dict[str, Any]:
    """The duel for ``--json``, and what a program otherwise would have to read on stderr."""
    from qualify.report.duel_text import to_data

    told = {"stored": early is None or early.stored, "error": early.told if early else None, "exit_code": code}
    return to_data(found) | told


def words(sides: list[str], *, null: bool) -> tuple[str, str, str]:
    """A, B and the matrix, as they were typed."""
    both = sides[:1] + sides if null else sides
    if len(both) == 2:
        return both[0], both[1], DEFAULT_MATRIX
    if len(both) == 3:
        return both[0], both[1], both[2]
    form = "A [MATRIX]" if null else "A B [MATRIX]"
    missing = ". B is missing; --null compares A with itself" if len(sides) == 1 else ""
    raise UsageError(f"qualify duel takes {form}, not: {' '.join(sides)}{missing}")


def check_numbers(plant: float, margin: float | None, pairs: int, most_pairs: int | None) -> None:
    """Raises UsageError for shares that no duel can use, and for fewer pairs at most than at least."""
    if not 0 <= plant <= MOST_PLANTED:
        raise UsageError(f"--plant {plant:g}: give a share in percent, 0 to {MOST_PLANTED}, for example 2")
    if margin is not None and not LEAST_MARGIN <= margin < 100:
        raise UsageError(f"--margin {margin:g}: give a share in percent, from {LEAST_MARGIN} to below 100, such as 1")
    if most_pairs is not None and most_pairs < pairs:
        raise UsageError(
            f"--most-pairs {most_pairs}: a verdict needs {pairs} pairs (--pairs), so give at least {pairs}"
        )


def seconds(text: str) -> float:
    """A time such as 90s, 8m or 1h."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not number.replace(".", "", 1).isdecimal() or float(number) <= 0:
        raise UsageError(f"--deadline {text}: give one number above 0 and its unit, s, m or h, for example 8m")
    return float(number) * units[unit]


def exit_code(found: Duel, *, allow_undecided: bool) -> int:
    """1 where a cell is slower, 5 where one is undecided and that is not allowed, else 0."""
    counts = found.counts()
    if counts["SLOWER"]:
        return NOT_QUALIFIED
    undecided = counts["AMBIGUOUS"] + counts["INCONCLUSIVE"]
    return NO_VERDICT if undecided and not allow_undecided else QUALIFIED


class Lines:
    """Shows a duel's progress on stderr: a line every few seconds, every step with ``-v``, and nothing with ``-q``.

    Where the deadline leaves no time for the least number of pairs, it says so as soon as this can be told.
    """

    def __init__(self, talk: Talk, *, least_pairs: int, deadline_s: float | None) -> None:
        self.talk, self.least_pairs, self.deadline_s = talk, least_pairs, deadline_s
        self.last = self.first_s = 0.0

    def __call__(self, step: DuelProgress) -> None:
        """Show where it stands."""
        if self.talk == "quiet":
            return
        self._warn(step)
        soon = time.monotonic() - self.last < LINE_S and step.timed < step.round_total
        if soon and self.talk == "usual":
            return
        self.last = time.monotonic()
        say(
            f"{step.decided}/{step.total} cells decided; pair {step.pair}: {step.timed}/{step.round_total}  {step.cell}"
        )

    def _warn(self, step: DuelProgress) -> None:
        """Say that the deadline is too short: at the end of the first pair, or when half of the time is over.

        Both processes start again in each pair, and the first cell of the first pair shows how long that takes.
        """
        self.first_s = self.first_s or step.elapsed_s
        whole = step.timed == step.round_total
        if self.deadline_s is None or not (whole or (step.timed > 1 and step.elapsed_s >= self.deadline_s / 2)):
            return
        each_s = (step.elapsed_s - self.first_s) / max(step.timed - 1, 1)
        needed_s = self.least_pairs * (self.first_s + each_s * (step.round_total - 1))
        if needed_s > self.deadline_s:
            say(
                f"qualify: {self.least_pairs} pairs of processes will take about {needed_s:.0f} s, so the deadline of "
                f"{self.deadline_s:g} s will leave cells undecided. Give it --deadline {math.ceil(needed_s / 60)}m or "
                "more, or fewer cells with --select"
            )
        self.deadline_s = None  # it is said once
