"""size limits: 16-bit or 32-bit numbers in a kernel must not limit the size of a production call.

Each call is large in one dimension only, and cheap because everything else is small:

* keys, values or queries more than 2^31, and more than 2^32, elements after the start of their tensor: in far pages of
  a large cache, or in rows that are far apart
* one sequence of over 2^11 queries (on a GPU, where that costs little, over 2^16)
* one sequence of over 2^9 queries after more than 2^10 keys
* more heads than four warps have threads
* many numbers of heads, and of sequences, up to a limit (qualify.run.checks.counts)
* many sequences that all have queries; on a GPU, more than its largest block has threads. Each of the first ones has
  one more tile of keys than the one before
* a batch of more than 2^16 sequences, of which only those beside every power of two have queries, because schedulers
  count in warps and blocks

The call with many sequences runs twice, the second time with lengths in reverse order, because a workspace of that size
may hold earlier results. In the second call, more sequences than a warp has threads have more queries than a tile.
Where the card claims batch invariance, some sequences also run alone.

Before a far tensor there is more memory, on a GPU full of NaN. An offset that wraps to a negative number reads this
memory, which shows, instead of ending the process. Where a card limits the batch or the number of elements, the check
keeps these limits. ``long_context`` tests very many keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qualify.facts.case import Workload
from qualify.facts.devices import HOST, Scale
from qualify.facts.outcome import Finding
from qualify.masks import Mask
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.checks.budget import beyond_budget
from qualify.run.checks.counts import wrong_at_a_number
from qualify.run.checks.degenerate import Lengths
from qualify.run.checks.difference import blame_change, difference
from qualify.run.checks.interface import Shipped, Subject, claimed, failing, noted, of_call, passed
from qualify.run.checks.other_workloads import shortened
from qualify.run.checks.repeat import differs_alone
from qualify.text import first_line

REACHES = (31, 32)
"""bits of a 32-bit offset with a sign, and without: it reaches 2^31, or 2^32, elements"""
BEFORE = 1 << 31
"""elements before a far tensor, so that a wrapped offset, which is negative, still reads allocated memory"""
MANY = (1 << 16) + 1
"""sequences of the largest batch: one more than 16 bits can count"""
PAST = 64
"""keys beyond a power of two, so that the sequence ends inside a tile"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes of calls that cost at most a few milliseconds on a kind of device."""

    queries: int
    """queries of one sequence: above 2^11 kernels choose other tiles, schedules and splits, and grids end at 2^16"""
    spread: int
    """Rows of a tensor that is 9/8 of a limit long. A kernel may compute the offset of a tile's first row in fewer bits
    than offsets within the tile. With so many rows, the last tile of every usual size begins beyond the limit."""
    alive: int
    """sequences that all have queries: more than two warps have threads; on a GPU, more than the largest block has"""
    batches: int
    """largest of the batches of many sizes; on a GPU, two sequences for each of its multiprocessors"""
    every: int
    """each number of sequences or heads up to this one is asked"""
    tiles: int
    """first live sequences, each of which has one more tile of TILE keys than the one before"""


SIZES: dict[Scale, Sizes] = {
    "small": Sizes(queries=(1 << 11) + PAST + 1, spread=9 * 32 + 1, alive=70, batches=16, every=104, tiles=24),
    "large": Sizes(queries=(1 << 16) + PAST + 1, spread=9 * 128 + 1, alive=9 * 130, batches=300, every=40, tiles=64),
}
NEAR = 64
"""in a call with many rows of one tensor: rows of the other (queries or keys)"""
LIVE = 3
"""number of sequences of the largest batch that have queries, up to and including the one at each power of two"""
SEVERAL = 3
"""queries of small calls where the case is not decode"""
LONG_Q, LONG_K = (1 << 9) + 33, (1 << 10) + 645
"""queries and keys of a prompt that is long in both, with a history of over 2^10 keys"""
GROUP = 2
"""query heads of the one KV head in long calls: the least that make a group, to save work"""
LEAST, LENGTHS = 40, 130
"""least keys of a live sequence, and the number of different lengths"""
TILE = 32
"""keys of the smallest usual tile"""
TILED = 40
"""number of live sequences that have more queries than a tile in the second call"""
ALONE = (0, 20, 40)
"""numbers of live sequences that also run alone; in the second call they have several tiles of keys"""
NARROW = 20
"""left side of the window in the second call of the live sequences"""
HEADS = 130
"""least number of query heads in the call with many heads: more than four warps have threads"""
MOST_HEADS = 104
"""largest of the numbers of heads that are asked; a multiple of 8, which every kernel takes"""
FEW = 40
"""keys of the calls with many heads and with late queries"""
Part = Callable[[Subject], Finding | None]
"""makes one of the calls; returns a finding where the result is wrong"""


