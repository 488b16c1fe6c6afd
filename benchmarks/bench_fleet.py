"""The cost of a fleet beyond its cases: Ray's placing on simulated GPUs; planning, reading and judging many cards.

Without ``--ray`` and ``--ingest``, the leader of a fleet plans cards and reads their sealed files. The full size is
``--cards=2000``.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import addresses, command_line, evidence, machine, peak_bytes, show, small
from securesystemslib.signer import CryptoSigner

from qualify.cards.load import load_kernels, load_matrix
from qualify.facts import codec
from qualify.facts.fleet import CardState, NodePlan, NodeVerdict
from qualify.facts.placement import Placement
from qualify.facts.run import Record, Run
from qualify.fleet.drive import FleetOrder
from qualify.fleet.engine import Heard, NodeBegun, NodeDone, NodeFile
from qualify.fleet.inventory import list_cards
from qualify.fleet.lead import run_fleet
from qualify.judge.fleet import coverage_of
from qualify.plan.plan import make_plan
from qualify.seal.form import line, plain, run_data
from qualify.seal.keys import with_public
from qualify.seal.parts import parts_of
from qualify.seal.sealed import make_seal
from qualify.store import archive, transfer
from qualify.store.store import Store

if TYPE_CHECKING:
    from qualify.fleet.ray_engine import RayEngine

WORK_S = 60.0
"""seconds that the cases of each simulated card take"""
MATRIX = """\
matrix: m
models:
  - model: toy
    geometry: {{groups: [{{layers: [0], heads_q: 2, heads_kv: 2, head_dim: 32, mask: causal}}]}}
phases: {{prefill: {{seqlen: [{cases}]}}}}
dtypes: [fp32]
kernels: [tiled-torch]
"""
SLEEPER = """\
import json, sys, time
plan = json.load(open(sys.argv[1]))
began = time.time()
time.sleep(float({work_s}))
cards = [dict(uuid=uuid, name="simulated", state="COVERED", run="", verdict="PASS") for uuid in plan["expected"]]
print(json.dumps(dict(node=plan["node"], fleet=plan["fleet"], attempt=plan["attempt"], matrix="m", device="cpu",
    verdict="PASS", exit_code=0, cards=cards, files=[], wall_s=time.time() - began, votes=[])))
