"""Real and false alarms of a duel: A/A over 200 cells, and planted slowdowns.

    python benchmarks/bench_duel.py --out DIR             every part that is not in DIR yet, as far as time allows
    python benchmarks/bench_duel.py --out DIR --part null

Each part is one duel, and is written to DIR/PART.json when it ends:

    null      this interpreter against itself: the share of cells called slower or faster, the wall time of the duel
    planted   in four of five cells B spins for 2 % of its time (kernels of 50 µs and more) or for 4 % (10 to 50 µs):
              the share of these slowdowns that is found

The part ``planted`` chooses its cells by the times in null.json. One pair of processes for each cell is enough for
that: ``--part null --limit 130`` on an H100. A part that is in DIR already does not run again. A part that would begin
with less than ``--least`` seconds left waits for the next call. On a machine without a GPU, a few cells on the CPU only
show that the script works.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from common import command_line, machine, show, small

from qualify.facts.devices import HOST
from qualify.facts.duel import DECIDING
from qualify.fleet.duel import MOST_PAIRS, Duelling, DuelProgress, DuelRequest
from qualify.fleet.probe import find_host
from qualify.fleet.sides import DuelAsked, make_duel
from qualify.report.duel_text import to_data, to_text
from qualify.verdict.open_cell import LEAST_PAIRS

MATRIX = """\
matrix: duel-bench
models: [llama-3.1-8b, llama-3.2-1b, llama-2-7b, qwen2.5-7b, phi-2, gemma-2b, mistral-7b-v0.1]
phases:
  prefill: {batch: [1, 4], seqlen: [512, 1024, 2048, 4096]}
  decode: {batch: [1, 8, 32], context: [2048, 8192]}
dtypes: [bf16, fp16]
kernels: [torch-sdpa-flash, torch-sdpa-cudnn, torch-sdpa-efficient]
"""
CPU_MATRIX = """\
matrix: duel-bench
models: [llama-3.2-1b]
phases:
  prefill: {batch: 1, seqlen: [64, 128]}
