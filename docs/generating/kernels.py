"""The table of docs/shipped-kernels.md: the checks that apply to each shipped kernel card, and its claims."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch

from generating.tables import table
from qualify.cards.kernel import KernelCard
from qualify.cards.load import load_kernels
from qualify.facts.case import Workload
from qualify.masks import Mask
from qualify.run.checks.interface import Check, Subject
from qualify.run.checks.registry import CHECKS
from qualify.run.host.interface import Kernel


def kernels_table() -> str:
    """A row for each shipped kernel card."""
    cards = [loaded.card for loaded in load_kernels().values()]
    heads = ["kernel", *(check.name.replace("_", " ") for check in CHECKS), "needs", "dtypes", "LSE"]
    return table(
        heads, [[f"`{card.kernel}`", *(_asked(card, check) for check in CHECKS), *_claims(card)] for card in cards]
    )


def _asked(card: KernelCard, check: Check) -> str:
    """Whether a check runs for a kernel on some prefill or decode that its card claims, and at which level."""
    device = torch.device("cpu" if card.requires.device == "cpu" else "cuda")
    subjects = [
        Subject(
            workload=workload,
            card=card,
            kernel=cast("Kernel", None),  # no kernel is needed, because only skips() is called
            device=device,
            level="full",
            reference=torch.float64,
            seed=0,
        )
        for workload in _workloads(card)
    ]
    if all(check.skips(subject) for subject in subjects):
        return "–"
    return "✓" if "smoke" in check.levels else "full"


def _workloads(card: KernelCard) -> list[Workload]:
    """A causal prefill, and a decode, which has pages where the card claims them."""
    dim = min(card.claims.head_dim.max, 128)
    prefill = Workload(
        heads_q=4,
        heads_kv=4,
        head_dim=dim,
        head_dim_v=dim,
        dtype=card.claims.dtypes[0],
        mask=Mask(causal=True),
        softcap=0.0,
        sinks=False,
        scale=dim**-0.5,
        seqlens_q=(128, 128),
        seqlens_k=(128, 128),
        page_size=0,
    )
    decode = replace(prefill, seqlens_q=(1, 1), page_size=256 if "paged" in card.claims.layouts else 0)
    return [prefill, decode]


def _claims(card: KernelCard) -> list[str]:
    """Hardware, dtypes and the accuracy of the LSE; `qualify kernels` prints all claims."""
    hardware = " ".join([card.requires.device, *card.requires.compute_capability])
    lse = f"{card.claims.lse.rel:g}" if "lse" in card.claims.features else "–"
    return [hardware, " ".join(card.claims.dtypes), lse]