"""


def main() -> None:
    """Measure the part of the leader, or the part that ``--ray`` or ``--ingest`` names."""
    parser = command_line(__doc__, evidence=True, databases=True)
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--ray", action="store_true", help="place node runners that sleep in place of their cases")
    part.add_argument("--ingest", action="store_true", help="give qualify ingest a folder of sealed files")
    for name, usual, little, what in (
        ("cards", 200, 3, "cards with evidence"),
        ("cases", 500, 5, "cases of each card"),
        ("nodes", 8, 1, "nodes for --ray"),
        ("gpus", 8, 2, "simulated GPUs of each node"),
    ):
        size = little if small() else usual
        parser.add_argument(f"--{name}", type=int, default=size, metavar="N", help=f"{what}; default: %(default)s")
    asked = parser.parse_args()
    machine()
    if asked.ray:
        _measure_ray(asked.nodes, asked.gpus)
    else:
        _measure(_measure_ingest if asked.ingest else _measure_fleet, asked)


def _measure_ray(nodes: int, gpus: int) -> None:
    """Measure a fleet whose node runners only sleep: all further time is spent by Ray, the leader and the store."""
    import ray  # noqa: PLC0415 - the other parts do not need it
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    from qualify.fleet.ray_engine import RayEngine  # noqa: PLC0415

    work_s = 2.0 if small() else WORK_S
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_AUTH_MODE="disabled",
        RAY_enable_worker_prestart="0",
        PYTHONWARNINGS="ignore",
        RAY_raylet_start_wait_time_s="180",
    )
    with tempfile.TemporaryDirectory(prefix="f", dir="/tmp") as name:  # paths of sockets must be short
        os.environ["RAY_TMPDIR"] = name
        folder = Path(name)
        (folder / "sleeper.py").write_text(SLEEPER.format(work_s=work_s))
        cluster: Any = Cluster()
        try:
            for _ in range(nodes):
                cluster.add_node(num_cpus=0, num_gpus=gpus, object_store_memory=80 << 20)
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
            engine = _Watched(RayEngine(program=(sys.executable, str(folder / "sleeper.py"))))
            (folder / "m.yaml").write_text(MATRIX.format(cases=1))
            order = FleetOrder(plan=NodePlan(matrix=str(folder / "m.yaml"), device=f"cpu:{gpus}"), matrix="m")
            before, began = _cpu_by_role(), time.perf_counter()
            with Store.open(str(folder / "s.db")) as store:
                fleet = run_fleet(engine, order, store, folder, lambda _: None)
                took, after = time.perf_counter() - began, _cpu_by_role()
                cards = store.fleets.cards(fleet)
        finally:
            ray.shutdown()
            cluster.shutdown()
    assert nodes * gpus == len(cards)
    show(f"Ray: {nodes} nodes of {gpus} simulated GPUs, {work_s:g} s of cases", took, "s")
    show("Ray: share beyond the cases", (took / work_s - 1) * 100, "%")
    for what, seconds in engine.took_s(work_s).items():
        show(f"Ray: {what}", seconds, "s")
    for role in after:
        per = "" if role == "leader" else " for a node"
        used = (after[role] - before.get(role, 0.0)) / (1 if role == "leader" else nodes)
        show(f"Ray: CPU of {role}{per}", used, "s")


class _Watched:
    """An engine that notes when each node was placed, began and answered."""

    def __init__(self, engine: RayEngine) -> None:
        self._engine, self.name, self.nodes = engine, engine.name, engine.nodes
        self.cancel, self.left = engine.cancel, engine.left
        self._listed_s = 0.0
        self._at: dict[str, dict[str, float]] = {"placed": {}, "begun": {}, "done": {}}

    def inventory(self, device: str, wait_s: float) -> Any:
        """As the engine."""
        began = time.perf_counter()
        found = self._engine.inventory(device, wait_s)
        self._listed_s = time.perf_counter() - began
        return found

    def place(self, plan: NodePlan) -> None:
        """As the engine."""
        self._at["placed"][plan.node] = time.perf_counter()
        self._engine.place(plan)

    def hear(self, wait_s: float) -> list[Heard]:
        """As the engine."""
        heard = self._engine.hear(wait_s)
        for one in heard:
            kind = {NodeBegun: "begun", NodeDone: "done"}.get(type(one))
            if kind:
                self._at[kind][one.node] = time.perf_counter()
        return heard

    def took_s(self, work_s: float) -> dict[str, float]:
        """Seconds of a fleet beyond its cases, by part; each is the longest of all nodes."""
        placed, begun, done = self._at.values()
        return {
            "until all nodes had listed their cards": self._listed_s,
            "from the placing of a node to its begin": max(begun[name] - placed[name] for name in placed),
            "from its begin to its answer, without the cases": max(done[it] - begun[it] for it in placed) - work_s,
        }


def _cpu_by_role() -> dict[str, float]:
    """CPU seconds by role, of this process and all its descendants, including ended ones."""
    found: dict[str, float] = dict.fromkeys(("leader", "its tasks and node runners", "Ray's daemons"), 0.0)
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            task = words.startswith(b"ray::") or b"default_worker" in words or b"sleeper" in words
            role = "leader" if pid == os.getpid() else "its tasks and node runners" if task else "Ray's daemons"
            ended = 0 if pid == os.getpid() else int(fields[13]) + int(fields[14])
            found[role] += (int(fields[11]) + int(fields[12]) + ended) / os.sysconf("SC_CLK_TCK")
    return found


def _measure(part: Callable[[str, str, Path, Files, int], None], asked: argparse.Namespace) -> None:
    """Measure one part on each database."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        matrix = folder / "m.yaml"
        matrix.write_text(MATRIX.format(cases=", ".join(map(str, range(1, asked.cases + 1)))))
        files = Files(folder, *planned(matrix, *evidence(asked.cases, folder, asked.evidence)))
        with addresses(folder, asked.database) as databases:
            for database, address in databases.items():
                part(database, address, folder, files, asked.cards)


