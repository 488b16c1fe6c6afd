"""Promote, hold or roll back: what a fire's verdict and its comparison with the baseline mean for whoever upgrades."""

from __future__ import annotations

from dataclasses import dataclass

from qualify.canary.messages import DuelSeen, Seen
from qualify.facts.canary import Advice
from qualify.facts.run import Verdict
from qualify.facts.typed import PLAIN, Typed
from qualify.facts.xid import HARDWARE_XIDS, KERNEL_XIDS, blame_of
from qualify.report.figures import counted

WORST: tuple[Advice, ...] = ("roll back", "hold", "promote")
"""advices, the worst first"""
NAMED = 3
"""kernels that a reason names"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counsel:
    """The advice, the verdict as it stands after what the device reported, and why."""

    advice: Advice
    verdict: Verdict
    reasons: tuple[str, ...]


def advise(
    seen: Seen, *, numerics_only: tuple[str, ...] = (), xids: tuple[int, ...] = (), typed: Typed = PLAIN
) -> Counsel:
    """The advice on a fire that made a verdict.

    ========================================================  ===========  =================
    what was found                                            same stack   another stack
    ========================================================  ===========  =================
    a failure, a regression, or a fault of the kernel (Xid)   hold         roll back
    a fault of the card (Xid), whatever else was found        hold         hold
    no verdict; kernels or numbers suspicious; slower;        hold         hold
    no baseline; another error of the device (Xid); an
    expired waiver, and no failure but those that it
    accepted; a demonstration; weaker requirements than in
    the baseline; a duel that confirms a slowdown beyond
    the budgets, is not decided, or cannot be fought
    none of these                                             promote      promote
    ========================================================  ===========  =================

    "Another stack" is another one than the baseline's: without a baseline there is nothing to roll back to.

    Args:
        numerics_only: why times say nothing; then slower times do not make the advice ``hold``.
        xids: errors that the driver reported during the run.
        typed: options that the printed command repeats, which accepts a baseline.
    """
    broken = [f"{told(xid)}: the card is bad" for xid in dict.fromkeys(xids) if blame_of(xid) == "hardware"]
    if broken:
        reasons = (*broken, "the run says nothing about the stack: run it again on another card")
        return Counsel(advice="hold", verdict="INCONCLUSIVE", reasons=reasons)
    faults = tuple(xid for xid in xids if blame_of(xid) == "kernel")
    verdict: Verdict = "FAIL" if faults else seen.verdict
    worse, doubtful = _worse(seen, faults), _doubtful(seen, numerics_only, xids, typed)
    changed = [change.component for change in seen.stack]
    if worse and seen.baseline and changed:
        since = f"the stack changed since baseline {seen.baseline}: {', '.join(changed)}"
        code = (f"so did the code of {_kernels(seen.code)}: no older stack undoes that",) if seen.code else ()
        return Counsel(advice="roll back", verdict=verdict, reasons=(*worse, since, *code))
    if worse and seen.baseline:
        suspect = f"look first at what changed in the code of {_kernels(seen.code)}"
        suspect = suspect if seen.code else "suspect the device, or the kernel's history"
        worse.append(f"the stack is that of baseline {seen.baseline}: {suspect}")
    if worse or doubtful:
        return Counsel(advice="hold", verdict=verdict, reasons=tuple(dict.fromkeys((*worse, *doubtful))))
    reason = f"nothing got worse against baseline {seen.baseline}"
    waived = (f"waived: {seen.waived}",) if seen.waived else ()
    duel = (_passed(seen.duel),) if seen.duel else ()
    notes = tuple(f"times are not compared: {why}" for why in numerics_only)
    return Counsel(advice="promote", verdict=verdict, reasons=(reason, *duel, *waived, *notes))


def told(xid: int) -> str:
    """An error that the driver reported, in words."""
    meaning = KERNEL_XIDS.get(xid) or HARDWARE_XIDS.get(xid)
    return f"the driver reported Xid {xid}{f' ({meaning})' if meaning else ''} during the run"


def _kernels(names: tuple[str, ...]) -> str:
    """The first of some kernels, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if names[NAMED:] else ""
    return f"{', '.join(names[:NAMED])}{more}"


def _worse(seen: Seen, faults: tuple[int, ...]) -> list[str]:
    reasons = [f"{told(xid)}: a kernel faulted" for xid in dict.fromkeys(faults)]
    if seen.verdict == "FAIL" and not seen.expired:
        reasons += [f"the run failed: {text}" for text in seen.failing] or ["the run failed"]
    topics = [f"{count} in {topic}" for topic, count in seen.regressions.items() if count]
    if topics:
        reasons += [f"regressions against the baseline: {', '.join(topics)}", *seen.examples]
    return reasons


def _doubtful(seen: Seen, numerics_only: tuple[str, ...], xids: tuple[int, ...], typed: Typed) -> list[str]:
    others = [xid for xid in dict.fromkeys(xids) if blame_of(xid) == "unknown"]
    reasons = [*seen.expired, *map(told, others)]
    if seen.demonstration:
        reasons.append("the run is a demonstration on a CPU: it proves nothing about a GPU")
    if seen.verdict not in ("PASS", "WAIVED", "FAIL"):
        reasons.append(f"the run gave no verdict ({seen.verdict}){f': {seen.doubt}' if seen.doubt else ''}")
    if seen.baseline is None:
        todo = typed.accept(seen.run_id, "first baseline")
        if seen.whole:
            todo = (
                f"this run is about a part of the matrix; accept one of the whole: {typed.command('run', *seen.whole)}"
            )
        reasons.append(f"nobody accepted a baseline of {seen.matrix} on {seen.variant}: {todo}")
    topics = [f"{count} in {topic}" for topic, count in seen.suspicious.items() if count]
    if topics:
        reasons += [f"suspicious against the baseline: {', '.join(topics)}", *seen.examples]
    if seen.weaker:
        reasons += ["requirements are weaker than in the baseline", *seen.weaker]
    if seen.duel:
        reasons += _after_duel(seen.duel)
    if seen.slower and not numerics_only:
        cases = counted(seen.slower, "case is", "cases are")
        reasons.append(f"{cases} slower than in the baseline by more than the canary allows")
    return reasons


def _after_duel(duel: DuelSeen) -> list[str]:
    """What a duel leaves in doubt: confirmed slowdowns that no budget allows, open cells, and that none was fought."""
    if duel.why_not:
        looked = f"{counted(len(duel.suspects), 'case looks', 'cases look')} slower, and no duel could check that"
        return [f"{looked if duel.suspects else 'the card asks for a duel, and none counts'}: {duel.why_not}"]
    reasons = [] if duel.within else list(duel.slower)
    if duel.undecided:
        reasons += [f"{duel.id} against {duel.against} did not decide every cell", *duel.undecided]
    return reasons


def _passed(duel: DuelSeen) -> str:
    """What speaks for the stack in a duel, in words."""
    kept = f"; {', '.join(duel.slower)}, within the budgets of the matrix" if duel.slower else ""
    cleared = len(set(duel.suspects) & set(duel.acquitted))
    looked = (
        f"; {counted(cleared, 'case that looked slower is', 'cases that looked slower are')} not" if cleared else ""
    )
    return f"{duel.id} against {duel.against}: {counted(duel.cells, 'cell')} decided{looked}{kept}"
