"""The page of fleets: which cards are covered, why the others are not, and nodes by stack."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qualify.facts import codec
from qualify.facts.fleet import CardState, Coverage, FleetCard
from qualify.facts.run import Verdict
from qualify.facts.vote import VoteKind
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.figures import counted
from qualify.report.fleet_text import DIGITS, covered_words, percent
from qualify.report.site import SitePage
from qualify.report.sitepages.parts import address, run_address
from qualify.report.views import WORDS

ROWS = 50
"""most cards of a fleet in the list of fleets, the worst first; the page of the fleet has all"""
NODES = 25
"""most nodes that a page shows, the worst first"""
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
"""style class of each state: the classes of the verdicts serve for both"""
GLYPHS: Mapping[CardState, str] = {
    "PLANNED": "–",
    "COVERED": "✓",
    "BUSY": "?",
    "LOST": "✗",
    "REFUSED": "!",
    "MISSING": "✗",
    "BAD": "✗",
}
"""glyph of each state, so that colour is never the only sign"""
WORST: tuple[CardState, ...] = ("BAD", "LOST", "MISSING", "REFUSED", "BUSY", "PLANNED", "COVERED")
"""states of a card, the worst first"""


ODD: Mapping[VoteKind, tuple[str, Verdict]] = {
    "outlier card": ("✗ differs from its equals", "FAIL"),
    "undecided": ("? differs from another card", "INCONCLUSIVE"),
}
"""by vote against a card: what its row says, and the verdict whose colour that has"""


def cards_worst_first(found: Coverage) -> list[FleetCard]:
    """The cards of a fleet: those whose run failed, odd ones, then by state, those that passed last, then by node."""

    def rank(card: FleetCard) -> tuple[bool, bool, int, bool, str, str]:
        place = WORST.index(card.state)
        return card.verdict != "FAIL", card.uuid not in found.odd, place, is_well(card), card.node, card.uuid

    return sorted(found.cards, key=rank)


def is_well(card: FleetCard) -> bool:
    """Whether a card is covered, and its run passed."""
    return card.state == "COVERED" and card.verdict == "PASS"


CARDS: tuple[Column[FleetCard], ...] = (
    Column(
        key="state",
        title="State",
        cell=lambda card: f"{GLYPHS[card.state]} {card.state.lower()}",
        tone=lambda card: CLASSES[card.state],
    ),
    Column(key="node", title="Node", name=True, cell=lambda card: card.node),
    Column(key="uuid", title="Card", code=True, cell=lambda card: card.uuid),
    Column(key="device", title="Device", name=True, cell=lambda card: card.name),
    Column(key="attempt", title="Attempt", number=True, cell=lambda card: card.attempt),
    Column(
        key="verdict",
        title="Verdict",
        cell=lambda card: " ".join(WORDS[card.verdict]) if card.verdict else "",
        tone=lambda card: card.verdict or "NOT_REQUIRED",
    ),
    Column(
        key="run",
        title="Run",
        code=True,
        cell=lambda card: card.run_id or "",
        page=lambda card: run_address(card.run_id or ""),
    ),
    Column(key="why", title="Why", sentence=True, cell=lambda card: card.reason),
)


def card_columns(odd: Mapping[str, VoteKind]) -> tuple[Column[FleetCard], ...]:
    """The columns of the cards, with what the votes say of them.

    Args:
        odd: votes against cards, by UUID.
    """
    compared: Column[FleetCard] = Column(
        key="compared",
        title="Compared",
        cell=lambda card: ODD[odd[card.uuid]][0] if card.uuid in odd else "",
        tone=lambda card: ODD[odd[card.uuid]][1] if card.uuid in odd else "NOT_REQUIRED",
        sentence=True,
    )
    after = next(number for number, column in enumerate(CARDS, 1) if column.key == "verdict")
    return (*CARDS[:after], compared, *CARDS[after:])


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRow:
    """The cards of one node."""

    node: str
    states: Mapping[CardState, int]
    """zeros left out"""
    failed: int
    """cards whose run failed"""
    undecided: int
    """covered cards whose run neither passed nor failed"""

    @property
    def cards(self) -> int:
        """How many cards the node should have."""
        return sum(self.states.values())

    @property
    def well(self) -> bool:
        """Whether every card is covered, and every run passed."""
        return self.covered == self.cards and not self.failed and not self.undecided

    @property
    def covered(self) -> int:
        """How many of the cards are covered."""
        return self.states.get("COVERED", 0)

    @property
    def state(self) -> str:
        """Glyph and words for the worst of it."""
        if self.failed:
            return "✗ run failed"
        if self.covered < self.cards:
            return "! not covered"
        return "? run not decided" if self.undecided else "✓ all covered"

    @property
    def words(self) -> str:
        """What became of its cards, the worst first."""
        return ", ".join(f"{self.states[state]} {state.lower()}" for state in WORST if state in self.states)


NODE_COLUMNS: tuple[Column[NodeRow], ...] = (
    Column(
        key="state",
        title="State",
        cell=lambda it: it.state,
        tone=lambda it: "PASS" if it.well else "FAIL" if it.failed else "INCONCLUSIVE",
    ),
    Column(key="node", title="Node", name=True, cell=lambda it: it.node),
    Column(key="cards", title="Cards", number=True, cell=lambda it: it.cards),
    Column(key="covered", title="Covered", number=True, cell=lambda it: it.covered),
    Column(key="failed", title="Failed runs", number=True, cell=lambda it: it.failed),
    Column(key="undecided", title="Undecided runs", number=True, cell=lambda it: it.undecided),
    Column(key="became", title="What became of them", cell=lambda it: it.words),
)


def nodes_of(cards: Iterable[FleetCard]) -> list[NodeRow]:
    """The nodes of a fleet, those with most cards that failed, are not covered or not decided first."""
    states: dict[str, Counter[CardState]] = defaultdict(Counter)
    failed: Counter[str] = Counter()
    undecided: Counter[str] = Counter()
    for card in cards:
        states[card.node][card.state] += 1
        failed[card.node] += card.verdict == "FAIL"
        undecided[card.node] += card.state == "COVERED" and card.verdict not in ("PASS", "FAIL")
    rows = [
        NodeRow(node=node, states=dict(counts), failed=failed[node], undecided=undecided[node])
        for node, counts in states.items()
    ]
    return sorted(rows, key=lambda it: (-it.failed, it.covered - it.cards, -it.undecided, it.node))


def count_words(found: Coverage) -> str:
    """Cards by state, the worst first: glyph, number and word."""
    counts = found.counts
    told = [f"{GLYPHS[state]} {counts[state]:,} {state.lower()}" for state in WORST if counts[state]]
    return ", ".join([*([f"✗ {found.failed:,} failed the run"] if found.failed else []), *told])


def node_columns(fleet_id: str) -> tuple[Column[NodeRow], ...]:
    """The columns for the nodes of a fleet; the name of a node links to its cards."""

    def with_page(column: Column[NodeRow]) -> Column[NodeRow]:
        return replace(column, page=lambda it: address("fleets", fleet_id, node=it.node)) if column.name else column

    return tuple(map(with_page, NODE_COLUMNS))


def bad_nodes(fleet_id: str, rows: Sequence[NodeRow]) -> AnyTable:
    """The nodes with a card that did not pass or is not covered, the worst first."""
    bad = [row for row in rows if not row.well]
    shown = f", the worst {NODES} of {len(bad):,}" if len(bad) > NODES else ""
    caption = f"Nodes with a card that did not pass or is not covered{shown}"
    return Table(caption=caption, columns=node_columns(fleet_id), rows=tuple(bad[:NODES]))


def node_words(rows: Sequence[NodeRow]) -> str:
    """How many nodes are well."""
    well = sum(row.well for row in rows)
    if well == len(rows):
        return f"On all {len(rows):,} nodes every card is covered, and every run passed"
    return f"On {well:,} of {len(rows):,} nodes every card is covered, and every run passed"


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetView:
    """One fleet."""

    id: str
    matrix: str
    engine: str
    when: str
    headline: str
    badge: Verdict
    glyph: str
    notes: tuple[str, ...]
    cards: AnyTable
    """cards, the worst first"""
    address: str
    """address of the fleet's own page"""
    counts: str
    """number of cards by state, in words"""
    nodes: AnyTable
    """nodes with a card that did not pass or is not covered"""
    node_words: str
    stacks: tuple[tuple[str, int, str], ...]
    """for each stack: beginning of its fingerprint, number of nodes, names of the first of them"""
    whole: str | None
    """id of the run that the shares of the nodes make up; None where they make up none"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetsPage(SitePage):
    """The newest fleets."""

    fleets: tuple[FleetView, ...]


def fleets_page(found: Sequence[Coverage]) -> FleetsPage:
    """The page of the newest fleets."""
    return FleetsPage(title="Fleets", twin="/fleets.json", here="/fleets", fleets=tuple(map(_view, found)))


def fleets_data(found: Sequence[Coverage]) -> dict[str, Any]:
    """The same for JSON, with every card."""
    return {
        "fleets": [
            {
                "fleet": codec.to_data(one.fleet),
                "coverage": one.share,
                "enough": one.enough,
                "verdict": one.shown,
                "compared": codec.to_data(one.compared) if one.compared else None,
                "counts": one.counts,
                "cards": [codec.to_data(card) for card in one.cards],
                "whole": one.whole,
                "shares": [codec.to_data(share) for share in one.shares],
                "stacks": [{"fingerprint": name, "nodes": list(nodes)} for name, nodes in one.stacks.items()],
            }
            for one in found
        ]
    }


def fleet_address(fleet_id: str) -> str:
    """The page of a fleet."""
    return address("fleets", fleet_id)


def _view(found: Coverage) -> FleetView:
    fleet = found.fleet
    worst, nodes = cards_worst_first(found), nodes_of(found.cards)
    if len(worst) > ROWS:
        worst = [card for card in worst if not is_well(card) or card.uuid in found.odd]
    which = "cards that did not pass, are odd or are not covered" if len(worst) < len(found.cards) else "expected cards"
    shown = f", the worst {ROWS} of them" if len(worst) > ROWS else ""
    badge = found.shown
    return FleetView(
        id=fleet.id,
        matrix=fleet.matrix,
        engine=fleet.engine,
        when=f"{fleet.created_at:%Y-%m-%d %H:%M}",
        headline=_headline(found),
        badge=badge,
        glyph=WORDS[badge][0],
        notes=notes_of(found),
        address=fleet_address(fleet.id),
        counts=count_words(found),
        nodes=bad_nodes(fleet.id, nodes),
        node_words=node_words(nodes),
        cards=Table(
            caption=f"{len(worst):,} {which}, the newest attempt on each{shown}",
            columns=card_columns(found.odd),
            rows=tuple(worst[:ROWS]),
        ),
        stacks=tuple((name[:DIGITS], len(nodes), _names(nodes)) for name, nodes in found.stacks.items()),
        whole=found.whole,
    )


def notes_of(found: Coverage) -> tuple[str, ...]:
    """The fleet's own notes, and what the bits of its cards say."""
    if found.compared:
        return (*found.fleet.notes, *found.compared.told)
    if found.verdict == "FAIL" or not (found.enough or found.fleet.state == "ended"):
        return found.fleet.notes
    pending = "The results of its cards are being compared with one another: load this page again in a moment. "
    return (*found.fleet.notes, f"{pending}`qualify coverage {found.fleet.id}` compares them, too.")


