"""leak: a call frees the memory that it takes.

After some calls to warm up, the check makes a few more, each with new tensors. With each call, bytes in use must grow
by less than half of the keys' bytes. A kernel that keeps a copy of the keys, or the tensor itself, ends an engine after
hours. Growth counts only if it shows in three measurements, after garbage collection: a cache fills up at some time,
but a leak goes on.

On a GPU the check counts bytes in PyTorch's allocator and, for libraries that allocate by themselves, bytes on the
device outside of it. On a CPU it asks the C library for the bytes in use. The size of the process would not show a leak
that uses freed memory. Where another allocator is loaded, which does not count, the check does not run.
"""

from __future__ import annotations

from dataclasses import replace

from qualify.facts.case import Workload
from qualify.facts.devices import Scale
from qualify.facts.outcome import Finding
from qualify.run.checks.interface import Shipped, Subject, claimed, failing, noted, passed
from qualify.run.checks.size_limits import SEVERAL, few_kv_heads, layout_of
from qualify.run.inputs.tensors import clone

KEY_BYTES: dict[Scale, int] = {"small": 64 << 10, "large": 4 << 20}
"""least bytes of the keys of one call: on a GPU twice the smallest allocation of the device"""
WARM_UP, CALLS = 2, 6
AGAIN = 2
"""how often a growth is measured again"""


class Leak(Shipped):
    """Repeats calls, and compares the bytes in use."""

    def skips(self, subject: Subject) -> str:
        """Skips kernels that compile for every shape."""
        return "each shape would be compiled" if subject.card.jit == "shapes" else ""

    def run(self, subject: Subject) -> list[Finding]:
        """Fail where the bytes in use grow with each call in every measurement."""
        workload = _sized(subject)
        decode = max(workload.seqlens_q) == 1
        question = f"{self.name}/{subject.card.kernel}/{workload.dtype}/{layout_of(workload)}/{decode}"
        if question in subject.asked:
            return [noted(self.name, "passed before, on another shape")]
        if not subject.kernel.counts_bytes():
            return [noted(self.name, "not run: the allocator of its process does not tell its bytes in use")]
        small = replace(subject, workload=workload)
        key_bytes = sum(workload.seqlens_k) * workload.heads_kv * workload.head_dim * small.inputs().call.k.itemsize
        for _ in range(WARM_UP):
            small.run(small.inputs().call)
        growth = grown(small)
        for _ in range(AGAIN):
            if growth < CALLS * key_bytes / 2:
                break
            growth = min(growth, grown(small, collect=True))
        values = {"bytes_per_call": growth / CALLS, "key_bytes": key_bytes}
        if growth < CALLS * key_bytes / 2:
            subject.asked[question] = "right"
            return [passed(self.name, f"memory in use does not grow over {CALLS} calls", **values)]
        detail = (
            f"each call leaves {growth / CALLS / 1e3:.0f} kB in use; its keys have {key_bytes / 1e3:.0f} kB "
            f"({CALLS} calls, measured {1 + AGAIN} times)"
        )
        return [failing(self.name, detail, dict(values))]


def _sized(subject: Subject) -> Workload:
    """A workload of one sequence whose keys have at least KEY_BYTES, with as few heads as possible."""
    workload = few_kv_heads(subject, 1, 1)
    row_bytes = workload.heads_kv * workload.head_dim  # a lower bound: elements have one byte or more
    keys = -(-KEY_BYTES[subject.processor.scale] // row_bytes)
    queries = 1 if max(workload.seqlens_q) == 1 else SEVERAL
    lengths = ((queries,), (keys,))
    return workload.with_lengths(*(lengths if claimed(subject, *lengths) else ((keys,), (keys,))))


def grown(subject: Subject, *, collect: bool = False) -> int:
    """By how many bytes the memory in use grows over CALLS calls; of several counters, the largest growth.

    Args:
        collect: whether to collect garbage before and after the calls, which costs more than the calls.
    """
    inputs = subject.inputs()
    before = subject.kernel.in_use(collect=collect)
    for _ in range(CALLS):
        subject.run(clone(inputs).call)
    after = subject.kernel.in_use(collect=collect)
    return max(now - was for was, now in zip(before, after, strict=True))
