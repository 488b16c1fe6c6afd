"""The checks in the order in which they run: the cheapest that explains most comes first."""

from __future__ import annotations

from qualify.run.checks.budget import Budget
from qualify.run.checks.census import Census
from qualify.run.checks.contract import Contract
from qualify.run.checks.interface import Check
from qualify.run.checks.needle import Needle
from qualify.run.checks.poison import Poison
from qualify.run.checks.repeat import Repeat
from qualify.run.checks.suffix import Suffix

CHECKS: tuple[Check, ...] = (Contract(), Census(), Needle(), Poison(), Suffix(), Repeat(), Budget())
