"""The selftest's own matrix: small shapes of every phase, mask, layout and feature, and the card that claims them."""

from __future__ import annotations

import hashlib
from typing import Any

from qualify.cards.kernel import KernelCard
from qualify.facts.case import Case, Phase, Workload
from qualify.facts.dtypes import DTYPES, FORMATS
from qualify.masks import Mask
from qualify.selftest.simulator import LATENT, RANGE

MODEL = "selftest"


def _workload(**fields: Any) -> Workload:
    """Eight query heads on two KV heads of 64 elements, bf16, causal, with the given changes."""
    usual: dict[str, Any] = {
        "heads_q": 8,
        "heads_kv": 2,
        "head_dim": 64,
        "dtype": "bf16",
        "mask": Mask(causal=True),
        "softcap": 0.0,
        "sinks": False,
        "page_size": 0,
    }
    merged = usual | fields
    merged |= {"descale": "sequence"} if FORMATS[DTYPES[merged["dtype"]].kv].descaled else {}
    merged.setdefault("head_dim_v", merged["head_dim"])
    merged.setdefault("scale", merged["head_dim"] ** -0.5)
    merged.setdefault("seqlens_k", merged["seqlens_q"])
    return Workload(**merged)


def _latent(**fields: Any) -> Workload:
    """Absorbed latent attention: one KV head, whose values are most of its keys."""
    head_dim, head_dim_v = LATENT
    return _workload(heads_kv=1, head_dim=head_dim, head_dim_v=head_dim_v, latent=True, **fields)


# Tiles of the simulator hold 64 queries and 32 keys: lengths are at the edges of tiles, and one beyond.
SHAPES: tuple[tuple[Phase, Workload], ...] = (
    ("prefill", _workload(seqlens_q=(100,))),
    ("decode", _workload(seqlens_q=(1,) * 5, seqlens_k=(130, 64, 200, 17, 1), page_size=16)),
    ("varlen", _workload(seqlens_q=(0, 17, 70, 1, 0, 33, 0), heads_q=6)),
    (
        "chunked",
        _workload(seqlens_q=(9, 0, 40, 3), seqlens_k=(4, 20, 0, 65), dtype="fp16", heads_q=6, heads_kv=2, head_dim=40),
    ),
    ("varlen", _workload(seqlens_q=(70, 33, 9), dtype="fp8_e4m3", heads_q=6, head_dim=128)),
    ("prefill", _workload(seqlens_q=(97,), mask=Mask(), dtype="fp16", heads_q=6, heads_kv=2, head_dim=40)),
    ("chunked", _workload(seqlens_q=(40,), seqlens_k=(140,), mask=Mask(causal=True, window=(20, 0)), sinks=True)),
    (
        "decode",
        _workload(seqlens_q=(1,) * 3, seqlens_k=(300, 256, 5), page_size=256, heads_q=4, dtype="fp16"),
    ),
    ("varlen", _workload(seqlens_q=(65, 33), mask=Mask(window=(15, 15)), softcap=20.0, head_dim_v=32)),
    (
        "prefill",
        _workload(seqlens_q=(80,), heads_q=4, heads_kv=4, dtype="fp32", mask=Mask(causal=True, window=(40, 0))),
    ),
    (
        "chunked",
        _workload(
            seqlens_q=(70,),
            seqlens_k=(129,),
            heads_q=3,
            heads_kv=1,
            head_dim=128,
            scale=0.125,
            spans=((0, 110, 129),),
        ),
    ),
    (
        "decode",
        _workload(
            seqlens_q=(1,) * 3, seqlens_k=(90, 41, 130), page_size=16, heads_q=6, head_dim=128, dtype="bf16_kv_fp8_e4m3"
        ),
    ),
    ("decode", _latent(seqlens_q=(1,) * 3, seqlens_k=(150, 64, 70), page_size=64)),
    (
        "decode",
        _workload(seqlens_q=(1,) * 4, seqlens_k=(129,) * 4, heads_q=12, heads_kv=4, head_dim=128, sinks=True),
    ),
    (
        "decode",
        _workload(
            seqlens_q=(1,) * 3,
            seqlens_k=(150, 97, 40),
            page_size=48,
            mask=Mask(causal=True, window=(70, 0)),
            heads_q=4,
            heads_kv=4,
            head_dim=80,
            sinks=True,
        ),
    ),
    (
        "decode",
        _workload(
            seqlens_q=(1, 0, 1, 1), seqlens_k=(70, 33, 0, 20), page_size=16, softcap=50.0, heads_q=6, head_dim=96
        ),
    ),
    (
        "prefill",
        _workload(
            seqlens_q=(70,),
            head_dim=256,
            head_dim_v=64,
            softcap=15.0,
            dtype="fp32",
            mask=Mask(window=(30, -1)),
        ),
    ),
    ("decode", _workload(seqlens_q=(2, 2), seqlens_k=(100, 65), page_size=16, dtype="fp16", head_dim=40)),
    (
        "varlen",
        _workload(seqlens_q=(40, 30), mask=Mask(causal=True, window=(0, 0)), heads_q=6, sinks=True, dtype="fp32"),
    ),
    (
        "decode",
        _workload(
            seqlens_q=(1,) * 3, seqlens_k=(256, 41, 64), page_size=16, heads_kv=1, head_dim_v=32, dtype="fp8_e4m3"
        ),
    ),
    (
        "chunked",
        _workload(
            seqlens_q=(33, 20),
            seqlens_k=(129, 50),
            page_size=16,
            mask=Mask(window=(-1, 5)),
            heads_q=3,
            heads_kv=1,
            head_dim=128,
        ),
    ),
    ("chunked", _workload(seqlens_q=(33, 20), seqlens_k=(129, 50), page_size=16, dtype="fp16_kv_fp8_e4m3")),
    ("verify", _latent(seqlens_q=(5, 5), seqlens_k=(100, 69), page_size=16, heads_q=6, dtype="fp16")),
    ("decode", _latent(seqlens_q=(1,) * 2, seqlens_k=(97, 40), heads_q=4)),
    (
        "varlen",
        _workload(
            seqlens_q=(40, 33, 9), seqlens_k=(90, 33, 70), mask=Mask(causal=True, pattern="chunked", size=40), heads_q=4
        ),
    ),
    ("chunked", _workload(seqlens_q=(70, 1, 21), seqlens_k=(138, 97, 30), page_size=16, heads_q=4)),
)
"""Phases and workloads, those that reveal most first."""


