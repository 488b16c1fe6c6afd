"""The table of units, and the guard that every number in a record has one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import get_args, get_origin, get_type_hints

import pytest

from qualify import masks
from qualify.facts import case, outcome, run, stack
from qualify.units import UNITS, unit_of

DIMENSIONLESS = {
    "heads_q": "a number of heads",
    "heads_kv": "a number of heads",
    "head_dim": "a number of elements",
    "head_dim_v": "a number of elements",
    "size": "a number of positions",
    "spans": "sequences and positions",
    "window": "a distance in keys",
    "softcap": "a score",
    "scale": "a factor of scores",
    "seqlens_q": "a number of queries",
    "seqlens_k": "a number of keys",
    "page_size": "keys per page",
    "layers": "a number of layers",
    "line": "a line of a file",
    "grid": "a number of blocks",
    "block": "a number of threads",
    "registers": "registers per thread",
    "stream": "a name",
    "calls": "a number of calls",
    "seed": "a name",
    "rows": "a number of rows",
    "planned": "a number of cases",
    "launches_per_block": "a number of launches",
    "attempt": "a number of attempts",
    "exit_code": "a code",
    "check_version": "a version",
    "units": "a number of multiprocessors or cores",
    "E_without_underflow": "an E",
    "G_limit": "a G",
    "beta_limit": "a beta",
    "worst_sequence": "a place in a batch",
    "pid": "a name",
    "born": "clock ticks of the machine, which tell processes apart",
}
"""numbers that have no unit, and what they count"""


def numeric_fields() -> Iterator[tuple[str, str]]:
    """(record, field) of every field of a record that holds numbers."""
    for module in (masks, case, outcome, run, stack):
        for record in vars(module).values():
            if isinstance(record, type) and is_dataclass(record) and record.__module__ == module.__name__:
                hints = get_type_hints(record)
                names = (field.name for field in fields(record))
                yield from ((record.__name__, name) for name in names if _holds_numbers(hints[name]))


def _holds_numbers(kind: object) -> bool:
    if get_origin(kind) is Callable:
        return False  # a function holds none
    return kind in {int, float} or any(_holds_numbers(inner) for inner in get_args(kind) if inner is not kind)


NUMERIC = sorted(
    item for item in set(numeric_fields()) if item not in {("Finding", "values"), ("Conclusion", "counts")}
)


@pytest.mark.parametrize(("record", "field"), NUMERIC)
def test_every_number_in_a_record_has_a_unit(record: str, field: str) -> None:
    """A numeric field ends in a unit of the table, or is known to count something."""
    assert unit_of(field) or field in DIMENSIONLESS, f"{record}.{field}: end its name in a unit of qualify.units"


def test_no_listed_exception_is_superfluous() -> None:
    """What is listed as dimensionless exists, and has no unit."""
    names = {field for _, field in NUMERIC}
    assert set() == {name for name in DIMENSIONLESS if name not in names or unit_of(name)}


@pytest.mark.parametrize(
    ("field", "symbol"),
    [
        ("latency_us", "us"),
        ("wall_s", "s"),
        ("peak_temporary_bytes", "bytes"),
        ("matmul_flops_per_s", "flops_per_s"),
        ("copy_bytes_per_s", "bytes_per_s"),
        ("exps", "exps"),
        ("exps_per_s", "exps_per_s"),
        ("ceiling_share", "share"),
        ("beta", "beta"),
        ("lse_rel", "lse_rel"),
    ],
)
def test_the_longest_suffix_tells_the_unit(field: str, symbol: str) -> None:
    """``flops_per_s`` is a rate and not a number of seconds."""
    unit = unit_of(field)
    assert unit is not None
    assert symbol == unit.symbol


@pytest.mark.parametrize("field", ["focus", "kernels", "bytes_read", ""])
def test_a_name_that_only_ends_alike_has_no_unit(field: str) -> None:
    """A suffix begins at an underscore."""
    assert unit_of(field) is None


def test_symbols_are_distinct() -> None:
    """No unit stands twice in the table."""
    symbols = [unit.symbol for unit in UNITS]
    assert sorted(set(symbols)) == sorted(symbols)
