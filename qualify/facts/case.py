"""The workload of one call, and the case that places it in a matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from qualify.facts.dtypes import DTYPES, Dtype, Format
from qualify.facts.environment import environment_of
from qualify.masks import Mask

Phase = Literal["prefill", "chunked", "varlen", "decode", "verify"]
Level = Literal["smoke", "full"]
USUAL_LEVEL: Level = "smoke"
"""the level of a run for which none is asked"""
Descale = Literal["", "sequence", "head", "tensor"]
"""What one fp8 descale factor covers: a KV head of one sequence, a KV head of the whole batch, or a whole tensor; empty
= no fp8."""

INCIDENTS = "incidents"
"""first part of the id of a case that replays an incident, and its model; the second part is the incident's name"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What one attention call computes, without the numbers in its tensors."""

    heads_q: int
    """query heads"""
    heads_kv: int
    """key/value heads; divides ``heads_q``"""
    head_dim: int
    """elements per query and key vector"""
    head_dim_v: int
    """elements per value vector"""
    dtype: Dtype
    mask: Mask
    """which keys each query sees"""
    softcap: float
    """scores become softcap * tanh(score / softcap); 0.0 = off"""
    sinks: bool
    """whether each query head has an extra logit in its denominator"""
    scale: float
    """multiplies q·k"""
    seqlens_q: tuple[int, ...]
    """queries of each sequence of the batch"""
    seqlens_k: tuple[int, ...]
    """keys of each sequence of the batch"""
    page_size: int
    """keys per page of a paged KV cache; 0 = packed, no pages"""
    spans: tuple[tuple[int, int, int], ...] = ()
    """(sequence, start, end): keys from start to end - 1 see each other whatever the mask says, as images do"""
    descale: Descale = ""
    """fp8 only: what one descale factor covers; empty is read as ``sequence``"""
    latent: bool = False
    """whether values are the first ``head_dim_v`` elements of the keys, stored once: absorbed latent attention"""

    def __post_init__(self) -> None:
        """Refuse images under a mask with gaps: what a query sees would not be a range of keys with one step."""
        if self.spans and self.mask.step > 1:
            raise ValueError(f"spans={self.spans} with mask {self.mask.label}, which leaves out keys between others")

    @property
    def rope(self) -> slice:
        """Elements of q and k that are no part of a value: all, or in latent attention those of the rotated part."""
        return slice(self.head_dim_v if self.latent else 0, self.head_dim)

    @property
    def q_format(self) -> Format:
        """Element type of q."""
        return DTYPES[self.dtype].q

    @property
    def kv_format(self) -> Format:
        """Element type of k and v."""
        return DTYPES[self.dtype].kv

    @property
    def out_format(self) -> Format:
        """Element type of the output."""
        return DTYPES[self.dtype].out

    @property
    def batch(self) -> int:
        """Sequences in the call."""
        return len(self.seqlens_q)

    @property
    def layout(self) -> Literal["packed", "paged"]:
        """How keys and values are stored."""
        return "paged" if self.page_size else "packed"

    def with_lengths(self, seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...]) -> Workload:
        """The workload with other sequences; each image keeps the part that lies within the keys of its sequence."""
        spans = tuple(
            (sequence, start, min(end, seqlens_k[sequence]))
            for sequence, start, end in self.spans
            if sequence < len(seqlens_k) and start < seqlens_k[sequence]
        )
        return replace(self, seqlens_q=seqlens_q, seqlens_k=seqlens_k, spans=spans)

    def masked(self, **changes: Any) -> Workload:
        """The workload with changes to fields of its mask."""
        return replace(self, mask=replace(self.mask, **changes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One fully resolved cell of a matrix: a production shape and the kernel that shall serve it."""

    id: str
    """``model/phase/shape/dtype/mask/kernel``: what people type and glob"""
    model: str
    """model and tensor parallelism, for example ``llama-3.1-8b.tp1``"""
    phase: Phase
    shape: str
    """for example ``b1.q8192.k8192`` or ``b32.q1.k8192.p16``"""
    dtype: Dtype
    mask: str
    """for example ``causal`` or ``window4096``"""
    kernel: str
    """name of the kernel card"""
    layers: int
    """layers of the model that make this call"""
    line: int
    """line of the matrix file that asked for the shape; 0 = unknown"""
    content_hash: str
    """sha256 over the workload and the kernel card: equal hashes need not run twice"""
    unclaimed: tuple[str, ...]
    """why the card does not claim this case; filled only where the matrix runs beyond the claims"""
    workload: Workload

    @property
    def incident(self) -> str:
        """Name of the incident that it replays; empty for a production shape, and for an id that somebody damaged."""
        first, _, rest = self.id.partition("/")
        return rest.partition("/")[0] if first == INCIDENTS else ""

    @property
    def environment(self) -> str:
        """The environment that it runs in, as its kernel's name says; empty for this interpreter."""
        return environment_of(self.kernel)

    @property
    def cell(self) -> str:
        """The production shape: the id without the kernel."""
        return self.id.rpartition("/")[0]
