"""The shapes of a matrix: each phase's axes become lengths, with a label that people can type."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from qualify.cards.phases import Phases
from qualify.cards.traffic import TrafficCard
from qualify.facts.case import Case, Phase

LONGEST_LABEL = 48


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The lengths of one call."""

    phase: Phase
    label: str
    seqlens_q: tuple[int, ...]
    seqlens_k: tuple[int, ...]
    page_size: int
    """0 = packed"""
    where: tuple[str | int, ...]
    """way to the entry of the matrix file that asked for it"""
    spans: tuple[tuple[int, int, int], ...] = ()
    """(sequence, start, end) of images whose tokens see each other"""


def expand_shapes(phases: Phases) -> Iterator[Shape]:
    """Every shape of every phase, in the order of the file's axes."""
    if phases.prefill:
        for batch, (index, seqlen) in product(phases.prefill.batch, enumerate(phases.prefill.seqlen)):
            yield _even("prefill", batch, seqlen, seqlen, 0, ("seqlen", index))
    if phases.chunked:
        chunked = phases.chunked
        axes = product(chunked.batch, chunked.chunk, enumerate(chunked.context), chunked.page_size)
        for batch, chunk, (index, context), page_size in axes:
            yield _even("chunked", batch, chunk, context + chunk, page_size, ("context", index))
        for index, batch_of in enumerate(chunked.ragged):
            pairs = [(new, old + new) for new, old in zip(batch_of.chunk, batch_of.context, strict=True)]
            yield from _ragged("chunked", pairs, batch_of.page_size, index)
    if phases.varlen:
        for index, lengths in enumerate(phases.varlen.lengths):
            where = ("phases", "varlen", "lengths", index)
            label = varlen_label(lengths)
            yield Shape(phase="varlen", label=label, seqlens_q=lengths, seqlens_k=lengths, page_size=0, where=where)
    if phases.decode:
        decode = phases.decode
        for batch, (index, context), page_size in product(decode.batch, enumerate(decode.context), decode.page_size):
            yield _even("decode", batch, 1, context, page_size, ("context", index))
    if phases.verify:
        verify = phases.verify
        axes = product(verify.batch, verify.draft, enumerate(verify.context), verify.page_size)
        for batch, draft, (index, context), page_size in axes:
            yield _even("verify", batch, draft + 1, context + draft, page_size, ("context", index))
        for index, drafts in enumerate(verify.ragged):
            pairs = [(new + 1, old + new) for new, old in zip(drafts.draft, drafts.context, strict=True)]
            yield from _ragged("verify", pairs, drafts.page_size, index)


def bucket_shapes(traffic: TrafficCard) -> list[Shape]:
    """The shape of each bucket, in the file's order."""
    made = (expand_shapes(bucket.phases) for bucket in traffic.buckets)
    return [replace(shape, where=("traffic",)) for shapes in made for shape in shapes]


def _even(phase: Phase, batch: int, seqlen_q: int, seqlen_k: int, page_size: int, inside: tuple[str, int]) -> Shape:
    """A batch of equal sequences; ``inside`` is the entry of the phase that asked for the length."""
    return Shape(
        phase=phase,
        label=label_of((seqlen_q,) * batch, (seqlen_k,) * batch, page_size),
        seqlens_q=(seqlen_q,) * batch,
        seqlens_k=(seqlen_k,) * batch,
        page_size=page_size,
        where=("phases", phase, *inside),
    )


def _ragged(phase: Phase, pairs: list[tuple[int, int]], page_sizes: tuple[int, ...], index: int) -> Iterator[Shape]:
    """A batch of different sequences, (seqlen_q, seqlen_k) each, once for each page size."""
    seqlens_q, seqlens_k = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    for page_size in page_sizes:
        yield Shape(
            phase=phase,
            label=label_of(seqlens_q, seqlens_k, page_size),
            seqlens_q=seqlens_q,
            seqlens_k=seqlens_k,
            page_size=page_size,
            where=("phases", phase, "ragged", index),
        )


def label_of(seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...], page_size: int) -> str:
    """Batch, queries and keys of equal sequences, or the lists of different ones; then the page size."""
    if len(set(zip(seqlens_q, seqlens_k, strict=True))) == 1:
        label = f"b{len(seqlens_q)}.q{seqlens_q[0]}.k{seqlens_k[0]}"
    elif seqlens_q == seqlens_k:
        label = varlen_label(seqlens_q)
    else:
        label = f"{varlen_label(seqlens_q)}.on.{varlen_label(seqlens_k)}"
    return label + (f".p{page_size}" if page_size else "")


