"""What `qualify canary list` and `qualify canary explain` show, for people and machines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from qualify.canary.conditions import examine, here
from qualify.canary.deck import Deck
from qualify.canary.nodes import leader_lacks
from qualify.canary.options import Options
from qualify.canary.slots import after, trigger
from qualify.cards.canary import seconds
from qualify.cards.load import LoadedCanary
from qualify.facts import codec
from qualify.facts.canary import Fire, Hold, Watched, own_lease
from qualify.facts.differing import changes_words
from qualify.facts.typed import PLAIN, Typed
from qualify.store.address import passwordless
from qualify.store.clock import lasts
from qualify.store.store import Store
from qualify.text import one_line

NEXT = 5
"""times that explain shows"""
HISTORY = 10


def list_canaries(store: Store, cards: Mapping[str, LoadedCanary], lease: str) -> dict[str, Any]:
    """Every canary with its next time, its last fire and its holds; who leads; alerts by state."""
    canaries = store.canaries
    now, last, holds = canaries.now(), canaries.latest(), canaries.holds()
    leader, lacking = leader_lacks(canaries, lease, cards) or ("", ())
    return {
        "leader": leader_data(store, lease, now),
        "canaries": [
            {
                "canary": name,
                "matrix": loaded.card.matrix,
                "cron": loaded.card.cron,
                "settle": loaded.card.stack_change.settle if loaded.card.stack_change else None,
                "next": None
                if name in lacking
                else next((moment.isoformat() for moment in _next(loaded, now, 1)), None),
                "not_served_by": leader if name in lacking else None,
                "last": fire_data(last[name]) if name in last else None,
                "holds": [hold_data(hold) for hold in holds if hold.canary == name],
            }
            for name, loaded in cards.items()
        ],
        "orphans": sorted({hold.canary for hold in holds} - set(cards)),
        "alerts": canaries.alert_counts(),
        "given_up": [
            {"canary": it.canary, "target": it.target, "kind": it.kind, "attempts": it.attempts, "error": it.last_error}
            for it in canaries.alerts("dead", HISTORY)
        ],
    }


def serving_data(options: Options, deck: Deck) -> dict[str, Any]:
    """What a service tells when it begins, for machines."""
    return {
        "node": options.node,
        "lease": options.lease,
        "pid": os.getpid(),
        "store": passwordless(options.db),
        "lease_s": options.lease_s,
        "poll_s": options.poll_s,
        "canaries": sorted(deck.cards),
    }


def to_lines(data: Mapping[str, Any], serve: str) -> list[str]:
    """The list for people; ``serve`` is the command that starts a service."""
    lines = []
    for item in data["canaries"]:
        times = [f"cron {item['cron']}"] * bool(item["cron"]) + ["stack change"] * bool(item["settle"])
        lines.append(f"{item['canary']:24} {item['matrix']:16} {', '.join(times) or 'by hand'}")
        if item["next"]:
            lines.append(f"  next   {_moment(item['next'])}")
        if item["not_served_by"]:
            lines.append(f"  next   {_never(item['not_served_by'])}")
        if item["last"]:
            lines.append(f"  last   {fire_line(item['last'])}")
        lines += [f"  held   {_hold_line(hold)}" for hold in item["holds"]]
    if data["orphans"]:
        lines.append(f"held by canaries that have no card any more: {', '.join(data['orphans'])}")
    alerts = data["alerts"]
    lines += [
        *_leader_lines(data["leader"], serve),
        "alerts " + ", ".join(f"{count} {state}" for state, count in alerts.items()),
        *(f"unsent  {it['canary']} to {it['target']} ({it['kind']}): {it['error']}" for it in data["given_up"]),
    ]
    return [one_line(line) for line in lines]


def explain(store: Store, loaded: LoadedCanary, lease: str, typed: Typed = PLAIN) -> dict[str, Any]:
    """When a canary fires next and why, what it waits for, what it did, and what speaks against running here now."""
    card, canaries = loaded.card, store.canaries
    now, found = canaries.now(), examine(loaded.card.device)
    leader, lacking = leader_lacks(canaries, lease, [card.canary]) or ("", ())
    return {
        "canary": card.canary,
        "path": str(loaded.path),
        "matrix": card.matrix,
        "level": card.level,
        "device": here(card.device),
        "timeout_s": seconds(card.timeout),
        "leader": leader_data(store, lease, now),
        "why": _why(loaded, [it for it in canaries.watched() if it.lease == own_lease(lease, it.node)], now, typed),
        "next": [] if lacking else [moment.isoformat() for moment in _next(loaded, now, NEXT)],
        "not_served_by": leader or None,
        "refuse": list(found.refuse),
        "numerics_only": list(found.numerics_only),
        "holds": [hold_data(hold) for hold in canaries.holds(card.canary)],
        "history": [fire_data(fire) for fire in canaries.fires(card.canary, HISTORY)],
        "alerts": [{"target": alert.target, "kind": alert.kind, "events": list(alert.events)} for alert in card.alerts],
    }


def explain_lines(data: Mapping[str, Any], serve: str) -> list[str]:
    """The explanation for people; ``serve`` is the command that starts a service."""
    lines = [
        f"{data['canary']}: matrix {data['matrix']} at level {data['level']} on {data['device']} ({data['path']})",
        *data["why"],
        *(f"next     {_moment(moment)}" for moment in data["next"]),
        *([f"next     {_never(data['not_served_by'])}"] if data["not_served_by"] else []),
        *(f"refused  {reason}" for reason in data["refuse"]),
        *(f"no times {reason}" for reason in data["numerics_only"]),
        *(f"held     {_hold_line(hold)}" for hold in data["holds"]),
        *(f"fired    {fire_line(fire)}" for fire in data["history"]),
        *(f"tells    {alert['target']} ({alert['kind']}): {', '.join(alert['events'])}" for alert in data["alerts"]),
        *_leader_lines(data["leader"], serve),
    ]
    return [one_line(line) for line in lines]


def _why(loaded: LoadedCanary, watched: Iterable[Watched], now: datetime, typed: Typed) -> list[str]:
    card = loaded.card
    missed = "if times were missed, it fires once, for the last of them"
    lines = [f"fires at {card.cron} UTC; {missed}"] if card.cron else []
    if card.stack_change:
        settle = card.stack_change.settle
        lines.append(f"fires when the stack of a machine that serves it changed and stayed so for {settle}")
        lines += [
            f"watches {item.node}: stack {item.stack.fingerprint[:12]}{_changing(item, settle, now)}"
            for item in watched
            if item.canary == card.canary
        ]
    if card.on:
        count = f" of {card.sample}" if card.sample else ""
        lines.append(f"fires on {card.on}{count}{', in waves' if card.rollout else ''}")
    if card.fleet:
        fleet = card.fleet
        lines.append(f"fires on a fleet ({fleet.engine}, {fleet.address}): {fleet.coverage:.0%} of {fleet.device}")
    if card.duel:
        why = "where a case looks slower" if card.duel.when == "slower" else "in every fire"
        lines.append(f"fights a duel against {card.duel.against} {why}, for at most {card.duel.deadline}")
    if not (card.cron or card.stack_change):
        lines.append(f"fires by hand only: {typed.command('canary', 'fire', card.canary)}")
    return lines


def _changing(item: Watched, settle: str, now: datetime) -> str:
    if not item.changing_to or item.changing_since is None:
        return f", unchanged since {item.seen_at:%Y-%m-%d %H:%M} UTC"
    left = item.changing_since + timedelta(seconds=seconds(settle)) - now
    differs = changes_words(item.changes) if item.changes else item.changing_to[:12]
    return f", changing ({differs}); fires in {max(0, round(left.total_seconds()))} s if that stays"


def _next(loaded: LoadedCanary, now: datetime, count: int) -> list[datetime]:
    """The next moments of a canary's times."""
    if not loaded.card.cron:
        return []
    times = trigger(loaded.card.cron)
    found: list[datetime] = []
    moment = after(times, now)
    while moment is not None and len(found) < count:
        found.append(moment)
        moment = after(times, moment)
    return found


