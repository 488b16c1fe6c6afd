"""What a census reads: real outputs of PyTorch's attention on the CPU, for a right and a wrong causal mask."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from drawing.svg import BLUE, GREEN, RED, box, sheet, words

QUERIES, KEYS, CELL = 4, 10, 28


def outputs() -> tuple[Tensor, Tensor]:
    """(queries, keys): the output where q is zero and the values are one-hot, under the right mask and a wrong one."""
    q = torch.zeros(1, 1, QUERIES, KEYS)
    k = torch.randn(1, 1, KEYS, KEYS, generator=torch.Generator().manual_seed(0))
    v = torch.eye(KEYS)[None, None]
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES)
    right = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    wrong = scaled_dot_product_attention(q, k, v, is_causal=True)  # aligned top left
    return right[0, 0], wrong[0, 0]


def picture() -> str:
    """Both outputs as grids, each cell with the weight that was read."""
    right, wrong = outputs()
    panels = [
        *_panel(90, "expected: aligned bottom right", right, right),
        *_panel(460, "seen: aligned top left", wrong, right),
    ]
    title = "The output of attention with zero queries and one-hot values tells which keys each query saw"
    return sheet(750, 232, title, panels)


def _panel(left: float, title: str, output: Tensor, expected: Tensor) -> Iterator[str]:
    yield words(left + KEYS * CELL / 2, 30, title, weight="bold")
    yield words(left + KEYS * CELL / 2, 50, "output, one column for each key", size=11)
    for query in range(QUERIES):
        y = 60 + query * CELL
        seen = output[query] > 0
        yield words(left - 8, y + 18, f"query {query}", anchor="end", size=11)
        for key in range(KEYS):
            agree = bool(seen[key]) == bool(expected[query, key] > 0)
            fill = RED if not agree else BLUE if seen[key] else "white"
            yield box(left + key * CELL, y, CELL, CELL, fill)
            text = f"1/{round(1 / float(output[query, key]))}" if seen[key] else "0"
            yield words(left + (key + 0.5) * CELL, y + 18, text, size=10)
    counts = ", ".join(str(int((row > 0).sum())) for row in output)
    same = bool(((output > 0) == (expected > 0)).all())
    yield box(left, 190, KEYS * CELL, 26, GREEN if same else RED)
    yield words(left + KEYS * CELL / 2, 208, f"keys seen: {counts}", size=12)
