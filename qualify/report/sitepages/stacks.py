"""Pages of stacks: the software and the device that runs were made on."""

from __future__ import annotations

from collections.abc import Sequence

from qualify.facts.overview import StackHead
from qualify.facts.stack import Stack
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.run_facts import COMPONENTS
from qualify.report.sitepages.parts import NO_RUN, PagePart, PartsPage, address
from qualify.report.sitepages.runs import RunRow, runs_table

COLUMNS: tuple[Column[StackHead], ...] = (
    Column(key="device", title="Device", name=True, cell=lambda it: it.variant),
    Column(
        key="fingerprint",
        title="Stack",
        cell=lambda it: it.fingerprint[:16],
        code=True,
        page=lambda it: address("stacks", it.fingerprint),
    ),
    *(
        Column(key=name, title=title, cell=lambda it, name=name: dict(it.versions).get(name, ""))  # type: ignore[misc]
        for name, title in (("driver", "Driver"), ("cuda", "CUDA"), ("torch", "PyTorch"))
    ),
    Column(key="runs", title="Runs", cell=lambda it: it.runs, number=True),
    Column(key="newest", title="Newest run began (UTC)", cell=lambda it: f"{it.newest:%Y-%m-%d %H:%M}"),
)


def stacks_page(stacks: Sequence[StackHead]) -> PartsPage:
    """The list of all stacks."""
    table: AnyTable = Table(caption="Stacks, the one with the newest run first", columns=COLUMNS, rows=tuple(stacks))
    part = PagePart(key="stacks", heading="Stacks", count=str(len(stacks)), table=table, empty=NO_RUN)
    return PartsPage(title="Stacks", here="/stacks", twin="/stacks.json", csv="/stacks.csv", parts=(part,))


def stack_page(stack: Stack, rows: Sequence[RunRow]) -> PartsPage:
    """One stack: its components, and the newest runs on it."""
    components: AnyTable = Table(caption="Components of the stack", columns=COMPONENTS, rows=stack.components)
    at = address("stacks", stack.fingerprint)
    parts = (
        PagePart(key="components", heading="Components", table=components, empty="No component is known."),
        PagePart(
            key="environment",
            heading="Environment",
            count="variables that steer dispatch",
            terms=tuple(stack.environment.items()),
        ),
        PagePart(
            key="runs",
            heading="Runs",
            table=runs_table(rows, "The newest runs on it"),
            empty="No run is of this stack.",
        ),
    )
    return PartsPage(
        title=f"Stack {stack.fingerprint[:16]}",
        summary=stack.device.variant,
        here="/stacks",
        twin=f"{at}.json",
        csv=f"{at}.csv",
        parts=parts,
    )
