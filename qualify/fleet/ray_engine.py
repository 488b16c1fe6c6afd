"""Ray as the engine: one task on each node, pinned hard and started once. The only module that imports ray.

Ray may place tasks on one GPU one after another, repeats a task that crashes, and waits for ever for a busy node. So
the task takes all GPUs of its node, is never repeated, and the caller has deadlines of its own. The task itself tells
by UUID which card did what; Ray is never asked. What runs on a node is in on_node.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray._private.services import find_gcs_addresses
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    RayError,
    RayTaskError,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from qualify.errors import InfrastructureError, UsageError
from qualify.facts import codec
from qualify.facts.devices import HOST
from qualify.facts.fleet import CardState, ListedCard, NodePlan, NodeVerdict, unlisted_card
from qualify.fleet.engine import Heard, NodeBegun, NodeDone, NodeFile, NodeGone
from qualify.fleet.inventory import kind_of
from qualify.fleet.on_node import cards_here, run_plan
from qualify.text import first_line

DIED = 2
"""Ray's number for the end of a node that nobody asked for"""
AUTO = "auto"
"""what users of Ray type for the cluster that RAY_ADDRESS names, or that runs on this machine"""
KNOCK_S = 10.0
"""seconds within which an address must answer; Ray itself would try for many minutes"""
DOUBT_S = 5.0
"""seconds that Ray gets to notice that a node died; often it reports the end of the node's worker earlier"""
LOOK_S = 0.2
"""seconds between two looks at nodes in doubt, while no task runs"""
NODE_DIED = "the node died while its task ran"


def _no_cluster(address: str, error: Exception) -> InfrastructureError:
    return InfrastructureError(
        f"--address {address}: no Ray cluster there ({first_line(error)}). `ray status` shows the cluster; start one "
        "with `ray start --head`."
    )


