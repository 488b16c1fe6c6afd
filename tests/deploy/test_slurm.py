"""The Slurm array and its collector, run for real: munged, slurmctld and slurmd on loopback, a folder for all tasks."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import environment, write_cards, write_matrix, write_program
from sealing import new_pair

from qualify.facts.run import Run
from qualify.store import Store

ARRAY, COLLECT = (Path(__file__).resolve().parents[2] / f"deploy/slurm/{name}.sbatch" for name in ("array", "collect"))
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
CONF = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MinJobAge=600
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
"""


class Slurm:
    """A cluster of this one machine, with files of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("state", "spool"):
            (folder / name).mkdir()
        values = {"host": socket.gethostname().split(".")[0], "controller": port(), "daemon": port()}
        (folder / "slurm.conf").write_text(CONF.format(folder=folder, **values))
        self.environment = {**environment(), "SLURM_CONF": str(folder / "slurm.conf")}
        self.node = str(values["host"])
        self.logs: list[Path] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Start the daemons, each when the one before it answers."""
        folder = self.folder
        key = folder / "munge.key"
        subprocess.run([program("mungekey"), "--create", f"--keyfile={key}"], check=True)
        munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        self.processes += [self.start("munged", "--foreground", "--force", f"--key-file={key}", *munge)]
        self.until((folder / "munge.socket").exists)
        self.processes += [self.start("slurmctld", "-D", "-c"), self.start("slurmd", "-D", "-N", self.node)]
        self.until(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%t"))

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """A daemon in the foreground."""
        self.logs.append(self.folder / f"{name}.out")
        with self.logs[-1].open("wb") as log:
            return subprocess.Popen([program(name), *options], env=self.environment, stdout=log, stderr=log)

    def ask(self, name: str, *options: str, **more: str) -> str:
        """What a command prints."""
        given = {**self.environment, **more}
        done = subprocess.run(
            [program(name), *options], env=given, cwd=self.folder, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() or done.stderr.strip()

    def until(self, there, timeout_s: float = 60) -> None:
        """Waits for a condition; a failure shows what the daemons said."""
        end = time.monotonic() + timeout_s
        while not there():
            if time.monotonic() > end:
                raise AssertionError("\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in self.logs))
            time.sleep(0.3)

    def stop(self) -> None:
        """All daemons, the last one first."""
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def program(name: str) -> str:
    """Its path; Debian has daemons where a user's PATH does not look."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or pytest.skip(f"no {name}: slurm-wlm")


def port() -> int:
    """A free one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    """Not in pytest's folder, whose path is too long for a socket."""
    for name in PROGRAMS:
        program(name)
    if os.geteuid():
        pytest.skip("slurmd needs root")
    with tempfile.TemporaryDirectory(prefix="qualify-slurm-") as name:
        made = Slurm(Path(name))
        try:
            made.begin()
            yield made
        finally:
            made.stop()


def exported(tmp_path: Path) -> dict[str, str]:
    """What a user exports: a plan of two shards, a folder for results, a key, a store."""
    cards = write_cards(tmp_path / "cards", "correct", "wrong_numbers")
    matrix = write_matrix(
        tmp_path / "tiny.yaml", "correct", "wrong-numbers", seqlens=(8, 16), exclude=("*q16*/wrong-numbers",)
    )
    launcher = tmp_path / "qualify"
    launcher.write_text(f'#!/bin/sh\nexec {write_program(tmp_path / "bin")} "$@"\n')
    launcher.chmod(0o755)
    plan = {"matrix": str(matrix), "device": "cpu:1", "cards": [str(cards)], "spread": "shard", "shards": 2}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    pair = new_pair(tmp_path)
    return {
        "PLAN": str(tmp_path / "plan.json"), "RESULTS": str(tmp_path / "results"), "QUALIFY": str(launcher),
        "QUALIFY_SIGNING_KEY": str(pair.private), "SIGNED_BY": str(pair.public),
        "QUALIFY_DB": str(tmp_path / "evidence.db"),
    }  # fmt: skip


def whole_of(given: dict[str, str]) -> Run:
    """The one run that the shards make up, besides theirs."""
    with Store.open(given["QUALIFY_DB"], create=False) as store:
        runs = store.runs()
        (whole,) = (run for run in runs if run.placement and run.placement.is_whole)
        assert (3, 3) == (len(runs), len(store.records(whole.id)))
        assert store.evidence(whole.id).seal
    return whole


@pytest.mark.slow
def test_the_scripts_share_a_matrix(tmp_path: Path) -> None:
    """As Slurm starts them: one task is not there yet, so nothing is joined; then two collectors join once."""
    given = {**environment(), **exported(tmp_path), "SLURM_ARRAY_JOB_ID": "7", "SLURMD_NODENAME": "n1"}

    def start(script: Path, *words: str, **more: str) -> subprocess.Popen[str]:
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(["sh", str(script), *words], env={**given, **more}, cwd=tmp_path, text=True, **pipe)

    def end(process: subprocess.Popen[str]) -> tuple[int, str]:
        said = process.communicate(timeout=240)[0]
        return process.returncode, said

    assert 0 == end(start(ARRAY, SLURM_ARRAY_TASK_ID="1"))[0]
    code, said = end(start(COLLECT, "7"))
    assert (5, True) == (code, "of 2 shards, 1 missing. shard 2: no run of it is in the store" in said), said
    assert 1 == end(start(ARRAY, SLURM_ARRAY_TASK_ID="2"))[0]
    ended = [end(it) for it in [start(COLLECT, "7"), start(COLLECT, "7")]]
    assert [1, 1] == [code for code, _ in ended], ended
    whole = whole_of(given)
    assert all(f"the shares make up run {whole.id}" in said for _, said in ended)


@pytest.mark.slow
def test_the_array_runs(slurm: Slurm, tmp_path: Path) -> None:
    """Each task runs its shard, and ends with the node's exit code; one too many is said. The last job joins them."""
    given = exported(tmp_path)
    job = slurm.ask("sbatch", "--array=1-3", "--parsable", f"--chdir={tmp_path}", str(ARRAY), **given)
    assert job.isdecimal(), job
    after = ("--parsable", f"--dependency=afterany:{job}", f"--chdir={tmp_path}")
    last = slurm.ask("sbatch", *after, str(COLLECT), job, **given)
    assert last.isdecimal(), last
    slurm.until(lambda: not slurm.ask("squeue", "--noheader"), 240)
    codes = {}
    for block in slurm.ask("scontrol", "show", "job").split("\n\n"):
        fields = dict(word.split("=", 1) for word in block.split() if "=" in word)
        codes[fields.get("ArrayTaskId", "last")] = fields["ExitCode"]
    logs = "\n".join(path.read_text() for path in sorted(tmp_path.glob("qualify-*.log")))
    assert {"1": "0:0", "2": "1:0", "3": "2:0", "last": "1:0"} == codes, logs
    assert "the plan has shards 1 to 2, and not 3" in logs
    whole = whole_of(given)
    assert whole.placement is not None
    assert f"slurm-{job}" == whole.placement.fleet
