"""/metrics: a few numbers for each matrix on each device model and for each canary; never a label per case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from qualify import __version__
from qualify.errors import CardError, StoreError
from qualify.facts.canary import Advice, Fire
from qualify.facts.overview import RunHead
from qualify.facts.run import VERDICTS
from qualify.judge.summary import Summary
from qualify.store.clock import lasts
from qualify.store.store import Store
from qualify.verdict.origin import last_of, oldest
from qualify.web.fleet_metrics import fleet_metrics
from qualify.web.site import Site

LOOKED_BACK = 10
"""runs of a matrix and device that are judged to find the last success"""
DEPLOYED = timedelta(days=7)
"""how long a service that stopped counts as missing, before it is forgotten"""
MISSED = timedelta(days=1)
"""the same for one machine, which may have been replaced by one of another name"""
ADVICES: tuple[Advice, ...] = ("promote", "hold", "roll back")
PAIR = ("matrix", "device")


def exposition(site: Site) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(_Evidence(site))
    return generate_latest(registry)


class _Evidence(Collector):
    """Reads the store at each request for metrics."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def describe(self) -> list[Metric]:
        """Describes nothing: registering must not read the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric; where the store cannot be read, only the one that says so."""
        store = self._site.store
        yield InfoMetricFamily("qualify", "This program.", {"version": __version__})
        try:
            found = [*_runs(self._site), *_canaries(store), *fleet_metrics(store)]
        except StoreError:
            found = []
        up = GaugeMetricFamily("qualify_store_up", "1 where the evidence store can be read.", bool(found))
        yield from [up, *found]


def _runs(site: Site) -> list[Metric]:
    # Runs that are dated in the future are left out: such a run would keep every alert about age silent until then.
    pairs = site.store.overview.latest(LOOKED_BACK)
    latest = {pair: (runs[0], _summary(site, runs[0])) for pair, runs in pairs.items()}
    last = _gauge("qualify_last_run_timestamp_seconds", "End of the newest completed run.", PAIR)
    success = _gauge("qualify_last_success_timestamp_seconds", "End of the newest run that qualified.", PAIR)
    qualified = _gauge("qualify_qualified", "1 where the newest completed run qualified.", PAIR)
    cases = _gauge("qualify_cases", "Cases of the newest completed run by verdict.", (*PAIR, "verdict"))
    refused = _gauge("qualify_refused_cases", "Cases of it that a kernel refused.", PAIR)
    shapes = _gauge("qualify_shapes", "Production shapes of it.", PAIR)
    coverage = _gauge("qualify_coverage_ratio", "Share of its production shapes with a proven path.", PAIR)
    for pair, (run, summary) in latest.items():
        last.add_metric(pair, _ended(run))
        qualified.add_metric(pair, summary is not None and summary.qualified)
        good = _first_good(site, pairs[pair])
        if good:
            success.add_metric(pair, _ended(good))
        if summary is None:
            continue
        refused.add_metric(pair, summary.outcomes.get("refused", 0))
        shapes.add_metric(pair, summary.shapes)
        coverage.add_metric(pair, summary.proven / summary.shapes if summary.shapes else 0.0)
        for verdict in VERDICTS:
            cases.add_metric((*pair, verdict), summary.cases.get(verdict, 0))
    return [last, success, qualified, cases, refused, shapes, coverage]


def _first_good(site: Site, runs: Iterable[RunHead]) -> RunHead | None:
    """The newest run that qualified, among the last ones."""
    return next((run for run in runs if (found := _summary(site, run)) and found.qualified), None)


def _summary(site: Site, run: RunHead) -> Summary | None:
    """The summary; None where the run cannot be judged, which is no reason to be silent about the others."""
    try:
        return site.verdicts.summary(run)
    except CardError:
        return None


def _canaries(store: Store) -> list[Metric]:
    canaries = store.canaries
    by = ("canary",)
    last = _gauge("qualify_canary_last_fire_timestamp_seconds", "End of the newest fire that ended.", by)
    success = _gauge("qualify_canary_last_success_timestamp_seconds", "End of the newest fire that said promote.", by)
    advice = _gauge("qualify_canary_advice", "1 for the advice of the newest fire that ended.", ("canary", "advice"))
    holds = _gauge("qualify_canary_holds", "Open holds.", by)
    fires = _gauge("qualify_canary_open_fires", "Fires that are due or running.", ("state",))
    alerts = _gauge("qualify_alerts", "Alerts by state; dead = given up.", ("state",))
    held = canaries.holds()
    ended = canaries.latest_ended()
    for name in sorted({*ended, *(hold.canary for hold in held)}):
        holds.add_metric((name,), sum(hold.canary == name for hold in held))
    for name, fire in sorted(ended.items()):
        last.add_metric((name,), _when(fire.finished_at))
        for kind in ADVICES:
            advice.add_metric((name, kind), fire.advice == kind)
    for name, fire in sorted(canaries.latest_ended(advice="promote").items()):
        success.add_metric((name,), _when(fire.finished_at))
    opened: list[Fire] = canaries.open_fires()
    for state in ("pending", "running"):
        fires.add_metric((state,), sum(fire.state == state for fire in opened))
    for state, count in canaries.alert_counts().items():
        alerts.add_metric((state,), count)
    return [last, success, advice, holds, fires, alerts, *_services(store)]


def _services(store: Store) -> list[Metric]:
    """Metrics of every service that runs, or ran lately; no sample where cron fires canaries without a service."""
    now, leases = store.canaries.now(), store.canaries.leases()
    leads = _gauge("qualify_canary_leader", "1 while somebody leads.", ("lease",))
    trouble = _gauge("qualify_canary_trouble", "1 where the leader complains, for example about a card.", ("lease",))
    overdue = _gauge(
        "qualify_canary_overdue_seconds",
        "Since the first moment whose fire has not ended; negative before it.",
        ("lease", "canary"),
    )
    looked = _gauge(
        "qualify_canary_look_age_seconds", "Since a machine's whole stack was last seen.", ("lease", "node")
    )
    served = {lease.service for lease in leases if lease.node and now - lease.expires_at < DEPLOYED}
    known = {it.name: it for it in leases if it.service in served and (not it.node or now - it.expires_at < MISSED)}
    for lease in known.values():
        if lease.looked_at is not None:
            looked.add_metric((lease.service, lease.node), (now - lease.looked_at).total_seconds())
        if not lease.node:
            leads.add_metric((lease.name,), lasts(lease.expires_at, now))
            trouble.add_metric((lease.name,), bool(lease.trouble))
    first: dict[tuple[str, str], datetime] = {}
    for (name, canary), moment in store.canaries.owed().items():
        if name in known:
            pair = known[name].service, canary
            first[pair] = min(moment, first.get(pair, moment))
    for pair, moment in sorted(first.items()):
        overdue.add_metric(pair, (now - moment).total_seconds())
    return [leads, trouble, overdue, looked]


def _gauge(name: str, meaning: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=labels)


def _ended(run: RunHead) -> float:
    """When a run ended: of two clocks that differed, that one counts which makes it older, as for the gate."""
    return _when(min(last_of(run) or (oldest(run),)))


def _when(moment: datetime | None) -> float:
    return moment.timestamp() if moment else 0.0