def not_passed_words(found: Coverage) -> str:
    """What did not pass, however many cards are covered; empty where all that is covered passed."""
    if found.failed:
        return f"{counted(found.failed, 'card')} failed the run"
    if found.fleet.cells and found.whole_verdict not in ("PASS", None):
        return "the run of the whole matrix failed" if found.whole_verdict == "FAIL" else "the whole run is not decided"
    open_ = sum(card.state == "COVERED" and card.verdict != "PASS" for card in found.cards)
    if open_:
        return f"the run of {counted(open_, 'card')} did not pass"
    if found.compared is None:
        return "the results of its cards are not compared yet" if found.enough else ""
    grave = [kind for kind in found.compared.kinds if kind != "outlier stack"]
    return f"the results of its cards differ ({', '.join(grave)})" if grave else ""


def fleet_words(found: Coverage) -> str:
    """What did not pass, and whether enough cards are covered."""
    covered = "enough cards are covered" if found.enough else "too few cards are covered"
    return f"{not_passed}; {covered}" if (not_passed := not_passed_words(found)) else covered


def odd_words(found: Coverage) -> list[str]:
    """A few words for each card whose results differ: which one, where it is, and how it differs."""
    odd = [card for card in found.cards if card.uuid in found.odd]
    return [f"{card.uuid} on {card.node} {ODD[found.odd[card.uuid]][0].partition(' ')[2]}" for card in odd]


def _headline(found: Coverage) -> str:
    """How much is covered; failed runs come first, because they count however many cards are covered."""
    told = f"{not_passed}; " if (not_passed := not_passed_words(found)) else ""
    wanted = f"at least {100 * found.fleet.least_coverage:g} % needed"
    return f"{told}{covered_words(found)} covered ({percent(found.share, found.fleet.least_coverage)} %, {wanted})"


def _names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - NAMES} more" if len(nodes) > NAMES else ""
    return ", ".join(nodes[:NAMES]) + more
