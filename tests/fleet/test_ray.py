"""A fleet on a real Ray cluster of several nodes on this machine, with everything that goes wrong on some of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cli_process import ROOT, call, write_program
from fleet_examples import CARD, write_spoiling, write_toy

from qualify.cards.load import load_kernels, load_matrix
from qualify.errors import LeaseLost, NoVerdict
from qualify.facts.fleet import FleetCard, NodePlan
from qualify.fleet import drive
from qualify.fleet.drive import FleetOrder
from qualify.fleet.engine import Heard, NodeBegun, NodeFile
from qualify.fleet.lead import run_fleet
from qualify.fleet.shares import cells_of
from qualify.judge.fleet import coverage_of, exit_code_of
from qualify.plan.plan import make_plan
from qualify.store.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

QUICK = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_AUTH_MODE": "disabled",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "600000",
}
"""A node that died is noticed within seconds. A worker is kept for the next test, as where a node has processors."""
SEQLENS = (8, 10, 12, 14, 16, 18, 20, 22, 24, 64)
"""one, as many as share a profiler session, and one: while the last has a node in trouble, the others have outcomes"""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The cluster, and its nodes by the role that they play."""

    cluster: Any
    by_role: dict[str, Any]
    matrix: Path
    cards: Path

    def name(self, role: str) -> str:
        """What the engine calls the node."""
        import ray

        (host,) = {node["NodeManagerHostname"] for node in ray.nodes()}
        return f"{host}-{self.by_role[role].node_id[:8]}"

    def order(self, **changes: Any) -> FleetOrder:
        """Every card runs all."""
        plan = NodePlan(
            matrix=str(self.matrix),
            matrix_hash=load_matrix(str(self.matrix), (self.cards,), {}).content_hash,
            device="cpu:1",
            cards=(str(self.cards),),
            interim_s=0.3,
            deadline_s=changes.pop("deadline_s", None),
        )
        return FleetOrder(plan=plan, matrix="toy", **changes)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A head that has no card, and a node for each role."""
    import ray
    from ray.cluster_utils import Cluster

    from qualify.fleet.ray_engine import RayEngine

    folder = tmp_path_factory.mktemp("fleet")
    cards = write_spoiling(folder / "cards")
    shutil.copy(Path(__file__).with_name("roles.py"), cards / "roles.py")
    (cards / "hold").touch()
    (cards / "roles.yaml").write_text(CARD.replace("spoiling:attend", "roles:attend").replace("spoiling", "roles"))
    before = dict(os.environ)
    # Sockets have short paths.
    short = tempfile.mkdtemp(prefix="r", dir="/tmp")
    os.environ.update(QUICK, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", RAY_TMPDIR=short)
    # Nobody looks at Ray's logs, and its autoscaler has nothing to scale: two processes less.
    small = {"num_cpus": 0, "num_gpus": 1, "object_store_memory": 80 << 20}
    small |= {"include_log_monitor": False, "no_monitor": True}
    cluster = Cluster()
    try:
        by_role = {
            role: _added(cluster, **small, env_vars={"ROLE": role, **more})
            for role, more in {
                "good": {},  # the first one is the head
                "killed": {},
                "segfault": {},
                "late": {"OMP_DYNAMIC": "FALSE"},
                "busy": {},
                "drained": {},
            }.items()
        }
        RayEngine(cluster.address)
        yield Nodes(cluster=cluster, by_role=by_role, matrix=write_toy(folder, *SEQLENS, kernel="roles"), cards=cards)
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(short, ignore_errors=True)


def _added(cluster: Any, **options: Any) -> Any:
    """A node; Ray gives up where it is not up within 30 s, which on a busy machine may happen once."""
    try:
        return cluster.add_node(**options)
    except Exception:  # noqa: BLE001 - it has no class of its own
        return cluster.add_node(**options)


def engine_of(nodes: Nodes) -> Any:
    """An engine that meets what can happen: a node is drained after the plan, another killed while it runs.

    What its nodes start is forked; for the second of two leaders a node starts what users' nodes start.
    """
    from qualify.fleet.ray_engine import RayEngine

    class Troubled(RayEngine):
        killed = drained = False

        def inventory(self, device: str, wait_s: float) -> Any:
            found = super().inventory(device, wait_s)
            twin = found[nodes.name("good")][0]
            # Two nodes of a cloned virtual machine, or of a broken driver, show one card.
            return found | {"clone-1": (replace(twin, uuid="GPU-9"),), "clone-2": (replace(twin, uuid="GPU-9"),)}

        def nodes(self) -> list[str]:
            if not self.drained:
                self.drained = True
                nodes.cluster.remove_node(nodes.by_role["drained"], allow_graceful=True)
                until = time.monotonic() + 30
                while drained in super().nodes() and time.monotonic() < until:
                    time.sleep(0.2)
            return super().nodes()

        def hear(self, wait_s: float) -> list[Heard]:
            heard = super().hear(wait_s)
            if not self.killed and any(isinstance(it, NodeFile) and it.node == killed for it in heard):
                self.killed = True
                nodes.cluster.remove_node(nodes.by_role["killed"], allow_graceful=False)
            return heard

    killed, drained = nodes.name("killed"), nodes.name("drained")
    return Troubled(program=forked(nodes))


def forked(nodes: Nodes) -> tuple[str, ...]:
    """What runs a plan on a node as `qualify node` does, from a Python that has imported torch."""
    program = write_program(nodes.cards / "bin")
    return ("/bin/sh", "-c", f'RAY_WORKER=$PPID exec {program} node "$@"', "node")


def occupy(node: Any) -> Any:
    """Somebody else's task, which has all GPUs of a node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def use() -> None:
        time.sleep(600)

    pinned = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    return ray.remote(use).options(num_gpus=1, num_cpus=0, max_retries=0, scheduling_strategy=pinned).remote()


