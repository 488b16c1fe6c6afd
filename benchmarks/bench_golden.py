"""Memory of one golden result at S = 8192, which never holds the whole score matrix."""

from __future__ import annotations

import time

import torch
from common import command_line, machine, peak_bytes, show, small

from qualify.facts.case import Workload
from qualify.masks import Mask
from qualify.run.golden.reference import golden
from qualify.run.inputs.tensors import make_inputs

HEADS = 8


def main() -> None:
    """Measure the golden result of a causal prefill on the CPU, after a small one that loads the libraries."""
    command_line(__doc__).parse_args()
    seqlen = 512 if small() else 8192
    run(64)
    before = peak_bytes()
    began = time.perf_counter()
    rows = run(seqlen)
    took = time.perf_counter() - began
    machine()
    show(f"rows compared of S = {seqlen}", rows, "rows")
    show("golden result in fp64, 8 heads of 128", took, "s")
    show("additional peak memory", (peak_bytes() - before) / 1e6, "MB")
    show("S x S scores of 8 heads in fp64 would be", HEADS * seqlen**2 * 8 / 1e6, "MB")


def run(seqlen: int) -> int:
    """Compute one golden result; returns its number of rows."""
    workload = Workload(
        heads_q=HEADS,
        heads_kv=2,
        head_dim=128,
        head_dim_v=128,
        dtype="bf16",
        mask=Mask(causal=True),
        softcap=0.0,
        sinks=False,
        scale=128**-0.5,
        seqlens_q=(seqlen,),
        seqlens_k=(seqlen,),
        page_size=0,
    )
    inputs = make_inputs(workload, kind="normal", seed=0, device=torch.device("cpu"))
    return len(golden(inputs.call).rows)


if __name__ == "__main__":
    main()
