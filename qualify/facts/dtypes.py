"""Formats of one tensor, and dtypes of a call: what each stores and needs. Torch's are in run.inputs.formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Format = Literal["bf16", "fp16", "fp32", "fp8_e4m3"]
"""Element type of one tensor."""
Dtype = Literal["bf16", "fp16", "fp32", "fp8_e4m3", "bf16_kv_fp8_e4m3", "fp16_kv_fp8_e4m3"]
"""Element types of q, k and v. ``bf16_kv_fp8_e4m3``: 16-bit queries beside an fp8 cache. A tensor in fp8 comes with
descale factors. The output has the type of q, or bf16 where q is fp8."""


SMALLEST_WEIGHT = 2.0**-30
"""share of a row's largest weight; smaller weights change no result that anybody reads"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatFacts:
    """What a format can hold."""

    bytes: int
    """per element"""
    bits: int
    """significant bits of a normal number, with the leading one"""
    largest: float
    smallest_normal: float
    descaled: bool = False
    """whether its tensors come with descale factors; what exceeds its range is then stored as its largest number"""

    @property
    def roundoff(self) -> float:
        """Unit roundoff: the largest relative error of rounding to the nearest normal number."""
        return 2.0**-self.bits

    @property
    def underflows(self) -> bool:
        """Whether weights of a row can fall below its normal range, so that the budget has a term for them."""
        return self.smallest_normal > SMALLEST_WEIGHT


@dataclass(frozen=True, kw_only=True, slots=True)
class DtypeFacts:
    """What a call of a dtype stores."""

    q: Format
    kv: Format
    out: Format
    usual_class: str
    """accuracy class that a card of such a kernel mostly declares"""


FORMATS: dict[Format, FormatFacts] = {
    "bf16": FormatFacts(bytes=2, bits=8, largest=2.0**128 - 2.0**120, smallest_normal=2.0**-126),
    "fp16": FormatFacts(bytes=2, bits=11, largest=65504.0, smallest_normal=2.0**-14),
    "fp32": FormatFacts(bytes=4, bits=24, largest=2.0**128 - 2.0**104, smallest_normal=2.0**-126),
    "fp8_e4m3": FormatFacts(bytes=1, bits=4, largest=448.0, smallest_normal=2.0**-6, descaled=True),
}
DTYPES: dict[Dtype, DtypeFacts] = {
    "bf16": DtypeFacts(q="bf16", kv="bf16", out="bf16", usual_class="bf16"),
    "fp16": DtypeFacts(q="fp16", kv="fp16", out="fp16", usual_class="fp16"),
    "fp32": DtypeFacts(q="fp32", kv="fp32", out="fp32", usual_class="fp32"),
    "fp8_e4m3": DtypeFacts(q="fp8_e4m3", kv="fp8_e4m3", out="bf16", usual_class="fp8"),
    "bf16_kv_fp8_e4m3": DtypeFacts(q="bf16", kv="fp8_e4m3", out="bf16", usual_class="fp8kv"),
    "fp16_kv_fp8_e4m3": DtypeFacts(q="fp16", kv="fp8_e4m3", out="fp16", usual_class="fp8kv"),
}
TORCH_NAMES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float8_e4m3fn": "fp8_e4m3",
}
"""what PyTorch calls some of them"""
HALVES: frozenset[Dtype] = frozenset({"bf16", "fp16"})
"""the dtypes that every library takes"""
USUAL: Dtype = "bf16"
"""dtype of a call where nothing says another one"""


def dtype_of(q: Format, k: Format, v: Format, out: Format) -> Dtype | None:
    """The dtype of a call that stores these formats; None where there is none."""
    return next(
        (name for name, known in DTYPES.items() if (q, k, v, out) == (known.q, known.kv, known.kv, known.out)), None
    )