def test_every_trouble_costs_only_its_own_card(nodes: Nodes, tmp_path: Path) -> None:
    """One fleet: covered, killed in mid-run, crashed, late, busy, drained, and a UUID that two nodes claim."""
    import ray

    used = occupy(nodes.by_role["busy"])
    said: list[str] = []
    (tmp_path / "spool").mkdir()
    names = {role: nodes.name(role) for role in nodes.by_role}
    with Store.open(str(tmp_path / "s.db")) as store:
        order = nodes.order(start_s=25.0, deadline_s=40.0)
        try:
            fleet = run_fleet(engine_of(nodes), order, store, tmp_path / "spool", said.append)
        finally:
            ray.cancel(used, force=True)
        found, votes = coverage_of(store, fleet)
        by_node = {card.node: card for card in found.cards}
        _check_states(names, by_node)
        _check_runs(store, names, by_node)
        assert (False, 5, []) == (found.enough, exit_code_of(found, votes), votes)
        assert 2 == len(found.stacks), found.stacks
        assert {names["late"]} in [set(some) for some in found.stacks.values()]
        assert "GPU-9: clone-1 and clone-2 claim this UUID" in found.fleet.notes[0]
    assert [] == list((tmp_path / "spool").iterdir())


def _check_states(names: dict[str, str], by_node: dict[str, FleetCard]) -> None:
    expected = {
        "good": ("COVERED", ""),
        "killed": ("LOST", "the node died while its task ran"),
        "segfault": ("LOST", "WorkerCrashedError"),
        "late": ("LOST", "did not end within the deadline of 40 s"),
        "busy": ("BUSY", "the node began nothing within 25 s"),
        "drained": ("REFUSED", "left the cluster between plan and placement"),
    }
    found = {role: by_node[name] for role, name in names.items()}
    assert {role: state for role, (state, _) in expected.items()} == {role: it.state for role, it in found.items()}
    assert [] == [role for role, (_, why) in expected.items() if why not in found[role].reason], found
    assert "REFUSED" == by_node["clone-1"].state


def _check_runs(store: Store, names: dict[str, str], by_node: dict[str, FleetCard]) -> None:
    """Of lost nodes the cases that had ended are there, as interrupted runs."""
    done = {}
    for role in ("good", "killed", "late"):
        run_id = by_node[names[role]].run_id
        assert run_id is not None, role
        done[role] = (store.run(run_id).state, len(store.done(run_id)))
    assert {"good": ("completed", 10), "late": ("interrupted", 9)} == {role: done[role] for role in ("good", "late")}
    state, count = done["killed"]
    assert ("interrupted", True) == (state, 1 <= count <= 9)
    assert ("PASS", None) == (by_node[names["good"]].verdict, by_node[names["killed"]].verdict)


