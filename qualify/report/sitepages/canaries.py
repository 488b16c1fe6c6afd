"""Pages of canaries with their timeline, and of holds with what people did about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from qualify.facts import codec
from qualify.facts.canary import Advice, Alert, AlertState, Fire, Hold, Lease
from qualify.facts.people import HoldAction
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.figures import counted
from qualify.report.sitepages.parts import (
    Form,
    FormField,
    Mark,
    PagePart,
    PartsPage,
    Timeline,
    address,
    linked,
    run_address,
)
from qualify.text import one_line

TONES: dict[Advice, str] = {"promote": "PASS", "hold": "INCONCLUSIVE", "roll back": "FAIL"}
"""style class of each advice: the classes of the verdicts serve for both"""
GLYPHS: dict[Advice, str] = {"promote": "✓", "hold": "!", "roll back": "✗"}
"""glyph of each advice, so that colour is never the only sign"""
LEFT, WIDTH = 190.0, 720.0
"""left end and length of a timeline's lanes, in units of the picture"""
LANES = 12
"""most canaries in one picture; the table has all"""
MOST_TICKS = 7
STEPS = tuple(timedelta(hours=it) for it in (0.25, 1, 3, 6, 12, 24, 48, 168, 336, 672, 2016, 8736))
"""possible distances between ticks of the time axis"""

NO_RUNS: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldRow:
    """A hold with what people did about it."""

    hold: Hold
    actions: tuple[HoldAction, ...]
    run: str = ""
    """id of the run of the fire that opened the hold; empty = that fire has no run"""

    @property
    def seen(self) -> str:
        """Who acknowledged the hold, when and why; empty where nobody did."""
        return "; ".join(_told(it) for it in self.actions if it.kind == "acknowledge")

    @property
    def ended(self) -> str:
        """How the hold ended; empty where it is open."""
        by_hand = [_told(it) for it in self.actions if it.kind == "release"]
        if by_hand:
            return by_hand[0]
        return f"fire {self.hold.released_by} passed" if self.hold.released_by else ""


def _told(action: HoldAction) -> str:
    return f"{action.who}, {action.at:%Y-%m-%d %H:%M}: {action.reason}"


def hold_rows(
    holds: Sequence[Hold], actions: Sequence[HoldAction], runs: Mapping[int, str] = NO_RUNS
) -> tuple[HoldRow, ...]:
    """Each hold with its actions.

    Args:
        runs: ids of runs, by the id of the fire that made each run.
    """
    by_hold: dict[int, list[HoldAction]] = {}
    for action in actions:
        by_hold.setdefault(action.hold_id, []).append(action)
    return tuple(
        HoldRow(hold=hold, actions=tuple(by_hold.get(hold.id, ())), run=runs.get(hold.fire_id, "")) for hold in holds
    )


def hold_lines(holds: Sequence[Hold], actions: Sequence[HoldAction]) -> list[str]:
    """One line for each hold, with who acknowledged or released it, when and why."""
    lines = []
    for row in hold_rows(holds, actions):
        it = row.hold
        seen = f"acknowledged ({row.seen})" if row.seen else "open"
        state = f"released ({row.ended})" if it.released_at else seen
        where = f"{it.canary} on {it.node or 'every node'} ({it.variant or 'any device'})"
        lines.append(one_line(f"{it.id}  {state}  {where} since {it.since:%Y-%m-%d %H:%M} UTC: {it.reason}"))
    return lines


def action_data(action: HoldAction) -> dict[str, Any]:
    """What somebody did about a hold, as JSON."""
    data: dict[str, Any] = codec.to_data(action)
    return data


def holds_data(holds: Sequence[Hold], actions: Sequence[HoldAction]) -> list[dict[str, Any]]:
    """The holds as JSON, each with what people did about it."""
    return [
        {**codec.to_data(row.hold), "actions": [action_data(it) for it in row.actions]}
        for row in hold_rows(holds, actions)
    ]


HOLDS: tuple[Column[HoldRow], ...] = (
    Column(key="id", title="Hold", cell=lambda row: row.hold.id, number=True, page=lambda row: f"/holds/{row.hold.id}"),
    Column(
        key="state",
        title="State",
        cell=lambda row: "✓ released" if row.hold.released_at else "! acknowledged" if row.seen else "✗ open",
        tone=lambda row: "PASS" if row.hold.released_at else "INCONCLUSIVE" if row.seen else "FAIL",
    ),
    Column(
        key="canary",
        title="Canary",
        cell=lambda row: row.hold.canary,
        page=lambda row: address("canaries", row.hold.canary),
    ),
    Column(key="node", title="Node", name=True, cell=lambda row: row.hold.node or "every node"),
    Column(key="variant", title="Device", name=True, cell=lambda row: row.hold.variant or "any"),
    Column(key="since", title="Since (UTC)", cell=lambda row: f"{row.hold.since:%Y-%m-%d %H:%M}"),
    Column(key="run", title="Run", cell=lambda row: row.run, code=True, page=lambda row: linked(run_address, row.run)),
    Column(key="reason", title="Reason", cell=lambda row: row.hold.reason, sentence=True),
    Column(key="acknowledged", title="Acknowledged", cell=lambda row: row.seen, sentence=True),
    Column(key="ended", title="Ended", cell=lambda row: row.ended, sentence=True),
)