class SizeLimits(Shipped):
    """Far keys, late queries, many sequences."""

    def skips(self, subject: Subject) -> str:
        """Skips kernels that compile for every shape."""
        return "each shape would be compiled" if subject.card.jit == "shapes" else ""

    def run(self, subject: Subject) -> list[Finding]:
        """Make the calls until one is wrong. Calls that machine or library cannot take are noted.

        A kernel that passes such a call with one shape passes it with others. So each call runs once for each kernel,
        dtype and layout in a process. One query per sequence is another question, except in far rows, because kernels
        for decode are others.
        """
        asked, told, notes = [], [], []
        layout, far = layout_of(subject.workload), _far_parts(subject)
        phase = "decode" if max(subject.workload.seqlens_q) == 1 else "prefill"
        for name, part in parts(subject).items():
            about = layout if name in far else f"{layout}/{phase}"
            question = f"{self.name}/{subject.card.kernel}/{subject.workload.dtype}/{about}/{name}"
            if question in subject.asked:
                told.append(name)
                continue
            try:
                wrong = part(subject)
            except LibraryRefusal as refusal:
                notes.append(noted(self.name, f"not run: the library refuses {name} ({refusal})"))
                continue
            except (torch.OutOfMemoryError, MemoryError) as error:
                notes.append(noted(self.name, f"not run: no room for {name} ({first_line(error)[:120]})"))
                continue
            finally:
                subject.processor.give_back()
            if wrong:
                said = f"{name} ({wrong.values['call']}): {wrong.detail}"
                return [failing(self.name, said, dict(wrong.values) | {"what": name})]
            subject.asked[question] = "right"
            asked.append(name)
        findings = [passed(self.name, f"right with {', '.join(asked)}")] if asked else []
        before = [noted(self.name, f"passed before, on another shape: {', '.join(told)}")] if told else []
        return findings + before + notes


def layout_of(workload: Workload) -> str:
    """The layout of a workload, a part of the key of calls that run only once."""
    return ("paged" if workload.page_size else "packed") + ("/latent" if workload.latent else "")


def parts(subject: Subject) -> dict[str, Part]:
    """The calls by name, limited to what the card claims."""
    return _far_parts(subject) | _many_parts(subject)


def _far_parts(subject: Subject) -> dict[str, Part]:
    """Calls with tensors longer than 2^31 and 2^32 elements, by name."""
    claims, workload = subject.card.claims, subject.workload
    found: dict[str, Part] = {}
    limit = math.inf if claims.elements is None else claims.elements.max
    for power in (power for power in REACHES if 1 << power < limit):
        beyond = f"beyond 2^{power} elements"
        if workload.page_size:
            found[f"a cache {beyond}"] = partial(_same, lengths=None, move=partial(far_pages, offsets=1 << power))
            continue
        for name, field in (("keys", "k"), ("values", "v"), ("queries", "q")):
            lengths = _spread(subject, field)
            if lengths and not (workload.latent and field == "v"):
                move = partial(far_rows, field=field, offsets=1 << power)
                found[f"{name} {beyond}"] = partial(_same, lengths=lengths, move=move)
    return found


def _many_parts(subject: Subject) -> dict[str, Part]:
    """Calls with many queries, heads or sequences, by name."""
    claims, workload = subject.card.claims, subject.workload
    found: dict[str, Part] = {}
    decode, sizes = max(workload.seqlens_q) == 1, SIZES[subject.processor.scale]
    if not decode and claimed(subject, (sizes.queries,), (FEW,)):
        found[f"{sizes.queries} queries"] = _late_queries
    if not decode and claims.alignment == "bottom_right":
        found[f"{LONG_Q} queries on {LONG_K} keys"] = _long_prompt
    batches = sizes.batches if claims.batch is None else min(sizes.batches, claims.batch.max)
    if batches > 1 and subject.card.jit != "shapes":  # such a library compiles for each size of a batch
        found[f"up to {batches} sequences"] = partial(_each_batch, most=batches)
    if subject.card.jit == "never" and not workload.latent:  # latent kernels support only their models' head counts
        found[f"{_many(workload)} heads"] = _many_heads
        found[f"up to {MOST_HEADS} heads"] = _each_number_of_heads
    if {"ragged", "empty"} <= set(claims.features):
        found[f"{_largest_batch(subject)} sequences"] = _many_sequences
    if "ragged" in claims.features and (claims.batch is None or claims.batch.max >= sizes.alive):
        found[f"{sizes.alive} live sequences"] = _live_sequences
    return found


def _spread(subject: Subject, field: str) -> Lengths | None:
    """Lengths of a call with many rows of a tensor; None where the card claims none, or decode has only one query."""
    decode, rows = max(subject.workload.seqlens_q) == 1, SIZES[subject.processor.scale].spread
    if field == "q":
        tries = () if decode else (((rows,), (NEAR,)), ((rows,), (rows,)))
    else:
        tries = (((1 if decode else NEAR,), (rows,)), ((rows,), (rows,)))
    return next((lengths for lengths in tries if claimed(subject, *lengths)), None)


