"""graph: a captured call, replayed with other contents and shorter lengths, gives what an eager call gives.

Serving engines capture decode into CUDA graphs. The call is captured once, the bytes of q, k and v are replaced in
place, and the replay must be bitwise what the kernel gives eagerly for them. On pages the lengths are then shortened
in place, too: an engine captures at its longest context and replays at every other. A library that cannot be captured
is noted with its words; only a card that claims ``graph`` fails by it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from qualify.facts.case import Level
from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.checks.interface import Result, Subject, changed, difference, failing, noted, passed

WARM_UP = 3


class Graph:
    """Captures, changes the contents, replays."""

    name = "graph"
    levels: tuple[Level, ...] = ("full",)
    cost = "seven calls, three more on pages"

    def skips(self, subject: Subject) -> str:
        """CUDA only."""
        return "" if subject.device.type == "cuda" else "there are no CUDA graphs on a CPU"

    def run(self, subject: Subject) -> list[Finding]:
        """One capture, a replay with other contents, and one with shorter lengths."""
        inputs, other = subject.inputs(), subject.inputs(seed=1)
        eager = subject.run(replace(inputs.call, q=other.call.q, k=other.call.k, v=other.call.v))
        prepared = subject.adapter.prepare(inputs.call)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                prepared.launch()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                native = prepared.launch()
        except RuntimeError as error:
            torch.cuda.synchronize()
            detail = f"cannot be captured: {str(error).splitlines()[0][:200]}"
            if "graph" in subject.card.claims.features:
                return [failing(self.name, detail, {})]
            return [noted(self.name, detail)]
        inputs.q_whole.copy_(other.q_whole)
        inputs.k_whole.copy_(other.k_whole)
        inputs.v_whole.copy_(other.v_whole)  # where it is a view of the keys, the same bytes once more
        exact = subject.card.claims.deterministic
        if difference(subject, eager, _result(prepared, prepared.launch()), exact=exact):
            return [noted(self.name, "not asked: the adapter copies its inputs, so a replay cannot see new ones")]
        captured.replay()
        found = difference(subject, eager, _result(prepared, native), exact=exact)
        if found:
            return [failing(self.name, f"replayed with other contents: {changed(found)}", dict(found))]
        shorter = self._shorter(subject, inputs.call, prepared, captured, native)
        if shorter is not None:
            return [shorter]
        return [passed(self.name, "captured and replayed with other contents: the same as eager")]

    def _shorter(
        self, subject: Subject, call: AttentionCall, prepared: Prepared, captured: torch.cuda.CUDAGraph, native: Any
    ) -> Finding | None:
        """What a replay with shorter lengths has to say; None where a call has no lengths to shorten in place."""
        workload = subject.workload
        if call.seqused_k is None or workload.spans:
            return None
        short = [max(q, -(-k // 2)) for q, k in zip(workload.seqlens_q, workload.seqlens_k, strict=True)]
        lengths = torch.tensor(short, dtype=call.seqused_k.dtype, device=call.seqused_k.device)
        lengths = torch.minimum(lengths, call.seqused_k)
        if torch.equal(lengths, call.seqused_k):
            return None
        exact = subject.card.claims.deterministic
        eager = subject.run(replace(call, seqused_k=lengths))
        call.seqused_k.copy_(lengths)
        said = "captured and replayed with other contents"
        if difference(subject, eager, _result(prepared, prepared.launch()), exact=exact):
            return passed(self.name, f"{said}: the same as eager; lengths are planned on the host, not replayed")
        captured.replay()
        found = difference(subject, eager, _result(prepared, native), exact=exact)
        if found:
            return failing(self.name, f"replayed with shorter lengths: {changed(found)}", dict(found))
        return passed(self.name, f"{said} and with shorter lengths: the same as eager")


def _result(prepared: Prepared, native: Any) -> Result:
    torch.cuda.synchronize()
    out, lse = prepared.result(native)
    return Result(out=out, lse=lse)
