"""merge: attention over two parts of a cache, merged through their LSE, equals attention over the whole cache.

out = (out_1 e^lse_1 + out_2 e^lse_2) / (e^lse_1 + e^lse_2). Split-KV kernels, cascades and context parallelism compute
this from the LSE that a kernel returns. The check applies to calls with one query per sequence and no window, because
there a part of the keys is a legitimate call of the same kernel. The LSE of both parts contains the sink, and the check
removes it from one.

The parts have unequal lengths, so that a kernel splits them in another way than the whole. Where the card claims empty
sequences, one sequence has no key in the first part, as a rank of context parallelism may have none. (Not with sinks,
because kernels differ in whether the LSE of an empty row includes the sink.)
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qualify.facts.case import Workload
from qualify.facts.outcome import Finding, Value
from qualify.run.checks.interface import Result, Shipped, Subject, failing, passed
from qualify.run.golden.accuracy import declared_class, judge
from qualify.run.inputs.tensors import Inputs, make_inputs, replace_keys, with_tensors

E_LIMIT = 2.0
"""limit of E for a merged result: two outputs were rounded before the merge, and the result is rounded once more"""


class Merge(Shipped):
    """Splits the keys of each sequence in two uneven parts."""

    def skips(self, subject: Subject) -> str:
        """Needs an LSE, one query per sequence, every key visible, and keys to split."""
        workload = subject.workload
        if "lse" not in subject.card.claims.features:
            return "the card claims no LSE"
        if max(workload.seqlens_q) != 1 or workload.mask.windowed or workload.mask.pattern or workload.spans:
            return "it needs one query per sequence, without window, pattern or image spans"
        if subject.card.claims.alignment == "top_left":
            return "under a mask aligned to the top left, a part of the keys is a different call"
        if "ragged" not in subject.card.claims.features and len(set(workload.seqlens_k)) > 1:
            return "lengths differ"
        return "" if min(workload.seqlens_k) > 2 else "nothing to split"

    def run(self, subject: Subject) -> list[Finding]:
        """Merge both parts in float64 and compare with the golden result of the whole."""
        workload = subject.workload
        whole = subject.inputs()
        cuts = [max(1, length * 2 // 7) for length in workload.seqlens_k]
        if workload.batch > 1 and not workload.sinks and {"empty", "ragged"} <= set(subject.card.claims.features):
            cuts[0] = 0
        parts = []
        for first in (True, False):
            lengths = tuple(
                cut if first else length - cut for cut, length in zip(cuts, workload.seqlens_k, strict=True)
            )
            part = replace(workload, seqlens_k=lengths)
            call = _part(subject, whole, part, cuts, first=first).call
            result = replace(subject, workload=part).run(call)
            if result.lse is None:
                return [failing(self.name, "the card claims an LSE and the kernel returned none", {})]
            parts.append(_as_merged(subject, result, part))
        sinks = None if whole.call.sinks is None else whole.call.sinks.double()
        out, lse = merged(parts[0], parts[1], sinks)
        golden = subject.golden(whole.call)
        errors = judge(golden, out[golden.rows].to(whole.call.out_dtype), declared_class(subject.card, workload.dtype))
        worst_lse = float((lse[golden.rows] - golden.lse).abs().div(golden.lse.abs().clamp(min=1)).max())
        limit = 2 * subject.card.claims.lse.rel
        values: dict[str, Value] = {"E": errors.E, "lse_rel": worst_lse, "lse_limit": limit}
        if errors.E <= E_LIMIT and worst_lse <= limit:
            return [passed(self.name, "two parts of the keys, merged through their LSE, give the whole", **values)]
        row, head, element = errors.worst
        sequence, query = subject.locate(int(golden.rows[row]))
        detail = (
            "two parts of the keys, merged through their LSE, differ from attention over the whole: error "
            f"{errors.E:.3g} (worst element; limit {E_LIMIT:g}), LSE off by {worst_lse:.3g} (limit {limit:g}); worst: "
            f"sequence {sequence}, query {query}, head {head}, element {element}"
        )
        return [failing(self.name, detail, values | {"sequence": sequence, "query": query, "head": head})]


def _as_merged(subject: Subject, result: Result, part: Workload) -> Result:
    """The result as a merge must read it: empty rows get a weight of 0, whatever the card lets them return."""
    assert result.lse is not None, "asked before"
    lengths_k, lengths_q = (torch.tensor(each, device=result.out.device) for each in (part.seqlens_k, part.seqlens_q))
    empty = (lengths_k == 0).repeat_interleave(lengths_q)
    policy, out, lse = subject.card.claims.empty_row, result.out, result.lse
    if policy.out != "0":
        out = out.masked_fill(empty.view(-1, 1, 1), 0.0)
    if policy.lse != "-inf":
        lse = lse.masked_fill(empty, -torch.inf)
    return Result(out=out, lse=lse)


def merged(first: Result, second: Result, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Merged out (total_q, heads_q, dim_v) and lse (total_q, heads_q), float64, of results over disjoint keys.

    Args:
        sinks: (heads_q,) sinks, which both results include; None = there are none.
    """
    assert first.lse is not None, "asked before"
    assert second.lse is not None, "asked before"
    one, two = first.lse.T.double(), second.lse.T.double()
    both = torch.logaddexp(one, two)
    top = (
        torch.exp(one - both).unsqueeze(-1) * first.out.double()
        + torch.exp(two - both).unsqueeze(-1) * second.out.double()
    )
    if sinks is None:
        return top, both
    # e^both counts the sink twice; the difference is positive because both parts hold it.
    lse = both + torch.log1p(-torch.exp(sinks - both).clamp(max=1 - 2.0**-52))
    return top * torch.exp(both - lse).unsqueeze(-1), lse


def _part(subject: Subject, whole: Inputs, part: Workload, cuts: list[int], *, first: bool) -> Inputs:
    """The same queries against one part of each sequence's keys, in a cache of its own."""
    workload = subject.workload
    device = subject.device
    k, v = (tensor.reshape(-1, *tensor.shape[-2:])[whole.slots] for tensor in (whole.k_whole, whole.v_whole))
    lengths = torch.tensor(workload.seqlens_k, device=device)
    cut = torch.tensor(cuts, device=device).repeat_interleave(lengths)
    start = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    before = torch.arange(len(k), device=device) - start < cut
    chosen = before if first else ~before
    fresh = make_inputs(part, kind="normal", seed=subject.seed + 3, device=device, shared=True)
    inputs = replace_keys(with_tensors(fresh, q=whole.q_whole), None, k[chosen], v[chosen])
    kept = {name: getattr(whole.call, name) for name in ("sinks", "q_descale", "k_descale", "v_descale")}
    return replace(inputs, call=replace(inputs.call, **kept))
