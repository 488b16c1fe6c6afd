"""needle: one key has nearly all the weight of each query, and the output must be that key's value, bit for bit.

Keys hold random ±1 codes, and a query is the code of its target key. The codes are nearly orthogonal, so the target's
score is far above all others, and the other weights are too small to change a bit. The last element of q and k
subtracts a constant from all scores, so that a softcap does not close the gap.

The targets cover the edges of tiles, pages and windows, with different targets for different queries and heads. So a
wrong page, a wrong stride, a wrong KV head or a lost split returns another vector. There is no tolerance, except for
two units in the last place in float32: a kernel that scales the row maximum separately from the scores computes a
largest weight of 1 ± 2^-24. The last of several passes raises all scores above 1,000, where a kernel must not clamp
them.

In latent attention most elements of a key are its value. There the codes are in the rotated part, and all other
elements of the queries are 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qualify.facts.case import Level, Workload
from qualify.facts.dtypes import FORMATS
from qualify.facts.outcome import Finding, Value
from qualify.run.checks.difference import narrower_format, same_bits
from qualify.run.checks.interface import Result, Shipped, Subject, paged_or_ragged
from qualify.run.checks.rows import rows_of
from qualify.run.inputs.formats import TORCH_DTYPES
from qualify.run.inputs.tensors import make_inputs, replace_keys, with_tensors

GAP = 45.0
"""least distance, in natural logarithms, between the target's score and any other: exp(-45) is 3e-20"""
FP32_UNITS = 2
"""most units of 2^-23 by which a float32 output may differ from its target's value"""
NEAR, NEAR_ELEMENT = 1 / 8, 1 / 2
"""Relative errors of a row and of its elements up to which it counts as the target's value; any other row is beyond."""
INEXACT = "A query returns the value of the right key, but not bit for bit"
"""what is wrong then, instead of what the check says in general"""
LIKELY_INEXACT = "a rounding to fewer bits, a softmax without its maximum, or a result that changes from call to call"
"""what is then most often behind it"""
LOOKED_AT = 1 << 16
"""most wrong queries of single heads that are looked at for that: a failing call may leave little memory"""
LEAST_DIM = 32
"""least dimension: with fewer elements there are too few nearly orthogonal codes"""
PASSES: dict[Level, int] = {"smoke": 1, "full": 3}
LIFT = 128.0
"""size of the last element of q and k in the pass that raises scores (by 1448 at a head_dim of 128); always exact"""

MOST_BITS, MOST = 8, 2.0**15
"""most significant bits and largest magnitude of the constant, so that queries in 16 bits or more hold it exactly"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Amplitudes:
    """Magnitude of the codes, and the two factors of the constant; all are exact in the dtypes."""

    code: float
    offset_q: float
    offset_k: float


class Needle(Shipped):
    """Moves the target key over the edges."""

    def skips(self, subject: Subject) -> str:
        """Skips workloads with too few dimensions for the codes, or whose scores leave too small a gap."""
        workload = subject.workload
        dims = range(workload.head_dim)[workload.rope]
        if len(dims) < LEAST_DIM:
            behind = " behind the latent" if workload.latent else ""
            return f"head_dim {len(dims)}{behind} < {LEAST_DIM}: too few orthogonal codes"
        if amplitudes(workload) is None:
            opens = amplitudes(replace(workload, softcap=0.0)) is not None
            cause = f"under softcap {workload.softcap:g}" if opens else f"at scale {workload.scale:g}"
            return f"no gap of {GAP:g} {cause} with {max(workload.seqlens_k)} keys"
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Make one call for each pass, with other codes and other targets."""
        passes = PASSES[subject.level]
        for number in range(passes):
            wrong = self._pass(subject, number)
            if wrong:
                return [Finding(check=self.name, verdict="fail", detail=wrong[0], values=wrong[1])]
        detail = f"every query and head returns its target's value bit for bit ({passes} sweeps of the edges)"
        return [Finding(check=self.name, verdict="pass", detail=detail, values={"passes": passes})]

    def _pass(self, subject: Subject, number: int) -> tuple[str, dict[str, Value]] | None:
        workload = paged_or_ragged(subject)
        size = amplitudes(workload)
        assert size is not None, "skips() asked"
        if number and number == PASSES[subject.level] - 1 and not workload.softcap:
            size = replace(size, offset_q=-LIFT, offset_k=LIFT)
        device, dtype = subject.device, TORCH_DTYPES[workload.kv_format]
        generator = torch.Generator(device).manual_seed(subject.seed + number)
        total_k = sum(workload.seqlens_k)
        inputs = make_inputs(workload, kind="normal", seed=subject.seed + number, device=device, shared=True)
        shape = (total_k, workload.heads_kv, workload.head_dim)
        bits = torch.randint(0, 2, shape, generator=generator, device=device, dtype=torch.int8)
        # Powers of two are exact in every dtype, so bf16 suffices: a cache may have billions of elements.
        codes = bits.to(torch.bfloat16).mul_(2 * size.code).sub_(size.code).to(dtype)
        del bits
        codes[..., -1] = size.offset_k
        noise = torch.randn(total_k, workload.heads_kv, workload.head_dim_v, generator=generator, device=device)
        v = in_two_parts(away_from_zero(noise)).to(dtype)
        targets, seen = choose_targets(workload, device, number)
        head = torch.arange(workload.heads_q, device=device) // (workload.heads_q // workload.heads_kv)
        q_whole = inputs.q_whole.clone()
        q = codes[targets, head].to(q_whole.dtype)  # the codes are exact in both
        q[..., : workload.rope.start] = 0.0
        q[..., -1] = -size.offset_q
        guard = (len(q_whole) - len(q)) // 2
        q_whole[guard : guard + len(q)] = torch.where(seen[:, None, None], q, torch.zeros_like(q))
        probe = replace_keys(with_tensors(inputs, q=q_whole), None, codes, v)
        expected = v[targets, head].to(TORCH_DTYPES[workload.out_format])
        return describe(subject, workload, subject.run(probe.call), expected, targets, seen)