def holds_page(rows: Sequence[HoldRow]) -> PartsPage:
    """Every hold, open ones first."""
    ordered = sorted(rows, key=lambda row: (row.hold.released_at is not None, -row.hold.id))
    return PartsPage(
        title="Holds",
        here="/holds",
        twin="/holds.json",
        csv="/holds.csv",
        parts=(
            PagePart(
                key="holds",
                heading="Holds",
                count=f"{sum(row.hold.released_at is None for row in rows)} open",
                table=holds_table(ordered, "What canaries advise against, until a newer pass or a release by hand"),
                empty="No canary holds anything.",
            ),
        ),
    )


def holds_table(rows: Sequence[HoldRow], caption: str) -> AnyTable:
    """Holds as a table."""
    return Table(caption=caption, columns=HOLDS, rows=tuple(rows))


def hold_page(row: HoldRow, *, may_act: bool) -> PartsPage:
    """The page of one hold.

    Args:
        may_act: whether the person may acknowledge or release it.
    """
    actions = PagePart(
        key="actions",
        heading="What people did",
        count="" if row.actions else "nothing yet",
        notes=tuple(f"{it.kind}: {_told(it)}" for it in row.actions),
        forms=_hold_forms(row.hold.id) if may_act and not row.hold.released_at else (),
    )
    return PartsPage(
        title=f"Hold {row.hold.id}",
        here="/holds",
        twin=f"/holds/{row.hold.id}.json",
        parts=(PagePart(key="hold", heading="Hold", table=holds_table((row,), "This hold")), actions),
    )


def _hold_forms(number: int) -> tuple[Form, ...]:
    """The forms to acknowledge and to release an open hold."""
    reason = FormField(name="reason", label="Reason", kind="textarea", longest=4000)
    told = {
        "Acknowledge": "You look after it. The hold stays open.",
        "Release": "The hold ends without a pass. The next fire that does not pass opens a new hold.",
    }
    return tuple(
        Form(title=word, action=f"/holds/{number}/{word.lower()}", button=word, note=note, fields=(reason,))
        for word, note in told.items()
    )


def _changes(fire: Fire) -> str:
    return "; ".join(f"{it.component} {it.before or 'absent'} → {it.after or 'absent'}" for it in fire.changes)


