"""Known defects that docs/findings describes, and which of them fits a failed case.

An entry names its page, the page's title, and which failures the defect explains. A test compares the titles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from qualify.facts.case import Case

FOLDER = "docs/findings"
"""where the pages of the findings are"""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownFinding:
    """One defect of a shipped kernel, and the failures that it explains."""

    page: str
    """name of its page, without .md"""
    title: str
    """title of its page"""
    kernels: tuple[str, ...]
    """kernel cards that have the defect"""
    causes: tuple[str, ...]
    """checks that fail because of it, or crash, hang, refusal, substitution"""
    select: tuple[str, ...] = ("*",)
    """globs over the ids of cases that it makes fail"""
    longer_queries: bool = False
    """whether it shows only where a sequence has more queries than keys"""

    @property
    def words(self) -> str:
        """Title and page."""
        return f"{self.title} ({FOLDER}/{self.page}.md)"

    def fits(self, case: Case, cause: str) -> bool:
        """Whether a failure of the case by that cause looks like this defect."""
        return self._named(case.kernel, case.id, cause) and (not self.longer_queries or _longer_queries(case))

    def fits_all(self, kernel: str, cases: Sequence[str], cause: str) -> bool:
        """Whether failures of several cases of a kernel look like this defect.

        Only the ids of the cases are known, and these do not say whether a sequence has more queries than keys.
        """
        return not self.longer_queries and all(self._named(kernel, case, cause) for case in cases)

    def _named(self, kernel: str, case: str, cause: str) -> bool:
        return (
            kernel.partition("@")[0] in self.kernels
            and cause in self.causes
            and any(fnmatchcase(case, glob) for glob in self.select)
        )


def _longer_queries(case: Case) -> bool:
    pairs = zip(case.workload.seqlens_q, case.workload.seqlens_k, strict=True)
    return any(queries > keys for queries, keys in pairs)


KNOWN: tuple[KnownFinding, ...] = (
    KnownFinding(
        page="fa3-sinks-split-keys",
        title="FlashAttention-3: NaN with sinks and split keys",
        kernels=("flash-attn-3",),
        causes=("needle", "lse", "budget", "parameters"),
        select=("gpt-oss*", "incidents/*sinks/*"),
    ),
    KnownFinding(
        page="fa4-tail-of-last-page",
        title="FlashAttention-4: NaN behind the last key reaches the output",
        kernels=("flash-attn-4",),
        causes=("poison",),
        select=("*.p[0-9]*/*",),
    ),
    KnownFinding(
        page="fa3-tail-of-256-key-page",
        title="FlashAttention-3: NaN behind the last key, on pages of 256 keys",
        kernels=("flash-attn-3",),
        causes=("poison",),
        select=("*.p256/*",),
    ),
    KnownFinding(
        page="vllm-fa2-lse-order",
        title="FlashAttention-2 of vLLM: the LSE of a batched decode is in the wrong order",
        kernels=("vllm-flash-attn-2",),
        causes=("suffix", "lse"),
        select=("*/decode/*",),
    ),
    KnownFinding(
        page="sdpa-efficient-no-causal-mask",
        title="PyTorch's memory-efficient attention: the causal mask is ignored",
        kernels=("torch-sdpa-efficient", "torch-sdpa"),
        causes=("census", "parameters", "suffix", "degenerate", "budget"),
        longer_queries=True,
    ),
    KnownFinding(
        page="sdpa-efficient-2-31",
        title="PyTorch's memory-efficient attention: wrong keys beyond 2^31 elements",
        kernels=("torch-sdpa-efficient",),
        causes=("size_limits",),
    ),
    KnownFinding(
        page="flashinfer-fa2-2-32",
        title="FlashInfer fa2: wrong queries and keys beyond 2^32 elements",
        kernels=("flashinfer-fa2",),
        causes=("size_limits",),
    ),
    KnownFinding(
        page="flashinfer-fa2-hidden-keys",
        title="FlashInfer fa2: rows see hidden keys when there are more queries than keys",
        kernels=("flashinfer-fa2",),
        causes=("census", "suffix", "lse", "budget", "degenerate"),
        longer_queries=True,
    ),
    KnownFinding(
        page="flashinfer-fa3-fp8-hidden-keys",
        title="FlashInfer fa3 in fp8: hidden keys keep weight",
        kernels=("flashinfer-fa3-fp8",),
        causes=("census", "suffix", "poison", "needle", "lse", "budget"),
    ),
    KnownFinding(
        page="fa2-mixed-empty-queries",
        title="flash-attn 2: one query per sequence fails where a sequence has none",
        kernels=("flash-attn-2",),
        causes=("refusal",),
        select=("incidents/flash-attention-1537/*", "incidents/flash-attention-1619/*"),
    ),
    KnownFinding(
        page="vllm-triton-window-nan",
        title="vLLM's Triton attention: NaN with a window and logits below -104",
        kernels=("vllm-triton",),
        causes=("budget",),
        select=("*/window*",),
    ),
    KnownFinding(
        page="flashmla-small-scale",
        title="FlashMLA: NaN where a query's last page is hidden and the scale is small",
        kernels=("flashmla",),
        causes=("powers_of_two",),
    ),
    KnownFinding(
        page="vllm-triton-e4m3-small-weights",
        title="vLLM's Triton attention in e4m3: small weights are dropped",
        kernels=("vllm-triton-fp8",),
        causes=("budget",),
    ),
    KnownFinding(
        page="vllm-triton-poison-not-causal",
        title="vLLM's Triton attention: NaN behind the used keys, without a causal mask",
        kernels=("vllm-triton",),
        causes=("poison",),
        select=("*/cross/*", "*/full*"),
    ),
)


def known_finding(case: Case, cause: str) -> KnownFinding | None:
    """The first known defect that explains the failure; None where none does."""
    return next((known for known in KNOWN if known.fits(case, cause)), None)


def known_to_all(kernel: str, cases: Sequence[str], cause: str) -> KnownFinding | None:
    """The first known defect that explains the failures of a kernel's cases, given their ids; None where none does."""
    return next((known for known in KNOWN if known.fits_all(kernel, cases, cause)), None)
