"""history: earlier calls must not change the result of a later call.

The check makes call A, then call B that differs in exactly one thing, then A again. That thing is the scale, lengths,
their order, batch, mask, one side of the window, pattern, images, softcap, sinks, dtype, page size, or paged against
packed. B must agree with the golden result, and the second A must have the bits of the first. This finds a plan, a
compiled kernel or a workspace that is kept by too coarse a key.

Then the same tensors are used several times, and again after their contents changed in place, as a cache and its
metadata change from one step of an engine to the next. First all contents change. Then lengths, pages and images change
one by one, because a kernel may use only some of them as its key. The same tensors are also used with other parameters,
because layers share their metadata; and a batch follows a call of its first sequence alone in the same memory. Finally
a prepared A is launched again after B was prepared on the same adapter: A must still use its own plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from qualify.facts.case import Workload
from qualify.facts.outcome import Finding, Value
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.checks.budget import beyond_budget
from qualify.run.checks.difference import blame_change, difference
from qualify.run.checks.interface import Shipped, Subject, claimed, copied, failing, noted, passed
from qualify.run.checks.other_workloads import (
    differing,
    lengthened,
    other_masks,
    other_parameters,
    shortened,
)
from qualify.run.inputs.parts import one_sequence, only
from qualify.run.inputs.tensors import Inputs, clone, make_inputs

LIKELY_OTHER = "a fault in what differs, which the case does not have by itself, or something kept from the call before"
"""what is behind it where another call than the case's is wrong"""
WARM = 4
"""Calls before something changes. A library may warm up and then record what it replays later: PyTorch's guide to
graphs warms up three times."""
ALL_WARM = 12
"""calls before all contents change: with distributed training, that guide warms up eleven times"""


class History(Shipped):
    """Calls A, B, A, and calls on the same tensors with changed contents."""

    def skips(self, subject: Subject) -> str:
        """Skips kernels that compile for every shape."""
        return "each shape would be compiled" if subject.card.jit == "shapes" else ""

    def run(self, subject: Subject) -> list[Finding]:
        """Try all changes until one leaves a trace."""
        workload = shortened(subject.workload)
        subject = replace(subject, workload=workload)
        question = subject.question(self.name)
        if question in subject.asked:
            return [noted(self.name, "passed before, in another case that is as short")]
        call = subject.inputs().call
        before = subject.run(call)
        exact = subject.card.claims.deterministic
        asked, refused = [], []
        for name, other in differing(subject):
            try:
                wrong = self._wrong(replace(subject, workload=other), name)
            except LibraryRefusal as refusal:
                refused.append(f"{name} ({refusal})")
                continue
            if wrong:
                return [wrong]
            found = difference(subject, before, subject.run(call), exact=exact)
            if found:
                said = f"the first call, repeated after a call with another {name}: "
                return [blame_change(subject, self.name, said, found, {"differs_in": name}, call=call)]
            asked.append(name)
        for kept in (self._kept_address, self._kept_extent, self._kept_plan):
            wrong = kept(subject)
            if wrong:
                return [wrong]
        subject.asked[question] = "right"
        findings = [passed(self.name, f"no trace of calls with another {', '.join(asked)}")]
        return findings + [noted(self.name, f"not run: the library refuses another {text}") for text in refused]

    def _wrong(self, other: Subject, name: str) -> Finding | None:
        """A finding where B differs from its golden result."""
        call = other.inputs(seed=1).call
        wrong = beyond_budget(other, call, other.run(call))
        if not wrong:
            return None
        place = f"right after the case's call, one that differs from it only in its {name} is wrong, perhaps by itself"
        told: dict[str, Value] = {"differs_in": name, "finding": wrong.check, "likely": LIKELY_OTHER}
        return failing(self.name, f"{place}: {wrong.detail}", {**wrong.values, **told})

    def _kept_address(self, subject: Subject) -> Finding | None:
        """A finding where tensors with changed contents give another result than new tensors with these contents."""
        for name, (workload, inputs), (altered, other) in replacements(subject):
            before, fresh = clone(inputs).call, clone(other).call
            asked = replace(subject, workload=altered)
            try:
                expected = asked.run(fresh)
                warm = ALL_WARM if name == "contents" else WARM
                for _ in range(warm):
                    replace(subject, workload=workload).run(before)
            except LibraryRefusal:  # the same change was refused, and noted, above
                continue
            after = asked.run(replace(fresh, **_overwritten(before, fresh)))
            found = difference(asked, expected, after, exact=subject.card.claims.deterministic)
            if found:
                said = f"after {warm} calls, the same tensors with other {name}: "
                return blame_change(asked, self.name, said, found, {"differs_in": name}, call=fresh)
        return None

    def _kept_extent(self, subject: Subject) -> Finding | None:
        """A finding where the batch differs after a call of its first sequence alone at the same addresses."""
        if subject.workload.batch == 1 or not subject.workload.seqlens_q[0]:
            return None
        call = subject.inputs().call
        expected = subject.run(clone(subject.inputs()).call)
        first = replace(subject, workload=one_sequence(subject.workload, 0))
        first.run(only(call, first.workload, 0, subject.workload))
        found = difference(subject, expected, subject.run(call), exact=subject.card.claims.deterministic)
        if not found:
            return None
        said = "the call of the whole batch, after a call of its first sequence alone in the same memory: "
        return blame_change(subject, self.name, said, found, {"differs_in": "extent"}, call=call)

    def _kept_plan(self, subject: Subject) -> Finding | None:
        """A finding where a prepared call differs after a longer one was prepared."""
        call, exact = subject.inputs().call, subject.card.claims.deterministic
        kept = subject.kernel.prepare(call)
        first = copied(subject.judged(kept.result(kept.launch()), call))
        longer = replace(subject, workload=lengthened(subject.workload))
        try:
            between = subject.kernel.prepare(longer.inputs(seed=2).call)
            between.launch()
        except LibraryRefusal:
            return None
        found = difference(subject, first, subject.judged(kept.result(kept.launch()), call), exact=exact)
        if not found:
            return None
        said = "a prepared call gives something else after a longer one was prepared: "
        return blame_change(subject, self.name, said, found, {"differs_in": "plan"}, call=call)


