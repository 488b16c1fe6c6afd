"""graph: a captured call, replayed with other contents and shorter lengths, returns the result of an eager call.

Serving engines capture decode into CUDA graphs. The check captures the call once and replaces the bytes of q, k and v
in place. The replay must return the bits of an eager call. On pages, the check then permutes the entries of the block
table, and finally shortens the lengths. An engine does the same: it captures at its longest context, and replays with
shorter contexts and the pages of other requests. Where a library cannot be captured, a note has its message. That is a
failure only where the card claims ``graph``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from qualify.facts.case import Workload
from qualify.facts.outcome import Finding, Value
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.difference import Difference, blame_change, difference
from qualify.run.checks.interface import Result, Shipped, Subject, failing, noted, passed
from qualify.run.host.interface import Bound
from qualify.text import first_line

WARM_UP = 3


class Graph(Shipped):
    """Captures, changes the contents, replays."""

    def skips(self, subject: Subject) -> str:
        """Skips CPUs, which have no graphs."""
        return "" if subject.processor.streams else "there are no CUDA graphs on a CPU"

    def run(self, subject: Subject) -> list[Finding]:
        """Capture once; replay with other contents, and on pages also with other pages and with shorter lengths."""
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
        inputs.v_whole.copy_(other.v_whole)  # where this is a view of the keys, it copies the same bytes again
        captured = _Captured(subject=subject, call=inputs.call, prepared=prepared, replay=replay, native=native)
        if not captured.follows(eager):
            return [noted(self.name, "not run: the adapter copies its inputs, so a replay cannot see new ones")]
        wrong = captured.replayed(eager, "contents", {})
        if wrong:
            return [wrong]
        asked, planned = ["contents"], []
        for name, metadata in replaced(subject.workload, inputs.call):
            eager = subject.run(replace(inputs.call, **metadata))
            for field, tensor in metadata.items():
                getattr(inputs.call, field).copy_(tensor)
            if not captured.follows(eager):
                planned.append(name)
                continue
            wrong = captured.replayed(eager, name, {"other": name})
            if wrong:
                return [wrong]
            asked.append(name)
        detail = f"captured and replayed with other {', '.join(asked)}: the same as eager"
        detail += f"; {' and '.join(planned)} are planned on the host, not replayed" if planned else ""
        return [passed(self.name, detail)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Captured:
    """A prepared call, and the graph that was captured from its launch."""

    subject: Subject
    call: AttentionCall
    """the call, whose tensors both the prepared call and the graph read"""
    prepared: Bound
    replay: Callable[[], object]
    native: Any
    """result of the captured launch, into which every replay writes"""

    def follows(self, eager: Result) -> bool:
        """Whether the prepared call, launched again, reads the current contents of its tensors."""
        return not self._difference(eager, self.prepared.launch())

    def replayed(self, eager: Result, name: str, values: dict[str, Value]) -> Finding | None:
        """A finding where a replay differs from the eager call on the same new contents."""
        self.replay()
        found = self._difference(eager, self.native)
        if not found:
            return None
        said = f"replayed with other {name}: "
        return blame_change(self.subject, "graph", said, found, values, call=self.call, before=eager)

    def _difference(self, eager: Result, native: Any) -> Difference | None:
        subject = self.subject
        after = subject.judged(self.prepared.result(native), self.call)
        return difference(subject, eager, after, exact=subject.card.claims.deterministic)


def replaced(workload: Workload, call: AttentionCall) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what is replaced, new tensors by field): changes that an engine makes to a paged call between replays."""
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
