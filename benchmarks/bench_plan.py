"""Planning 100,000 cases: time and memory of loading the cards and expanding the matrix."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from common import command_line, machine, peak_bytes, show, small

from qualify.cards.load import load_kernels, load_matrix
from qualify.plan.plan import make_plan

CASES = 100_000
MATRIX = """\
matrix: generated
models:
  - {{model: llama-3.1-8b, tensor_parallel: [1, 2, 4, 8]}}
  - {{model: gemma-2-9b, tensor_parallel: [1, 2]}}
phases:
  prefill: {{batch: [1, 2, 4, 8], seqlen: {seqlens}}}
  decode: {{batch: [1, 8, 32, 128, 256], context: {seqlens}, page_size: [contiguous, 16, 64]}}
dtypes: [bf16, fp16]
kernels: ["*"]
"""
GROUPS = 8
"""groups of layers of all models together: 4 of llama, 2 times 2 of gemma"""
SHAPES = 19
"""number of shapes for each seqlen: 4 of prefill, 15 of decode"""


def main() -> None:
    """Write a matrix of at least the wanted size, load it, and expand it."""
    command_line(__doc__).parse_args()
    wanted = 2_000 if small() else CASES
    kernels = load_kernels()
    count = -(-wanted // (GROUPS * SHAPES * 2 * len(kernels)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "generated.yaml"
        path.write_text(MATRIX.format(seqlens=[256 * (number + 1) for number in range(count)]))
        before = peak_bytes()
        began = time.perf_counter()
        matrix, kernels = load_matrix(str(path)), load_kernels()
        loaded = time.perf_counter()
        plan = make_plan(matrix, kernels)
        done = time.perf_counter()
    machine()
    show("cases planned", len(plan.cases), "cases")
    show("cases refused", len(plan.refused), "cases")
    show("loading the cards", loaded - began, "s")
    show("expanding and refusing", done - loaded, "s")
    show("peak memory of the process", peak_bytes() / 1e6, "MB")
    show("of that, before planning", before / 1e6, "MB")


if __name__ == "__main__":
    main()
