"""Building blocks of every script of a failure: inputs, the launch, exact attention, and the claims.

The exporter copies these functions unchanged into a script. So they use only torch, and those parts of qualify that the
exporter copies with them. A claim compares a result with the expected one. It returns whether the result is wrong, and
a text that the script prints.
"""

from __future__ import annotations

import base64
import math
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qualify.masks import Mask  # noqa: F401 - a script writes its calls with it
from qualify.run.adapters.interface import AttentionCall, Prepared

aten = torch.ops.aten

Claimed = tuple[bool, str]
"""whether the result is wrong, and a text with the actual and the expected values"""


def unpack(text: str, dtype: torch.dtype, shape: list[int], device: Any) -> Tensor:
    """A tensor from its bytes, compressed with zlib and written in base64."""
    flat = torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=torch.uint8)
    return flat.view(dtype).view(shape).to(device)


def run(kernel: Callable[[AttentionCall], Prepared], call: AttentionCall) -> tuple[Any, Any]:
    """(out, lse) of the kernel; lse is None where it returns only out.

    Before the launch this leaves NaN in memory that the allocator may reuse. Rows that the kernel does not write may
    then show up as NaN.
    """
    shape = (*call.q.shape[:2], call.v.shape[-1])
    dirt = [torch.full(shape, math.nan, dtype=call.out_dtype, device=call.q.device) for _ in range(2)]
    del dirt
    prepared = kernel(call)
    returned: Any = prepared.result(prepared.launch())
    if call.q.is_cuda:
        torch.cuda.synchronize()
    return returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)


