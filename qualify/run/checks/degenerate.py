"""degenerate: lengths at which kernels often fail, with the case's own heads, dtype, mask and pages.

The lengths are one key, one query, lengths at tile edges and one beside them, and full tiles with other kinds of
inputs. Sequences without queries or keys are first, in the middle and last, or fill the whole batch. Some calls have
more queries than keys, or equal totals with unequal lengths. Under a mask with images, several sequences have several
images. All of this is asked at full. At smoke one call is asked, where the card claims it: sequences without keys, or a
whole batch of them.

Rows that see no key must return what the card's ``empty_row`` says. All other rows are compared with the golden result.
The check leaves out calls that the card does not claim (ragged batches, empty sequences), and calls that passed in this
process in another case with the same heads, mask and pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from qualify.facts.case import Workload
from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import LibraryRefusal
from qualify.run.checks.budget import beyond_budget
from qualify.run.checks.contract import written
from qualify.run.checks.interface import Shipped, Subject, claimed, failing, noted, passed
from qualify.run.inputs.tensors import InputKind, clone

EDGES = (1, 2, 31, 33, 63, 64, 65, 127, 128, 129, 192, 257)
"""lengths at tile edges and beside them; 192 is 64 more than a tile of 128; 33 and 65 leave one key in the last tile"""
ALIGNED = (33, 64, 128, 192)
"""lengths of which nearly all fill their tiles"""
LONG = 2113
"""keys of a long sequence: over 2^11, one beyond a tile's edge, and over seven times the mean of its batch"""
NORMAL: tuple[InputKind, ...] = ("normal",)
BEYOND = 150
"""queries over so few keys that a causal mask hides all from a whole tile of 128, and from a part of the next"""
KINDS: dict[str, tuple[InputKind, ...]] = {"full tiles": ("negative", "peaked8")}
"""input kinds by name of the shape, NORMAL for others: with full tiles, a row maximum may start at 0 or lag behind"""

IMAGE_LENGTHS = ((40, 33, 170, 40, 200), (70, 33, 200, 40, 200))
IMAGES = (
    *((0, 8, 20), (0, 25, 50), (0, 50, 64), (2, 31, 195)),
    *((3, start, start + 5) for start in range(0, 36, 6)),
    *((4, edge - 3, edge + 4) for edge in (16, 32, 48, 64, 80, 96, 128, 144, 176, 192)),
)
"""(sequence, start, end) of images. Sequence 0 has an image within the history, one that reaches out of it, and one
directly after that. Sequence 1 has none. The others have an image of over 128 tokens, more than eight images of a few
tokens, and short images across tile edges."""

Lengths = tuple[tuple[int, ...], tuple[int, ...]]


class Degenerate(Shipped):
    """Small calls with difficult lengths."""

    def skips(self, subject: Subject) -> str:
        """Skips kernels that compile for every shape."""
        return "each shape would be compiled" if subject.card.jit == "shapes" else ""

    def run(self, subject: Subject) -> list[Finding]:
        """Judge the calls until one is wrong."""
        asked, told, refused = [], [], []
        for name, workload in asked_workloads(subject):
            altered = replace(subject, workload=workload)
            question = altered.question(self.name)
            if question in subject.asked:
                told.append(name)
                continue
            try:
                wrong = judge_lengths(altered, KINDS.get(name, NORMAL))
            except LibraryRefusal as refusal:
                refused.append(f"{name} ({refusal})")
                continue
            if wrong:
                lengths = f"seqlens_q {list(workload.seqlens_q)}, seqlens_k {list(workload.seqlens_k)}"
                detail = f"{name}, {lengths}: {wrong.detail}"
                return [failing(self.name, detail, dict(wrong.values) | {"what": name, "finding": wrong.check})]
            subject.asked[question] = "right"
            asked.append(name)
        findings = [passed(self.name, f"right with {', '.join(asked)}")] if asked else []
        findings += [noted(self.name, f"passed before, in another case: {', '.join(told)}")] if told else []
        return findings + [noted(self.name, f"not run: the library refuses {text}") for text in refused]


