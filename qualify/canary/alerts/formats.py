"""What a webhook, Slack and Alertmanager are sent. Names and reasons come from outside: they are only text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from qualify.canary.alerts.signing import signed
from qualify.cards.canary import AlertTarget
from qualify.facts import codec
from qualify.facts.canary import Alert, AlertKind, Fire, FireResult, NodeOutcome
from qualify.facts.comparison import StackChange
from qualify.text import one_line

ADVICE: dict[AlertKind, str] = {
    "promote": "Promote: nothing got worse",
    "hold": "Hold: do not promote this stack yet",
    "roll back": "Roll back: the new stack is worse than the accepted one",
    "refused": "Refused: the machine was not fit to run on",
    "failed": "Failed: the run could not be brought to an end",
}
"""what happened and what to do"""
SEVERITY: dict[AlertKind, str] = {
    "promote": "none",
    "hold": "warning",
    "roll back": "critical",
    "refused": "warning",
    "failed": "warning",
}
PROBLEMS: tuple[AlertKind, ...] = ("hold", "roll back", "refused", "failed")
"""kinds that stay true until a newer pass"""
STAYS = timedelta(days=30)
"""how long a problem fires in Alertmanager, unless something resolves it"""
HEADER, SECTION, LISTED = 150, 2900, 10
"""characters of Slack's header and section, and reasons that an alert names"""
V2 = "/api/v2/alerts"


def body_of(fire: Fire, result: FireResult, node: str) -> dict[str, object]:
    """What an alert says, whoever gets it: ``qualify.alert/1``."""
    return {
        "schema": "qualify.alert/1",
        "canary": fire.canary,
        "fire": fire.id,
        "kind": result.kind,
        "advice": result.advice,
        "verdict": result.verdict,
        "reasons": list(result.reasons),
        "trigger": fire.trigger,
        "reason": fire.reason,
        "changes": codec.to_data(fire.changes, tuple[StackChange, ...]),
        "matrix": result.matrix,
        "run": result.run_id,
        "duel": result.duel_id,
        "node": node,
        "nodes": codec.to_data(result.nodes or (), tuple[NodeOutcome, ...]),
        "variant": result.variant,
        "numerics_only": list(result.numerics_only),
        "scheduled_for": fire.scheduled_for.isoformat(),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One HTTP request."""

    url: str
    headers: Mapping[str, str]
    content: bytes


def message(alert: Alert, target: AlertTarget, url: str, secret: str, now: datetime) -> Message:
    """The request that tells a target; Undelivered where its secret is unusable."""
    return _WRITERS[target.kind](alert, url, secret, now)


def _webhook(alert: Alert, url: str, secret: str, now: datetime) -> Message:
    kind = alert.kind.replace(" ", "_")
    data = {"type": f"qualify.canary.{kind}", "timestamp": alert.created_at.isoformat(), "data": dict(alert.body)}
    content = _json(data)
    return Message(url=url, headers=signed(secret, alert.id, int(now.timestamp()), content), content=content)


def _slack(alert: Alert, url: str, _secret: str, _now: datetime) -> Message:
    body = alert.body
    title = f"{alert.canary}: {ADVICE[alert.kind]}"
    facts = [(name, _text(body.get(key))) for name, key in (("Node", "node"), ("Device", "variant"), ("Run", "run"))]
    lines = [f"{name}: {value}" for name, value in facts if value]
    changes = [
        f"{_text(item.get('component'))}: {_text(item.get('before')) or 'absent'} → "
        f"{_text(item.get('after')) or 'absent'}"
        for item in _items(body.get("changes"))
    ]
    parts = [
        "\n".join([*lines, f"Why it ran: {_text(body.get('reason'))}"]),
        "\n".join(["What changed:", *_some(changes)]) if changes else "",
        "\n".join(_some([f"• {_text(reason)}" for reason in _list(body.get("reasons"))])),
    ]
    data = {
        "text": _escaped(title, SECTION),
        "blocks": [
            {"type": "header", "text": _plain(title, HEADER)},
            *({"type": "section", "text": _plain(part, SECTION)} for part in parts if part),
        ],
        "unfurl_links": False,
        "unfurl_media": False,
    }
    return Message(url=url, headers={}, content=_json(data))


def _alertmanager(alert: Alert, url: str, secret: str, now: datetime) -> Message:
    """The problem fires, and every other problem of the same canary and node is resolved.

    After a pass all are resolved.
    """
    body = alert.body
    labels = {"alertname": "QualifyCanary", "canary": alert.canary, "node": _text(body.get("node"))}
    matrix, run = _text(body.get("matrix")), _text(body.get("run"))
    annotations = {
        "summary": f"{alert.canary}: {ADVICE[alert.kind]}",
        "description": "\n".join(_some([_text(reason) for reason in _list(body.get("reasons"))])),
        "matrix": matrix,
        "run": run,
        "device": _text(body.get("variant")),
        "reason": _text(body.get("reason")),
    }
    began = min(alert.created_at, now)
    data = [
        {
            "labels": {name: value for name, value in labels.items() if value}
            | {"advice": kind.replace(" ", "_"), "severity": SEVERITY[kind]},
            "annotations": {name: value for name, value in annotations.items() if value},
            "startsAt": began.isoformat(),
            "endsAt": (now + STAYS if kind == alert.kind else now).isoformat(),
        }
        for kind in PROBLEMS
    ]
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    parts = urlsplit(url)
    path = parts.path if parts.path.endswith(V2) else parts.path.rstrip("/") + V2
    return Message(url=urlunsplit(parts._replace(path=path)), headers=headers, content=_json(data))


_WRITERS: Mapping[str, Callable[[Alert, str, str, datetime], Message]] = {
    "webhook": _webhook,
    "slack": _slack,
    "alertmanager": _alertmanager,
}


def _json(data: Any) -> bytes:
    """ASCII, so that a lone surrogate in a kernel's message cannot break the encoding. The data hold no NaN."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode("ascii")


def _plain(text: str, longest: int) -> dict[str, Any]:
    """Text that Slack shows as it is: no links, no mentions, no emoji."""
    return {"type": "plain_text", "text": _escaped(text, longest), "emoji": False}


def _escaped(text: str, longest: int) -> str:
    """The three characters that Slack's control sequences need, as entities; cut before one, never inside."""
    entities = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
    pieces: list[str] = []
    left = longest - 1
    for character in text:
        piece = entities.get(character, character)
        left -= len(piece)
        if left < 0:
            return "".join(pieces) + "…"
        pieces.append(piece)
    return "".join(pieces)


def _some(lines: list[str]) -> list[str]:
    """The first lines, and how many more there are."""
    return lines if len(lines) <= LISTED else [*lines[:LISTED], f"… and {len(lines) - LISTED} more"]


def _text(value: object) -> str:
    """One line of printable text."""
    line = one_line("" if value is None else str(value))
    return "".join(character if character.isprintable() else "�" for character in line)


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _items(value: object) -> list[Mapping[str, Any]]:
    return [item for item in _list(value) if isinstance(item, Mapping)]