def planned(matrix: Path, run: Run, measured: list[Record]) -> tuple[Run, list[Record]]:
    """A run of that matrix in which cases have outcomes of measured ones, so that it fits the plan of a leader."""
    loaded = load_matrix(str(matrix))
    cases = make_plan(loaded, load_kernels()).cases
    records = [replace(record, case=case) for record, case in zip(measured, cases, strict=True)]
    made = replace(
        run, matrix="m", matrix_source=loaded.source, matrix_hash=loaded.content_hash, matrix_path=str(matrix)
    )
    return replace(made, select="", kernel="", planned=len(cases)), records


def _measure_ingest(database: str, address: str, folder: Path, files: Files, count: int) -> None:
    """Measure ``qualify ingest`` on a folder of files: time, CPU seconds of its processes and of the server, memory."""
    runs = folder / "runs"
    runs.mkdir(exist_ok=True)
    for number in range(count):
        path, content = files.make(number, Placement(node="n", spread="repeat", cards=(f"CPU-n-{number}",)))
        (runs / path).write_bytes(content)
    Store.open(address).close()
    server, before, began = _server_cpu_s(), resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "qualify", "ingest", str(runs), "--signed-by", str(files.public), "--db", address]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        most = max(most, _resident_bytes(process.pid))
        time.sleep(0.2)
    assert process.returncode == 0
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    show(f"{database}: qualify ingest, {count:,} sealed files of {files.cases} cases", took, "s")
    show(f"{database}: CPU of its processes for a file", used / count * 1e3, "ms")
    show(f"{database}: CPU of the server for a file", (_server_cpu_s() - server) / count * 1e3, "ms")
    show(f"{database}: most memory of its processes together", most / 1e6, "MB")
    with Store.open(address) as store:
        assert count == len(store.runs(limit=None))


def _server_cpu_s() -> float:
    """CPU seconds of all PostgreSQL processes of this machine, including ended ones."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = path.read_text().rpartition(")")
            if name.partition("(")[2].startswith("postgres"):
                fields = rest.split()
                ended = map(int, fields[13:15]) if "-D" in _words(path) else ()  # the server counts its ended children
                ticks += int(fields[11]) + int(fields[12]) + sum(ended)
    return ticks / os.sysconf("SC_CLK_TCK")


def _words(stat: Path) -> list[str]:
    """The command line of a process."""
    return (stat.parent / "cmdline").read_bytes().decode(errors="replace").split("\0")


def _resident_bytes(pid: int) -> int:
    """Resident bytes of a process and of its descendants."""
    found = 0
    with suppress(OSError):
        found = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found += sum(_resident_bytes(int(child)) for child in children)
    return found


def _measure_fleet(database: str, address: str, folder: Path, files: Files, count: int) -> None:
    """Measure the leader: plan all cards, read one file of each, then report coverage, slow cards and votes."""
    engine = _Replaying(files, count)
    order = FleetOrder(plan=NodePlan(matrix=str(folder / "m.yaml"), device=f"cpu:{PER_NODE}"), matrix="m")
    spool = folder / "spool"
    spool.mkdir(exist_ok=True)
    with Store.open(address) as store:
        server, before, began = _server_cpu_s(), time.process_time() + _children_cpu_s(), time.perf_counter()
        fleet = run_fleet(engine, order, store, spool, lambda _: None)
        took = time.perf_counter() - began - engine.making_s
        used = time.process_time() + _children_cpu_s() - before - engine.making_cpu_s
        show(f"{database}: {count:,} cards of {files.cases} cases planned and taken in", took, "s")
        show(f"{database}: CPU of the leader's processes for a card", used / count * 1e3, "ms")
        show(f"{database}: CPU of the server for a card", (_server_cpu_s() - server) / count * 1e3, "ms")
        began, cpu = time.perf_counter(), time.process_time()
        found, votes = coverage_of(store, fleet)
        show(f"{database}: coverage, slow cards and votes of them", time.perf_counter() - began, "s")
        show(f"{database}: CPU of the command for that", time.process_time() - cpu, "s")
        assert (1.0, []) == (found.share, votes)
    show(f"{database}: most memory of the leader", peak_bytes() / 1e6, "MB")


def _children_cpu_s() -> float:
    """CPU seconds of this process's ended children."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


