"""graph: a captured call, replayed with other contents and shorter lengths, gives what an eager call gives.

Serving engines capture decode into CUDA graphs. The check captures the call once and replaces the bytes of q, k and v
in place. The replay must give the bits of an eager call. On pages the entries of the block table then change places,
and finally the lengths get shorter. An engine does the same: it captures at its longest context and replays at every
other, with the pages of other requests. A library that cannot be captured is noted with its message. It fails only
where its card claims ``graph``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from qualify.facts.case import Workload
from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.interface import Result, Shipped, Subject, changed, difference, failing, noted, passed, unsteady
from qualify.run.host.interface import Bound
from qualify.text import first_line

WARM_UP = 3


class Graph(Shipped):
    """Captures, changes the contents, replays."""

    def skips(self, subject: Subject) -> str:
        """CUDA only."""
        return "" if subject.processor.streams else "there are no CUDA graphs on a CPU"

    def run(self, subject: Subject) -> list[Finding]:
        """One capture, a replay with other contents, and on pages one each with other pages and shorter lengths."""
        inputs, other = subject.inputs(), subject.inputs(seed=1)
        eager = subject.run(replace(inputs.call, q=other.call.q, k=other.call.k, v=other.call.v))
        prepared = subject.kernel.prepare(inputs.call)
        try:
            replay, native = prepared.capture(WARM_UP)
        except RuntimeError as error:
            detail = f"cannot be captured: {first_line(error)[:200]}"
            if "graph" in subject.card.claims.features:
                return [failing(self.name, detail, {})]
            return [noted(self.name, detail)]
        inputs.q_whole.copy_(other.q_whole)
        inputs.k_whole.copy_(other.k_whole)
        inputs.v_whole.copy_(other.v_whole)  # where it is a view of the keys, the same bytes once more
        exact = subject.card.claims.deterministic
        if difference(subject, eager, _result(subject, prepared, prepared.launch()), exact=exact):
            return [noted(self.name, "not run: the adapter copies its inputs, so a replay cannot see new ones")]
        replay()
        found = difference(subject, eager, _result(subject, prepared, native), exact=exact)
        if found:
            detail = f"replayed with other contents: {changed(found)}"
            return [unsteady(subject, inputs.call, eager) or failing(self.name, detail, dict(found))]
        asked, planned = ["contents"], []
        for name, metadata in replaced(subject.workload, inputs.call):
            eager = subject.run(replace(inputs.call, **metadata))
            for field, tensor in metadata.items():
                getattr(inputs.call, field).copy_(tensor)
            if difference(subject, eager, _result(subject, prepared, prepared.launch()), exact=exact):
                planned.append(name)
                continue
            replay()
            found = difference(subject, eager, _result(subject, prepared, native), exact=exact)
            if found:
                detail = f"replayed with other {name}: {changed(found)}"
                return [unsteady(subject, inputs.call, eager) or failing(self.name, detail, {"other": name, **found})]
            asked.append(name)
        detail = f"captured and replayed with other {', '.join(asked)}: the same as eager"
        detail += f"; {' and '.join(planned)} are planned on the host, not replayed" if planned else ""
        return [passed(self.name, detail)]


def replaced(workload: Workload, call: AttentionCall) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what, tensors by field) that a step of an engine replaces in a paged call, as long as its graph serves it."""
    if call.block_table is None or call.seqused_k is None:
        return
    table, size = call.block_table, workload.page_size
    needed = torch.tensor([-(-keys // size) for keys in workload.seqlens_k], device=table.device)
    used = torch.arange(table.shape[1], device=table.device) < needed[:, None]
    if int(used.sum()) > 1:
        turned = table.clone()
        turned[used] = table[used].roll(1)
        yield "pages", {"block_table": turned}
    if workload.spans:
        return
    short = [max(q, -(-k // 2)) for q, k in zip(workload.seqlens_q, workload.seqlens_k, strict=True)]
    lengths = torch.minimum(torch.tensor(short, dtype=torch.int32, device=table.device), call.seqused_k)
    if not torch.equal(lengths, call.seqused_k):
        yield "lengths", {"seqused_k": lengths}


def _result(subject: Subject, prepared: Bound, native: Any) -> Result:
    return subject.judged(prepared.result(native))
