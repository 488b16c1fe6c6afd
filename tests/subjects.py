"""Calls and subjects made of tensors, and attention written out row by row: what needs torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from builders import PATTERN_WORDS, make_card, make_workload, sees
from numpy.typing import NDArray
from torch import Tensor

from qualify.cards.kernel import KernelCard
from qualify.run.adapters.interface import Adapter, AttentionCall
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.interface import Subject
from qualify.run.checks.registry import CHECKS
from qualify.run.golden.reference import golden
from qualify.run.host.local import local
from qualify.run.inputs.tensors import make_inputs
from qualify.run.machine.device import processor_of
from qualify.run.measure.recording import record
from qualify.run.measure.tracing import Trace, read_trace
from qualify.selftest.goldens import Goldens

CPU = torch.device("cpu")


def make_subject(
    adapter: Any = None,
    *,
    card: KernelCard | None = None,
    level: Any = "smoke",
    reference: torch.dtype = torch.float64,
    seed: int = 1,
    kind: type[Subject] = Subject,
    shared: bool = True,
    **workload: Any,
) -> Subject:
    """The given adapter, or a correct one, on the usual workload with changes.

    Args:
        shared: whether others ask about the same inputs, so that golden results are kept for them.
    """
    return kind(
        workload=make_workload(**workload),
        card=card or make_card(),
        kernel=local(adapter or TiledTorch()),
        device=CPU,
        level=level,
        reference=reference,
        seed=seed,
        golden_of=goldens() if shared else golden,
    )


@cache
def goldens() -> Goldens:
    """The golden results that this process keeps, because most tests ask several kernels about the same inputs."""
    return Goldens(limit_bytes=256 << 20)


def verdicts(
    *, asked: dict[str, str] | None = None, left_out: Collection[str] = (), **subject: Any
) -> list[tuple[str, str, str]]:
    """(check, verdict, detail) of every finding of every check that applies.

    Args:
        asked: what other subjects of the same process have answered (``Subject.asked``).
        left_out: names of checks that are not asked.
    """
    made = replace(make_subject(shared=False, **subject), asked={} if asked is None else asked)
    some = [check for check in CHECKS if check.name not in left_out]
    applying = [check for check in some if made.level in check.levels and not check.skips(made)]
    found = [finding for check in applying for finding in check.run(made)]
    return [(finding.check, finding.verdict, finding.detail) for finding in found]


SHARED_FOR = ("heads_kv", "head_dim", "head_dim_v", "latent", "softcap", "sinks", "scale")
"""what workloads must agree in, to share the answers of checks that run once, as the cases of one process do"""


def answers(kernel: str, workload: Mapping[str, Any]) -> dict[str, str]:
    """What those checks have answered in this process, for that kernel and what :data:`SHARED_FOR` names."""
    return _answers(kernel, *(workload.get(name) for name in SHARED_FOR))


@cache
def _answers(*_shared: object) -> dict[str, str]:
    return {}


def on_gpu(subject: Subject, adapter: Adapter) -> Subject:
    """The same question to an adapter's kernel on the first GPU."""
    return replace(subject, device=torch.device("cuda", 0), kernel=local(adapter, "cuda"), golden_of=golden)


def make_call(*, kind: Any = "normal", seed: int = 1, **workload: Any) -> AttentionCall:
    """Random inputs of the usual workload with changes; in fp8 with unequal descale factors."""
    return make_inputs(make_workload(**workload), kind=kind, seed=seed, device=CPU, descaled=True).call