def _same(subject: Subject, lengths: Lengths | None, move: Callable[[AttentionCall], AttentionCall]) -> Finding | None:
    """A finding where the result changes when a tensor's rows or pages move far from the start of its memory."""
    few = few_kv_heads(subject, 1)
    workload = shortened(subject.workload) if lengths is None else few.with_lengths(*lengths)
    small = replace(subject, workload=workload)
    call = small.inputs().call
    before = small.run(call)
    found = difference(small, before, small.run(move(call)), exact=False)
    if not found:
        return None
    return of_call(small, blame_change(small, "size_limits", "", found, {}, call=call, before=before))


def far_pages(call: AttentionCall, *, offsets: int) -> AttentionCall:
    """The call with its pages at the end of a larger cache, ``offsets`` elements or more after its start.

    The elements are those of keys or values, whichever has more.
    """
    assert call.block_table is not None, "only a paged call has pages"
    pool = len(call.k)
    first = -(-offsets // max(call.k[0].numel(), call.v[0].numel()))
    moved: dict[str, Any] = {}
    for name, pages in (("k", call.k),) if call.latent else (("k", call.k), ("v", call.v)):
        far = _behind_nan((first + pool) * pages[0].numel(), pages).view(first + pool, *pages.shape[1:])
        far[first:] = pages
        moved[name] = far
    if call.latent:
        moved["v"] = moved["k"][..., : call.v.shape[-1]]
    return replace(call, **moved, block_table=call.block_table + first)


def far_rows(call: AttentionCall, *, field: str, offsets: int) -> AttentionCall:
    """The call with rows of one tensor so far apart that the last ninth begins beyond ``offsets`` elements.

    Latent values move with the keys.

    Args:
        field: the tensor, ``q``, ``k`` or ``v``.
    """
    tensor: Tensor = getattr(call, field)
    rows, heads, dim = tensor.shape
    step = max(heads * dim, -(-9 * offsets // 8 // max(1, rows - 1) // 64) * 64)
    whole = _behind_nan(step * (rows - 1) + heads * dim, tensor)
    far = whole.as_strided(tensor.shape, (step, dim, 1), whole.storage_offset())
    far.copy_(tensor)
    moved: dict[str, Any] = {field: far}
    if call.latent and field == "k":
        moved["v"] = far[..., : call.v.shape[-1]]
    return replace(call, **moved)


def _behind_nan(elements: int, like: Tensor) -> Tensor:
    """(elements,) new memory, with BEFORE more elements before it; on a GPU all are NaN.

    A CPU's memory is not filled, because the system provides only memory that is written to.

    Raises:
        MemoryError: a CPU has no room.
        OutOfMemoryError: a GPU has no room.
    """
    if like.device.type != HOST:
        whole = torch.empty(BEFORE + elements, dtype=like.dtype, device=like.device)
        for part in torch.split(whole, BEFORE):
            part.fill_(math.nan)
        return whole[BEFORE:]
    try:
        return torch.empty(BEFORE + elements, dtype=like.dtype)[BEFORE:]
    except RuntimeError as error:  # torch raises this where a CPU has no memory left
        raise MemoryError(str(error)) from error


def _late_queries(subject: Subject) -> Finding | None:
    """A finding for very many queries over a few keys. Under a causal mask, only the last queries see keys."""
    lengths = ((SIZES[subject.processor.scale].queries,), (FEW,))
    late = replace(subject, workload=few_kv_heads(subject, 1).with_lengths(*lengths))
    return _wrong(late, late.inputs(seed=13).call)


def _long_prompt(subject: Subject) -> Finding | None:
    """A finding for over 2^9 queries after a context of over 2^10 keys."""
    long = replace(subject, workload=few_kv_heads(subject, 1).with_lengths((LONG_Q,), (LONG_K,)))
    return _wrong(long, long.inputs(seed=15).call)


def few_kv_heads(subject: Subject, most: int, group: int = GROUP) -> Workload:
    """The workload with at most ``most`` KV heads of ``group`` query heads each; unchanged for compiled kernels."""
    workload = subject.workload
    if subject.card.jit != "never":
        return workload
    own, heads_kv = workload.heads_q // workload.heads_kv, min(most, workload.heads_kv)
    heads = own if workload.latent else min(own, group)
    return replace(workload, heads_q=heads * heads_kv, heads_kv=heads_kv)


def _many_heads(subject: Subject) -> Finding | None:
    """A finding for the case's groups, repeated to at least HEADS query heads and a multiple of 8 KV heads."""
    workload = subject.workload
    heads_q = _many(workload)
    many = replace(workload, heads_q=heads_q, heads_kv=workload.heads_kv * heads_q // workload.heads_q)
    queries, keys = _short(subject)
    wide = replace(subject, workload=many.with_lengths((queries,) * 2, (keys,) * 2))
    return _wrong(wide, wide.inputs(seed=14).call)


def _each_number_of_heads(subject: Subject) -> Finding | None:
    """A finding for a number of heads of one sequence."""
    heads = replace(subject.workload, heads_q=MOST_HEADS, heads_kv=MOST_HEADS)
    queries, keys = _short(subject)
    some = replace(subject, workload=heads.with_lengths((queries,), (keys,)))
    return wrong_at_a_number(some, "heads", SIZES[subject.processor.scale].every)


def _each_batch(subject: Subject, *, most: int) -> Finding | None:
    """A finding for a number of sequences; they have one head, so that their number is that of blocks."""
    queries, keys = _short(subject)
    batch = few_kv_heads(subject, 1, 1).with_lengths((queries,) * most, (keys,) * most)
    some = replace(subject, workload=batch)
    return wrong_at_a_number(some, "sequences", SIZES[subject.processor.scale].every)


def _short(subject: Subject) -> tuple[int, int]:
    """Queries and keys of a sequence of a small call."""
    queries = 1 if max(subject.workload.seqlens_q) == 1 else SEVERAL
    return queries, queries if subject.card.claims.alignment == "top_left" else FEW


def _many(workload: Workload) -> int:
    """Number of query heads: the least multiple of the workload's with at least HEADS, and KV heads a multiple of 8."""
    step = workload.heads_q * 8 // math.gcd(8, workload.heads_kv)
    return -(-HEADS // step) * step


def _many_sequences(subject: Subject) -> Finding | None:
    """A finding for the largest batch, where only sequences beside powers of two, and the last ones, are not empty."""
    batch = _largest_batch(subject)
    ends = [batch, *(1 + (1 << power) for power in range(2, batch.bit_length()))]
    live = {index for end in ends for index in range(max(0, end - LIVE), end) if index < batch}
    queries = 1 if max(subject.workload.seqlens_q) == 1 else SEVERAL
    lengths = torch.zeros(batch, dtype=torch.int64)
    lengths[list(live)] = 1
    keys = queries if subject.card.claims.alignment == "top_left" else 7
    lengths_q, lengths_k = (tuple((lengths * each).tolist()) for each in (queries, keys))
    many = replace(subject, workload=subject.workload.with_lengths(lengths_q, lengths_k))
    return _wrong(many, many.inputs(seed=12).call)


def _live_sequences(subject: Subject) -> Finding | None:
    """A finding for a batch whose sequences all have queries and different keys; then lengths in reverse order."""
    decode = max(subject.workload.seqlens_q) == 1
    alive = SIZES[subject.processor.scale].alive
    queries, keys = (1 if decode else SEVERAL,) * alive, tuple(LEAST + index % LENGTHS for index in range(alive))
    grown = tuple(key + index * TILE * (index < SIZES[subject.processor.scale].tiles) for index, key in enumerate(keys))
    # The second call has more than a tile of queries in more sequences than a warp has threads.
    later = queries if decode else (PAST + 2,) * TILED + queries[TILED:]
    top_left = subject.card.claims.alignment == "top_left"
    several = few_kv_heads(subject, SEVERAL)
    again = _under_window(subject, several if decode else few_kv_heads(subject, 1))
    for seed, workload, lengths in ((16, several, (queries, grown)), (17, again, (later, keys[::-1]))):
        live = replace(subject, workload=workload.with_lengths(lengths[0], lengths[0] if top_left else lengths[1]))
        call = live.inputs(seed=seed).call
        result = live.run(call)
        wrong = beyond_budget(live, call, result)
        if wrong:
            return of_call(live, wrong)
    return of_call(live, differs_alone(live, call, result, ALONE)) if subject.card.claims.batch_invariant else None


def _under_window(subject: Subject, workload: Workload) -> Workload:
    """The workload with a window and sinks, as far as the card claims them and no compilation is needed."""
    claims = subject.card.claims
    if subject.card.jit != "never" or workload.latent or claims.alignment == "top_left":
        return workload
    if "window" in claims.masks and workload.mask.kind in {"full", "causal"}:
        workload = replace(workload, mask=Mask(causal=True, window=(NARROW, 0)))
    return replace(workload, sinks=workload.sinks or "sinks" in claims.features)


def _largest_batch(subject: Subject) -> int:
    limit = subject.card.claims.batch
    return min(MANY, limit.max) if limit is not None else MANY


def _wrong(subject: Subject, call: AttentionCall) -> Finding | None:
    return of_call(subject, beyond_budget(subject, call, subject.run(call)))