dtypes: [fp32]
kernels: [torch-cpu-flash]
"""
CELLS = 200
"""number of cells of the A/A duel"""
OF_CLASS, HONEST = 30, 5
"""number of cells of each class in the part ``planted``; every HONEST-th cell gets no slowdown"""
LONG_US, SHORT_US = 50.0, 10.0
SHARES = {"long": 0.02, "short": 0.04}
PARTS = ("null", "planted")
CPU_SHARE, CPU_MARGIN = 0.6, 0.25


def main() -> None:
    """Run the missing parts, and print the results of all that are there."""
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, help="folder of the parts; default: a temporary one")
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--limit", type=float, default=540.0, help="seconds of all parts together")
    parser.add_argument("--least", type=float, default=60.0, help="seconds with which a part may begin")
    asked = parser.parse_args()
    measure(asked.out or Path(tempfile.mkdtemp(prefix="bench-duel-")), asked)


def measure(out: Path, asked: argparse.Namespace) -> None:
    """Run each part that is not in the folder yet, as far as time allows."""
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    on_cpu = find_host("auto").kind == HOST
    parts = ("null",) if small() else PARTS
    for part in [asked.part] if asked.part else parts:
        path = out / f"{part}.json"
        left = asked.limit - (time.monotonic() - began)
        if path.exists():
            continue
        if left < asked.least:
            print(f"{part}: {left:.0f} s are left, and it needs {asked.least:.0f}: run this again")
            break
        request = _request(part, out, left, on_cpu=on_cpu)
        print(f"{part}: {len(request.tasks)} cells, at most {left:.0f} s", flush=True)
        duelling = Duelling(request, _tell)
        duel = duelling.fight()
        if duelling.broken:
            raise duelling.broken
        (out / f"{part}.txt").write_text(to_text(duel) + "\n")
        new = path.with_suffix(".new")
        new.write_text(json.dumps(to_data(duel)))
        new.rename(path)
    machine()
    for part in PARTS:
        if (out / f"{part}.json").exists():
            _summary(part, json.loads((out / f"{part}.json").read_text()))


def _request(part: str, out: Path, left_s: float, *, on_cpu: bool) -> DuelRequest:
    """The request for the duel of a part, with this interpreter on both sides."""
    matrix = out / "duel-bench.yaml"
    matrix.write_text(CPU_MATRIX if on_cpu else MATRIX)
    asked = DuelAsked(
        a="here",
        b="here",
        matrix=str(matrix),
        null=True,
        margin=CPU_MARGIN if on_cpu else None,
        pairs=2 if small() else LEAST_PAIRS,
        most_pairs=2 if small() else MOST_PAIRS,
        deadline_s=left_s - min(20.0, left_s / 10),
    )
    request = make_duel(asked)
    if part == "null":
        count = min(CELLS, len(request.tasks))
        spread = [request.tasks[number * len(request.tasks) // count] for number in range(count)]
        return replace(request, tasks=tuple(spread), alike={})
    null = json.loads((out / "null.json").read_text())
    shares: dict[str, float] = {}
    for name, share in SHARES.items():
        for number, cell in enumerate(_of_class(null, name, every=on_cpu)):
            shares[cell] = 0.0 if number % HONEST == 0 else CPU_SHARE if on_cpu else share
    planted = [replace(task, plant=shares[task.name]) for task in request.tasks if task.name in shares]
    return replace(request, tasks=tuple(planted), alike={}, null=False)


def _of_class(null: dict[str, Any], name: str, *, every: bool) -> list[str]:
    """Cells whose times fit a class, evenly chosen from all such cells."""
    names = [
        cell["name"]
        for cell in null["cells"]
        if (us := _time_us(null, cell["name"])) is not None
        and (every or (us >= LONG_US if name == "long" else SHORT_US <= us < LONG_US))
    ]
    count = min(OF_CLASS, len(names))
    return [names[number * len(names) // count] for number in range(count)]


def _time_us(null: dict[str, Any], name: str) -> float | None:
    """The median time of A's blocks in the way that decides; None where there is no valid one."""
    pairs = null["samples"].get(name, [])
    way = next((way for way in DECIDING if any(pair["way"] == way and pair["quads"] for pair in pairs)), None)
    times = [us for pair in pairs if pair["way"] == way for quad in pair["quads"] for us in quad["a_us"]]
    return median(times) if times else None


def _tell(step: DuelProgress) -> None:
    """Print a line for every twentieth cell, so that a log shows progress."""
    if step.timed % 20 == 0 or step.timed == step.round_total:
        print(f"{step.decided}/{step.total} decided; pair {step.pair}: {step.timed}/{step.round_total}", flush=True)


def _summary(part: str, data: dict[str, Any]) -> None:
    """Print the figures of a part."""
    cells: Sequence[dict[str, Any]] = data["cells"]
    show(f"{part}: wall time", data["wall_s"], "s")
    groups = {"without a slowdown": [cell for cell in cells if not cell["planted"]]}
    for share in sorted({cell["planted"] for cell in cells} - {0.0}):
        groups[f"with {share:.0%}"] = [cell for cell in cells if cell["planted"] == share]
    for kind, some in groups.items():
        if some:
            show(f"{part}: cells {kind}", len(some), "cells")
            for verdict in ("SLOWER", "FASTER", "SAME", "AMBIGUOUS", "INCONCLUSIVE"):
                share = sum(cell["verdict"] == verdict for cell in some) / len(some)
                show(f"{part}: {verdict}, {kind}", 100 * share, "%")
    found = sorted(cell["ratios"][cell["way"]]["detectable"] for cell in cells if cell["way"])
    if found:
        show(f"{part}: detectable change, median", 100 * found[len(found) // 2], "%")
        show(f"{part}: detectable change, 95 % of the cells", 100 * found[int(0.95 * (len(found) - 1))], "%")


if __name__ == "__main__":
    main()
