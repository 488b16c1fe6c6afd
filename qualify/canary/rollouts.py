"""Rollouts: fires of many machines that wait for their wave, and the advice of each wave. The leader's work.

::

    a fire with a rollout's key is filed   by the leader for each machine, or by a machine whose stack changed
    its rollout begins                     with the machines that serve the canary at that moment, divided into waves;
                                           where none of them is one that the card names as first, it waits, and holds
                                           all of them in the end
    a wave ends                            when each of its machines has an ended fire; the worst advice is the wave's
    promote                                the next wave may fire; after the last one the rollout has ended
    hold, roll back                        the rollout has ended: fires that wait, or come later, are refused and held
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from logging import Logger

from qualify.canary.advice import WORST
from qualify.canary.deck import Deck
from qualify.canary.nodes import serving, waves_of
from qualify.canary.results import without_run
from qualify.facts.canary import OPEN, Advice, Fire, FireResult, Lease, Rollout, RolloutState
from qualify.store.canaries import Canaries, Letters
from qualify.store.clock import LONGEST_WAIT

NAMED = 5
"""machines that a wave's reasons name"""
PATIENCE = timedelta(hours=1)
"""how long a machine may be silent, before its fires are filed as failed and its rollout goes on without it"""
NOBODY_FIRST = "no machine that `rollout.first` names serves this canary"