SIGNALLED = """
import os, signal, sys
from qualify.cli.interrupts import Interrupts
from qualify.fleet.ray_engine import RayEngine

with Interrupts():
    RayEngine(sys.argv[1])
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        os._exit(0)
"""


def test_sigterm_is_still_answered_after_the_cluster_was_joined(nodes: Nodes) -> None:
    """Ray puts an answer of its own in place: it ended the command at once, without what all others do."""
    command = [sys.executable, "-c", SIGNALLED, nodes.cluster.address]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (0, "interrupted\n") == (ended.returncode, ended.stdout), ended.stderr


def test_a_node_that_is_killed_before_its_task_began_is_lost(nodes: Nodes, tmp_path: Path) -> None:
    """Its card was in use, so the task waited; the node was not drained: it died."""
    import ray

    from qualify.fleet.ray_engine import RayEngine

    late = nodes.name("late")
    used = occupy(nodes.by_role["late"])

    class One(RayEngine):
        killed = False

        def _alive(self) -> Any:
            return {name: node for name, node in super()._alive().items() if name == late}

        def hear(self, wait_s: float) -> list[Heard]:
            if not self.killed:
                self.killed = True
                nodes.cluster.remove_node(nodes.by_role["late"], allow_graceful=False)
            return super().hear(wait_s)

    (tmp_path / "spool").mkdir()
    with Store.open(str(tmp_path / "s.db")) as store:
        (card,) = store.fleets.cards(run_fleet(One(), nodes.order(), store, tmp_path / "spool", print))
    ray.cancel(used, force=True)
    assert ("LOST", True) == (card.state, "the node died before its task began" in card.reason), card