def _knock(address: str) -> None:
    """Check that something listens at the host and port of an address; ``auto`` and ``local`` name none.

    Raises:
        InfrastructureError: nothing does.
    """
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _refuse_several(address: str) -> None:
    """Raises UsageError where ``auto`` may mean several clusters: Ray itself would take one of them."""
    named = os.environ.get("RAY_ADDRESS") or AUTO
    if address != AUTO or named != AUTO:
        return
    here = sorted(find_gcs_addresses())  # type: ignore[no-untyped-call]
    if len(here) > 1:
        raise UsageError(
            f"--address {AUTO}: {len(here)} Ray clusters run on this machine ({', '.join(here)}). Which one? Give its "
            "address, or set RAY_ADDRESS."
        )


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """This process answers SIGTERM as before: the answer that Ray puts in place would end the command at once."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


class RayEngine:
    """Nodes of one Ray cluster."""

    name = "ray"

    def __init__(self, address: str = "auto", program: Sequence[str] = ()) -> None:
        """Join the cluster.

        Args:
            address: as ``ray.init`` takes it; ``auto`` is the cluster that RAY_ADDRESS names, or that of this machine.
            program: command that runs a plan in place of ``qualify node``, for benchmarks.

        Raises:
            InfrastructureError: there is no cluster, or it refuses.
            UsageError: ``auto`` may mean several clusters.
        """
        self._program = tuple(program)
        self._tasks: dict[str, Any] = {}
        self._ids: dict[str, str] = {}
        """Ray's ids of nodes, also of those that are gone, by name"""
        self._gone: list[Heard] = []
        """nodes that left before their task could be placed, to be told"""
        self._doubted: dict[str, tuple[float, RayError]] = {}
        """nodes whose worker ended, with the time until which Ray may find that the whole node died"""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        _knock(address)
        if ray.is_initialized():
            return
        _refuse_several(address)
        try:
            with _own_sigterm():
                ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise _no_cluster(address, error) from error

    @property
    def where(self) -> str:
        """Which cluster it has joined, in words."""
        return f"the Ray cluster at {ray.get_runtime_context().gcs_address}"

    def nodes(self) -> list[str]:
        """Those that are alive."""
        return list(self._alive())

    def inventory(self, device: str, wait_s: float) -> dict[str, tuple[ListedCard, ...] | str]:
        """Asks every node at the same time; asking takes no resources, so a busy node answers as well."""
        nodes = self._alive()
        asked = {name: _task(cards_here, node, num_gpus=0).remote(device, name) for name, node in nodes.items()}
        until = time.monotonic() + wait_s
        found: dict[str, tuple[ListedCard, ...] | str] = {}
        for name, ref in asked.items():
            try:
                told = ray.get(ref, timeout=max(0.0, until - time.monotonic()))
                listed = codec.from_data(tuple[ListedCard, ...], told)
                found[name] = (*listed, *_unlisted(name, nodes[name], listed) * (kind_of(device) != HOST))
            except GetTimeoutError:
                found[name] = f"the node did not list its cards within {wait_s:g} s"
            except RayError as error:
                found[name] = f"the node did not list its cards: {_why(error)}"
        return found

    def left(self, node: str) -> tuple[CardState, str]:
        """Decide by what Ray noted when the node left."""
        known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        gone = next((it for it in known if it["NodeID"] == self._ids.get(node)), {})
        if gone.get("DeathReason") == DIED:
            return "LOST", f"the node died before its task began ({first_line(gone['DeathReasonMessage'])})"
        return "REFUSED", "the node left the cluster between plan and placement: it was drained"

    def place(self, plan: NodePlan) -> None:
        """With all GPUs of the node, as Ray counts them."""
        node = self._alive().get(plan.node)
        if node is None:
            state, reason = self.left(plan.node)
            self._gone.append(NodeGone(node=plan.node, state=state, reason=reason))
            return
        gpus = float(node["Resources"].get("GPU", 0.0))
        task = _task(run_plan, node, num_gpus=gpus, num_returns="streaming")
        self._tasks[plan.node] = task.remote(codec.to_data(plan), self._program)

    def hear(self, wait_s: float) -> list[Heard]:
        """What the tasks of all nodes have said."""
        if self._gone:
            gone, self._gone = self._gone, []
            return gone
        lost = self._lost()
        names = {id(task): name for name, task in self._tasks.items()}
        if lost or not names:
            time.sleep(LOOK_S * (not lost and bool(self._doubted)))
            return lost
        tasks = list(self._tasks.values())
        ray.wait(tasks, num_returns=1, timeout=wait_s, fetch_local=False)  # the first one need not wait for the others
        ready, _ = ray.wait(tasks, num_returns=len(tasks), timeout=0, fetch_local=False)
        return [heard for task in ready for heard in self._next(names[id(task)], task)]

    def cancel(self, node: str) -> None:
        """By force: the worker is killed, and what it started ends with it."""
        task = self._tasks.pop(node, None)
        self._doubted.pop(node, None)
        if task is not None:
            with suppress(RayError, ValueError, TypeError):  # it has ended meanwhile
                ray.cancel(task, force=True)

    def _next(self, name: str, task: Any) -> list[Heard]:
        """The next thing that a task says."""
        try:
            return [_heard(name, ray.get(next(task)))]
        except StopIteration:
            self._tasks.pop(name, None)
            return [NodeGone(node=name, state="LOST", reason="the node's task ended without an answer")]
        except RayError as error:
            self._tasks.pop(name, None)
            if isinstance(error, WorkerCrashedError):
                self._doubted[name] = (time.monotonic() + DOUBT_S, error)
                return []
            state, why = self.left(name) if isinstance(error, TaskUnschedulableError) else ("LOST", _why(error))
            return [NodeGone(node=name, state=state, reason=why)]

    def _lost(self) -> list[Heard]:
        """Nodes whose worker ended, once it is known whether it ended alone."""
        if not self._doubted:
            return []
        alive = {node["NodeID"] for node in self._alive().values()}
        died = {name for name in self._doubted if self._ids[name] not in alive}
        over = {name for name, (until, _) in self._doubted.items() if time.monotonic() >= until}
        told = {name: self._doubted.pop(name)[1] for name in sorted(died | over)}
        return [
            NodeGone(node=name, state="LOST", reason=NODE_DIED if name in died else _why(error))
            for name, error in told.items()
        ]

    def _alive(self) -> dict[str, dict[str, Any]]:
        """Nodes by name: the host's, with a part of the id where two have the same. A node keeps its first name."""
        alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        hosts = [node["NodeManagerHostname"] for node in alive]
        given = {node: name for name, node in self._ids.items()}
        named = {
            given.get(node["NodeID"]) or (host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:8]}"): node
            for host, node in zip(hosts, alive, strict=True)
        }
        self._ids |= {name: node["NodeID"] for name, node in named.items()}
        return named


def _unlisted(name: str, node: Mapping[str, Any], listed: Sequence[ListedCard]) -> tuple[ListedCard, ...]:
    """GPUs that Ray counts on a node and NVML does not list there: a missing card must not go unnoticed."""
    counted, known = int(node["Resources"].get("GPU", 0.0)), len(listed)
    model = listed[0].name if listed else ""
    return tuple(ListedCard(uuid=unlisted_card(name, number), name=model) for number in range(known + 1, counted + 1))


def _task(function: Any, node: Mapping[str, Any], **options: Any) -> Any:
    """A task on that node and on no other, started once."""
    pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=pinned, **options)


def _why(error: RayError) -> str:
    """What happened, in a line."""
    if isinstance(error, NodeDiedError):
        return NODE_DIED
    told = (error.cause or error) if isinstance(error, RayTaskError) else error
    return f"{type(error).__name__}: {first_line(told)}"


def _heard(name: str, said: tuple[Any, ...]) -> Heard:
    """What a task yields, as the engine says it."""
    match said:
        case ("begun",):
            return NodeBegun(node=name)
        case ("file", str(file), bytes(content)):
            return NodeFile(node=name, name=file, content=content)
        case ("done", str(answer), str(log)):
            try:
                told = json.loads(answer)
                fields = {key: told[key] for key in NodeVerdict.__dataclass_fields__}
                return NodeDone(node=name, verdict=codec.from_data(NodeVerdict, fields))
            except (ValueError, KeyError, TypeError, RecursionError):
                last = log.strip().splitlines()[-1:] or ["nothing"]
                return NodeGone(node=name, state="LOST", reason=f"`qualify node` gave no verdict; it said: {last[0]}")
    return NodeGone(node=name, state="LOST", reason="the node's task said something that is no answer")
