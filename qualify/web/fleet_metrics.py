"""Metrics of fleets: a series for each card of the newest fleet of each matrix, never one for each case."""

from __future__ import annotations

from prometheus_client.core import GaugeMetricFamily, Metric

from qualify.facts.fleet import CARD_STATES, Coverage, Slow
from qualify.judge.fleet import state_of
from qualify.store.store import Store

LOOKED_AT = 50
"""newest fleets that are searched for the newest of each matrix"""
FINGERPRINT = 12


def fleet_metrics(store: Store) -> list[Metric]:
    """Coverage of the newest fleet of each matrix; no sample where no fleet has run."""
    newest = {fleet.matrix: fleet for fleet in reversed(store.fleets.fleets(LOOKED_AT))}
    found = [state_of(store, fleet) for _, fleet in sorted(newest.items())]
    return [*_totals(found), *_cards(found)]


def _totals(found: list[Coverage]) -> list[Metric]:
    by = ["matrix"]
    share = GaugeMetricFamily(
        "qualify_fleet_coverage_ratio",
        "Share of the expected cards that are covered; of a shared matrix, of its production shapes.",
        labels=by,
    )
    asked = GaugeMetricFamily("qualify_fleet_coverage_asked_ratio", "Share that was asked for.", labels=by)
    begun = GaugeMetricFamily("qualify_fleet_timestamp_seconds", "Begin of the newest fleet.", labels=by)
    cards = GaugeMetricFamily("qualify_fleet_cards", "Expected cards by state.", labels=[*by, "state"])
    nodes = GaugeMetricFamily("qualify_fleet_nodes", "Nodes that ran on a stack.", labels=[*by, "stack"])
    for one in found:
        matrix = one.fleet.matrix
        share.add_metric([matrix], one.share)
        asked.add_metric([matrix], one.fleet.least_coverage)
        begun.add_metric([matrix], one.fleet.created_at.timestamp())
        for state in CARD_STATES:
            cards.add_metric([matrix, state], one.counts[state])
        for fingerprint, names in one.stacks.items():
            nodes.add_metric([matrix, fingerprint[:FINGERPRINT]], len(names))
    return [share, asked, begun, cards, nodes]


def _cards(found: list[Coverage]) -> list[Metric]:
    labels = ["matrix", "node", "device"]
    covered = GaugeMetricFamily("qualify_fleet_card_covered", "1 where the card is covered.", labels=labels)
    passed = GaugeMetricFamily("qualify_fleet_card_qualified", "1 where its run qualified.", labels=labels)
    slow = GaugeMetricFamily(
        "qualify_fleet_card_slow_ratio",
        "Time of a slow card over the median of the cards on its stack, when the fleet ended; no verdict.",
        labels=labels,
    )
    for one in found:
        for card in one.cards:
            place = [one.fleet.matrix, card.node, card.uuid]
            covered.add_metric(place, card.state == "COVERED")
            passed.add_metric(place, card.state == "COVERED" and card.verdict == "PASS")
        for noted in filter(None, map(Slow.read, one.fleet.notes)):
            slow.add_metric([one.fleet.matrix, noted.node, noted.uuid], noted.factor)
    return [covered, passed, slow]
