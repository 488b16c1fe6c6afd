"""One fleet: how many of its cards are covered, its nodes, and its cards with a filter. It needs no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qualify.facts import codec
from qualify.facts.fleet import CARD_STATES, Coverage, FleetCard
from qualify.report.columns import Table
from qualify.report.fleet_text import covered_words, percent
from qualify.report.fleets import (
    NodeRow,
    bad_nodes,
    card_columns,
    cards_worst_first,
    count_words,
    fleet_address,
    fleet_words,
    node_columns,
    node_words,
    nodes_of,
    notes_of,
)
from qualify.report.sitepages.parts import (
    Form,
    FormField,
    PageLink,
    PagePart,
    PartsPage,
    address,
    last_offset,
    run_address,
)
from qualify.report.views import WORDS


@dataclass(frozen=True, kw_only=True, slots=True)
class CardQuery:
    """Which cards of a fleet are listed; empty words select all."""

    text: str = ""
    """words that must all occur in the card's UUID, node, model, run, verdict or reason"""
    state: str = ""
    node: str = ""
    offset: int = 0
    limit: int = 200


def fleet_page(found: Coverage, query: CardQuery) -> PartsPage:
    """One page of the cards of a fleet, the worst first."""
    cards = [card for card in cards_worst_first(found) if _matches(card, query)]
    query = replace(query, offset=last_offset(query.offset, query.limit, len(cards)))
    return PartsPage(
        title=f"Fleet {found.fleet.id}",
        summary=f"{WORDS[found.shown][0]} {fleet_words(found)}",
        here="/fleets",
        twin=_place(found, ".json", query),
        csv=_place(found, ".csv", replace(query, offset=0, limit=CardQuery().limit)),
        listed="cards",
        notes=notes_of(found),
        parts=(_coverage(found), _nodes(found.fleet.id, nodes_of(found.cards)), _cards(found, cards, query)),
        more={
            "counts": found.counts,
            "share": found.share,
            "enough": found.enough,
            "verdict": found.shown,
            "compared": codec.to_data(found.compared) if found.compared else None,
            "total": len(cards),
            "offset": query.offset,
            "stacks": [{"fingerprint": name, "nodes": list(some)} for name, some in found.stacks.items()],
            "shares": [codec.to_data(share) for share in found.shares],
        },
    )


def _coverage(found: Coverage) -> PagePart:
    fleet = found.fleet
    asked = f"({percent(found.share, fleet.least_coverage)} %), asked for {100 * fleet.least_coverage:g} %"
    whole = (PageLink(text=f"run {found.whole}", href=run_address(found.whole)),) if found.whole else ()
    return PagePart(
        key="fleet",
        heading="Coverage",
        terms=(
            ("Covered", f"{covered_words(found)} {asked}"),
            ("Cards", count_words(found)),
            ("Stacks", f"{len(found.stacks):,}"),
            ("Matrix", fleet.matrix),
            ("Placed by", fleet.engine),
            ("Began", f"{fleet.created_at:%Y-%m-%d %H:%M} UTC"),
            ("State", fleet.state),
        ),
        links=(*whole, PageLink(text="The newest fleets", href="/fleets")),
    )


def _nodes(fleet_id: str, nodes: Sequence[NodeRow]) -> PagePart:
    return PagePart(
        key="nodes",
        heading="Nodes",
        notes=(f"{node_words(nodes)}. The JSON twin has each node.",),
        table=Table(caption="Nodes, the worst first", columns=node_columns(fleet_id), rows=tuple(nodes)),
        shown=bad_nodes(fleet_id, nodes),
    )


def _cards(found: Coverage, cards: Sequence[FleetCard], query: CardQuery) -> PagePart:
    shown = tuple(cards[query.offset : query.offset + query.limit])
    return PagePart(
        key="cards",
        heading="Cards",
        count=f"{query.offset + 1:,} to {query.offset + len(shown):,} of {len(cards):,}" if shown else "none",
        table=Table(
            caption="Cards, the worst first; the newest attempt on each", columns=card_columns(found.odd), rows=shown
        ),
        empty="No card matches. Choose another state or node, or other words.",
        forms=(_search(found, query),),
        links=_turns(found, query, len(cards)),
    )


def _matches(card: FleetCard, query: CardQuery) -> bool:
    words = f"{card.node} {card.uuid} {card.name} {card.run_id or ''} {card.verdict or ''} {card.reason}".lower()
    return (
        query.state.upper() in ("", card.state)
        and query.node in ("", card.node)
        and all(word in words for word in query.text.lower().split())
    )


def _place(found: Coverage, ending: str, query: CardQuery) -> str:
    """The address of the list of cards for a query, without parameters that have their default."""
    asked = {"q": query.text, "state": query.state, "node": query.node, "offset": query.offset or ""}
    limit = "" if query.limit == CardQuery().limit else query.limit
    return address("fleets", f"{found.fleet.id}{ending}", **asked, limit=limit)


def _search(found: Coverage, query: CardQuery) -> Form:
    """The filter form above the list of cards."""
    counts, state = found.counts, query.state.lower()
    states = ("", *(name.lower() for name in CARD_STATES if counts[name]))
    nodes = tuple(sorted({card.node for card in found.cards}))
    return Form(
        title="Filter",
        action=fleet_address(found.fleet.id),
        method="get",
        button="Filter",
        fields=(
            FormField(name="q", label="Words", kind="search", value=query.text, required=False),
            FormField(name="state", label="State", kind="select", value=state, options=states, required=False),
            FormField(name="node", label="Node", value=query.node, options=nodes, required=False),
        ),
    )


def _turns(found: Coverage, query: CardQuery, total: int) -> tuple[PageLink, ...]:
    """Links to the previous and to the next page of the list."""
    before = replace(query, offset=max(0, query.offset - query.limit))
    after = replace(query, offset=query.offset + query.limit)
    links = [PageLink(text="Cards before", href=_place(found, "", before))] if query.offset else []
    return (*links, *([PageLink(text="More cards", href=_place(found, "", after))] if after.offset < total else []))