def judge_lengths(subject: Subject, kinds: Sequence[InputKind] = NORMAL) -> Finding | None:
    """The first failing finding for the subject's lengths, with inputs of some kinds; None where nothing fails.

    The call must leave its inputs, and the memory around them, as they are: where a sequence has no key, a kernel may
    write to a place that a result of another form would have.

    ``max_seqlen_k`` is only what a call is planned for, and a kernel must not take it for a length. In a batch it
    differs from the shorter lengths anyway. For a single paged sequence it is set to the number of keys for which its
    pages have room.
    """
    for kind in kinds:
        inputs = subject.inputs(kind)
        before, call = clone(inputs), inputs.call
        if call.block_table is not None and subject.workload.batch == 1:
            call = replace(call, max_seqlen_k=call.block_table.shape[1] * subject.workload.page_size)
        result = subject.run(call)
        wrong = written(subject, before, inputs) or beyond_budget(subject, call, result, kind)
        if wrong:
            return wrong
    return None


def asked_workloads(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """(name, workload) that the card claims: all at full, at smoke the first with a sequence that has no key."""
    every = (
        (name, workload)
        for name, workload in altered_workloads(subject)
        if claimed(subject, workload.seqlens_q, workload.seqlens_k)
    )
    smoke = subject.level == "smoke"
    return islice(filter(lambda named: _without_keys(named[1]), every), 1) if smoke else every


def _without_keys(workload: Workload) -> bool:
    """Whether some sequence has queries and no key."""
    return any(q and not k for q, k in zip(workload.seqlens_q, workload.seqlens_k, strict=True))


def altered_workloads(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """(name, workload) with other lengths, and with several images where the workload has images."""
    workload = subject.workload
    for name, lengths in shapes(subject):
        yield name, workload.with_lengths(*lengths)
    if workload.spans and "ragged" in subject.card.claims.features:
        yield "several images", replace(workload.with_lengths(*IMAGE_LENGTHS), spans=IMAGES)


def shapes(subject: Subject) -> Iterator[tuple[str, Lengths]]:
    """(name, (seqlens_q, seqlens_k)), limited to features that the card claims."""
    workload, features = subject.workload, subject.card.claims.features
    decode = max(workload.seqlens_q) == 1
    if "ragged" in features and "empty" in features:
        yield from _empty(decode=decode)
    if "ragged" in features:
        several = (*EDGES, LONG)
        yield "tile edges", ((1,) * len(several), several) if decode else (EDGES, EDGES)
        yield "full tiles", ((1,) * len(ALIGNED) if decode else ALIGNED, ALIGNED)
        if not decode:
            yield "queries after a context", ((1, 5, 64, 65, 7), (129, 64, 257, 66, 300))
            yield "equal totals, unequal lengths", ((3, 33, 64), (33, 64, 3))
            yield "drafts of unequal lengths", ((2, 5, 1, 8), (40, 65, 33, 130))
            keys = (50, 60, 70, 80, 200, LONG, 33, 17, 40, 9)
            yield "a prompt among single queries", (tuple(150 if each == 200 else 1 for each in keys), keys)
    else:
        for length in (1, 33, 65, 129):
            yield f"length {length}", ((1 if decode else length,) * 2, (length,) * 2)
    if "empty_batch" in features:
        yield "no keys at all", ((1 if decode else 9,) * 2, (0,) * 2)
        yield "no queries at all", ((0,) * 2, (5,) * 2)
    if not decode:
        yield "more queries than keys", ((70,) * 2, (33,) * 2)
        yield "one key for many queries", ((65,), (1,))
    yield "one query, many keys", ((1,), (LONG,))


def _empty(*, decode: bool) -> Iterator[tuple[str, Lengths]]:
    several = 1 if decode else 9
    yield "sequences without keys", ((1 if decode else BEYOND,) * 5, (0, 17, 0, BEYOND, 0))
    yield "sequences without queries", ((0, 1, 0, 1, 0) if decode else (0, 2, 0, 3, 0), (5, 17, 64, 40, 9))
    yield "sequences without either", ((0, several, 0, several, 0), (0, 17, 0, 40, 0))