class Rollouts:
    """What a leader does in each turn for canaries that fire on many machines."""

    def __init__(
        self,
        canaries: Canaries,
        deck: Deck,
        letters: Callable[[FireResult], Letters],
        log: Logger,
        patience: timedelta = PATIENCE,
    ) -> None:
        self._canaries = canaries
        self._deck = deck
        self._letters = letters
        self._log = log
        self._patience = patience
        self._awaited: set[tuple[str, str]] = set()
        """canary and key of each rollout that waits for the machines that go first"""

    def correct_clocks(self, lease: Lease) -> None:
        """Shorten leases that a wrong clock made last for days: a machine that is silent is gone within hours."""
        longest = self._canaries.now() + LONGEST_WAIT
        if any(node.until > longest for node in self._canaries.nodes(lease.name)):
            self._canaries.shorten_leases(lease)

    def turn(self, lease: Lease) -> None:
        """Begin what waits, end waves, and give up on machines that are gone."""
        for fire in self._canaries.abandoned(lease.name, self._patience):
            self._abandon(lease, fire)
        waits = self._canaries.waiting(lease.name)
        known = {(it.canary, it.key): it for it in self._canaries.rollouts(lease=lease.name, opened=True)}
        for fire in waits:
            if (fire.canary, fire.rollout) not in known and (begun := self._begin(lease, fire, waits)):
                known[fire.canary, fire.rollout] = begun
        for pair, rollout in known.items():
            self._go_on(lease, rollout, [it for it in waits if (it.canary, it.rollout) == pair])

    def _abandon(self, lease: Lease, fire: Fire) -> None:
        reason = f"{fire.node} has given no sign of life for {self._patience}"
        result = without_run(fire, "failed", reason)
        if self._canaries.abandon(lease, fire, result, self._letters(result)):
            self._log.warning("%s: failed: %s", fire.canary, reason, extra={"canary": fire.canary, "fire": fire.id})

    def _begin(self, lease: Lease, fire: Fire, waits: Sequence[Fire]) -> Rollout | None:
        """The rollout of a fire that waits, which may have ended before the fire came.

        Returns None while none of the machines is there that the card names as first.
        """
        earlier = self._canaries.rollouts(fire.canary, lease.name)
        known = next((it for it in earlier if it.key == fire.rollout), None)
        if known is not None:
            return known
        now, loaded = self._canaries.now(), self._deck.cards.get(fire.canary)
        names = {it.node for it in waits if (it.canary, it.rollout) == (fire.canary, fire.rollout)}
        names |= {node.node for node in serving(self._canaries.nodes(lease.name), fire.canary, now)}
        plan = loaded.card.rollout if loaded else None
        by_wave = waves_of(plan, names, fire.rollout) if plan else (tuple(sorted(names)),)
        if not by_wave[0] and now - fire.created_at < self._patience:
            self._await_first(fire)
            return None
        rollout = Rollout(
            lease=lease.name,
            canary=fire.canary,
            key=fire.rollout,
            trigger=fire.trigger,
            reason=fire.reason,
            matrix=fire.matrix,
            waves=by_wave,
            wave=0,
            state="open",
            opened_at=now,
        )
        self._canaries.open_rollout(lease, rollout)
        sizes = ", ".join(str(len(wave)) for wave in rollout.waves)
        self._log.info("%s: %s begins, nodes by wave: %s", fire.canary, fire.rollout, sizes, extra=_about(rollout))
        return rollout

    def _await_first(self, fire: Fire) -> None:
        """Say once that a rollout waits."""
        if (fire.canary, fire.rollout) not in self._awaited:
            self._awaited.add((fire.canary, fire.rollout))
            told = "%s: %s waits: %s. Without one within %s its machines are held"
            extra = {"canary": fire.canary}
            self._log.warning(told, fire.canary, fire.rollout, NOBODY_FIRST, self._patience, extra=extra)

    def _go_on(self, lease: Lease, rollout: Rollout, waits: Sequence[Fire]) -> None:
        if rollout.state == "promote":
            self._canaries.let_go(lease, waits, rollout.wave)  # a machine that came later
        elif rollout.state != "open":
            self._turn_away(lease, rollout, waits)
        else:
            begun = {name for wave in rollout.waves[: rollout.wave + 1] for name in wave}
            if ready := [fire for fire in waits if fire.node in begun]:
                self._canaries.let_go(lease, ready, rollout.wave)
            self._end(lease, rollout)

    def _end(self, lease: Lease, rollout: Rollout) -> None:
        """Ends the wave, where every machine of it has ended or is gone."""
        newest: dict[str, Fire] = {}
        for fire in self._canaries.rollout_fires(rollout):
            newest.setdefault(fire.node, fire)
        gone = self._gone(lease) - set(newest)
        members = [name for name in rollout.waves[rollout.wave] if name not in gone]
        ended = [newest[name] for name in members if name in newest and newest[name].state not in OPEN]
        if len(ended) < len(members):
            return
        advice: Advice = next((it for it in WORST if any(fire.advice == it for fire in ended)), "hold")
        lost = [f"{name} is gone" for name in rollout.waves[rollout.wave] if name in gone]
        lost += [] if rollout.waves[rollout.wave] else [NOBODY_FIRST]
        result = _sum(rollout, advice, (*_told(ended, advice), *lost))
        last = rollout.wave + 1 == len(rollout.waves)
        state: RolloutState = "open" if advice == "promote" and not last else advice
        self._canaries.end_wave(lease, rollout, result, state, self._letters(result))
        told = "; ".join(result.reasons)
        words = "%s: wave %d of %s advises %s: %s"
        self._log.info(words, rollout.canary, rollout.wave, rollout.key, advice, told, extra=_about(rollout))

    def _gone(self, lease: Lease) -> set[str]:
        before = self._canaries.now() - self._patience
        return {node.node for node in self._canaries.nodes(lease.name) if node.until < before}

    def _turn_away(self, lease: Lease, rollout: Rollout, waits: Sequence[Fire]) -> None:
        if waits:
            reason = f"wave {rollout.wave} of {rollout.key} advised {rollout.state}: the waves after it do not run"
            self._canaries.turn_away(lease, waits, without_run(waits[0], "refused", reason))


def _told(ended: Sequence[Fire], advice: Advice) -> tuple[str, ...]:
    """How many machines say what, and the first reasons of the worst."""
    counts = {it: sum(fire.advice == it for fire in ended) for it in WORST}
    worst = [fire for fire in ended if fire.advice == advice and advice != "promote"]
    named = tuple(f"{fire.node}: {fire.reasons[0] if fire.reasons else fire.state}" for fire in worst[:NAMED])
    more = (f"and {len(worst) - NAMED} more nodes",) if len(worst) > NAMED else ()
    return (", ".join(f"{count} {it}" for it, count in counts.items() if count) or "no node", *named, *more)


def _sum(rollout: Rollout, advice: Advice, reasons: tuple[str, ...]) -> FireResult:
    return FireResult(
        state="completed",
        matrix=rollout.matrix,
        run_id=None,
        variant="",
        verdict=None,
        advice=advice,
        reasons=reasons,
        numerics_only=(),
    )


def _about(rollout: Rollout) -> dict[str, str]:
    return {"canary": rollout.canary}