FIRES: tuple[Column[Fire], ...] = (
    Column(
        key="advice",
        title="Advice",
        cell=lambda fire: f"{GLYPHS[fire.advice]} {fire.advice}" if fire.advice else "– none yet",
        tone=lambda fire: TONES[fire.advice] if fire.advice else "NOT_REQUIRED",
    ),
    Column(
        key="canary", title="Canary", cell=lambda fire: fire.canary, page=lambda fire: address("canaries", fire.canary)
    ),
    Column(key="due", title="Due (UTC)", cell=lambda fire: f"{fire.scheduled_for:%Y-%m-%d %H:%M}"),
    Column(key="state", title="State", cell=lambda fire: fire.state),
    Column(
        key="node",
        title="Node",
        name=True,
        cell=lambda fire: fire.node or ("" if fire.wave is None else f"wave {fire.wave}"),
    ),
    Column(
        key="run",
        title="Run",
        cell=lambda fire: fire.run_id or "",
        code=True,
        page=lambda fire: linked(run_address, fire.run_id or ""),
    ),
    Column(key="why", title="Why it fired", cell=lambda fire: fire.reason, sentence=True),
    Column(key="changes", title="What changed", cell=_changes, sentence=True),
    Column(key="reasons", title="Reasons for the advice", cell=lambda fire: "; ".join(fire.reasons), sentence=True),
)
DEAD: tuple[Column[Alert], ...] = (
    Column(key="canary", title="Canary", cell=lambda alert: alert.canary),
    Column(key="target", title="Target", cell=lambda alert: alert.target),
    Column(key="kind", title="Kind", cell=lambda alert: alert.kind),
    Column(key="attempts", title="Attempts", cell=lambda alert: alert.attempts, number=True),
    Column(key="last_error", title="Last error", cell=lambda alert: alert.last_error, sentence=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryState:
    """The state of one canary, or of all canaries."""

    fires: Sequence[Fire]
    """the last fires, the latest moment first"""
    holds: Sequence[HoldRow]
    """the open holds"""
    dead: Sequence[Alert]
    """alerts that were given up, the newest first"""
    leases: Sequence[Lease]
    alerts: Mapping[AlertState, int]
    """number of alerts in each state"""


def canaries_page(name: str, state: CanaryState) -> PartsPage:
    """The history of one canary, or of all where the name is empty."""
    at = address("canaries", name) if name else "/canaries"
    holds, history, dead = _holds_part(state.holds), _history_part(state.fires), _dead_part(state.dead)
    return PartsPage(
        title=f"Canary {name}" if name else "Canaries",
        here="/canaries",
        twin=f"{at}.json",
        csv=f"{at}.csv",
        listed="history",
        notes=tuple(f"Trouble of {lease.holder}: {lease.trouble}" for lease in state.leases if lease.trouble),
        parts=(history, holds, *dead) if name else (holds, history, *dead),
        more=_state_data(state),
    )


def _holds_part(holds: Sequence[HoldRow]) -> PagePart:
    table = holds_table(holds, "Not to be promoted until a newer pass of the same node and device")
    return PagePart(key="open_holds", heading="Holds", count=str(len(holds) or "none"), table=table if holds else None)


def _history_part(fires: Sequence[Fire]) -> PagePart:
    caption = f"The last {counted(len(fires), 'fire')}, the latest moment first"
    return PagePart(
        key="history",
        heading="Fires",
        timeline=timeline(fires) if fires else None,
        table=Table(caption=caption, columns=FIRES, rows=tuple(fires)),
        empty="No canary has fired yet.",
    )


def _dead_part(dead: Sequence[Alert]) -> list[PagePart]:
    """A part with the alerts that nobody received; empty where there is none."""
    if not dead:
        return []
    table: AnyTable = Table(caption="Alerts that nobody received, the newest first", columns=DEAD, rows=tuple(dead))
    return [PagePart(key="dead", heading="Alerts that were given up", count=str(len(dead)), table=table)]


def _state_data(state: CanaryState) -> dict[str, Any]:
    """The state as JSON."""
    return {
        "leases": [codec.to_data(lease) for lease in state.leases],
        "holds": [codec.to_data(row.hold) for row in state.holds],
        "fires": [codec.to_data(fire) for fire in state.fires],
        "alerts": dict(state.alerts),
        "given_up": [
            {"id": it.id, "canary": it.canary, "target": it.target, "kind": it.kind, "last_error": it.last_error}
            for it in state.dead
        ],
    }


def timeline(fires: Sequence[Fire]) -> Timeline:
    """The fires over time, a lane for each canary."""
    moments = [fire.scheduled_for for fire in fires]
    first, last = min(moments), max(moments)
    span = max(last - first, timedelta(hours=1))

    def place(moment: datetime) -> float:
        return round(LEFT + WIDTH * ((moment - first) / span), 1)

    lanes: dict[str, list[Mark]] = {}
    for fire in fires:
        advice = fire.advice
        said = f"{fire.canary}, {fire.scheduled_for:%Y-%m-%d %H:%M} UTC: {advice or fire.state}"
        lanes.setdefault(fire.canary, []).append(
            Mark(
                x=place(fire.scheduled_for),
                tone=TONES[advice] if advice else "NOT_REQUIRED",
                glyph=GLYPHS[advice] if advice else "–",
                title=said,
            )
        )
    return Timeline(
        caption="Fires over time (UTC)",
        lanes=tuple((name, tuple(marks)) for name, marks in sorted(lanes.items())[:LANES]),
        ticks=tuple((place(moment), words) for moment, words in ticks(first, span)),
    )


def ticks(first: datetime, span: timedelta) -> list[tuple[datetime, str]]:
    """Round moments of a time axis, each with its label.

    Args:
        first: where the axis begins.
        span: length of the axis.
    """
    step = next((it for it in STEPS if span / it < MOST_TICKS), STEPS[-1] * math.ceil(span / STEPS[-1] / MOST_TICKS))
    form = "%Y-%m-%d" if step >= timedelta(days=1) else "%m-%d %H:%M"
    begin = datetime(first.year, 1, 1, tzinfo=first.tzinfo)
    begin += step * math.ceil((first - begin) / step)
    moments = (begin + step * number for number in range(MOST_TICKS + 1))
    return [(moment, moment.strftime(form)) for moment in moments if moment <= first + span]