def leader_data(store: Store, name: str, now: datetime) -> dict[str, Any] | None:
    """Who leads, or led last."""
    lease = store.canaries.lease(name)
    if lease is None:
        return None
    return {
        "holder": lease.holder,
        "epoch": lease.epoch,
        "leads": lasts(lease.expires_at, now),
        "expires_at": lease.expires_at.isoformat(),
        "trouble": lease.trouble,
    }


def ailments(store: Store, lease: str, node: str, longest_s: float) -> list[str]:
    """Why the canary service of a machine does not work; empty where it works."""
    canaries = store.canaries
    now, leader, own = canaries.now(), canaries.lease(lease), canaries.lease(own_lease(lease, node))
    found = []
    if own is None or not lasts(own.expires_at, now):
        since = f" since {own.expires_at:%Y-%m-%d %H:%M:%S} UTC" if own else ""
        since = ", and a wrong clock dated its last sign of life ahead" if own and now < own.expires_at else since
        found.append(f"no canary service has run on {node}{since} (lease {lease})")
    elif own.looked_at is not None and (now - own.looked_at).total_seconds() > longest_s:
        why = f": {own.trouble}" if own.trouble else ""
        found.append(f"the service has not seen the stack of {node} since {own.looked_at:%Y-%m-%d %H:%M:%S} UTC{why}")
    if leader is None or not lasts(leader.expires_at, now):
        found.append(f"no service leads (lease {lease})")
    return found


