"""Every kernel that the run launched, once, with its raw name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qualify.facts.outcome import Launch
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.names import short_name
from qualify.report.views import CaseView, anchor

ROLES = ("attention", "auxiliary", "gemm", "softmax", "unclassified")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelSeen:
    """A launched kernel and the cases that launched it."""

    launch: Launch
    cases: int
    example: CaseView
    """the first case that launched it"""


COLUMNS: tuple[Column[KernelSeen], ...] = (
    Column(key="role", title="Role", cell=lambda seen: seen.launch.role),
    Column(key="short", title="Kernel", cell=lambda seen: short_name(seen.launch.name), code=True),
    Column(key="family", title="Family", cell=lambda seen: seen.launch.family or "unknown"),
    Column(key="generation", title="Generation", cell=lambda seen: seen.launch.generation or "–"),
    Column(
        key="cases", title="Cases", unit="count", cell=lambda seen: seen.cases, link=lambda seen: seen.example.anchor
    ),
    Column(key="name", title="Raw name", cell=lambda seen: seen.launch.name, code=True),
)


def inventory(views: Sequence[CaseView]) -> AnyTable:
    """All launched kernels, attention first, then by the number of cases."""
    seen: dict[str, list[tuple[Launch, CaseView]]] = {}
    for view in views:
        for launch in view.evidence.witness.launches if view.evidence else ():
            seen.setdefault(launch.name, []).append((launch, view))
    rows = [KernelSeen(launch=uses[0][0], cases=len(uses), example=uses[0][1]) for uses in seen.values()]
    rows.sort(key=lambda row: (ROLES.index(row.launch.role), -row.cases))
    return Table(
        caption="Kernels that were launched, as the profiler named them",
        columns=COLUMNS,
        rows=tuple(rows),
        row_anchor=lambda row: anchor("kernel", row.launch.name),
    )
