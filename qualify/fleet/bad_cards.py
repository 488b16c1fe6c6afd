"""What Xids mean for the cards of a node: a card whose hardware failed is stopped, and its evidence set aside."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from qualify.facts.fleet import BAD, FINAL, CardResult
from qualify.facts.xid import Xid, worst_blame


def failed_hardware(cards: Iterable[str], xids: Iterable[Xid]) -> tuple[Xid, ...]:
    """The errors of the hardware of some cards."""
    own = set(cards)
    return tuple(xid for xid in xids if xid.card in own and xid.blame == "hardware")


def with_xids(result: CardResult, xids: tuple[Xid, ...]) -> CardResult:
    """The result of a card with the Xids that it reported.

    An error of the card makes it BAD, and nothing is decided about kernels. An error of a program is the kernel's: a
    run that passed all the same fails.
    """
    told = "; ".join(xid.words for xid in xids)
    match worst_blame(xid.number for xid in xids):
        case "hardware":
            why = f"the driver reported {told}: look at the card before anything runs on it"
            return replace(result, state="BAD", verdict="INCONCLUSIVE", reason=why, xids=xids)
        case "kernel" if result.state == "COVERED":
            why = f"the driver reported {told}: a kernel faulted"
            return replace(result, verdict="FAIL", reason=why, xids=xids)
        case None:
            return result
    reason = "; ".join(filter(None, [result.reason, f"the driver reported {told}"]))
    return replace(result, reason=reason, xids=xids)


def set_aside(results: Iterable[CardResult], folder: Path) -> list[CardResult]:
    """Rename the exported runs of BAD cards, so that no store takes them in.

    Returns:
        The results. A sound card that shared such a run is LOST, and so is its run.
    """
    told = list(results)
    bad = {result.run: result.uuid for result in told if result.state == "BAD" and result.run}
    for run in bad:
        with suppress(FileNotFoundError):
            (folder / f"{run}{FINAL}").rename(folder / f"{run}{BAD}")
    return [
        _lost(result, bad[result.run]) if result.run in bad and result.state != "BAD" else result for result in told
    ]


def _lost(result: CardResult, bad: str) -> CardResult:
    reason = result.reason or f"it shared its run with card {bad}, which failed; the run is set aside"
    return replace(result, state="LOST", verdict=None, reason=reason, run="")
