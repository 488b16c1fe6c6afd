"""A canary that fires on a fleet: a real Ray cluster, a leader that is killed, low coverage, holds for each node."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import stored_runs as stored
from builders import make_evidence, make_timing
from canary_examples import due, lead, result, says
from cli_process import ROOT, call, environment, write_matrix, write_start
from fire_examples import ORDER
from service_process import Place
from stored_runs import store_run

from qualify.canary import fleets
from qualify.canary.results import letters_for
from qualify.cards.load import load_canary
from qualify.facts.canary import FireResult, NodeOutcome
from qualify.facts.fleet import Fleet, FleetCard
from qualify.facts.outcome import Measured
from qualify.facts.placement import Placement
from qualify.facts.typed import PLAIN
from qualify.fleet.lead import spool_in, take_left
from qualify.judge.fleet import coverage_of
from qualify.store import Store

QUICK = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}

SMALL = {
    "num_cpus": 0,
    "num_gpus": 1,
    "object_store_memory": 80 << 20,
    "include_log_monitor": False,
    "no_monitor": True,
}
"""a node with one logical card, without the processes that show its logs and that scale the cluster"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes with one logical card each. What their tasks start is forked (tests/fleet/test_ray.py starts it)."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    short = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets have short paths
    paths = os.pathsep.join([str(write_start(tmp_path_factory.mktemp("start"))), str(ROOT)])
    os.environ.update(QUICK, PYTHONPATH=paths, OMP_NUM_THREADS="1", RAY_TMPDIR=short)
    made = Cluster()
    try:
        made.two = [made.add_node(**SMALL) for _ in range(2)]
        ray.init(address=made.address, log_to_driver=False, configure_logging=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(short, ignore_errors=True)


def occupy(node: Any) -> Any:
    """Somebody else's task, which has the GPU of a node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def use() -> None:
        time.sleep(600)

    pinned = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    return ray.remote(use).options(num_gpus=1, num_cpus=0, max_retries=0, scheduling_strategy=pinned).remote()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_fleet_from_low_coverage_to_promote(sqlite_place: Place, cluster: Any) -> None:
    """A busy node and a killed leader: one fleet, half covered, no verdict. Then both pass, and no hold is left."""
    import ray

    place = sqlite_place
    used = occupy(cluster.two[1])
    fleet = f"{{address: '{cluster.address}', device: 'cpu:1', start: 30s}}"
    place.canary("fleet", "correct", (8, 9), fleet=fleet, alerts="[{target: chat, kind: slack, url_env: NO_SUCH_URL}]")
    card = place.cards / "t-fleet.yaml"
    card.write_text(card.read_text().replace("device: cpu\n", ""))
    first = place.start("n")
    fire = place.ask("fleet")
    first.said("2 cards expected on 2 nodes", 120)
    first.process.kill()
    second = place.start("n")
    ended = place.until(fire, "completed", 240)
    assert ("INCONCLUSIVE", "hold", 2) == (ended.verdict, ended.advice, ended.attempts), str(second)
    assert f"fire-{fire}: 1 of 2 cards covered (50%, 100% asked for)" == ended.reasons[0]
    with Store.open(place.address) as store:
        assert [f"fire-{fire}"] == [found.id for found in store.fleets.fleets()]
        cards = store.fleets.cards(f"fire-{fire}")
        assert ["BUSY", "COVERED"] == sorted(found.state for found in cards)
        assert {2} == {found.attempt for found in cards}
        assert {"", *(found.node for found in cards)} == {hold.node for hold in store.canaries.holds("t-fleet")}
        (alert,) = store.canaries.alerts()
        assert {found.node: "hold" for found in cards} == {it["node"]: it["advice"] for it in alert.body["nodes"]}
        (covered,) = [found for found in cards if found.state == "COVERED"]
    second.stop()
    with suppress(ray.exceptions.RayError):
        ray.cancel(used, force=True)
        ray.get(used)
    common = ("--cards", place.cards, "--db", place.address)
    accept = ("baseline", "accept", covered.run_id, "--by", "me", "--reason", "first")
    assert 0 == call(*accept, *common, cwd=place.folder).code
    words = ("canary", "fire", "t-fleet", *common, "--json")
    passed = call(*words, cwd=place.folder, env=environment(**QUICK))
    assert (0, "PASS", "promote") == (passed.code, passed.data["verdict"], passed.data["advice"]), passed.data
    with Store.open(place.address) as store:
        assert [] == store.canaries.holds("t-fleet")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_nodes_share_a_fire(sqlite_place: Place, cluster: Any) -> None:
    """The run of the whole is what the advice is about; a node that came too late is neither held nor released."""
    place = sqlite_place
    fleet = f"{{address: '{cluster.address}', device: 'cpu:1', spread: shard}}"
    place.canary("shared", "correct", (8,), fleet=fleet)
    card = place.cards / "t-shared.yaml"
    card.write_text(card.read_text().replace("device: cpu\n", ""))
    common = ("--cards", place.cards, "--db", place.address)
    words = ("canary", "fire", "t-shared", *common, "--json")
    first = call(*words, cwd=place.folder, env=environment(**QUICK))
    assert ("PASS", "hold") == (first.data["verdict"], first.data["advice"]), first.data
    with Store.open(place.address) as store:
        fleets = store.fleets.fleets()
        whole = store.fleets.whole(fleets[0])
        assert ["COVERED", "REFUSED"] == sorted(it.state for it in store.fleets.cards(fleets[0].id))
        (ran,) = [it.node for it in store.fleets.cards(fleets[0].id) if it.state == "COVERED"]
        assert {"", ran} == {hold.node for hold in store.canaries.holds("t-shared")}
    assert f"1 of 1 production shapes covered (100%, 100% asked for), which make up run {whole}" in str(first.data)
    accept = ("baseline", "accept", whole, "--by", "me", "--reason", "first")
    assert 0 == call(*accept, *common, cwd=place.folder).code
    passed = call(*words, cwd=place.folder, env=environment(**QUICK))
    assert (0, "PASS", "promote") == (passed.code, passed.data["verdict"], passed.data["advice"]), passed.data


def test_what_a_killed_leader_had_is_stored(store: Store, tmp_path: Path) -> None:
    """A service whose database is away ends its fleet; the next attempt begins with what nodes had sent until then."""
    run = store_run(store, write_matrix(tmp_path / "m.yaml", "tiled-torch"))
    out, said = tmp_path / "out", list[str]()
    with spool_in(out, said.append, name="fire-1") as spool:
        store.export_run(run.id, spool / f"{run.id}.jsonl.gz")
        (spool / "broken.jsonl.gz").write_bytes(b"half")
        shutil.copytree(spool, left := spool.with_name(f"{spool.name}0"))
    store.retention.remove_run(run.id, by="me", how="", reason="")
    (out / "fleet-fire-12-abc").mkdir()
    take_left(out, "fire-1", store, said.append)
    assert (run.id, False) == (store.run(run.id).id, left.exists())
    assert f"an earlier leader of fire-1 had {run.id}.jsonl.gz: stored" in said
    assert ["fleet-fire-12-abc"] == [folder.name for folder in out.iterdir()]


@pytest.mark.parametrize(
    ("outputs", "advice"),
    [
        (("aa", "aa", "aa"), {"n0": "promote", "n1": "promote", "n2": "promote"}),
        (("aa", "aa", "bb"), {"n0": "promote", "n1": "promote", "n2": "hold"}),
        (("aa", "bb"), {"n0": "hold", "n1": "hold"}),
        (("aa", "bb", "cc"), {"n0": "hold", "n1": "hold", "n2": "hold"}),
    ],
)
def test_no_node_is_promoted_whose_bits_are_in_question(
    store: Store, tmp_path: Path, outputs: tuple[str, ...], advice: dict[str, str]
) -> None:
    """Every run passes by itself: an outvoted card, an undecided pair and a kernel that differs everywhere are held."""
    matrix = tmp_path / "serving.yaml"
    matrix.write_text(stored.MATRIX)
    cards = []
    for number, output in enumerate(outputs):
        uuid, node = f"GPU-{number}", f"n{number}"
        outcome = Measured(evidence=replace(make_evidence(), timing=make_timing(10.0), output_digest=output * 32))
        place = Placement(node=node, spread="repeat", cards=(uuid,), fleet="f", attempt=1)
        stack = replace(stored.make_stack(), device=replace(stored.DEVICE, uuid=uuid))
        run = store_run(store, matrix, outcome, placement=place, stack=stack)
        cards.append(
            FleetCard(node=node, uuid=uuid, name="", attempt=1, state="COVERED", run_id=run.id, verdict="PASS")
        )
    stored.accept_run(store, store.run(str(cards[0].run_id)))
    fleet = Fleet(
        id="f",
        matrix="serving",
        matrix_hash="",
        engine="ray",
        device="cpu",
        spread="repeat",
        least_coverage=1.0,
        state="running",
        epoch=0,
        created_at=stored.NOW,
        finished_at=None,
    )
    lease = store.fleets.lead("f", "me", 60)
    assert lease is not None
    store.fleets.plan(lease, fleet, cards)
    store.fleets.settle(lease, "f", cards)
    seen = fleets._seen(ORDER, store, *coverage_of(store, "f"), PLAIN)
    assert advice == {node.node: node.advice for node in seen.nodes}, seen
    for node in seen.nodes:
        assert ("hold" == node.advice) == bool(node.reasons), node
    assert ("hold" if "hold" in advice.values() else "promote") == seen.advice


def test_each_node_has_its_hold(empty_sqlite: str) -> None:
    """A pass on one node releases its hold alone; a fire that never reached a node holds the whole fleet."""
    good, bad = (
        NodeOutcome(node=name, variant=variant, advice=advice, reasons=(name,))
        for name, variant, advice in (("a", "H100", "promote"), ("b", "", "hold"))
    )
    ended = result(run_id=None, variant="", advice="hold", reasons=("1 of 2",))
    expected = [
        (replace(ended, nodes=(replace(good, advice="hold"), bad)), {"", "a", "b"}),
        (replace(ended, nodes=(good, bad)), {"", "b"}),
        (replace(ended, advice="promote", nodes=(good, replace(bad, advice="promote"))), set()),
        (replace(ended, state="failed", nodes=()), {""}),
        (replace(ended, advice="promote", nodes=(good,)), set()),
    ]
    with Store.open(empty_sqlite) as store:
        lease = lead(store)
        for minute, (one, held) in enumerate(expected):
            moment = due().scheduled_for.replace(minute=minute)
            store.canaries.file(lease, [due(at=moment)])
            fire = store.canaries.take(lease, "leader")
            assert fire is not None
            store.canaries.finish(lease, fire.id, one, says())
            assert held == {hold.node for hold in store.canaries.holds("nightly")}


def test_a_pass_that_ends_a_nodes_hold_is_told(tmp_path: Path, empty_sqlite: str) -> None:
    """As released; the alert is about no single node."""
    path = tmp_path / "nightly.yaml"
    alerts = "alerts: [{target: chat, kind: slack, url_env: X, events: [released]}]"
    path.write_text(f"canary: nightly\nmatrix: smoke\nfleet: {{}}\n{alerts}\n")
    loaded = load_canary(path, ["smoke"])
    passed = NodeOutcome(node="a", variant="H100", advice="promote", reasons=())
    ended: FireResult = result(run_id=None, variant="", advice="hold", nodes=(passed,))
    with Store.open(empty_sqlite) as store:
        lease = lead(store)
        before = replace(passed, advice="hold", variant="", reasons=("busy",))
        for minute, outcome in enumerate([before, passed]):
            store.canaries.file(lease, [due(at=due().scheduled_for.replace(minute=minute))])
            fire = store.canaries.take(lease, "leader")
            assert fire is not None
            one = replace(ended, nodes=(outcome,))
            letters = partial(letters_for, {"nightly": loaded}, one)
            store.canaries.finish(lease, fire.id, one, letters)
        (alert,) = store.canaries.alerts()
        assert "" == alert.body["node"]
