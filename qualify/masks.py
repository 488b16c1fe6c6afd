"""Mask predicates in plain arithmetic: the same functions take ints and tensors, and import nothing.

Positions: query i of a sequence sits at key position ``p = i + seqlen_k - seqlen_q``, so every mask is
aligned to the bottom right corner. With ``seqlen_q = 3`` and ``seqlen_k = 5``::

    causal          window (1, 0)     window (1, 1)     full            causal, chunk 2
    k 0 1 2 3 4     k 0 1 2 3 4       k 0 1 2 3 4       k 0 1 2 3 4     k 0 1 2 3 4
    q x x x . .     q . x x . .       q . x x x .       q x x x x x     q . . x . .
      x x x x .       . . x x .         . . x x x         x x x x x       . . x x .
      x x x x x       . . . x x         . . . x x         x x x x x       . . . . x

A causal mask is a window whose right side is 0; ``causal`` and ``window`` together mean both. With chunks, a query
sees only keys of its own; they are counted from key 0 of the sequence, wherever its queries begin.
"""

from __future__ import annotations

from typing import Any

UNBOUNDED = -1


def visible(
    i: Any, j: Any, seqlen_q: Any, seqlen_k: Any, *, causal: bool, window: tuple[int, int], chunk: int = 0
) -> Any:
    """Whether query ``i`` sees key ``j``; broadcasts over tensors.

    Args:
        i: query index, from 0 (int or integer tensor).
        j: key index, from 0 (int or integer tensor).
        seqlen_q: queries of the sequence (int or integer tensor).
        seqlen_k: keys of the sequence (int or integer tensor).
        causal: keys after the query's position are hidden.
        window: (left, right) inclusive distances in keys, -1 = unbounded.
        chunk: positions per chunk, outside of which nothing is seen; 0 = no chunks.
    """
    position = i + (seqlen_k - seqlen_q)
    left, right = window
    seen = (j >= 0) & (j < seqlen_k)
    if causal:
        seen = seen & (j <= position)
    if left != UNBOUNDED:
        seen = seen & (j >= position - left)
    if right != UNBOUNDED:
        seen = seen & (j <= position + right)
    if chunk:
        seen = seen & (j // chunk == position // chunk)
    return seen


def key_range(
    i: int, seqlen_q: int, seqlen_k: int, *, causal: bool, window: tuple[int, int], chunk: int = 0
) -> tuple[int, int]:
    """First visible key and one past the last one of query ``i``; equal where it sees none."""
    position = i + seqlen_k - seqlen_q
    left, right = window
    start = 0 if left == UNBOUNDED else max(0, position - left)
    stop = seqlen_k
    if causal:
        stop = min(stop, position + 1)
    if right != UNBOUNDED:
        stop = min(stop, position + right + 1)
    if chunk:
        start = max(start, position // chunk * chunk)
        stop = min(stop, position // chunk * chunk + chunk)
    start = min(start, seqlen_k)
    return start, max(start, stop)


def _clipped_sum(first: int, count: int, low: int, high: int) -> int:
    """Sum over ``count`` consecutive ints from ``first`` of min(max(x, low), high)."""
    last = first + count - 1
    below = min(max(low - first, 0), count)
    above = min(max(last - high, 0), count - below)
    inside = count - below - above
    start = first + below
    return below * low + above * high + inside * start + inside * (inside - 1) // 2


def pairs(seqlen_q: int, seqlen_k: int, *, causal: bool, window: tuple[int, int], chunk: int = 0) -> int:
    """Visible (query, key) pairs of one sequence, in closed form; with chunks, in one for each chunk."""
    if not seqlen_q or not seqlen_k:
        return 0
    if chunk:
        first = max(0, seqlen_k - seqlen_q)
        begins = range(first // chunk * chunk, seqlen_k, chunk)
        parts = [(min(begin + chunk, seqlen_k) - max(begin, first), min(chunk, seqlen_k - begin)) for begin in begins]
        return sum(pairs(queries, keys, causal=causal, window=window) for queries, keys in parts)
    left, right = window
    offset = seqlen_k - seqlen_q
    bound = 0 if causal else UNBOUNDED
    if right != UNBOUNDED:
        bound = right if bound == UNBOUNDED else min(bound, right)
    stops = seqlen_q * seqlen_k if bound == UNBOUNDED else _clipped_sum(offset + bound + 1, seqlen_q, 0, seqlen_k)
    starts = 0 if left == UNBOUNDED else _clipped_sum(offset - left, seqlen_q, 0, seqlen_k)
    return stops - starts