def finish(wrong: bool, text: str) -> None:
    """Print the text and the conclusion; exit 1 if the result is wrong, else 0."""
    print(text)
    print("WRONG" if wrong else "right")
    sys.exit(1 if wrong else 0)


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Exact attention of one query of one head, in float64."""

    out: Tensor
    """(head_dim_v,)"""
    lse: Tensor
    """scalar, natural logarithm"""
    weighted: Tensor
    """(head_dim_v,): sum over the keys of weight times |v|"""


def exact(call: AttentionCall, sequence: int, query: int, head: int) -> Exact:
    """Exact attention of one query of one query head over the keys that it sees.

    Args:
        sequence: index of the sequence.
        query: index within the sequence.
        head: query head.
    """
    begin, end = call.cu_seqlens_q[sequence : sequence + 2].tolist()
    if call.cu_seqlens_k is not None:
        first, last = call.cu_seqlens_k[sequence : sequence + 2].tolist()
        k, v = call.k[first:last], call.v[first:last]
    else:
        assert call.block_table is not None, "a paged call has a block table"
        assert call.seqused_k is not None, "a paged call has seqused_k"
        length, size = int(call.seqused_k[sequence]), call.k.shape[1]
        pages = call.block_table[sequence, : -(-length // size)].long()
        k, v = (tensor[pages].flatten(0, 1)[:length] for tensor in (call.k, call.v))
    kv_head = head // (call.q.shape[1] // k.shape[1])
    key, position = torch.arange(len(k), device=k.device), query + len(k) - (end - begin)
    seen = call.mask.visible(query, key, end - begin, len(k))
    for owner, start, stop in [] if call.bidirectional_spans is None else call.bidirectional_spans.tolist():
        if owner == sequence and start <= position < stop:
            seen |= (key >= start) & (key < stop)
    descales = (call.q_descale, call.k_descale, call.v_descale)
    factors = [1.0 if item is None else item[sequence, kv_head].double() for item in descales]
    q = call.q[begin + query, head].double() * factors[0]
    k, v = k[seen, kv_head].double() * factors[1], v[seen, kv_head].double() * factors[2]
    scores = k @ q * call.scale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    lse = torch.logsumexp(scores, 0)
    if call.sinks is not None and len(k):
        lse = torch.logaddexp(lse, call.sinks[head].double())
    weights = torch.exp(scores - lse)
    return Exact(out=weights @ v, lse=lse, weighted=weights @ v.abs())


def element_is_off(
    call: AttentionCall,
    out: Tensor,
    *,
    sequence: int,
    query: int,
    head: int,
    element: int,
    absolute: float = 0.0,
    of_value: float = 0.0,
    of_weights: float = 0.0,
    of_key: float = 0.0,
) -> Claimed:
    """Compare one element of out with its exact value.

    The allowed difference is a sum of four terms: ``absolute``; ``of_value`` times the magnitude of the exact value;
    ``of_weights`` times the sum over the keys of weight times |v|; and ``of_key`` times the weight of a key whose score
    is 0.
    """
    right = exact(call, sequence, query, head)
    actual = float(out[int(call.cu_seqlens_q[sequence]) + query, head, element])
    expected = float(right.out[element])
    allowed = absolute + of_value * abs(expected)
    if of_weights:
        allowed += of_weights * float(right.weighted[element])
    if of_key:
        allowed += of_key * float(torch.exp(-right.lse))
    where = f"sequence {sequence}, query {query}, head {head}, element {element}"
    text = f"{where}: out is {actual:.9g}, exact {expected:.9g}, allowed difference {allowed:.3g}"
    return not abs(actual - expected) <= allowed, text


def lse_is_off(
    call: AttentionCall, lse: Tensor | None, *, sequence: int, query: int, head: int, allowed: float
) -> Claimed:
    """Compare the LSE of one row with its exact value. A missing LSE is wrong.

    ``allowed`` is a relative difference if the exact |LSE| is above 1, else an absolute one.
    """
    if lse is None:
        return True, "the kernel returned no lse, and its card claims one"
    actual = float(lse[head, int(call.cu_seqlens_q[sequence]) + query])
    expected = float(exact(call, sequence, query, head).lse)
    limit = allowed * max(1.0, abs(expected))
    where = f"sequence {sequence}, query {query}, head {head}"
    text = f"{where}: lse is {actual:.9g}, exact {expected:.9g}, allowed difference {limit:.3g}"
    return not abs(actual - expected) <= limit, text


def row_is_off(call: AttentionCall, out: Tensor, *, sequence: int, query: int, head: int, allowed: float) -> Claimed:
    """Compare the rms error of one row of out with the allowed one, an absolute value."""
    right = exact(call, sequence, query, head).out
    actual = out[int(call.cu_seqlens_q[sequence]) + query, head].double()
    error = float((actual - right).square().mean().sqrt())
    worst = int((actual - right).abs().argmax())
    text = (
        f"sequence {sequence}, query {query}, head {head}: rms error of the row {error:.3g}, allowed {allowed}; "
        f"element {worst} is {float(actual[worst]):.9g}, exact {float(right[worst]):.9g}"
    )
    return not error <= allowed, text


def rows_are_off(call: AttentionCall, out: Tensor, *, statistic: str, allowed: float) -> Claimed:
    """Compare a statistic over many rows of out with its allowed value. A row is one query of one head.

    If there are 8192 rows or more, it takes an evenly spaced sample of 4096 to 6144 rows. It leaves out rows whose
    exact result is not finite.

    Args:
        statistic: ``gain``, the relative amount by which results are too large or too small,
            |Σ error·exact / Σ exact²|; or ``rms error``, an absolute value.
        allowed: largest allowed value of the statistic.
    """
    bounds = call.cu_seqlens_q.tolist()
    rows = [
        (sequence, query, head)
        for sequence in range(len(bounds) - 1)
        for query in range(bounds[sequence + 1] - bounds[sequence])
        for head in range(call.q.shape[1])
    ]
    rows = rows[:: max(1, len(rows) // 4096)]
    right = torch.stack([exact(call, *row).out for row in rows])
    actual = torch.stack([out[bounds[sequence] + query, head].double() for sequence, query, head in rows])
    seen = right.isfinite().all(1)
    rows = [row for row, kept in zip(rows, seen.tolist(), strict=True) if kept]
    error, actual, right = (actual - right)[seen], actual[seen], right[seen]
    if statistic == "gain":
        value = float(((error * right).sum() / right.square().sum()).abs())
    else:
        value = float(error.square().mean().sqrt())
    at, element = divmod(int(error.abs().argmax()), error.shape[1])
    text = (
        f"{statistic} over {len(rows)} rows: {value:.4g}, allowed {allowed}; largest error: sequence {rows[at][0]}, "
        f"query {rows[at][1]}, head {rows[at][2]}, element {element}: {float(actual[at, element]):.9g}, exact "
        f"{float(right[at, element]):.9g}"
    )
    return not value <= allowed, text


def results_differ(
    call: AttentionCall,
    before: tuple[Any, Any],
    after: tuple[Any, Any],
    *,
    tensor: str,
    sequence: int,
    query: int,
    head: int,
    element: int,
    steps: float,
    change: str,
) -> Claimed:
    """Compare two results (out, lse) at one place where they should agree.

    Args:
        call: the call that gave ``after``.
        before: result before the change.
        after: result after the change.
        tensor: out or lse.
        sequence: index of the sequence.
        query: index within the sequence.
        head: query head.
        element: index within the row of out; the LSE ignores it.
        steps: allowed difference, in multiples of (machine epsilon of out × largest |out| of the row); 0 = all bits
            must be equal.
        change: what happened between the two launches, for the text.
    """
    row = int(call.cu_seqlens_q[sequence]) + query
    right = exact(call, sequence, query, head)
    if tensor == "lse":
        pair, expected = [lse[head, row] for _, lse in (before, after)], float(right.lse)
    else:
        pair, expected = [out[row, head, element] for out, _ in (before, after)], float(right.out[element])
    values = [float(item) for item in pair]
    if steps:
        largest = max(float(out[row, head].float().abs().max()) for out, _ in (before, after))
        wrong = not abs(values[1] - values[0]) <= steps * torch.finfo(after[0].dtype).eps * largest
    else:
        bits = [item.contiguous().view(-1).view(torch.uint8) for item in pair]
        wrong = not torch.equal(bits[0], bits[1])
    where = f"sequence {sequence}, query {query}, head {head}, element {element}"
    text = f"{where}: {tensor} is {values[1]:.9g}, and was {values[0]:.9g} before {change}; exact {expected:.9g}"
    return wrong, text


def empty_row_is_off(
    call: AttentionCall,
    out: Tensor,
    lse: Tensor | None,
    *,
    sequence: int,
    query: int,
    head: int,
    out_policy: str,
    lse_policy: str,
) -> Claimed:
    """Compare a row that sees no key with the ``empty_row`` of the card.

    Args:
        out_policy: 0, nan or any.
        lse_policy: -inf, inf or any.
    """
    place = int(call.cu_seqlens_q[sequence]) + query
    row, sums = out[place, head], None if lse is None else float(lse[head, place])
    wrong = out_policy == "0" and not bool((row == 0).all())
    wrong |= out_policy == "nan" and not bool(row.isnan().all())
    wrong |= lse_policy != "any" and sums is not None and sums != float(lse_policy)
    text = (
        f"sequence {sequence}, query {query}, head {head} sees no key: out {row.tolist()[:4]} ..., lse {sums}; "
        f"the card says out {out_policy}, lse {lse_policy}"
    )
    return wrong, text


def breaks_contract(call: AttentionCall, out: object, lse: object) -> Claimed:
    """Compare shapes and dtypes of the returned out and lse with the contract."""
    shape = (*call.q.shape[:2], call.v.shape[-1])
    expected = f"a tensor {tuple(shape)} {call.out_dtype}"
    actual = f"a tensor {tuple(out.shape)} {out.dtype}" if isinstance(out, Tensor) else repr(out)
    if actual == expected and isinstance(lse, Tensor):
        expected = f"lse {(call.q.shape[1], call.q.shape[0])} torch.float32"
        actual = f"lse {tuple(lse.shape)} {lse.dtype}"
    return actual != expected, f"the kernel returned {actual}, the contract says {expected}"


def lse_is_missing(call: AttentionCall, lse: object) -> Claimed:
    """Whether the kernel returned no LSE, which its card claims."""
    wrong = not isinstance(lse, Tensor)
    return (
        wrong,
        f"the kernel returned {'no' if wrong else 'an'} LSE, the card claims one of {tuple(call.q.shape[:2])[::-1]}",
    )


def overwrites(kernel: Callable[[AttentionCall], Prepared], first: AttentionCall, second: AttentionCall) -> Claimed:
    """Keep the result of a call, and look whether the next call changed it."""
    names = ("out", "lse")
    kept = run(kernel, first)
    saved = [part.clone() if isinstance(part, Tensor) else None for part in kept]
    run(kernel, second)
    changed = [
        f"{name} of the first call: {int((part != was).sum())} of {was.numel()} elements changed in the second call"
        for name, part, was in zip(names, kept, saved, strict=True)
        if was is not None and not torch.equal(part.nan_to_num(), was.nan_to_num())
    ]
    return bool(changed), "; ".join(changed) or "the second call changed nothing of the first call's result"


def whole(tensor: Tensor) -> Tensor:
    """(bytes,) uint8: the whole allocation that contains the tensor, including the memory around it."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def writes_inputs(kernel: Callable[[AttentionCall], Prepared], call: AttentionCall) -> Claimed:
    """Launch the kernel, and check that it changed neither its inputs nor the memory around them."""
    names = [name for name in call.__dataclass_fields__ if isinstance(getattr(call, name), Tensor)]
    saved = {name: whole(getattr(call, name)).clone() for name in names}
    run(kernel, call)
    written = [name for name in names if not torch.equal(whole(getattr(call, name)), saved[name])]
    return bool(written), f"inputs (or what lies around them) that the kernel wrote into: {written or 'none'}"


def returns(kernel: Callable[[AttentionCall], Prepared], call: AttentionCall, *, what: str) -> Claimed:
    """Launch the kernel three times. If all launches return, the result counts as right.

    Args:
        what: what the kernel did when the script was written, for example ``raised RuntimeError``.
    """
    for _ in range(3):
        out, _ = run(kernel, call)
    return False, f"the kernel returned: {type(out).__name__}; it {what} when this script was written"