def away_from_zero(noise: Tensor) -> Tensor:
    """The values with at least 1/4 in size: beside a value near 0, the small weights of other keys would be visible."""
    return noise + torch.where(noise < 0, -0.25, 0.25)


def in_two_parts(values: Tensor) -> Tensor:
    """Float32 values with 22 significant bits, which two TF32 parts of 11 bits each hold exactly.

    PyTorch's memory-efficient kernel multiplies float32 in such parts. A product of a single TF32 part, or of 16-bit
    values, still fails.
    """
    return (values.view(torch.int32) & ~3).view(torch.float32)


def amplitudes(workload: Workload) -> Amplitudes | None:
    """Powers of two that make the gap large enough; None where a softcap or a tiny scale prevents it.

    With d - 1 code elements of magnitude a, the target's score is t = (d - 1)·a²·scale. Any other key's score is at
    most r·t, with r = sqrt(2 ln(pairs) / (d - 1)) for random codes. The constant moves the middle between the two to
    zero.
    """
    d = len(range(workload.head_dim)[workload.rope]) - 1
    stored = FORMATS[workload.kv_format]
    bits, largest = min(stored.bits, MOST_BITS), min(stored.largest, MOST)
    pairs = max(2, sum(workload.seqlens_q)) * max(2, max(workload.seqlens_k)) * workload.heads_q
    share = min(0.9, 1.1 * math.sqrt(2 * math.log(pairs) / d))
    for exponent in range(-4, 7):
        code = 2.0**exponent
        target = d * code * code * workload.scale
        middle = target * (1 + share) / 2
        offset = 2.0 ** round(math.log2(max(middle / workload.scale, 2.0**-8)) / 2)
        other = _exact(middle / workload.scale / offset, bits)
        shift = offset * other * workload.scale
        gap = capped(target - shift, workload.softcap) - capped(target * share - shift, workload.softcap)
        if gap >= GAP and offset * other < MOST and max(code, offset, other) <= largest:
            return Amplitudes(code=code, offset_q=offset, offset_k=other)
    return None


