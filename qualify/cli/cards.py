"""``qualify run --device cuda:all``: every card of this machine."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qualify.cli.shared import check_folder, emit_json, open_store
from qualify.cli.terminal import emit, say
from qualify.errors import DeviceError, UsageError
from qualify.facts.devices import HOST, KINDS

if TYPE_CHECKING:
    from qualify.facts.fleet import ListedCard
    from qualify.facts.run import Run
    from qualify.fleet.request import Asked


def shared_by_cards(asked: Asked, begun: Run | None) -> Asked:
    """The run with the cards that share it; unchanged where --device names one device.

    The cards that are here now continue a run that several cards began.
    """
    from qualify.facts.placement import Placement
    from qualify.fleet.inventory import kind_of, list_cards, node_name

    device = asked.device or "auto"
    if begun and begun.placement and device == "auto":
        count = len(begun.placement.cards)
        device = f"{HOST}:{count}" if begun.device == HOST else f"{begun.device}:all"
    if device in {"auto", *KINDS}:
        return asked
    if ":" not in device:
        known = ["auto", *KINDS, *(f"{kind}:all" for kind in KINDS if kind != HOST), f"{HOST}:N"]
        raise UsageError(f"--device {device}: must be one of {', '.join(known)}")
    cards = list_cards(device)
    uuids = tuple(card.uuid for card in _equal_ones(cards))
    place = Placement(node=node_name(), spread="shard", cards=uuids)
    return replace(asked, device=kind_of(device), uuids=uuids, placement=place)


def _equal_ones(cards: tuple[ListedCard, ...]) -> list[ListedCard]:
    """The healthy cards of one model: that of the first. A line for each other card says why it is left out."""
    healthy = [card for card in cards if not card.refusals]
    for card in cards:
        if card.refusals:
            say(f"card {card.uuid} is left out: {'; '.join(card.refusals)}")
    if not healthy:
        raise DeviceError("no card of this machine may be used: the lines above say why")
    for card in healthy:
        if card.name != healthy[0].name:
            say(f"card {card.uuid} is left out: it is a {card.name}, and this run uses only {healthy[0].name} cards")
    return [card for card in healthy if card.name == healthy[0].name]


def repeat_on_every_card(asked: Asked, db: str, out: Path, *, as_json: bool) -> int:
    """Run everything on every card, each in a run of its own, and let the cards vote; returns the exit code."""
    from qualify.facts import codec
    from qualify.facts.fleet import NodePlan
    from qualify.fleet.ingest import ingest
    from qualify.fleet.node import run_node
    from qualify.report.fleet_text import node_lines

    assert asked.device is not None
    plan = NodePlan(
        matrix=asked.matrix,
        select=asked.select,
        kernel=asked.kernel,
        level=asked.level,
        device=asked.device,
        spread="repeat",
        cards=tuple(str(folder.resolve()) for folder in asked.cards),
    )
    check_folder(out)
    with open_store(db, create=True) as store, tempfile.TemporaryDirectory(prefix="runs-", dir=out) as folder:
        found = run_node(plan, Path(folder), say)
        for name in found.files:
            ingest(store, Path(folder) / name)
        say(f"the runs are stored in {store.where}; one's report: {asked.typed.command('report', 'RUN')}")
    if as_json:
        emit_json("node", codec.to_data(found))
    else:
        emit("\n".join(node_lines(found)))
    return found.exit_code
