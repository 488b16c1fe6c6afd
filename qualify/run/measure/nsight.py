"""Nsight Compute: what ``ncu --csv`` says of the attention kernels that a script launches.

Its CSV has one row for each launch and metric, between lines that begin with ``==``::

    ==PROF== Connected to process 4711 (/usr/bin/python3.11)
    "ID","Process ID",...,"Kernel Name",...,"Metric Name","Metric Unit","Metric Value"
    "0","4711",...,"void flash_fwd_kernel<...>(...)",...,"dram__bytes_read.sum","byte","124,010,240"

Without the permission to read counters it prints ERR_NVGPUCTRPERM and measures nothing.
"""

from __future__ import annotations

import csv
import math
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from qualify.errors import DeviceError
from qualify.facts.counters import KernelCounters
from qualify.run.measure.kernel_names import identify

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
DURATION = "gpu__time_duration.sum"
METRICS = (READ, WRITTEN, TENSOR, DURATION)
COLUMNS = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
SCALES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "%": 0.01}
TIMES_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
UNITS = SCALES | TIMES_US
ELSEWHERE = "/usr/local/cuda/bin"
"""where the CUDA toolkit installs it without adding the folder to PATH"""
FORBIDDEN = "ERR_NVGPUCTRPERM"
TAIL = 600
"""characters of its output that an error shows"""


def find_ncu() -> str:
    """The program.

    Raises:
        DeviceError: it is not installed.
    """
    found = shutil.which("ncu", path=os.pathsep.join((os.environ.get("PATH", os.defpath), ELSEWHERE)))
    if found is None:
        raise DeviceError(
            "ncu is not installed: it is neither on PATH nor in /usr/local/cuda/bin. Install Nsight Compute, which "
            "comes with the CUDA toolkit (package nsight-compute), and ask again"
        )
    return found


def profile(ncu: str, python: str, script: Path, *, limit_s: float) -> tuple[KernelCounters, ...]:
    """Run a script under Nsight Compute; the counters of its attention kernels.

    Args:
        python: the interpreter of the script.

    Raises:
        DeviceError: the counters may not be read, or the program failed.
    """
    command = [ncu, "--csv", "--page", "details", "--print-units", "base", "--metrics", ",".join(METRICS)]
    command += ["--target-processes", "all", python, "-P", str(script)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False, cwd=script.parent
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"ncu did not end within {limit_s:g} s, so it was ended: {' '.join(command)}") from error
    except OSError as error:
        raise DeviceError(f"ncu cannot be started ({error}): {ncu}") from error
    return counters(ended.stdout + ended.stderr, ended.returncode)


def counters(printed: str, status: int) -> tuple[KernelCounters, ...]:
    """The attention kernels in what ncu printed.

    Args:
        status: its exit status. A script that shows a failure exits with 1, so it alone says nothing.

    Raises:
        DeviceError: there are none.
    """
    if FORBIDDEN in printed:
        raise DeviceError(
            f"not permitted: the driver lets only administrators read this GPU's counters ({FORBIDDEN}). Ask as root, "
            "load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0, or start the container with "
            "--cap-add=SYS_ADMIN"
        )
    rows = [row for row in _rows(printed) if identify(row["Kernel Name"]).role == "attention"]
    if not rows:
        tail = " ".join(printed.split())[-TAIL:] or "nothing"
        raise DeviceError(f"ncu profiled no attention kernel; it ended with status {status} and printed: {tail}")
    launches: dict[str, set[str]] = defaultdict(set)
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        launches[row["Kernel Name"]].add(row["ID"])
        values[row["Kernel Name"], row["Metric Name"]].append(_value(row))
    return tuple(_kernel(name, len(ids), values) for name, ids in launches.items())


def _kernel(name: str, launches: int, values: dict[tuple[str, str], list[float]]) -> KernelCounters:
    def mean(metric: str) -> float | None:
        found = [value for value in values.get((name, metric), ()) if math.isfinite(value)]
        return fmean(found) if found else None

    return KernelCounters(
        name=name,
        launches=launches,
        read_bytes=mean(READ),
        written_bytes=mean(WRITTEN),
        tensor_share=mean(TENSOR),
        duration_us=mean(DURATION),
    )


def _rows(printed: str) -> Iterable[dict[str, str]]:
    """The rows of the CSV, by column; none where there is no head, or a row is cut off."""
    head: Sequence[str] = ()
    for row in csv.reader(line for line in printed.splitlines() if line.startswith('"')):
        if set(COLUMNS) <= set(row):
            head = row
        elif head and len(row) == len(head):
            yield dict(zip(head, row, strict=True))


def _value(row: dict[str, str]) -> float:
    """In bytes, shares or µs; NaN where the card has no such counter ("n/a"), or the unit is unknown."""
    try:
        return float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
    except (ValueError, KeyError):
        return math.nan
