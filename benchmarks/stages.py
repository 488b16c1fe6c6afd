"""The time of a case by stage and by check, in one judge whose hosts have the device to themselves.

    python benchmarks/stages.py                                                    a few cases of smoke on the CPU
    python benchmarks/stages.py --matrix hopper --kernel 'flash-attn-[23]' --cases 24 --device cuda    in hosts
    ... --here                        with the kernels in the judge's own process, as in docs/kernels.md

Cases are chosen evenly from those of the matrix with at most 4,096 keys. The first case of each kernel, dtype and
layout runs once before, so that neither loading nor checks that run only once for a judge are counted. A stage ends
when the next one is announced.
"""

from __future__ import annotations

import argparse
import fnmatch
import time
from collections import defaultdict
from statistics import median

from qualify.cards.load import load_kernels, load_matrix
from qualify.facts.case import Case
from qualify.facts.outcome import findings_of
from qualify.fleet.probe import available_memory
from qualify.plan.plan import make_plan
from qualify.run.execute import Session
from qualify.run.host.hosts import Hosts, LocalHosts
from qualify.run.host.launch import HostSetup
from qualify.run.host.pool import Pool
from qualify.run.host.remote import Watch
from qualify.run.inputs.tensors import make_inputs
from qualify.run.machine.device import processor_of
from qualify.run.measure.ceilings import measure_ceilings
from qualify.run.process.messages import CaseRequest

MOST_KEYS = 4096
CALLS, CALLS_S = 60, 120.0


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    """Different cases of the matrix, evenly chosen."""
    found: dict[object, Case] = {}
    for case in make_plan(load_matrix(arguments.matrix), load_kernels()).cases:
        wanted = fnmatch.fnmatch(case.kernel, arguments.kernel) and fnmatch.fnmatch(case.id, arguments.select)
        if wanted and max(case.workload.seqlens_k) <= MOST_KEYS:
            found.setdefault((case.kernel, case.workload), case)
    cases = list(found.values())
    return cases[:: max(1, len(cases) // arguments.cases)][: arguments.cases]


class Stages:
    """Seconds of each stage of each case."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.now = ("", "", time.perf_counter())

    def announce(self, case: str, stage: str) -> None:
        """End a stage, and begin the next."""
        at = time.perf_counter()
        self.spent[self.now[0]][self.now[1]] += at - self.now[2]
        self.now = (case, stage, at)


def call_ms(hosts: Hosts, case: Case, kind: str) -> float:
    """Median milliseconds to make a call and to have its result in the judge."""
    hosts.begin(CALLS_S)
    processor, kernel = processor_of(kind), hosts.kernel(load_kernels()[case.kernel].card)
    call = make_inputs(case.workload, kind="normal", seed=0, device=processor.device, descaled=True).call
    took = []
    for _ in range(CALLS):
        began = time.perf_counter()
        kernel.run(call)
        processor.synchronize()
        took.append(time.perf_counter() - began)
    return median(took) * 1e3


def main() -> None:
    """Read the command line, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", default="smoke")
    parser.add_argument("--kernel", default="torch-cpu-*", help="glob over kernel cards")
    parser.add_argument("--select", default="*", help="glob over case ids")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--level", choices=("smoke", "full"), default="full")
    parser.add_argument("--cases", type=int, default=4)
    parser.add_argument("--here", action="store_true", help="kernels in this process, as before there were hosts")
    arguments = parser.parse_args()
    cases = cases_of(arguments)
    if not cases:
        parser.error(f"no case of {arguments.matrix} with kernel {arguments.kernel} and id {arguments.select}")
    stages = Stages()
    pool = Pool(HostSetup(device=arguments.device, import_paths=(), memory_bytes=available_memory()), Watch())
    hosts = LocalHosts(processor_of(arguments.device)) if arguments.here else pool
    session = Session(
        device=processor_of(arguments.device).describe(),
        ceilings=measure_ceilings(processor_of(arguments.device)),
        cards={name: loaded.card for name, loaded in load_kernels().items()},
        level=arguments.level,
        reference="fp64",
        hosts=hosts,
        announce=stages.announce,
    )
    first = {(case.kernel, case.workload.dtype, bool(case.workload.page_size)): case for case in reversed(cases)}
    list(session.run([CaseRequest(case=case, attempt=1) for case in first.values()]))
    stages.announce("", "")
    stages.spent.clear()
    for ended in session.run([CaseRequest(case=case, attempt=1) for case in cases]):
        failed = [finding.check for finding in findings_of(ended.outcome) if finding.verdict == "fail"]
        if failed or ended.outcome.outcome != "measured":
            print(f"{ended.case}: {ended.outcome.outcome} {', '.join(failed)}")
    stages.announce("", "")
    print(f"a call of {cases[0].id}: {call_ms(hosts, cases[0], arguments.device):.2f} ms")
    pool.close()
    totals = {case: sum(spent.values()) for case, spent in stages.spent.items() if case}
    by_stage: defaultdict[str, list[float]] = defaultdict(list)
    for case, spent in stages.spent.items():
        for stage, seconds in spent.items() if case else ():
            by_stage[stage].append(seconds)
    slowest = max(totals, key=lambda case: totals[case])
    print(
        f"{len(cases)} cases at {arguments.level}: {sum(totals.values()) / len(cases):.2f} s a case on average,",
        end=" ",
    )
    print(f"median {median(totals.values()):.2f}, at most {totals[slowest]:.2f} ({slowest})")
    for stage, times in sorted(by_stage.items(), key=lambda item: -sum(item[1])):
        print(f"  {stage:24} {sum(times) / len(cases):7.3f} s a case, at most {max(times):.3f}")


if __name__ == "__main__":
    main()