def case(number: int, specimen: str, seed: int) -> Case:
    """A case of the matrix for one kernel; the seed of its inputs comes from the content hash, as everywhere."""
    phase, workload = SHAPES[number]
    shape = f"w{number}.b{workload.batch}.q{max(workload.seqlens_q)}.k{max(workload.seqlens_k)}"
    shape += f".p{workload.page_size}" if workload.page_size else ""
    kind = workload.mask.kind
    return Case(
        id=f"{MODEL}/{phase}/{shape}/{workload.dtype}/{kind}/{specimen}",
        model=MODEL,
        phase=phase,
        shape=shape,
        dtype=workload.dtype,
        mask=kind,
        kernel=specimen,
        layers=1,
        line=0,
        content_hash=hashlib.sha256(f"{number}/{seed}".encode()).hexdigest(),
        unclaimed=(),
        workload=workload,
    )


def card(specimen: str, lse_rel: float | None = 1e-5) -> KernelCard:
    """The card of a third party's kernel that claims everything that the matrix contains.

    Args:
        lse_rel: relative accuracy of the LSE that it claims; None = it claims no LSE.
    """
    lse = [] if lse_rel is None else ["lse"]
    return KernelCard.model_validate(
        {
            "kernel": specimen,
            "generation": "portable",
            "adapter": "call",
            "entry": "qualify.selftest.kernel:attend",
            "options": {"specimen": specimen},
            "requires": {"device": "cpu"},
            "claims": {
                "dtypes": list(DTYPES),
                "head_dim": {"max": 256},
                "head_dim_v": "any",
                "layouts": ["packed", "paged"],
                "masks": ["full", "causal", "window", "band", "chunked", "spans"],
                "features": ["gqa", "softcap", "sinks", *lse, "ragged", "empty", "empty_batch"],
                "lse": {} if lse_rel is None else {"rel": lse_rel},
                "deterministic": True,
                "batch_invariant": True,
                "empty_row": {"out": 0, "lse": "-inf"},
                "nan": "propagates",
            },
            "accuracy": {dtype: facts.usual_class for dtype, facts in DTYPES.items()},
            "witness": {"must_match": [RANGE]},
        }
    )
