"""Accuracy classes: what a kernel may round on the way, and the limits that its errors keep. Data: no torch.

qualify.run.golden.accuracy computes the statistics and says what each term means; docs/numerics.md derives the limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qualify.facts.dtypes import FORMATS

E_LIMIT = 1.0
R_LIMIT = 3.0
G_LIMIT = 1.6
"""limit of G over many rows; over few rows it is nearer to R_LIMIT (qualify.run.golden.accuracy.g_limit)"""

CALLED: Mapping[str, str] = {"E": "worst element", "R": "worst row", "G": "all rows", "beta": "β"}
"""by the name of an error statistic in JSON, what sentences call it"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyClass:
    """What a kernel does to the scores and to the weights P."""

    name: str
    roundoff: float
    """u_P: unit roundoff of the format of P"""
    gain: float
    """β₀: bias that a correct kernel may have"""
    underflow: float
    """a_P: absolute error of a weight below the format's normal range, relative to the row's largest; 0 = none"""
    spacing: float = 0.0
    """distance between the format's numbers below its normal range, where hardware rounds to them; 0 = none"""
    scores: float = 0.0
    """u_S: unit roundoff of the format of the scores; 0 = float32, whose roundoff every class has"""
    product: float = 0.0
    """rms error of a product within q·k, relative to the largest one: accumulators shorter than float32; 0 = none"""
    rescaled: bool = False
    """the rounded output is multiplied by a factor and rounded again"""
    rounded_parts: bool = False
    """outputs of parts of the keys (split-KV) are rounded to the output's format before they are merged"""


CLASSES: tuple[AccuracyClass, ...] = (
    AccuracyClass(name="fp32", roundoff=2.0**-20, gain=2e-6, underflow=0.0),
    AccuracyClass(name="fp16", roundoff=FORMATS["fp16"].roundoff, gain=6e-5, underflow=2.0**-15, spacing=2.0**-24),
    AccuracyClass(name="bf16", roundoff=FORMATS["bf16"].roundoff, gain=5e-4, underflow=0.0),
    AccuracyClass(name="fp8kv", roundoff=FORMATS["bf16"].roundoff, gain=5e-4, underflow=0.0),
    AccuracyClass(
        name="lowp_scores", roundoff=FORMATS["bf16"].roundoff, gain=5e-3, underflow=0.0, scores=FORMATS["bf16"].roundoff
    ),
    AccuracyClass(name="fp8", roundoff=FORMATS["fp8_e4m3"].roundoff, gain=2.5e-3, underflow=2.0**-10, product=2.0**-14),
)
"""Tightest first. The underflow of fp8 is that of weights at most 1; a card's ``fp8.weight_scale`` divides it.

Hopper's tensor cores align the fp8 products of a step to the largest one and keep 13 fraction bits (DeepSeek-V3,
arXiv:2412.19437, 3.3.2). Cutting at 2^-13 of a power of two that is up to twice the largest product has an rms error of
at most 2^-12 / √12. Without that term, FlashAttention-3 in fp8 on an H100 had R up to 7.1 and β up to 2.4 % with logits
near +400. The same cut of P V showed as β up to 1.8e-3 where V has one sign, so β₀ is 2.5e-3 and not 1.5e-3.

fp16 has its subnormal spacing because a kernel may begin its row maximum with the sink. Where the sink is far above a
row's scores, all weights of the row are subnormal, and its outputs are as small. Without that term, vLLM's Triton
kernel on gpt-oss-20b in fp16 on an H100 had R up to 13.4, with a window of 128 keys and rising logits
(``qualify run hopper --level full --kernel vllm-triton --select 'gpt-oss*fp16*'``).

fp32 has 2^-20 and not 2^-21: PyTorch's memory-efficient kernel multiplies in three TF32 parts. Where V has one sign,
its G was 1.001 times the limit in 2 of 1,000 calls.
"""

ORDER = (*(known.name for known in CLASSES), "")
"""names of the classes, the tightest first; empty = none holds"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ElementBound:
    """How far one element may be off where a script shows that element alone: the sum of these parts."""

    absolute: float = 0.0
    of_value: float = 0.0
    """share of the exact value, in unit roundoffs of the output's format"""
    of_weights: float = 0.0
    """share of the sum of weights times |v|, in unit roundoffs of the output's format"""
    of_key: float = 0.0
    """share of the call's largest value, times the weight of a key whose score is 0"""


ROUNDED = ElementBound(absolute=1e-10, of_weights=4.0)
"""an element beyond it is off by more than rounding of the weights and the output explains"""
COPIED = ElementBound(absolute=1e-10, of_value=1.0)
"""for a result that must be the value of one key, rounded to the output's format"""
HALF_A_KEY = ElementBound(of_key=0.5)
"""for a key that the query either sees or does not see: half of the key's part lies between the two"""


def class_named(name: str) -> AccuracyClass:
    """The class of that name; KeyError on an unknown one (cards are checked before)."""
    return {known.name: known for known in CLASSES}[name]