def varlen_label(lengths: tuple[int, ...]) -> str:
    """The lengths themselves, or batch, tokens and a digest where they are too many to type."""
    label = "l" + "-".join(map(str, lengths))
    if len(label) <= LONGEST_LABEL:
        return label
    digest = hashlib.sha256(label.encode()).hexdigest()[:8]
    return f"b{len(lengths)}.t{sum(lengths)}.x{digest}"


def count_shapes(phases: Phases) -> dict[Phase, int]:
    """How many shapes :func:`expand_shapes` yields of each phase, without making them."""
    counts: dict[Phase, int] = {}
    if phases.prefill:
        counts["prefill"] = len(phases.prefill.batch) * len(phases.prefill.seqlen)
    if phases.chunked:
        chunked = phases.chunked
        counts["chunked"] = len(chunked.batch) * len(chunked.chunk) * len(chunked.context) * len(chunked.page_size)
        counts["chunked"] += sum(len(batch.page_size) for batch in chunked.ragged)
    if phases.varlen:
        counts["varlen"] = len(phases.varlen.lengths)
    if phases.decode:
        counts["decode"] = len(phases.decode.batch) * len(phases.decode.context) * len(phases.decode.page_size)
    if phases.verify:
        verify = phases.verify
        counts["verify"] = len(verify.batch) * len(verify.draft) * len(verify.context) * len(verify.page_size)
        counts["verify"] += sum(len(batch.page_size) for batch in verify.ragged)
    return counts


def count_sequences(phases: Phases) -> int:
    """How many sequences the shapes of :func:`expand_shapes` have together, without making them."""
    count = 0
    if phases.prefill:
        count += sum(phases.prefill.batch) * len(phases.prefill.seqlen)
    if phases.chunked:
        chunked = phases.chunked
        count += sum(chunked.batch) * len(chunked.chunk) * len(chunked.context) * len(chunked.page_size)
        count += sum(len(batch.chunk) * len(batch.page_size) for batch in chunked.ragged)
    if phases.varlen:
        count += sum(map(len, phases.varlen.lengths))
    if phases.decode:
        count += sum(phases.decode.batch) * len(phases.decode.context) * len(phases.decode.page_size)
    if phases.verify:
        verify = phases.verify
        count += sum(verify.batch) * len(verify.draft) * len(verify.context) * len(verify.page_size)
        count += sum(len(batch.draft) * len(batch.page_size) for batch in verify.ragged)
    return count


def against(shape: Shape, keys: int) -> Shape:
    """The same queries against another sequence of ``keys`` keys each, as cross-attention has them."""
    label = varlen_label(shape.seqlens_q)
    if len(set(shape.seqlens_q)) == 1:
        label = f"b{len(shape.seqlens_q)}.q{shape.seqlens_q[0]}"
    pages = f".p{shape.page_size}" if shape.page_size else ""
    return replace(shape, label=f"{label}.k{keys}{pages}", seqlens_k=(keys,) * len(shape.seqlens_q))


def asks(shape: Shape, case: Case) -> bool:
    """Whether a case, with images or without, is one call of a shape.

    In cross-attention the number of keys is not compared, because they belong to another sequence.
    """
    workload = case.workload
    asked = (shape.phase, shape.seqlens_q, shape.page_size)
    same = asked == (case.phase, workload.seqlens_q, workload.page_size) and not case.incident
    return same and ("cross" in case.mask.split(".") or workload.seqlens_k == shape.seqlens_k)


def with_images(shape: Shape, tokens: int) -> Shape | None:
    """The same lengths with an image in the middle of each sequence's new tokens; None where none has room for it."""
    spans = []
    for sequence, (seqlen_q, seqlen_k) in enumerate(zip(shape.seqlens_q, shape.seqlens_k, strict=True)):
        if seqlen_q >= tokens:
            start = seqlen_k - seqlen_q + (seqlen_q - tokens) // 2
            spans.append((sequence, start, start + tokens))
    return replace(shape, spans=tuple(spans)) if spans else None
