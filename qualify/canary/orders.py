"""What the child of a fire is told to do, from the card and the fire."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qualify.canary.messages import ClusterOrder, DuelOrder, Order
from qualify.cards.canary import DuelPlan, FleetPlan, seconds
from qualify.cards.load import LoadedCanary
from qualify.facts.canary import Fire, Lease
from qualify.facts.devices import HOST


def order_of(
    loaded: LoadedCanary, fire: Fire, lease: Lease, *, node: str, cards: Iterable[Path], out: Path, lease_s: float
) -> Order:
    """The order of a fire that the lease took.

    Args:
        node: this machine.
        cards: folders with cards beside the shipped ones.
        out: folder of reports.
        lease_s: for how long the holder of the lease may be silent.
    """
    card = loaded.card
    return Order(
        matrix=loaded.matrix,
        cards=tuple(map(str, cards)),
        select=card.select,
        kernel=card.kernel,
        level=card.level,
        device=HOST if card.fleet else card.device,
        resume=fire.run_id,
        out=str(out),
        slower=card.slower,
        lease=lease.name,
        epoch=lease.epoch,
        lease_s=lease_s,
        node=node,
        fire=fire.id,
        duel=_duel(card.duel) if card.duel else None,
        fleet=_fleet(card.fleet) if card.fleet else None,
    )


def _fleet(plan: FleetPlan) -> ClusterOrder:
    return ClusterOrder(
        engine=plan.engine,
        address=plan.address,
        device=plan.device,
        spread=plan.spread,
        coverage=plan.coverage,
        start_s=float(seconds(plan.start)),
        deadline_s=float(seconds(plan.deadline)) if plan.deadline else None,
    )


def _duel(plan: DuelPlan) -> DuelOrder:
    return DuelOrder(when=plan.when, against=plan.against, deadline_s=seconds(plan.deadline), pairs=plan.pairs)
