"""What a fire ends with, and who is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from qualify.canary.advice import advise
from qualify.canary.alerts.formats import body_of
from qualify.canary.blame import blamed
from qualify.canary.messages import FleetSeen, Seen
from qualify.cards.load import LoadedCanary
from qualify.facts.canary import Fire, FireResult, Hold, Letter
from qualify.facts.typed import Typed
from qualify.store.address import passwordless
from qualify.store.store import Store


def with_run(
    fire: Fire, seen: Seen, observed: tuple[tuple[str, ...], tuple[int, ...]], store: Store, typed: Typed
) -> FireResult:
    """The result of a fire whose child judged its run.

    Args:
        observed: why times say nothing, and every Xid of the run.
    """
    doubts, xids = observed
    fire = blamed(fire, seen, store)
    counsel = advise(seen, numerics_only=doubts, xids=xids, typed=typed)
    return FireResult(
        state="completed",
        matrix=seen.matrix,
        run_id=seen.run_id,
        variant=seen.variant,
        verdict=counsel.verdict,
        advice=counsel.advice,
        reasons=counsel.reasons,
        numerics_only=doubts,
        reason=fire.reason,
        changes=fire.changes,
        duel_id=(seen.duel.id or None) if seen.duel else None,
    )


def with_fleet(seen: FleetSeen) -> FireResult:
    """The result of a fire whose child judged the runs of its fleet."""
    return FireResult(
        state="completed",
        matrix=seen.matrix,
        run_id=None,
        variant="",
        verdict=seen.verdict,
        advice=seen.advice,
        reasons=seen.reasons,
        numerics_only=(),
        nodes=seen.nodes,
    )


def without_run(fire: Fire, state: str, *reasons: str, run_id: str | None = None) -> FireResult:
    """A fire that ended without evidence: nothing is known, so hold."""
    return FireResult(
        state="refused" if state == "refused" else "failed",
        matrix=fire.matrix,
        run_id=run_id or fire.run_id,
        variant="",
        verdict=None,
        advice="hold",
        reasons=reasons,
        numerics_only=(),
    )


def typed_words(extra: Iterable[Path], db: str) -> Typed:
    """What printed commands repeat."""
    return Typed(cards=tuple(map(str, extra)), db=passwordless(db))


def letters_for(
    cards: Mapping[str, LoadedCanary], result: FireResult, fire: Fire, holds: Sequence[Hold]
) -> list[Letter]:
    """The alerts of a fire that has ended.

    A pass releases a node only if no hold is left on it, of the canary itself (on another device model) or of another
    one whose card also tells somebody of releases. So nobody uncordons a node that such a canary still advises against.

    Args:
        cards: those of all canaries, by name, also of those that other services serve.
        holds: the open ones of all canaries, and those that the fire has ended.
    """
    loaded = cards.get(fire.canary)
    node = fire.node if result.nodes is None else ""
    telling = {name for name, it in cards.items() if any("released" in alert.events for alert in it.card.alerts)}
    left = {it.node for it in holds if it.released_at is None and it.canary in {fire.canary, *telling}}
    released = any(it.released_at is not None and it.node not in left for it in holds)
    happened = {result.kind, *(["released"] if released else [])}
    return [
        Letter(target=alert.target, kind=result.kind, body=body_of(fire, result, node))
        for alert in (loaded.card.alerts if loaded else ())
        if happened & set(alert.events) and (node or alert.kind != "command")  # a wave has no node to act on
    ]