Asked = tuple[Workload, Inputs]


def replacements(subject: Subject) -> Iterator[tuple[str, Asked, Asked]]:
    """(what is replaced, a call, another call with tensors of the same shapes), limited to what the card claims."""
    workload, inputs = subject.workload, subject.inputs()
    yield "contents", (workload, inputs), (workload, subject.inputs(seed=3))
    other = other_parameters(subject)
    names = ("scale", "mask", "softcap")
    call = replace(inputs.call, **{name: getattr(other, name) for name in names})
    yield "parameters", (workload, inputs), (other, replace(inputs, call=call))
    for name, turned in _turned(subject):
        yield name, (workload, inputs), (turned, _with_metadata_of(inputs, turned))
    if workload.page_size:
        yield "pages", *_appended(subject)
    images = [other for name, other in other_masks(subject) if name.startswith("image")]
    if len(images) == 2:  # two workloads with the same image at different places
        at, moved = images
        yield "images", (at, _with_metadata_of(inputs, at)), (moved, _with_metadata_of(inputs, moved))
    elif workload.spans:
        moved = replace(
            workload, spans=tuple((at, start, max(start + 1, end - 1)) for at, start, end in workload.spans)
        )
        yield "images", (workload, inputs), (moved, _with_metadata_of(inputs, moved))


def _turned(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """(name, workload) with other lengths for the same tensors: of queries, of keys (the longest stays), or of both.

    On pages, sequences become shorter. In packed tensors, sequences change places, or one gives a row to another, so
    the totals stay the same.
    """
    workload = subject.workload
    queries, keys = workload.seqlens_q, workload.seqlens_k
    if workload.spans:
        return
    halves = tuple(max(min(q, k), -(-k // 2)) for q, k in zip(queries, keys, strict=True))
    longest = keys.index(max(keys))
    others = tuple(
        key if index == longest else half for index, (key, half) in enumerate(zip(keys, halves, strict=True))
    )
    turned = (
        ("lengths of queries", (_exchanged(queries), keys)),
        ("lengths of keys", (queries, others if workload.page_size else _exchanged(keys))),
        ("lengths", (queries, halves) if workload.page_size else (queries[::-1], keys[::-1])),
    )
    for name, lengths in turned:
        even = all(len(set(each)) == 1 for each in lengths)
        if (
            lengths != (queries, keys)
            and claimed(subject, *lengths)
            and (even or "ragged" in subject.card.claims.features)
        ):
            yield name, workload.with_lengths(*lengths)


def _exchanged(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Other lengths with the same total: in reverse order; if that is the same, the last gets a row of the first."""
    if lengths != lengths[::-1] or len(lengths) == 1 or lengths[0] < 2:
        return lengths[::-1]
    return (lengths[0] - 1, *lengths[1:-1], lengths[-1] + 1)


def _appended(subject: Subject) -> tuple[Asked, Asked]:
    """Two calls on one cache. In the second, each sequence has one page more, where the table had the null page."""
    workload, size = subject.workload, subject.workload.page_size
    longer = workload.with_lengths(workload.seqlens_q, tuple(key + size for key in workload.seqlens_k))
    grown = replace(subject, workload=longer).inputs()
    table = grown.call.block_table
    assert table is not None, "only asked of pages"
    needed = torch.tensor([-(-key // size) for key in workload.seqlens_k], device=table.device)
    used = torch.arange(table.shape[1], device=table.device) < needed[:, None]
    short = _with_metadata_of(grown, workload)
    before = replace(short, call=replace(short.call, block_table=table * used))
    return (workload, before), (longer, grown)


def _with_metadata_of(inputs: Inputs, workload: Workload) -> Inputs:
    """The inputs with the lengths and images of a workload."""
    own = make_inputs(workload, kind="normal", seed=0, device=inputs.call.q.device, shared=True).call
    names = ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "bidirectional_spans", "max_seqlen_q", "max_seqlen_k")
    return replace(inputs, call=replace(inputs.call, **{name: getattr(own, name) for name in names}))


def _overwritten(call: AttentionCall, other: AttentionCall) -> dict[str, Any]:
    """The tensors of a call, by field, after the contents of another call's tensors were copied into them."""
    pairs = {field.name: (getattr(call, field.name), getattr(other, field.name)) for field in fields(call)}
    return {name: into.copy_(contents) for name, (into, contents) in pairs.items() if isinstance(into, Tensor)}
