"""The page of fleets: which cards are covered, what speaks against the others, and nodes by stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qualify.facts import codec
from qualify.facts.fleet import CardState, Coverage, FleetCard
from qualify.report.fleet_text import DIGITS, covered_words
from qualify.report.site import SitePage

ROWS = 500
"""cards of a fleet that the page shows, those that are not covered first; the JSON twin has all"""
NAMES = 20
CLASSES: Mapping[CardState, str] = {
    "PLANNED": "NOT_REQUIRED",
    "COVERED": "PASS",
    "BUSY": "INCONCLUSIVE",
    "LOST": "FAIL",
    "REFUSED": "WAIVED",
    "MISSING": "FAIL",
    "BAD": "FAIL",
}
"""style of each state: those of the verdicts"""
GLYPHS: Mapping[CardState, str] = {
    "PLANNED": "–",
    "COVERED": "✓",
    "BUSY": "?",
    "LOST": "✗",
    "REFUSED": "!",
    "MISSING": "✗",
    "BAD": "✗",
}
"""so that colour is never the only sign"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetView:
    """One fleet."""

    id: str
    matrix: str
    engine: str
    when: str
    headline: str
    badge: str
    glyph: str
    notes: tuple[str, ...]
    caption: str
    cards: tuple[FleetCard, ...]
    stacks: tuple[tuple[str, int, str], ...]
    """beginning of the fingerprint, nodes, their first names"""
    whole: str | None
    """the run that its shares make up"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetsPage(SitePage):
    """The newest fleets."""

    fleets: tuple[FleetView, ...]
    classes: Mapping[CardState, str] = field(default_factory=lambda: CLASSES)
    glyphs: Mapping[CardState, str] = field(default_factory=lambda: GLYPHS)


def fleets_page(found: Sequence[Coverage]) -> FleetsPage:
    """What the page shows."""
    return FleetsPage(title="Fleets", twin="/fleets.json", here="/fleets", fleets=tuple(map(_view, found)))


def fleets_data(found: Sequence[Coverage]) -> dict[str, Any]:
    """The same for JSON, with every card."""
    return {
        "fleets": [
            {
                "fleet": codec.to_data(one.fleet),
                "coverage": one.share,
                "enough": one.enough,
                "counts": one.counts,
                "cards": [codec.to_data(card) for card in one.cards],
                "whole": one.whole,
                "shares": [codec.to_data(share) for share in one.shares],
                "stacks": [{"fingerprint": name, "nodes": list(nodes)} for name, nodes in one.stacks.items()],
            }
            for one in found
        ]
    }


def _view(found: Coverage) -> FleetView:
    fleet = found.fleet
    worst = sorted(found.cards, key=lambda card: card.state == "COVERED")
    shown = f", {ROWS} of them shown" if len(worst) > ROWS else ""
    badge = "PASS" if found.enough else "INCONCLUSIVE"
    return FleetView(
        id=fleet.id,
        matrix=fleet.matrix,
        engine=fleet.engine,
        when=f"{fleet.created_at:%Y-%m-%d %H:%M}",
        headline=f"{covered_words(found)} covered ({found.share:.1%})",
        badge=badge,
        glyph="✓" if found.enough else "?",
        notes=fleet.notes,
        caption=f"{len(worst)} expected cards, the newest attempt on each{shown}",
        cards=tuple(worst[:ROWS]),
        stacks=tuple((name[:DIGITS], len(nodes), _names(nodes)) for name, nodes in found.stacks.items()),
        whole=found.whole,
    )


def _names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - NAMES} more" if len(nodes) > NAMES else ""
    return ", ".join(nodes[:NAMES]) + more