PER_NODE = 8


class Files:
    """Sealed files with the same evidence for different runs and cards. Their common part is made only once."""

    def __init__(self, folder: Path, run: Run, records: list[Record]) -> None:
        signer = CryptoSigner.generate_ed25519()
        self._key, self._run = with_public(signer, "a node's key"), run
        self.public = folder / "node.pem"
        self.public.write_text(self._key.public.text)
        self.cases = len(records)
        whole = archive.RunArchive(run=run, cases=[record.case for record in records], outcomes=records)
        lines = list(whole.lines)
        self._parts = parts_of(lines)
        self._body = b"".join(map(line, lines[:-1]))

    def make(self, number: int, place: Placement) -> tuple[str, bytes]:
        """(name, content) of the file of one card."""
        assert self._run.stack is not None
        stack = replace(self._run.stack, device=replace(self._run.stack.device, uuid=place.cards[0]))
        run = replace(self._run, id=f"{self._run.id}-{number}", placement=place, stack=stack)
        said = run_data(run)
        self._parts.add(said)
        body = self._body + line(said)
        seal = make_seal(run.id, run.state, hashlib.sha256(body).hexdigest(), self._parts, self._key)
        text = line({"format": transfer.FORMAT}) + body + line({"seal": plain(seal)})
        text += line({"sha256": hashlib.sha256(text).hexdigest()})
        return f"{run.id}.jsonl.gz", gzip.compress(text, 6)


class _Replaying:
    """An engine whose cards answer with copies of one run, which are made on demand."""

    name = "replay"

    def __init__(self, files: Files, count: int) -> None:
        self.making_s = self.making_cpu_s = 0.0
        self._files, self._count, self._made = files, count, 0
        self._placed: list[NodePlan] = []

    def nodes(self) -> list[str]:
        """Names of as many nodes as the cards need."""
        return [f"n{number}" for number in range(-(-self._count // PER_NODE))]

    def inventory(self, device: str, wait_s: float) -> dict[str, Any]:
        """Simulated cards of all nodes."""
        left = {name: self._count - place * PER_NODE for place, name in enumerate(self.nodes())}
        return {name: list_cards(f"cpu:{min(PER_NODE, count)}", name) for name, count in left.items()}

    def left(self, node: str) -> tuple[CardState, str]:
        """No card is lost."""
        raise AssertionError(node)

    def place(self, plan: NodePlan) -> None:
        """Note the plan; :meth:`hear` gives its answers."""
        self._placed.append(plan)

    def hear(self, wait_s: float) -> list[Heard]:
        """The answers of one node."""
        began, cpu = time.perf_counter(), time.process_time()
        said = self._ran(self._placed.pop()) if self._placed else []
        self.making_s += time.perf_counter() - began
        self.making_cpu_s += time.process_time() - cpu
        return said

    def cancel(self, node: str) -> None:
        """Do nothing, because nothing runs."""

    def _ran(self, plan: NodePlan) -> list[Heard]:
        files = [self._file(plan, uuid) for uuid in plan.expected or ()]
        cards = tuple(
            {"uuid": uuid, "name": "", "state": "COVERED", "run": file.name[: -len(".jsonl.gz")], "verdict": "PASS"}
            for uuid, file in zip(plan.expected or (), files, strict=True)
        )
        told = {"node": plan.node, "fleet": plan.fleet, "attempt": plan.attempt, "matrix": "m", "verdict": "PASS"}
        told["device"] = "cpu"
        done = codec.from_data(NodeVerdict, {**told, "exit_code": 0, "cards": cards, "files": (), "wall_s": 1.0})
        return [NodeBegun(node=plan.node), *files, NodeDone(node=plan.node, verdict=done)]

    def _file(self, plan: NodePlan, uuid: str) -> NodeFile:
        self._made += 1
        place = Placement(node=plan.node, spread="repeat", cards=(uuid,), fleet=plan.fleet)
        name, content = self._files.make(self._made, place)
        return NodeFile(node=plan.node, name=name, content=content)


if __name__ == "__main__":
    main()
