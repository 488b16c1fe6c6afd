"""history: what a kernel did before must not show in what it does now.

Call A, then call B that differs in exactly one thing (scale, lengths, their order, batch, mask, one side of the window,
chunk, images, softcap, sinks, dtype, or page size), then A
again: B must be right against the golden result, and the second A bitwise the first. A plan, a compiled kernel or a
workspace that is kept under too coarse a key gives itself away. Then the same tensors are called again after their
contents were replaced where they stand, lengths, pages and factors too, as a cache and its metadata are from one step
of an engine to the next: what is kept under a tensor's address is stale. At last a prepared A is launched again after B
was prepared on the same adapter: its plan must still be its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from qualify.facts.case import Level, Workload, formats_of
from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.checks.budget import compare
from qualify.run.checks.interface import Result, Subject, changed, difference, failing, noted, passed
from qualify.run.inputs import Inputs, clone, make_inputs

SHORT = 96
"""keys of the longest sequence of A: history is about calls, not about sizes"""


class History:
    """A, B, A."""

    name = "history"
    levels: tuple[Level, ...] = ("full",)
    cost = "two small calls and a golden result for each difference, at most sixteen, and seven small calls"

    def skips(self, subject: Subject) -> str:
        """Every altered shape costs a compilation where each shape is compiled."""
        return "each shape would be compiled" if subject.card.jit == "shapes" else ""

    def run(self, subject: Subject) -> list[Finding]:
        """The first difference that leaves a trace ends it."""
        workload = shortened(subject.workload)
        subject = replace(subject, workload=workload)
        question = subject.question(self.name)
        if question in subject.asked:
            return [noted(self.name, "asked before, by another case that is as short as this one, and right")]
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
                detail = f"after a call with another {name}, the first call again: {changed(found)}"
                return [failing(self.name, detail, {"differs_in": name, **found})]
            asked.append(name)
        for kept in (self._kept_address, self._kept_plan):
            wrong = kept(subject)
            if wrong:
                return [wrong]
        subject.asked[question] = "right"
        findings = [passed(self.name, f"no trace of calls with another {', '.join(asked)}")]
        return findings + [noted(self.name, f"not asked: the library refuses another {text}") for text in refused]

    def _wrong(self, other: Subject, name: str) -> Finding | None:
        """B against its golden result."""
        call = other.inputs(seed=1).call
        findings, _ = compare(other, call, other.golden(call), other.run(call), "normal", 1, measure=False)
        for finding in findings:
            if finding.verdict == "fail":
                detail = f"after a call that differs only in its {name}: {finding.detail}"
                return failing(self.name, detail, dict(finding.values) | {"differs_in": name, "finding": finding.check})
        return None

    def _kept_address(self, subject: Subject) -> Finding | None:
        """The same tensors give what other tensors with their contents give: first other values, then other lengths."""
        inputs = clone(subject.inputs())
        subject.run(inputs.call)
        for name, workload in (("contents", subject.workload), ("lengths", _turned(subject.workload))):
            altered = replace(subject, workload=workload)
            fresh = clone(_with_lengths_of(inputs, workload) if name == "lengths" else altered.inputs(seed=3)).call
            expected = altered.run(fresh)
            tensors = _overwritten(inputs.call, fresh)
            after = altered.run(replace(fresh, **tensors))
            found = difference(altered, expected, after, exact=subject.card.claims.deterministic)
            if found:
                detail = f"after a call, the same tensors with other {name}: {changed(found)}"
                return failing(self.name, detail, {"differs_in": name, **found})
        return None

    def _kept_plan(self, subject: Subject) -> Finding | None:
        """A prepared call gives the same after another one was prepared."""
        call = subject.inputs().call
        kept = subject.adapter.prepare(call)
        first = _result(kept.result(kept.launch()))
        longer = replace(subject, workload=_longer(subject.workload))
        try:
            between = subject.adapter.prepare(longer.inputs(seed=2).call)
            between.launch()
        except LibraryRefusal:
            return None
        found = difference(subject, first, _result(kept.result(kept.launch())), exact=subject.card.claims.deterministic)
        if not found:
            return None
        detail = f"a prepared call gives something else after a longer one was prepared: {changed(found)}"
        return failing(self.name, detail, {"differs_in": "plan", **found})


def _result(pair: tuple[torch.Tensor, torch.Tensor | None]) -> Result:
    out, lse = pair
    return Result(out=out.clone(), lse=None if lse is None else lse.clone())


def shortened(workload: Workload) -> Workload:
    """The workload with its first sequences cut short; how queries and keys relate stays."""
    pairs = list(zip(workload.seqlens_q, workload.seqlens_k, strict=True))[:4]
    longest = max(key for _, key in pairs)
    if longest <= SHORT:
        return workload.with_lengths(tuple(q for q, _ in pairs), tuple(k for _, k in pairs))
    keys = tuple(-(-key * SHORT // longest) for _, key in pairs)
    queries = tuple(min(q, 1) if max(workload.seqlens_q) == 1 else -(-q * SHORT // longest) for q, _ in pairs)
    return workload.with_lengths(queries, keys)


def _turned(workload: Workload) -> Workload:
    """Other lengths for the same tensors: shorter ones in the same pages, or those of the batch in the other order."""
    if workload.spans:
        return workload
    if not workload.page_size:
        return workload.with_lengths(workload.seqlens_q[::-1], workload.seqlens_k[::-1])
    pairs = zip(workload.seqlens_q, workload.seqlens_k, strict=True)
    return workload.with_lengths(workload.seqlens_q, tuple(max(min(q, k), -(-k // 2)) for q, k in pairs))


def _with_lengths_of(inputs: Inputs, workload: Workload) -> Inputs:
    """The inputs with a workload's lengths."""
    own = make_inputs(workload, kind="normal", seed=0, device=inputs.call.q.device).call
    lengths = {name: getattr(own, name) for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_k")}
    call = replace(inputs.call, **lengths, max_seqlen_q=own.max_seqlen_q, max_seqlen_k=own.max_seqlen_k)
    return replace(inputs, call=call)


def _overwritten(call: AttentionCall, other: AttentionCall) -> dict[str, Any]:
    """The tensors of a call, by field, after each took the contents of another call's."""
    pairs = {field.name: (getattr(call, field.name), getattr(other, field.name)) for field in fields(call)}
    return {name: into.copy_(contents) for name, (into, contents) in pairs.items() if isinstance(into, Tensor)}


def _longer(workload: Workload) -> Workload:
    queries = workload.seqlens_q if max(workload.seqlens_q) == 1 else tuple(q * 2 for q in workload.seqlens_q)
    return workload.with_lengths(queries, tuple(k * 2 for k in workload.seqlens_k))


def _shorter(workload: Workload) -> Workload:
    return workload.with_lengths(
        tuple(-(-q // 2) for q in workload.seqlens_q), tuple(-(-k // 2) for k in workload.seqlens_k)
    )


def _other_masks(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """Another number in one place of the mask: a key may hold the other places, or only that there is a mask."""
    workload, masks = subject.workload, subject.card.claims.masks
    left, right = workload.window
    if not workload.causal and left > 0:
        yield "window (left side)", replace(workload, window=(left // 2, right))
    if not workload.causal and right > 0:
        yield "window (right side)", replace(workload, window=(left, right // 2))
    if not workload.causal or workload.window != (-1, -1):
        return
    longest = max(workload.seqlens_k)
    if "chunked" in masks and longest > 2:
        yield "chunk", replace(workload, chunk=-(-workload.chunk // 2) or -(-longest // 3))
    pairs = list(zip(workload.seqlens_q, workload.seqlens_k, strict=True))
    at = next((index for index, (queries, keys) in enumerate(pairs) if 4 <= queries <= keys), None)
    if "spans" in masks and not workload.chunk and at is not None:
        start, size = pairs[at][1] - pairs[at][0], pairs[at][0] // 2
        yield "image", replace(workload, spans=((at, start, start + size),))
        yield "image (its place)", replace(workload, spans=((at, start + 1, start + 1 + size),))


def differing(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """(what differs, the workload that differs in it), as far as the card claims it."""
    workload, claims = subject.workload, subject.card.claims
    yield "scale", replace(workload, scale=workload.scale * 0.375)
    yield "length (longer)", _longer(workload)
    yield "length (shorter)", _shorter(workload)
    yield "batch", workload.with_lengths(workload.seqlens_q * 2, workload.seqlens_k * 2)
    turned = workload.with_lengths(workload.seqlens_q[::-1], workload.seqlens_k[::-1])
    if (turned.seqlens_q, turned.seqlens_k) != (workload.seqlens_q, workload.seqlens_k):
        yield "order of sequences", turned  # a key of totals and maxima does not tell them apart
    if subject.card.jit != "never":
        return  # what follows would be compiled
    if workload.causal and "full" in claims.masks and workload.window == (-1, -1) and not workload.chunk:
        yield "mask", replace(workload, causal=False)
    windowed = workload
    if "window" in claims.masks and not workload.chunk:
        left = max(workload.seqlens_k) // 3 if workload.window[0] < 0 else workload.window[0] // 2
        windowed = replace(workload, causal=True, window=(left, 0))
        yield "window", windowed
    yield from _other_masks(subject)
    if "softcap" in claims.features:
        softcap = workload.softcap * 0.5 or 2.0
        yield "softcap", replace(workload, softcap=softcap)
        if windowed != workload:
            yield "window and softcap", replace(windowed, softcap=softcap)
    if "sinks" in claims.features:
        yield "sinks", replace(workload, sinks=not workload.sinks)
        if windowed != workload:  # models that have both have them in one layer
            yield "window and sinks", replace(windowed, sinks=True)
    for dtype in claims.dtypes:
        if "fp8_e4m3" not in {dtype, workload.dtype} and dtype != workload.dtype:
            descale = claims.fp8.descale if formats_of(dtype)[1] == "fp8_e4m3" else ""
            yield f"dtype ({dtype})", replace(workload, dtype=dtype, descale=descale)
    sizes = claims.page_size
    if workload.page_size and (sizes is None or sizes.max is None or 2 * workload.page_size <= sizes.max):
        yield "page size", replace(workload, page_size=2 * workload.page_size)
