"""The environments of a run: their interpreters, and how their stacks differ from this interpreter's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qualify.facts.comparison import StackChange
from qualify.facts.differing import change_words, stack_changes
from qualify.facts.environment import HERE, Environment
from qualify.facts.run import Run
from qualify.report.columns import AnyTable, Column, Table


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentView:
    """One environment of a run."""

    name: str
    python: str
    """path of the interpreter"""
    fingerprint: str
    """fingerprint of its stack; empty where no host reported it"""
    changes: tuple[StackChange, ...]
    """components that differ from this interpreter's, without the files that a process happens to map"""

    @property
    def differs(self) -> str:
        """The differences in words."""
        if not self.fingerprint:
            return "nobody reported what it ran on: its evidence does not count"
        return "; ".join(change_words(change) for change in self.changes) or f"no version differs from {HERE}"


ENVIRONMENTS: tuple[Column[EnvironmentView], ...] = (
    Column(key="environment", title="Environment", cell=lambda row: row.name),
    Column(key="python", title="Interpreter", cell=lambda row: row.python, code=True),
    Column(key="stack", title="Stack", cell=lambda row: row.fingerprint[:12] or "unknown", code=True),
    Column(key="differs", title=f"What differs from {HERE}", sentence=True, cell=lambda row: row.differs),
)


def environment_views(run: Run) -> tuple[EnvironmentView, ...]:
    """The environments of a run, by name."""
    return tuple(_view(run, name, one) for name, one in run.environments.items())


def environments_table(run: Run) -> AnyTable:
    """The environments as a table; no rows where the run used this interpreter only."""
    return Table(caption="Environments", columns=ENVIRONMENTS, rows=environment_views(run))


def environments_data(run: Run) -> list[dict[str, Any]]:
    """The environments as JSON."""
    return [
        {
            "name": view.name,
            "python": view.python,
            "stack": view.fingerprint or None,
            "changes": [
                {"component": it.component, "kind": it.kind, "from": it.before, "to": it.after} for it in view.changes
            ],
        }
        for view in environment_views(run)
    ]


def _view(run: Run, name: str, one: Environment) -> EnvironmentView:
    changes = (change for change in stack_changes(run.stack, one.stack) if change.kind != "binary")
    fingerprint = one.stack.fingerprint if one.stack else ""
    return EnvironmentView(name=name, python=one.python, fingerprint=fingerprint, changes=tuple(changes))