def _exact(value: float, bits: int) -> float:
    """The nearest number with ``bits`` significant bits."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 2**bits), exponent - bits)


def capped(score: float, softcap: float) -> float:
    """A score after the softcap; 0 = none."""
    return softcap * math.tanh(score / softcap) if softcap else score


def choose_targets(workload: Workload, device: torch.device, number: int) -> tuple[Tensor, Tensor]:
    """(total_q, heads_q) packed indices of a visible target key for every row and head; (total_q,) rows that see a key.

    Candidates are the first and last visible keys, their neighbours, and the edges of 64- and 128-key tiles and of
    pages; then other keys at a fixed stride. Rows and heads go through the candidates in turn.
    """
    rows = rows_of(workload, device)
    visible = rows.visible()
    low, last = visible.low[:, None], visible.high[:, None] - 1
    count = (last - low + 1).clamp(min=1)
    turn = torch.arange(len(count), device=device)[:, None] * 7 + torch.arange(workload.heads_q, device=device) * 3
    turn = turn + number * 5 if number else turn
    page = workload.page_size or 128
    in_tile = last // 128 * 128
    in_page = in_tile if page == 128 else last // page * page
    before_tile = in_tile - 1
    candidates = [
        last,
        low,
        in_tile,
        before_tile,
        in_page,
        before_tile if page == 128 else in_page - 1,
        low + visible.step,
        last // 64 * 64 - 1,
        low + turn * 2654435761 % count,
        low + turn * 40503 % count,
    ]
    stacked = torch.stack([candidate.expand(-1, workload.heads_q) for candidate in candidates])
    picked = stacked.gather(0, (turn % len(candidates)).unsqueeze(0))[0]
    seen = visible.some
    return torch.where(seen[:, None], rows.first_key[:, None] + visible.nearest(picked), 0), seen


def describe(
    subject: Subject, workload: Workload, result: Result, expected: Tensor, targets: Tensor, seen: Tensor
) -> tuple[str, dict[str, Value]] | None:
    """A sentence and values about the first query and head whose output is not its target's value; None = all are."""
    right = same_bits(result.out + 0.0, expected + 0.0)
    if expected.dtype == torch.float32:
        right |= (result.out - expected).abs() <= FP32_UNITS * torch.finfo(torch.float32).eps * expected.abs()
    wrong = ~right.all(-1) & seen[:, None]
    if not bool(wrong.any()):
        return None
    row, head = (int(x) for x in wrong.nonzero()[0])
    starts = torch.tensor([0, *workload.seqlens_k]).cumsum(0).tolist()
    sequence, query = subject.locate(row)
    key = int(targets[row, head]) - starts[sequence]
    actual, value = result.out[row, head], expected[row, head]
    element = int((~right[row, head]).nonzero()[0])
    values: dict[str, Value] = {
        "sequence": sequence,
        "query": query,
        "head": head,
        "key": key,
        "element": element,
        "actual": float(actual[element]),
        "expected": float(value[element]),
        "rows": int(wrong.any(1).sum()),
        "share": float(wrong.float().mean()),
    }
    found = (expected[:, head] == actual).all(-1).nonzero()
    other = f"; it is the value of the key that query row {int(found[0])} should get" if len(found) else ""
    looked_at = tuple(wrong.nonzero()[:LOOKED_AT].T)
    near = _near(result.out[looked_at], expected[looked_at])
    if near:
        values |= {"wrong": INEXACT, "likely": LIKELY_INEXACT}
        every = int(wrong.sum()) <= LOOKED_AT
        narrow = narrower_format(result.out[looked_at], expected[looked_at]) if every else ""
        values |= {"looks_like": f"an output that is rounded to {narrow}"} if narrow else {}
    order = "" if near else _heads_in_turn(workload, wrong, seen)
    if order:
        values["likely"] = order
        other = f"; it looks like {order}"
    missed = "return their needle inexactly" if near else "miss their needle"
    detail = (
        f"{values['share']:.2%} of the queries {missed}; first: sequence {sequence}, query {query}, head "
        f"{head}: key {key} dominates, element {element} must be {values['expected']:.6g}, is "
        f"{values['actual']:.6g}{other}"
    )
    return detail, values


def _heads_in_turn(workload: Workload, wrong: Tensor, seen: Tensor) -> str:
    """The other order of KV heads, where exactly those heads are wrong that it moves; else empty.

    Args:
        wrong: (total_q, heads_q) bool.
        seen: (total_q,) bool: rows that see a key.
    """
    group = workload.heads_q // workload.heads_kv
    head = torch.arange(workload.heads_q, device=wrong.device)
    moved = head // group != head % workload.heads_kv
    if not bool(moved.any()) or not torch.equal(wrong, moved & seen[:, None]):
        return ""
    return (
        f"query heads that take the KV heads in turn (head % {workload.heads_kv}) and not in groups (head // {group})"
    )


def _near(actual: Tensor, expected: Tensor) -> bool:
    """Whether every row is its target's value but for a small error."""
    off, size = (actual.float() - expected.float()).abs(), expected.float().abs()
    small = off.square().mean(-1) <= NEAR**2 * size.square().mean(-1)
    return bool(small.all()) and bool((off <= NEAR_ELEMENT * size).all())
