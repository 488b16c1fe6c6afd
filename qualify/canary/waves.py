"""What `qualify canary waves` shows: the rollouts of a canary, wave by wave, for people and pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qualify.canary.nodes import serving
from qualify.cards.load import LoadedCanary
from qualify.errors import NO_VERDICT, NOT_QUALIFIED, QUALIFIED, InfrastructureError, UsageError
from qualify.facts import codec
from qualify.facts.canary import OPEN, Advice, Fire, Node, Rollout, RolloutState
from qualify.report.figures import counted
from qualify.store.canaries import Canaries
from qualify.text import one_line

SHOWN = 10
"""rollouts, the newest"""
EVERY_NODE = "every-node"
CODES: Mapping[RolloutState, int] = {"promote": QUALIFIED, "roll back": NOT_QUALIFIED}


def waves(canaries: Canaries, canary: str, lease: str) -> dict[str, Any]:
    """The newest rollouts of a canary with the state of each node."""
    return {
        "canary": canary,
        "rollouts": [_rollout_data(canaries, it) for it in canaries.rollouts(canary, lease)[:SHOWN]],
    }


def _rollout_data(canaries: Canaries, rollout: Rollout) -> dict[str, Any]:
    newest: dict[str, Fire] = {}
    for fire in canaries.rollout_fires(rollout):
        newest.setdefault(fire.node, fire)
    return {
        **codec.to_data(rollout),
        "waves": [
            {
                "wave": number,
                "advice": _advice_of(rollout, number),
                "nodes": [{"node": name, "state": _state(newest.get(name))} for name in names],
            }
            for number, names in enumerate(rollout.waves)
        ],
    }


def _advice_of(rollout: Rollout, wave: int) -> Advice | None:
    """The advice of a wave; None where it has not ended, or never began."""
    if wave < rollout.wave:
        return "promote"  # else the rollout would have ended with it
    return rollout.state if wave == rollout.wave and rollout.state != "open" else None


def _state(fire: Fire | None) -> str:
    """How far a node is in its wave, in a word or two."""
    if fire is None:
        return "not there yet"
    if fire.state in OPEN:
        return "waits" if fire.wave is None else fire.state
    return str(fire.advice) if fire.state == "completed" else fire.state


def waves_lines(data: Mapping[str, Any]) -> list[str]:
    """The rollouts for people."""
    lines = []
    for rollout in data["rollouts"]:
        lines.append(f"{rollout['key']}: {rollout['state']} ({rollout['reason']}), begun {rollout['opened_at']}")
        open_ = "open" if rollout["state"] == "open" else "not run"
        for wave in rollout["waves"]:
            nodes = ", ".join(f"{item['node']} {item['state']}" for item in wave["nodes"])
            lines.append(f"  wave {wave['wave']}  {wave['advice'] or open_}: {nodes}")
    return [one_line(line) for line in lines] or [
        f"{one_line(data['canary'])} has had no rollout in this store; `qualify canary list` names the canaries"
    ]


def wave_code(data: Mapping[str, Any], wave: int) -> int:
    """Exit code of a wave of the newest rollout: 0 promote, 1 roll back, 5 hold or not ended."""
    newest = next(iter(data["rollouts"]), None)
    if newest is None or wave >= len(newest["waves"]):
        has = counted(len(newest["waves"]), "wave") if newest else "no rollout"
        see = f"qualify canary waves {data['canary']}"
        raise UsageError(f"--wave {wave}: {data['canary']} has {has}, and waves count from 0. See: {see}")
    return CODES.get(newest["waves"][wave]["advice"], NO_VERDICT)


def nodes_for(canaries: Canaries, loaded: LoadedCanary, lease: str, asked: str) -> list[Node]:
    """The machines that a fire by hand shall run on: one by its name, or all that serve the canary."""
    there = serving(canaries.nodes(lease), loaded.card.canary, canaries.now())
    found = [node for node in there if asked in (EVERY_NODE, node.node)]
    if not found:
        names = ", ".join(node.node for node in there) or "none"
        raise InfrastructureError(
            f"--on {asked}: no such node serves {loaded.card.canary} under lease {lease} now. Those that do: {names}. "
            "Start a service there, or look at its log: qualify canary serve"
        )
    return found