WIDE = ("out", "A", "Q", "U", "S", "T")
BOUNDS = ("score_bound", "product_bound", "value_bound")


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Attention row by row: what a golden result must hold, in the order of the packed queries."""

    sequence: Tensor
    S: Tensor
    T: Tensor
    gain: Tensor
    """Σ p² (v·o)², (total_q, heads_q)"""

    out: Tensor
    A: Tensor
    Q: Tensor
    U: Tensor
    lse: Tensor
    """(total_q, heads_q)"""
    row_max: Tensor
    score_bound: Tensor
    """|q| · max |k| · scale, over all keys of the sequence"""
    product_bound: Tensor
    """√head_dim · |q|∞ · max |k|∞ · scale"""
    value_bound: Tensor
    """max |v|∞"""
    keys: Tensor


def keys_of(call: AttentionCall) -> list[list[tuple[int, ...]]]:
    """Where each key of each sequence is stored: (row,) in a packed tensor, (page, slot) in a paged one."""
    if call.cu_seqlens_k is not None:
        bounds = call.cu_seqlens_k.tolist()
        return [[(row,) for row in range(*pair)] for pair in pairwise(bounds)]
    assert call.block_table is not None
    assert call.seqused_k is not None
    size = call.k.shape[1]
    return [
        [(int(pages[key // size]), key % size) for key in range(length)]
        for pages, length in zip(call.block_table, call.seqused_k.tolist(), strict=True)
    ]


Array = NDArray[np.float64]
"""rows are short: for them numpy's functions take less time than torch's"""


@dataclass(frozen=True, kw_only=True)
class _Held:
    """Keys and values of one KV head of a sequence, descaled, in float64, and what none of them exceeds."""

    k: Array
    v: Array
    longest_k: float
    largest_k: float
    largest_v: float


def _held(call: AttentionCall, sequence: int, kv_head: int, places: list[tuple[int, ...]]) -> _Held:
    k, v = (np.zeros((len(places), tensor.shape[-1])) for tensor in (call.k, call.v))
    for j, place in enumerate(places):
        k[j] = _descaled(call.k[(*place, kv_head)], call.k_descale, sequence, kv_head)
        v[j] = _descaled(call.v[(*place, kv_head)], call.v_descale, sequence, kv_head)
    return _Held(
        k=k,
        v=v,
        longest_k=max((_length(key) for key in k), default=0.0),
        largest_k=max((float(np.abs(key).max()) for key in k), default=0.0),
        largest_v=max((float(np.abs(value).max()) for value in v), default=0.0),
    )


def _descaled(tensor: Tensor, descale: Tensor | None, sequence: int, head: int) -> Array:
    values: Array = tensor.double().numpy()
    return values if descale is None else values * float(descale[sequence, head])


def _length(vector: Array) -> float:
    return math.sqrt(float(np.square(vector).sum()))


def exact(call: AttentionCall) -> Exact:
    """The call in float64, one row of one head at a time."""
    heads, heads_kv = call.q.shape[1], call.k.shape[-2]
    bounds, stored = call.cu_seqlens_q.tolist(), keys_of(call)
    spans = [] if call.bidirectional_spans is None else call.bidirectional_spans.tolist()
    sizes = {word: call.mask.size for word, pattern in PATTERN_WORDS.items() if pattern == call.mask.pattern}
    rows: list[dict[str, Any]] = []
    for index, places in enumerate(stored):
        seqlen_q, seqlen_k = bounds[index + 1] - bounds[index], len(places)
        held = [_held(call, index, kv_head, places) for kv_head in range(heads_kv)]
        for i in range(seqlen_q):
            own = [span[1:] for span in spans if span[0] == index]
            position = i + seqlen_k - seqlen_q
            seen = [
                j
                for j in range(seqlen_k)
                if sees(i, j, seqlen_q, seqlen_k, call.causal, call.window, **sizes)
                or any(begin <= position < end and begin <= j < end for begin, end in own)
            ]
            for head in range(heads):
                kv_head = head // (heads // heads_kv)
                query = _descaled(call.q[bounds[index] + i, head], call.q_descale, index, kv_head)
                sink = None if call.sinks is None else float(call.sinks[head])
                rows.append({"sequence": index, **_row(call, query, held[kv_head], seen, sink)})

    def gathered(name: str, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor([row[name] for row in rows], dtype=dtype).view(-1, heads)

    wide = {name: torch.from_numpy(np.stack([row[name] for row in rows])).unflatten(0, (-1, heads)) for name in WIDE}
    narrow = {name: gathered(name) for name in ("lse", "row_max", "gain", *BOUNDS)}
    whole = {name: gathered(name, torch.int64)[:, 0] for name in ("keys", "sequence")}
    return Exact(**wide, **narrow, **whole)


def _row(call: AttentionCall, query: Array, held: _Held, seen: list[int], sink: float | None) -> dict[str, Any]:
    """One query of one head against the keys that it sees.

    Its bounds are what no score of it, no product of elements (√head_dim times) and no value of its sequence exceeds.
    """
    asked = query * call.scale
    products = len(query) ** 0.5 * float(np.abs(asked).max()) * held.largest_k
    bounds = dict(zip(BOUNDS, (_length(asked) * held.longest_k, products, held.largest_v), strict=True))
    if not seen:
        nothing = np.zeros(call.v.shape[-1])
        return dict.fromkeys(WIDE, nothing) | bounds | {"lse": -math.inf, "row_max": -math.inf, "keys": 0, "gain": 0.0}
    k, v = held.k[seen], held.v[seen]
    scores = call.scale * (k @ query)
    if call.softcap:
        scores = call.softcap * np.tanh(scores / call.softcap)
    logits = scores if sink is None else np.append(scores, sink)
    row_max = float(logits.max())
    lse = row_max + math.log(float(np.exp(logits - row_max).sum()))
    p = np.exp(scores - lse)
    out = p @ v
    return bounds | {
        "S": (p * np.abs(scores)) @ (np.abs(v) + np.abs(out)),
        "T": np.square((p * scores)[:, None] * (v - out)).sum(0),
        "gain": float(np.square(p * (v @ out)).sum()),
        "out": out,
        "A": p @ np.abs(v),
        "Q": np.square(p) @ np.square(v),
        "U": np.abs(v).sum(0),
        "lse": lse,
        "row_max": row_max,
        "keys": len(seen),
    }


def traces(
    launches: Sequence[Callable[[], Any]], kind: str = "cpu", announce: Callable[[int], None] | None = None
) -> list[Trace]:
    """What one profiler session of some callables says of each."""
    processor = processor_of(kind)
    events = record(launches, processor, announce)
    return read_trace(events, count=len(launches), cuda=processor.records_launches)