def _leader_lines(leader: Mapping[str, Any] | None, serve: str) -> list[str]:
    if leader is None:
        return [f"leader  none yet: {serve}"]
    state = "" if leader["leads"] else f", silent since {_moment(leader['expires_at'])}"
    trouble = [f"trouble {leader['trouble']}"] if leader["trouble"] else []
    return [f"leader  {leader['holder']} (epoch {leader['epoch']}{state})", *trouble]


def fire_data(fire: Fire) -> dict[str, Any]:
    """A fire for machines."""
    data: dict[str, Any] = codec.to_data(fire)
    return data


def hold_data(hold: Hold) -> dict[str, Any]:
    """A hold for machines."""
    data: dict[str, Any] = codec.to_data(hold)
    return data


def fire_line(fire: Mapping[str, Any]) -> str:
    """A fire on one line."""
    end = fire["advice"] if fire["state"] == "completed" else fire["state"]
    run = f", run {fire['run_id']}" if fire["run_id"] else ""
    reasons = f": {'; '.join(fire['reasons'])}" if fire["reasons"] else ""
    duel = f", {fire['duel_id']}" if fire["duel_id"] else ""
    node = fire["node"] or fire["lease"].partition(own_lease("", ""))[2]  # where it will run, until it has
    on = f" on {node}" if node else ""
    return f"{_moment(fire['scheduled_for'])}{on} {end} ({fire['reason']}{run}{duel}){reasons}"


def _never(leader: str) -> str:
    """Why no time of a canary comes, and no fire by hand."""
    why = f"{leader}, which leads, does not serve it"
    return f"none: {why}. Start that service with this canary, or another with --lease NAME"


def _moment(text: str) -> str:
    """A moment of the JSON as people read it, and as `qualify hold list` has it."""
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M} UTC"


def _hold_line(hold: Mapping[str, Any]) -> str:
    node = hold["node"] or "every node"  # the hold of a wave
    where = f"{node}, {hold['variant']}" if hold["variant"] else node
    return f"{where} since {_moment(hold['since'])}: {hold['reason']}"
