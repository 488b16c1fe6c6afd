"""Formats of one tensor, and dtypes of a call: what each stores and needs. Torch's are in run.inputs.tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Format = Literal["bf16", "fp16", "fp32", "fp8_e4m3"]
"""Element type of one tensor."""
Dtype = Literal["bf16", "fp16", "fp32", "fp8_e4m3", "bf16_kv_fp8_e4m3", "fp16_kv_fp8_e4m3"]
"""Element types of q, k and v. ``bf16_kv_fp8_e4m3``: 16-bit queries beside an fp8 cache. What is fp8 comes with descale
factors; the output has the type of q, and bf16 where that is fp8."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatFacts:
    """What a format can hold."""

    bytes: int
    """per element"""
    descaled: bool = False
    """whether its tensors come with descale factors"""
    underflows: bool = False
    """whether weights of a row can fall below its normal range, so that the budget has a term for them"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DtypeFacts:
    """What a call of a dtype stores."""

    q: Format
    kv: Format
    out: Format
    usual_class: str
    """accuracy class that a card of such a kernel mostly declares"""


FORMATS: dict[Format, FormatFacts] = {
    "bf16": FormatFacts(bytes=2),
    "fp16": FormatFacts(bytes=2, underflows=True),
    "fp32": FormatFacts(bytes=4),
    "fp8_e4m3": FormatFacts(bytes=1, descaled=True, underflows=True),
}
DTYPES: dict[Dtype, DtypeFacts] = {
    "bf16": DtypeFacts(q="bf16", kv="bf16", out="bf16", usual_class="bf16"),
    "fp16": DtypeFacts(q="fp16", kv="fp16", out="fp16", usual_class="fp16"),
    "fp32": DtypeFacts(q="fp32", kv="fp32", out="fp32", usual_class="fp32"),
    "fp8_e4m3": DtypeFacts(q="fp8_e4m3", kv="fp8_e4m3", out="bf16", usual_class="fp8"),
    "bf16_kv_fp8_e4m3": DtypeFacts(q="bf16", kv="fp8_e4m3", out="bf16", usual_class="fp8kv"),
    "fp16_kv_fp8_e4m3": DtypeFacts(q="fp16", kv="fp8_e4m3", out="fp16", usual_class="fp8kv"),
}