def test_a_leader_that_was_succeeded_writes_nothing(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two leaders of one fleet: the second covers the card in another attempt, the first one only ends."""
    from qualify.fleet.ray_engine import RayEngine

    (nodes.cards / "hold").unlink(missing_ok=True)
    good = nodes.name("good")
    wake, asleep = threading.Event(), threading.Event()

    class One(RayEngine):
        def _alive(self) -> Any:
            return {good: super()._alive()[good]}

    class Sleepy(One):
        def hear(self, wait_s: float) -> list[Heard]:
            asleep.set()
            wake.wait(120)
            return super().hear(wait_s)

    monkeypatch.setattr(drive, "LEASE_S", 0.5)
    monkeypatch.setattr(drive, "BEAT_S", 0.0)
    order = nodes.order()
    order = replace(order, plan=replace(order.plan, select="*/b1.q8.*"))
    ended: list[object] = []
    db, program = str(tmp_path / "s.db"), forked(nodes)

    def lead(spool: Path) -> None:
        with Store.open(db) as store:
            try:
                ended.append(run_fleet(Sleepy(program=program), order, store, spool, print))
            except LeaseLost as error:
                ended.append(error)

    spools = [tmp_path / "first", tmp_path / "second"]
    for spool in spools:
        spool.mkdir()
    first = threading.Thread(target=lead, args=(spools[0],))
    first.start()
    assert asleep.wait(60)
    time.sleep(0.6)
    monkeypatch.setattr(drive, "LEASE_S", 60.0)
    with Store.open(db) as store:
        again = store.fleets.fleet("latest").id
        assert again == run_fleet(One(), replace(order, again=again), store, spools[1], print)
        wake.set()
        first.join(60)
        assert isinstance(ended[0], LeaseLost), ended
        (card,) = store.fleets.cards(again)
        assert ("COVERED", 2, 2, "PASS") == (card.state, card.attempt, card.epoch, card.verdict)
        assert 1 == len(store.runs())
        with pytest.raises(NoVerdict, match="every card of fleet"):
            run_fleet(One(), replace(order, again=again), store, spools[1], print)


def test_nodes_share_a_matrix_and_one_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    """The others run what it had not ended; every shape counts once, and coverage says which card ran it.

    They wait until it has begun its second share, so that it has ended one.
    """
    from qualify.fleet.ray_engine import RayEngine

    (nodes.cards / "hold").unlink(missing_ok=True)
    wait = nodes.cards / "wait"
    wait.touch()
    names = {role: nodes.name(role) for role in ("good", "busy", "segfault")}
    victim = names["segfault"]
    begun: list[str] = []

    class Three(RayEngine):
        killed = False

        def inventory(self, device: str, wait_s: float) -> Any:
            found = super().inventory(device, wait_s)
            return {name: found[name] for name in names.values()}

        def hear(self, wait_s: float) -> list[Heard]:
            heard = super().hear(wait_s)
            begun.extend(it.node for it in heard if isinstance(it, NodeBegun))
            if begun.count(victim) == 2 and not self.killed:
                self.killed = True
                nodes.cluster.remove_node(nodes.by_role["segfault"], allow_graceful=False)
                wait.unlink()
            return heard

    loaded = load_matrix(str(nodes.matrix), (nodes.cards,), {})
    cells = cells_of(make_plan(loaded, load_kernels((nodes.cards,))), selected=False)
    order = nodes.order(cells=cells)
    order = replace(order, plan=replace(order.plan, spread="shard"))
    (tmp_path / "spool").mkdir()
    with Store.open(str(tmp_path / "s.db")) as store:
        try:
            fleet = run_fleet(Three(program=forked(nodes)), order, store, tmp_path / "spool", print)
        finally:
            wait.unlink(missing_ok=True)
        found, votes = coverage_of(store, fleet)
    assert (1.0, 0, []) == (found.share, exit_code_of(found, votes), votes), found
    assert ("LOST", "the node died while its task ran") == next(
        (card.state, card.reason) for card in found.cards if card.node == victim
    )
    counted = [cell for share in found.shares if share.state == "COVERED" for cell in share.cells]
    assert sorted(cells) == sorted(counted)
    lost = {cell for share in found.shares if share.state == "LOST" for cell in share.cells}
    assert lost
    assert lost <= {cell for share in found.shares if share.node != victim for cell in share.cells}
    assert len(SEQLENS) == sum(map(len, found.ran.values()))
    assert 2 <= len(found.ran)
    gate = call("gate", "--json", "--cards", nodes.cards, "--db", tmp_path / "s.db", cwd=tmp_path)
    told = json.loads(gate.out)
    assert (0, found.whole, len(SEQLENS)) == (gate.code, told["run"], len(told["cases"])), gate.err
    assert any(f"on {victim} does not count: LOST" in note for note in told["notes"])


def test_a_node_whose_worker_ended_first_died_all_the_same(nodes: Nodes, tmp_path: Path) -> None:
    """Of a node that dies, the end of its worker may be heard first: that alone is no crash.

    The last node of the host is called as before.
    """
    from qualify.fleet.ray_engine import RayEngine

    dying, good, watching = nodes.name("busy"), nodes.name("good"), RayEngine()
    assert {dying, good} <= set(watching.nodes())
    struck = nodes.cards / "struck"
    struck.unlink(missing_ok=True)
    for name in ("hold", "strike"):
        (nodes.cards / name).touch()

    class One(RayEngine):
        killed = False

        def _alive(self) -> Any:
            return {name: node for name, node in super()._alive().items() if name == dying}

        def hear(self, wait_s: float) -> list[Heard]:
            if not self.killed and struck.exists():
                self.killed = True
                time.sleep(1.0)  # in which Ray notes that the worker ended
                heard = super().hear(wait_s)
                nodes.cluster.remove_node(nodes.by_role["busy"], allow_graceful=False)
                return heard
            return super().hear(wait_s)

    (tmp_path / "spool").mkdir()
    with Store.open(str(tmp_path / "s.db")) as store:
        (card,) = store.fleets.cards(
            run_fleet(One(program=forked(nodes)), nodes.order(), store, tmp_path / "spool", print)
        )
    assert ("LOST", "the node died while its task ran") == (card.state, card.reason)
    assert dying not in watching.nodes()
    assert good in watching.nodes()
