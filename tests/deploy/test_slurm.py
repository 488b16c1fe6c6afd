"""The Slurm array, run for real: munged, slurmctld and slurmd on loopback, and a folder that all tasks write."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import call, environment, write_cards, write_matrix
from sealing import new_pair

from qualify.store import Store

SCRIPT = Path(__file__).resolve().parents[2] / "deploy/slurm/array.sbatch"
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


@pytest.mark.slow
def test_the_array_runs(slurm: Slurm, tmp_path: Path) -> None:
    """Each task runs its line, leaves a sealed run and ends with the node's exit code; one line too few is said."""
    cards = write_cards(tmp_path / "cards", "correct", "wrong_numbers")
    matrix = write_matrix(tmp_path / "tiny.yaml", "correct", "wrong-numbers")
    shards = tmp_path / "shards.txt"
    shards.write_text("*/correct\n*/wrong-numbers\n")
    launcher = tmp_path / "qualify"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m qualify "$@"\n')
    launcher.chmod(0o755)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"matrix": str(matrix), "device": "cpu:1", "cards": [str(cards)]}))
    pair, results = new_pair(tmp_path), tmp_path / "results"
    given = {
        "PLAN": str(plan), "SHARDS": str(shards), "RESULTS": str(results), "QUALIFY": str(launcher),
        "QUALIFY_SIGNING_KEY": str(pair.private),
    }  # fmt: skip
    printed = slurm.ask("sbatch", "--array=1-3", "--parsable", f"--chdir={tmp_path}", str(SCRIPT), **given)
    assert printed.isdecimal(), printed
    slurm.until(lambda: not slurm.ask("squeue", "--noheader"), 240)
    codes = {}
    for block in slurm.ask("scontrol", "show", "job", printed).split("\n\n"):
        fields = dict(word.split("=", 1) for word in block.split() if "=" in word)
        codes[fields["ArrayTaskId"]] = fields["ExitCode"]
    logs = "\n".join(path.read_text() for path in sorted(tmp_path.glob("qualify-*.log")))
    assert {"1": "0:0", "2": "1:0", "3": "2:0"} == codes, logs
    assert "line 3 of" in logs
    assert 2 == len(list(results.glob("verdict-*.json")))
    ended = call("ingest", results, "--signed-by", pair.public, "--db", "evidence.db", cwd=tmp_path)
    assert (0, True) == (ended.code, "2 runs added" in ended.out), ended.err
    with Store.open(str(tmp_path / "evidence.db"), create=False) as store:
        found = store.runs()
    assert ["*/correct", "*/wrong-numbers"] == sorted(run.select for run in found)
    assert {slurm.node} == {run.placement.node for run in found if run.placement}
