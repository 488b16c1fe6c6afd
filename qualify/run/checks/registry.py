"""The checks in the order in which they run: the cheapest that explains most comes first."""

from __future__ import annotations

from qualify.run.checks.budget import Budget
from qualify.run.checks.census import Census
from qualify.run.checks.contract import Contract
from qualify.run.checks.degenerate import Degenerate
from qualify.run.checks.graph import Graph
from qualify.run.checks.growth import Growth
from qualify.run.checks.heads import Heads
from qualify.run.checks.history import History
from qualify.run.checks.interface import Check
from qualify.run.checks.layout import Layout
from qualify.run.checks.leak import Leak
from qualify.run.checks.long_context import LongContext
from qualify.run.checks.merge import Merge
from qualify.run.checks.nan import Nan
from qualify.run.checks.needle import Needle
from qualify.run.checks.page_permutation import PagePermutation
from qualify.run.checks.parameters import Parameters
from qualify.run.checks.poison import Poison
from qualify.run.checks.powers_of_two import PowersOfTwo
from qualify.run.checks.repeat import Repeat
from qualify.run.checks.size_limits import SizeLimits
from qualify.run.checks.suffix import Suffix
from qualify.run.checks.surroundings import Surroundings

CHECKS: tuple[Check, ...] = (
    Contract(),
    Census(),
    Needle(),
    Parameters(),
    Poison(),
    Suffix(),
    PagePermutation(),
    Heads(),
    PowersOfTwo(),
    Nan(),
    Degenerate(),
    Merge(),
    Layout(),
    History(),
    SizeLimits(),
    LongContext(),
    Repeat(),
    Surroundings(),
    Leak(),
    Growth(),
    Graph(),
    Budget(),
)


def check_named(name: str) -> Check:
    """The check of that name. KeyError on an unknown one."""
    return {check.name: check for check in CHECKS}[name]
