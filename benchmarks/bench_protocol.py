"""The cost of a kernel in another process: calls of a kernel that does nothing, in a host and in this process.

python benchmarks/bench_protocol.py                 medians on the CPU
python benchmarks/bench_protocol.py --profile       also a profile of the judge
python benchmarks/bench_protocol.py --device cuda   medians on the GPU
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import command_line, machine, show, small

from qualify.cards.load import load_kernels, load_matrix
from qualify.facts.case import Workload
from qualify.facts.devices import HOST
from qualify.fleet.probe import available_memory
from qualify.plan.plan import make_plan
from qualify.run.host.hosts import LocalHosts
from qualify.run.host.launch import HostSetup
from qualify.run.host.pool import Pool
from qualify.run.host.remote import Watch
from qualify.run.inputs.tensors import make_inputs
from qualify.run.machine.device import processor_of

CALLS = 50 if small() else 2000
LIMIT_S = 120.0
CARD = """\
kernel: nothing
generation: portable
adapter: call
entry: "does_nothing:attend"
requires: {device: any}
claims:
  dtypes: [fp32, bf16, fp16]
  head_dim: {max: 256}
  layouts: [packed]
  masks: [full, causal]
  features: [gqa]
  deterministic: true
  empty_row: {out: 0, lse: any}
accuracy: {fp32: fp32, bf16: bf16, fp16: fp16}
witness: {must_match: [".+"]}
"""
MODULE = """\
KEPT = {}


def attend(call):
    shape = (call.q.shape[0], call.q.shape[1], call.v.shape[-1])
    if shape not in KEPT:
        KEPT[shape] = call.q.new_zeros(shape)
    return KEPT[shape]
"""


@contextmanager
def nothing() -> Iterator[Path]:
    """A folder with a kernel card and the module of its kernel."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "nothing.yaml").write_text(CARD)
        (Path(folder) / "does_nothing.py").write_text(MODULE)
        sys.path.append(folder)
        yield Path(folder)
        sys.path.remove(folder)


def timed(what: str, step: Callable[[], Any], settle: Callable[[], None]) -> tuple[float, float]:
    """(median wall µs, mean CPU µs of this process). Other work on the machine hardly changes the CPU time."""
    took, cpu = [], time.process_time_ns()
    for _ in range(CALLS):
        began = time.perf_counter_ns()
        step()
        settle()
        took.append((time.perf_counter_ns() - began) / 1e3)
    spent = (time.process_time_ns() - cpu) / 1e3 / CALLS
    print(f"{what:58} {median(took):12,.1f} us, {spent:,.1f} us of the judge's processor")
    return median(took), spent


def main() -> None:
    """Read the command line, and measure."""
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--held", type=int, default=0, help="other prepared calls that the judge holds meanwhile")
    parser.add_argument("--profile", action="store_true", help="show where the judge's time goes")
    arguments = parser.parse_args()
    machine()
    with nothing() as folder:
        measure(folder, arguments)


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    """Measure and print all figures."""
    processor, card = processor_of(arguments.device), load_kernels((folder,))["nothing"].card
    calls = [
        make_inputs(workload(), kind="normal", seed=seed, device=processor.device, descaled=True).call
        for seed in range(arguments.held + 1)
    ]
    setup = HostSetup(device=arguments.device, import_paths=(str(folder),), memory_bytes=available_memory())
    pool = Pool(setup, Watch())
    pool.begin(LIMIT_S)
    here, there = LocalHosts(processor).kernel(card), pool.kernel(card)
    host, call = pool.host(card), calls[0]
    held = [there.prepare(other) for other in calls]
    settle = processor.synchronize
    timed("an empty round trip", host.healthy, settle)
    if arguments.device != HOST:
        # The card serves one process after another, so each of the two processes waits for the other.
        tiny = torch.ones(1, device=processor.device)
        timed("a tiny launch of the judge's own", partial(tiny.add_, 1), settle)
        timed("the same, and then a round trip", partial(_in_turns, tiny, host.healthy, settle), settle)
    launches = [timed("a launch here", here.prepare(call).launch, settle), timed("in a host", held[0].launch, settle)]
    runs = [
        timed("a call with its result here", partial(here.run, call), settle),
        timed("in a host", partial(there.run, call), settle),
    ]
    for what, (inside, outside) in (("a launch", launches), ("a call", runs)):
        show(f"what the host adds to {what}", outside[0] - inside[0], "us")
    if arguments.profile:
        with cProfile.Profile(time.process_time) as profile:
            for _ in range(CALLS):
                there.run(call)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    pool.close()


def _in_turns(tiny: torch.Tensor, ask: Callable[[], Any], settle: Callable[[], None]) -> None:
    """Compute in the judge, then in the host."""
    tiny.add_(1)
    settle()
    ask()


def workload() -> Workload:
    """The workload of one decode call of a small model."""
    cases = make_plan(load_matrix("smoke"), load_kernels()).cases
    return next(case.workload for case in cases if case.kernel == "torch-cpu-math" and case.phase == "decode")


if __name__ == "__main__":
    main()
