"""How far correct kernels stay from the limits of docs/numerics.md: quantiles over many seeds, kinds and lengths.

Every seed is one call, with an input kind and lengths from a list of difficult ones. Every kernel that claims the call
is compared with the golden result and judged in its declared class. Lengths vary but the geometry does not, so that
kernels with a specialisation for each geometry are compiled once.

    python benchmarks/calibrate.py --out calibration.json                     every installed kernel, 1,000 calls
    python benchmarks/calibrate.py --kernel 'flash-attn-*' --dtype bf16 --out calibration.json

The file is written after every dtype, and kernels that are complete in it do not run again. A kernel that refuses a
call skips it. A kernel that raises an error is left out from there on, and the file names its error. `make docs` writes
the table of docs/numerics.md from docs/evidence/calibration-h100.json.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import platform
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from common import command_line
from torch import Tensor

from qualify.cards.kernel import KernelCard
from qualify.cards.load import load_kernels
from qualify.facts.case import Workload
from qualify.facts.codec import strict
from qualify.facts.dtypes import DTYPES, FORMATS, Dtype
from qualify.masks import Mask
from qualify.plan.geometry import Geometry
from qualify.plan.host import Host, device_refusals, install_refusals, shipped_version
from qualify.plan.refusals import dtype_refusals, geometry_refusals, length_refusals, shape_refusals
from qualify.plan.shapes import Shape
from qualify.run.adapters.interface import Adapter, LibraryRefusal
from qualify.run.adapters.registry import create_adapter
from qualify.run.checks.budget import compare_lse, rows_kept
from qualify.run.checks.interface import ContractBreach, Subject
from qualify.run.golden.accuracy import declared_class, judge
from qualify.run.golden.reference import golden
from qualify.run.golden.result import Golden
from qualify.run.host.local import local
from qualify.run.inputs.tensors import INPUT_KINDS, InputKind, Inputs, make_inputs
from qualify.run.machine.device import device_of

QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
STATISTICS = ("E", "R", "G_share", "beta_share", "lse_rel")
"""E and R, G and |beta| divided by their limits, and the relative error of the LSE"""
SKIPPED = ("flex-attention",)
"""kernels that compile for every length"""
HEADS_Q, HEADS_KV = 8, 2
PAGE_SIZE = 16
LATENT_HEADS, LATENT_HEAD_DIMS, LATENT_PAGE_SIZE = 16, (576, 512), 64
"""geometry for kernels of latent attention: one KV head, whose first 512 elements are the values"""
LENGTHS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1,), (1,)),
    ((127,), (127,)),
    ((128,), (128,)),
    ((129,), (129,)),
    ((192, 192), (192, 192)),
    ((161,), (161,)),
    ((200,), (64,)),
    ((0, 70, 33), (0, 70, 33)),
    ((70, 0, 33), (70, 0, 33)),
    ((70, 33, 0), (70, 33, 0)),
    ((1, 1, 1), (300, 4096, 17)),
    ((65, 3), (2048, 513)),
    ((32,), (4096,)),
)
"""(queries, keys): one key, a tile and its neighbours, S % 128 = 64, S % 32 = 1, more queries than keys, empty
sequences first, in the middle and last, decode, chunks after a long context"""
MOST = 4
"""most seeds that are tried for each wanted call, because a card may claim only a quarter of the shapes above"""
LONG = ((4096,), (4096,))
"""(queries, keys) of every 20th call on a GPU"""


@dataclass(kw_only=True)
class Tally:
    """The results of one kernel in one dtype."""

    card: KernelCard
    adapter: Adapter
    dtype: Dtype
    values: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    """values by input kind and statistic"""
    over: list[dict[str, Any]] = field(default_factory=list)
    """calls that broke a limit"""
    trials: int = 0
    refused: int = 0
    error: str = ""

    def data(self) -> dict[str, Any]:
        """The data that the file holds."""
        return {
            "kernel": self.card.kernel,
            "version": shipped_version(self.card),
            "dtype": self.dtype,
            "declared": self.card.accuracy[self.dtype],
            "lse_limit": self.card.claims.lse.rel,
            "trials": self.trials,
            "refused": self.refused,
            "error": self.error,
            "over": self.over[:20],
            "over_count": len(self.over),
            "quantiles": {
                kind: {name: quantiles(values[name]) for name in STATISTICS if values[name]}
                for kind, values in [("all", self._all()), *sorted(self.values.items())]
            },
        }

    def _all(self) -> dict[str, list[float]]:
        return {name: [one for kind in self.values.values() for one in kind[name]] for name in STATISTICS}


def quantiles(values: list[float]) -> list[float]:
    """The QUANTILES of some values. Each is the smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return [ordered[max(0, -int(-share * len(ordered) // 1) - 1)] for share in QUANTILES]


def workload_of(card: KernelCard, dtype: Dtype, seed: int, head_dim: int, *, long: bool) -> Workload:
    """The workload of a seed, with the features that the card claims: grouped heads, kinds of descale factors."""
    turn = seed // len(INPUT_KINDS)
    latent = card.claims.head_dim_v == "latent"
    heads_kv = HEADS_KV if "gqa" in card.claims.features else HEADS_Q
    heads_q, heads_kv = (LATENT_HEADS, 1) if latent else (HEADS_Q, heads_kv)
    head_dim, head_dim_v = LATENT_HEAD_DIMS if latent else (head_dim, head_dim)
    queries, keys = LONG if long and turn % 20 == 19 else LENGTHS[turn % len(LENGTHS)]
    return Workload(
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        latent=latent,
        dtype=dtype,
        mask=Mask(causal=turn % 2 == 0),
        softcap=0.0,
        sinks=False,
        scale=head_dim**-0.5,
        seqlens_q=queries,
        seqlens_k=keys,
        page_size=0 if "packed" in card.claims.layouts else LATENT_PAGE_SIZE if latent else PAGE_SIZE,
        descale=card.claims.fp8.descale if FORMATS[DTYPES[dtype].kv].descaled else "",
    )


def unclaimed(card: KernelCard, workload: Workload) -> list[str]:
    """Why the card does not claim the call; empty where it does."""
    names = ("heads_q", "heads_kv", "head_dim", "head_dim_v", "mask", "softcap", "sinks", "scale", "latent")
    parts: dict[str, Any] = {name: getattr(workload, name) for name in names}
    geometry = Geometry(model="", label="", layers=1, refusals=(), **parts)
    shape = Shape(
        phase="varlen",
        label="",
        seqlens_q=workload.seqlens_q,
        seqlens_k=workload.seqlens_k,
        page_size=workload.page_size,
        where=(),
    )
    reasons = geometry_refusals(card, geometry) + shape_refusals(card, shape) + dtype_refusals(card, workload.dtype)
    return reasons + length_refusals(card, geometry, shape)


class Trials:
    """Inputs and golden results of a seed, shared by the kernels that need the same workload."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

        self.made: dict[tuple[Workload, int], tuple[Inputs, Golden]] = {}

    def get(self, workload: Workload, kind: InputKind, seed: int) -> tuple[Inputs, Golden]:
        """Inputs and golden result of a workload and seed; those of an earlier seed are dropped."""
        if (workload, seed) not in self.made:
            if any(known != seed for _, known in self.made):
                self.made.clear()
            inputs = make_inputs(workload, kind=kind, seed=seed, device=self.device, descaled=True)
            found = golden(inputs.call, underflow=workload.q_format in {"fp16", "fp8_e4m3"})
            self.made[workload, seed] = inputs, rows_kept(found, found.keys > 0)
        return self.made[workload, seed]


def attempt(tally: Tally, trials: Trials, workload: Workload, seed: int) -> None:
    """Make one call of one kernel, and add its statistics or its refusal to the tally."""
    kind = INPUT_KINDS[seed % len(INPUT_KINDS)]
    inputs, exact = trials.get(workload, kind, seed)
    if not len(exact.rows):
        return
    subject = Subject(
        workload=workload,
        card=tally.card,
        kernel=local(tally.adapter, trials.device.type),
        device=trials.device,
        level="smoke",
        reference=torch.float64,
        seed=seed,
    )
    try:
        result = subject.run(inputs.call)
    except LibraryRefusal:
        tally.refused += 1
        return
    lse: Tensor | None = None if result.lse is None else result.lse.T[exact.rows]
    errors = judge(exact, result.out[exact.rows], declared_class(tally.card, workload.dtype))
    found = {
        "E": errors.E,
        "R": errors.R,
        "G_share": errors.G / errors.G_limit,
        "beta_share": abs(errors.beta) / errors.beta_limit,
    }
    lse_rel, _, wrong = compare_lse(subject, exact, lse, kind)
    if lse_rel is not None:
        found["lse_rel"] = lse_rel
    for name, value in found.items():
        tally.values[kind][name].append(value)
    tally.trials += 1
    if not errors.within or any(finding.verdict == "fail" for finding in wrong):
        lengths = {"seqlens_q": workload.seqlens_q, "seqlens_k": workload.seqlens_k, "causal": workload.mask.causal}
        tally.over.append({"seed": seed, "kind": kind, **lengths, **found})


def calibrate(tallies: list[Tally], arguments: argparse.Namespace, device: torch.device, until: float) -> None:
    """Try seeds, each with every kernel, until all kernels have made their calls or the time is over."""
    trials = Trials(device)
    for seed in range(MOST * arguments.calls):
        for tally in tallies:
            workload = workload_of(tally.card, tally.dtype, seed, arguments.head_dim, long=device.type == "cuda")
            if tally.error or tally.trials >= arguments.calls or unclaimed(tally.card, workload):
                continue
            try:
                attempt(tally, trials, workload, seed)
            except (RuntimeError, ValueError, TypeError, AssertionError, ContractBreach) as error:
                tally.error = f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0][:300]}"
                print(f"{tally.card.kernel} {tally.dtype}: {tally.error}", file=sys.stderr)
        if all(tally.error or tally.trials >= arguments.calls for tally in tallies):
            return
        if time.monotonic() > until:
            print(f"out of time after seed {seed}", file=sys.stderr)
            return


def here(device: torch.device) -> Host:
    """This machine, as a plan describes a host."""
    if device.type == "cpu":
        return Host(kind="cpu", name=platform.processor() or "cpu", compute_capability="")
    major, minor = torch.cuda.get_device_capability(device)
    return Host(kind="cuda", name=torch.cuda.get_device_name(device), compute_capability=f"{major}.{minor}")


def adapters(glob: str, host: Host) -> dict[str, tuple[KernelCard, Adapter]]:
    """The kernels of a glob that this machine can run; prints why it cannot run the others."""
    found = {}
    for name, loaded in load_kernels().items():
        if not fnmatch.fnmatch(name, glob) or (name in SKIPPED and name != glob):
            continue
        reasons = device_refusals(loaded.card, host) or install_refusals(loaded.card)
        try:
            if not reasons:
                found[name] = loaded.card, create_adapter(loaded.card)
        except ImportError as error:
            reasons = [str(error)]
        if reasons:
            print(f"{name}: {'; '.join(reasons)}", file=sys.stderr)
    return found


def run(arguments: argparse.Namespace) -> None:
    """Calibrate one dtype after another, and write the file after each."""
    device = device_of(arguments.device)
    host = here(device)
    kernels = adapters(arguments.kernel, host)
    known: dict[str, Any] = {}
    if arguments.out.exists():
        known = {f"{one['kernel']} {one['dtype']}": one for one in json.loads(arguments.out.read_text())["kernels"]}
    until = time.monotonic() + arguments.seconds
    for dtype in arguments.dtype or list(get_args(Dtype)):
        tallies = [
            Tally(card=card, adapter=adapter, dtype=dtype)
            for name, (card, adapter) in kernels.items()
            if dtype in card.claims.dtypes and not _complete(known.get(f"{name} {dtype}"), arguments.calls)
        ]
        calibrate(tallies, arguments, device, until)
        for tally in tallies:
            known[f"{tally.card.kernel} {dtype}"] = tally.data()
        document = {
            "schema": "qualify.calibration/1",
            "device": str(host),
            "torch": torch.__version__,
            "head_dim": arguments.head_dim,
            "quantiles": QUANTILES,
            "kernels": sorted(known.values(), key=lambda one: (one["kernel"], get_args(Dtype).index(one["dtype"]))),
        }
        text = json.dumps(strict(document), separators=(",", ":"), allow_nan=False)
        arguments.out.write_text(text.replace('{"kernel":', '\n{"kernel":') + "\n")


def _complete(entry: dict[str, Any] | None, calls: int) -> bool:
    """Whether a kernel has made all its calls."""
    return entry is not None and not entry["error"] and int(entry["trials"]) >= calls


def main() -> None:
    """Read the command line, and calibrate."""
    parser = command_line(__doc__)
    parser.add_argument("--kernel", default="*", help="glob over kernel cards")
    parser.add_argument("--dtype", action="append", choices=get_args(Dtype), help="may be repeated; default: all")
    parser.add_argument(
        "--calls", type=int, default=1000, help="of each kernel in each dtype, each with a seed of its own"
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after so many; what is done is kept")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="where the figures go, and where complete kernels are looked up")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.calls = 20
    if arguments.out is None:
        parser.error("--out is needed")
    run(arguments)


if __name__ == "__main__":
    main()
