"""Waivers for people: the state of a waiver file, and the table of a report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from qualify.cards.load import load_kernels, load_matrix
from qualify.cards.waivers import holds_waivers, load_waivers
from qualify.facts.run import Conclusion
from qualify.facts.waiver import Waiver, WaiverUse
from qualify.files import beside, is_file
from qualify.plan.plan import make_plan
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.figures import counted
from qualify.text import one_line
from qualify.verdict.waivers import Waivers

WORDS = {
    "used": ("◐", "in use"),
    "passing": ("✓", "no longer needed"),
    "unused": ("?", "unused"),
    "expired": ("✗", "expired"),
    "pending": ("–", "not in force yet"),
    "elsewhere": ("–", "for another stack"),
}
"""glyph and words of each state"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedWaiver:
    """The state of a waiver on the day of the check, without evidence of a run."""

    waiver: Waiver
    expired: bool
    pending: bool
    days: int
    """days until its end; negative = days since its end"""
    cases: int | None
    """cases of the matrix that its glob matches; None where no matrix was given"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """The state of a waiver file on the day of the check."""

    path: str
    """path of the file; empty where the matrix names none"""
    matrix: str
    """name of the matrix; empty where a file was given"""
    waivers: tuple[CheckedWaiver, ...]

    @property
    def expired(self) -> bool:
        """Whether any waiver has expired."""
        return any(item.expired for item in self.waivers)


def check_waivers(target: str, cards: tuple[Path, ...], now: datetime) -> Checked:
    """The state of the waivers in a file, or in the file that a matrix names.

    Args:
        target: path of a waiver file, or name or path of a matrix.
        cards: further folders of cards.
        now: aware UTC; its date decides what has expired.

    Raises:
        CardError: the file or the matrix is wrong.
        UsageError: no matrix has that name.
    """
    if is_file(Path(target)) and holds_waivers(Path(target)):
        items, path, matrix, ids = load_waivers(Path(target)), target, "", None
    else:
        loaded = load_matrix(target, cards)
        plan = make_plan(loaded, load_kernels(cards))
        ids = [case.id for case in (*plan.cases, *(case for case, _ in plan.refused))]
        items, matrix = loaded.waivers, loaded.card.matrix
        path = str(beside(loaded.path, loaded.card.waivers)) if loaded.card.waivers else ""
    today = Waivers(items=items, today=now.date())
    checked = tuple(
        CheckedWaiver(
            waiver=item,
            expired=today.why_not(item, None) == "expired",
            pending=today.why_not(item, None) == "pending",
            days=(item.expires - now.date()).days,
            cases=None if ids is None else sum(fnmatchcase(name, item.select) for name in ids),
        )
        for item in items
    )
    return Checked(path=path, matrix=matrix, waivers=checked)


def to_lines(checked: Checked) -> list[str]:
    """One line for each waiver, in the order of their last days, then the counts."""
    if not checked.waivers:
        return [f"{checked.path or checked.matrix}: no waivers"]
    ordered = sorted(checked.waivers, key=lambda item: item.days)
    lines = [
        one_line(f"{_state(item):26} {item.waiver.place}: {item.waiver.id} ({item.waiver.owner})")
        + (f", selects {counted(item.cases, 'case')}" if item.cases else "")
        for item in ordered
    ]
    expired = sum(item.expired for item in checked.waivers)
    return [*lines, f"{checked.path}: {counted(len(lines), 'waiver')}, {expired} expired"]


def _state(item: CheckedWaiver) -> str:
    if item.expired:
        return f"EXPIRED {item.waiver.expires}"
    if item.cases == 0:
        return "matches no case"
    return f"from {item.waiver.created} on" if item.pending else f"until {item.waiver.expires}, {item.days} d"


def to_data(checked: Checked) -> dict[str, Any]:
    """The state as JSON."""
    return {
        "path": checked.path or None,
        "matrix": checked.matrix or None,
        "expired": sum(item.expired for item in checked.waivers),
        "waivers": [
            {
                "id": item.waiver.id,
                "place": item.waiver.place,
                "state": "expired" if item.expired else "pending" if item.pending else "in force",
                "days_left": item.days,
                "owner": item.waiver.owner,
                "link": item.waiver.link,
                "expires": item.waiver.expires.isoformat(),
                "checks": list(item.waiver.checks),
                "select": item.waiver.select,
                "cases": item.cases,
            }
            for item in checked.waivers
        ],
    }


COLUMNS: tuple[Column[WaiverUse], ...] = (
    Column(key="state", title="State", cell=lambda use: " ".join(WORDS[use.state])),
    Column(key="id", title="Waiver", cell=lambda use: use.waiver.id, code=True),
    Column(key="owner", title="Owner", name=True, cell=lambda use: use.waiver.owner),
    Column(key="expires", title="Until", cell=lambda use: use.waiver.expires.isoformat()),
    Column(key="checks", title="Checks", sentence=True, cell=lambda use: ", ".join(use.waiver.checks)),
    Column(key="select", title="Cases", cell=lambda use: use.waiver.select, code=True),
    Column(key="waived", title="Waived", cell=lambda use: len(use.waived), number=True),
    Column(key="failing", title="Fail, not covered", cell=lambda use: len(use.failing), number=True),
    Column(key="passing", title="Pass", cell=lambda use: len(use.passing), number=True),
    Column(key="reason", title="Reason", sentence=True, cell=lambda use: use.waiver.reason),
    Column(key="link", title="Tracked in", sentence=True, cell=lambda use: use.waiver.link),
    Column(key="place", title="Written in", sentence=True, cell=lambda use: use.waiver.place),
)


def waivers_table(conclusion: Conclusion) -> AnyTable:
    """A row for each waiver with the cases that it met, in the file's order."""
    return Table(caption="Waivers", columns=COLUMNS, rows=conclusion.waivers)
