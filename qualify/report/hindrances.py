"""What blocks a release beside failed cases: waivers, baselines, budgets of time, unfinished runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from qualify.assets import again_elsewhere
from qualify.facts.performance import BudgetUse, Performance
from qualify.facts.run import Conclusion, Run, Verdict
from qualify.facts.typed import Typed
from qualify.facts.weaker import Weaker
from qualify.judge.judged import Against
from qualify.report.beside import Beside
from qualify.report.figures import counted
from qualify.report.performance import COUNTS, budget_sentence, cell_sentence, duel_command


@dataclass(frozen=True, kw_only=True, slots=True)
class Hindrance:
    """One reason that blocks the release, and what to do about it."""

    verdict: Verdict
    title: str
    detail: str
    command: str
    """the next command; empty where no command helps"""


def hindrances(run: Run, conclusion: Conclusion, beside: Beside, *, alone: bool) -> Iterable[Hindrance]:
    """Every such reason.

    Args:
        alone: whether no case and no production shape blocks the release, so that at least one reason must be here.
    """
    told = [
        *_failed_cards(run, beside),
        *_expired(conclusion),
        *_weaker(beside.weaker),
        *_changed(run, beside.typed, beside.against),
        *_budgets(run, beside.typed, beside.performance),
        *_unfinished(run, conclusion, beside.typed),
    ]
    return told or (_last(run, conclusion, beside) if alone else ())


def _last(run: Run, conclusion: Conclusion, beside: Beside) -> Iterable[Hindrance]:
    """The reason that is given where no other was found."""
    if beside.slower and conclusion.verdict == "FAIL":
        detail = "The policy of the matrix makes a slower case a failure; the table Slower below names each."
        yield Hindrance(verdict="FAIL", title="Cases became slower than in the baseline", detail=detail, command="")
        return
    yield Hindrance(
        verdict=conclusion.verdict,
        title="Every case that ran passed, but the evidence does not count",
        detail="; ".join(beside.notes)
        or "It may be stale, of other code, unsealed, or incomplete: the gate says which.",
        command=beside.typed.command("gate", "--run", run.id),
    )


def _failed_cards(run: Run, beside: Beside) -> Iterable[Hindrance]:
    """Cards whose hardware reported an error, each with what to do."""
    for card, why in beside.failed_cards.items():
        yield Hindrance(
            verdict="INCONCLUSIVE",
            title=f"Card {card} failed while it ran",
            detail=f"{why[0].upper()}{why[1:]}. Look at the card before anything runs on it (nvidia-smi -q, the "
            "kernel's log), then run again on a card that is sound.",
            command=beside.typed.command("run", run.matrix_path),
        )


def _expired(conclusion: Conclusion) -> Iterable[Hindrance]:
    for use in conclusion.expired:
        waiver = use.waiver
        yield Hindrance(
            verdict="FAIL",
            title=f"Waiver {waiver.id} expired on {waiver.expires}",
            detail=f"{waiver.owner} answered for {waiver.select} until then: {waiver.reason} ({waiver.place}). "
            "Remove the waiver, or let its owner accept the failure again.",
            command="",
        )


def _weaker(weaker: Weaker | None) -> Iterable[Hindrance]:
    """Requirements that are weaker than the baseline's.

    A lower level alone is INCONCLUSIVE and no failure, because evidence of the required level may pass.
    """
    if weaker and weaker.forbidden:
        level = {change.kind for change in weaker.changes} == {"level"}
        yield Hindrance(
            verdict="INCONCLUSIVE" if level else "FAIL",
            title="Requirements are weaker than in the accepted baseline",
            detail=f"{counted(len(weaker.changes), 'requirement is', 'requirements are')} weaker, "
            "and the policy of the matrix forbids that. The table Weaker below names each.",
            command="",
        )


def _changed(run: Run, typed: Typed, against: Against | None) -> Iterable[Hindrance]:
    if against and against.forbidden:
        topics = Counter(topic for topic, _ in against.forbidden)
        what = ", ".join(f"{count} in {topic}" for topic, count in topics.items())
        yield Hindrance(
            verdict="FAIL",
            title=f"{counted(len(against.forbidden), 'change')} against run {against.comparison.before.id} forbidden",
            detail=f"The policy of the matrix allows no such change: {what}. The section Changes below names each.",
            command=typed.command("diff", against.comparison.before.id, run.id),
        )


def _budgets(run: Run, typed: Typed, found: Performance | None) -> Iterable[Hindrance]:
    """Budgets of time that do not hold, and missing evidence of time."""
    if found is None:
        return
    command = duel_command(run, typed, found)
    if found.why_not and found.required:
        title = f"{COUNTS[found.accepted][1].capitalize()} yet"
        yield Hindrance(verdict="INCONCLUSIVE", title=title, detail=f"{found.why_not}.", command=command)
    for use in found.budgets:
        if use.verdict != "PASS":
            title = f"The {budget_sentence(use)}"
            yield Hindrance(verdict=use.verdict, title=title, detail=_worst_cell(use), command=command)


def _worst_cell(use: BudgetUse) -> str:
    """The first cell that breaks a budget or leaves it undecided, and how many more there are."""
    if not use.cells:
        return "No cell that this budget is about was timed."
    more = f" and {counted(len(use.cells) - 1, 'more cell')}" if use.cells[1:] else ""
    return f"{cell_sentence(use.cells[0])}{more}. The section Time below names each."


def _unfinished(run: Run, conclusion: Conclusion, typed: Typed) -> Iterable[Hindrance]:
    if run.state != "completed":
        yield Hindrance(
            verdict="INCONCLUSIVE",
            title=f"The run is {'not finished' if run.state == 'running' else run.state}",
            detail="Cases without a result prove nothing. What was measured is stored and need not run again."
            + (" First wait for a process that still works on it." if run.state == "running" else ""),
            command=typed.command("run", run.matrix_path, "--resume", run.id),
        )
    if conclusion.demonstration:
        yield Hindrance(
            verdict="INCONCLUSIVE",
            title="A CPU stood in for the GPU that kernels of this matrix need",
            detail="Nothing here is evidence about a GPU. Run it on the GPU host.",
            command=typed.command(*again_elsewhere(run.matrix_path, run.matrix_source)),
        )
