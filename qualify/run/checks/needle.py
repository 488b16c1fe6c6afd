"""needle: one key dominates each query, and the output must be that key's value, bit for bit.

Keys carry random ±1 codes, and a query is the code of its target key. The codes are nearly orthogonal, so the target's
score stands far above all others and every other weight vanishes below the last bit. The last element of q and k
subtracts a constant from all scores, which keeps the gap open under a softcap.

Targets sweep the edges of tiles, pages and windows, with another one for every query and head. So a wrong page, a
wrong stride, a wrong KV head or a lost split gives another vector. There is no tolerance: v_j or not. In float32 two
units in the last place are allowed, because a kernel that scales the row maximum apart from the scores gives the
largest weight 1 ± 2^-24. The last of several passes lifts all scores over a thousand, where a kernel must not cut them
off.

In latent attention the value is most of the key. There the codes are those of the rotated part, and the queries' other
elements are 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qualify.facts.case import Level, Workload
from qualify.facts.dtypes import FORMATS
from qualify.facts.outcome import Finding, Value
from qualify.run.checks.difference import same_bits
from qualify.run.checks.interface import Result, Shipped, Subject, paged_or_ragged
from qualify.run.checks.rows import rows_of
from qualify.run.inputs.formats import TORCH_DTYPES
from qualify.run.inputs.tensors import make_inputs, replace_keys, with_tensors

GAP = 45.0
"""least distance, in natural logarithms, between the target's score and any other: exp(-45) is 3e-20"""
FP32_UNITS = 2
"""units of 2^-23 that a float32 output may differ from its target's value"""
LEAST_DIM = 32
"""least dimension: below it there are too few nearly orthogonal codes"""
PASSES: dict[Level, int] = {"smoke": 1, "full": 3}
LIFT = 128.0
"""of both constants where they lift the scores: by 1448 at a head_dim of 128; exact in every dtype"""

MOST_BITS, MOST = 8, 2.0**15
"""significant bits and magnitude of the constant, at most: the queries, in a format of 16 bits or more, hold it too"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Amplitudes:
    """Magnitudes of the codes and of the constant, exact in the dtypes."""

    code: float
    offset_q: float
    offset_k: float


class Needle(Shipped):
    """Sweeps the needle over the edges."""

    def skips(self, subject: Subject) -> str:
        """Needs enough dimensions for nearly orthogonal codes."""
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
        """One call per pass, each with other codes and other targets."""
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
        inputs = make_inputs(workload, kind="normal", seed=subject.seed + number, device=device)
        shape = (total_k, workload.heads_kv, workload.head_dim)
        bits = torch.randint(0, 2, shape, generator=generator, device=device, dtype=torch.int8)
        # Powers of two are exact in all types, and a cache may have billions of elements.
        codes = bits.to(torch.bfloat16).mul_(2 * size.code).sub_(size.code).to(dtype)
        del bits
        codes[..., -1] = size.offset_k
        noise = torch.randn(total_k, workload.heads_kv, workload.head_dim_v, generator=generator, device=device)
        v = in_two_parts(away_from_zero(noise)).to(dtype)
        everything = torch.ones(total_k, dtype=torch.bool, device=device)
        targets, seen = choose_targets(workload, device, number)
        head = torch.arange(workload.heads_q, device=device) // (workload.heads_q // workload.heads_kv)
        q_whole = inputs.q_whole.clone()
        q = codes[targets, head].to(q_whole.dtype)  # the codes are exact in both
        q[..., : workload.rope.start] = 0.0
        q[..., -1] = -size.offset_q
        guard = (len(q_whole) - len(q)) // 2
        q_whole[guard : guard + len(q)] = torch.where(seen[:, None, None], q, torch.zeros_like(q))
        probe = replace_keys(with_tensors(inputs, q=q_whole), workload, everything, codes, v)
        expected = v[targets, head].to(TORCH_DTYPES[workload.out_format])
        return describe(subject, workload, subject.run(probe.call), expected, targets, seen)


def away_from_zero(noise: Tensor) -> Tensor:
    """Values of at least 1/4: beside a 0, which a million random numbers hold, the rest of other keys would show."""
    return noise + torch.where(noise < 0, -0.25, 0.25)


def in_two_parts(values: Tensor) -> Tensor:
    """Float32 values of 22 significant bits: a kernel that multiplies float32 in TF32 parts, of 11 bits each, has them.

    PyTorch's memory-efficient kernel does so; a product in one TF32 part, or through 16 bits, still shows.
    """
    return (values.view(torch.int32) & ~3).view(torch.float32)


def amplitudes(workload: Workload) -> Amplitudes | None:
    """Powers of two that open the gap; None where the softcap closes it, or a tiny scale needs too large a constant.

    With d - 1 code elements of magnitude a, the target scores t = (d - 1)·a²·scale. Any other key scores at most a
    share r of that: r = sqrt(2 ln(pairs) / (d - 1)) for random codes. The constant moves the middle between
    the two to zero.
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
    """The nearest number with so many significant bits."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 2**bits), exponent - bits)


def capped(score: float, softcap: float) -> float:
    """A score after the softcap; 0 = none."""
    return softcap * math.tanh(score / softcap) if softcap else score


def choose_targets(workload: Workload, device: torch.device, number: int) -> tuple[Tensor, Tensor]:
    """A visible target key for every query row and head, (total_q, heads_q) packed indices, and which rows see any.

    Candidates are the first and last visible keys, their neighbours, and the edges of 64- and 128-key tiles and of
    pages. All other keys follow by a fixed stride. Rows and heads walk through the candidates.
    """
    rows = rows_of(workload, device)
    visible = rows.visible()
    low, last = visible.low[:, None], visible.high[:, None] - 1
    count = (last - low + 1).clamp(min=1)
    turn = torch.arange(len(count), device=device)[:, None] * 7 + torch.arange(workload.heads_q, device=device) * 3
    turn = turn + number * 5
    page = workload.page_size or 128
    candidates = [
        last,
        low,
        last // 128 * 128,
        last // 128 * 128 - 1,
        last // page * page,
        last // page * page - 1,
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
    """The first query and head whose output is not its target's value; None where all are."""
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
    detail = (
        f"{values['share']:.2%} of the queries miss their needle; first: sequence {sequence}, query {query}, head "
        f"{head}: key {key} dominates, element {element} must be {values['expected']:.6g}, is "
        f"{values['actual']:.6g}{other}"
    )
    return detail, values
