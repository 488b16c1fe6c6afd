"""An alert as a fire files it, with names as hostile as a kernel's may be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from qualify.cards.canary import AlertTarget
from qualify.facts.canary import Alert

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""the key of the examples of the specification"""
HOSTILE = "<!channel> flash<img src=x>*_`&</script>\n:boom: \ud800"
BODY: dict[str, Any] = {
    "schema": "qualify.alert/1",
    "canary": "nightly",
    "fire": 7,
    "kind": "hold",
    "advice": "hold",
    "verdict": "FAIL",
    "reasons": [f"the run failed: {HOSTILE}", "2 in kernels"],
    "trigger": "stack",
    "reason": "stack changed: torch 2.11.0 -> 2.13.0",
    "changes": [{"component": "torch", "kind": "distribution", "before": "2.11.0", "after": "2.13.0"}],
    "matrix": "smoke",
    "run": "20261121T030000Z-abcdef",
    "node": "node-1",
    "variant": "NVIDIA H100 (132 units)",
    "numerics_only": [],
    "scheduled_for": "2026-11-21T03:00:00+00:00",
}


def make_alert(**changes: Any) -> Alert:
    """An alert in its first attempt."""
    now = datetime.now(UTC)
    usual: dict[str, Any] = {
        "id": "msg_0123456789abcdef01234567",
        "canary": "nightly",
        "fire_id": 7,
        "kind": "hold",
        "target": "oncall",
        "body": BODY,
        "state": "pending",
        "attempts": 1,
        "created_at": now,
        "next_attempt_at": now,
        "last_error": "",
    }
    return Alert(**{**usual, **changes})


def make_target(url: str | None, kind: str = "webhook", **changes: Any) -> AlertTarget:
    """A target on this machine."""
    usual = {"target": "oncall", "kind": kind, "url": url, "allow_private": True}
    if kind == "webhook":
        usual["secret_env"] = "HOOK_KEY"
    return AlertTarget.model_validate({**usual, **changes})
