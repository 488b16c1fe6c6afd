"""What an earlier run required and a later one does not, requirement by requirement, without a store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import make_card, make_evidence, make_finding, make_matrix, make_record
from stored_runs import make_run

from qualify.cards.terms import terms_of
from qualify.facts.outcome import Measured, NotRun, Outcome, Refused
from qualify.facts.run import Record
from qualify.verdict.weaker import Demand, asked_less, is_asked

CELLS = ("small.tp1/prefill/b1.q70.k70/bf16/causal", "small.tp1/decode/b1.q1.k70/bf16/causal")
KERNELS = ("one", "two")
RECORDS = [make_record(kernel=kernel, cell=cell) for cell in CELLS for kernel in KERNELS]


def demand(
    policy: dict[str, Any] | None = None,
    records: list[Record] | None = None,
    terms: Any = None,
    matrix: dict[str, Any] | None = None,
    level: Any = "smoke",
    **fields: Any,
) -> Demand:
    """What a run of four cases asked under that policy."""
    card = make_matrix(policy=policy or {}, **matrix or {}).card
    run = make_run(terms=terms, level=level, **({"select": fields.pop("select")} if "select" in fields else {}))
    return Demand(run=run, matrix=card, records=RECORDS if records is None else records, **fields)


def told(before: Demand, after: Demand) -> list[tuple[str, str, str, int]]:
    """Each weaker requirement, then and now."""
    return [(less.what, less.then, less.now, less.count) for less in asked_less(before, after)]


def budget(percent: float, **more: Any) -> dict[str, Any]:
    """A policy with a budget for each cell."""
    return {"performance": {"budgets": [{"of": "cell", "percent": percent, **more}]}}


FIVE = [{"of": "cell", "percent": 5}]
DAYS = "policy.waivers.max_days"
OWNERS = "policy.waivers.owners"
CELL = "policy.performance.budgets of cell, all phases"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"waivers": {"max_days": 30}}, {}, (DAYS, "30", "no limit")),
        ({"waivers": {"max_days": 30}}, {"waivers": {"max_days": 31}}, (DAYS, "30", "31")),
        ({"waivers": {"max_days": 30}}, {"waivers": {"max_days": 30}}, None),
        ({"waivers": {"max_days": 30}}, {"waivers": {"max_days": 29}}, None),
        ({}, {"waivers": {"max_days": 30}}, None),
        ({"waivers": {"owners": ["ann", "bob"]}}, {}, (OWNERS, "ann, bob", "anybody")),
        ({"waivers": {"owners": ["ann", "bob"]}}, {"waivers": {"owners": ["bob"]}}, None),
        ({"waivers": {"owners": ["ann"]}}, {"waivers": {"owners": ["ann", "eve"]}}, (OWNERS, "ann", "ann, eve")),
        ({}, {"waivers": {"owners": ["ann"]}}, None),
        (budget(5), {}, (CELL, "5 %", "no limit")),
        (budget(5), budget(6), (CELL, "5 %", "6 %")),
        (budget(5), budget(5), None),
        (budget(5), budget(4), None),
        (budget(5), budget(5, phase="decode"), (CELL, "5 %", "no limit")),
        (budget(5, phase="decode"), budget(5), None),
        (budget(5, phase="decode"), budget(6), ("policy.performance.budgets of cell, decode", "5 %", "6 %")),
        (budget(5), {"performance": {"budgets": [*FIVE, {"of": "cell", "percent": 9}]}}, None),
        ({"performance": {"budgets": [{"of": "cell", "percent": 9}, *FIVE]}}, budget(5), None),
        (
            {"performance": {"budgets": [{"of": "mean", "percent": 5, "phase": "decode"}]}},
            {"performance": {"budgets": [{"of": "mean", "percent": 5}]}},
            ("policy.performance.budgets of mean, decode", "5 %", "no limit"),
        ),
        ({}, budget(5), None),
    ],
    ids=str,
)
def test_a_limit_is_weaker_where_it_is_larger_or_gone(
    before: dict[str, Any], after: dict[str, Any], expected: tuple[str, str, str] | None
) -> None:
    """A new or tighter one is no news."""
    assert ([(*expected, 0)] if expected else []) == told(demand(before), demand(after))


TERMS = {"one": {"accuracy.fp32": "fp32", "claims.lse.rel": "1e-05"}, "old": {"accuracy.fp32": "fp32"}}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"one": {"accuracy.fp32": "bf16", "claims.lse.rel": "0.001"}}, ["accuracy.fp32", "claims.lse.rel"]),
        ({"one": {"claims.lse.rel": "1e-05", "claims.new": "x"}}, []),
        ({"new": {"accuracy.fp32": "bf16"}}, []),
        (None, []),
    ],
    ids=str,
)
def test_what_both_cards_promise_is_compared(now: Any, expected: list[str]) -> None:
    """In the order of the keys; a kernel or a promise that only one run knows is not."""
    assert [f"card one: {key}" for key in expected] == [it[0] for it in told(demand(terms=TERMS), demand(terms=now))]
    assert [] == told(demand(terms=now), demand(terms=None))


FP8: dict[str, Any] = {"dtypes": ["fp8_e4m3"], "accuracy": {"fp8_e4m3": "fp8"}}


@pytest.mark.parametrize(
    ("strict", "loose", "expected"),
    [
        ({}, {"jit": "shapes"}, ["jit"]),
        ({"jit": "kernels"}, {"jit": "shapes"}, ["jit"]),
        ({}, {"hidden_score": -10000.0}, ["claims.hidden_score"]),
        ({"hidden_score": -20000.0}, {"hidden_score": -10000.0}, ["claims.hidden_score"]),
        (FP8 | {"fp8": {"weight_scale": 256}}, FP8, ["claims.fp8.weight_scale"]),
        (FP8, FP8 | {"fp8": {"descale": "tensor"}}, ["claims.fp8.descale"]),
        ({}, {"batch": {"max": 9}}, ["claims.batch.max"]),
        ({}, {"elements": {"max": 1 << 31}}, ["claims.elements.max"]),
        ({}, {"queries": "equal"}, ["claims.queries"]),
        ({"masks": ["full", "causal"]}, {"masks": ["causal"]}, ["claims.longer_queries", "claims.masks"]),
        ({}, {"longer_queries": ["full"]}, ["claims.longer_queries"]),
        ({"layouts": ["packed", "paged"]}, {"layouts": ["packed"]}, ["claims.layouts"]),
        ({}, {"alignment": "top_left"}, ["claims.alignment"]),
        ({}, {"page_size": {"max": 64}}, ["claims.page_size.max"]),
        ({}, {"page_size": {"min": 16, "multiple_of": 16}}, ["claims.page_size.min", "claims.page_size.multiple_of"]),
    ],
    ids=str,
)
def test_what_leaves_out_checks_or_loosens_a_limit_is_weaker(
    strict: dict[str, Any], loose: dict[str, Any], expected: list[str]
) -> None:
    """Every key of a card on which a check or its limit depends; the other way round it is stricter."""
    one, other = ({"one": terms_of(make_card(**changes))} for changes in (strict, loose))
    assert [f"card one: {key}" for key in expected] == [it[0] for it in told(demand(terms=one), demand(terms=other))]
    assert [] == told(demand(terms=other), demand(terms=one))


PACKED: dict[str, Any] = {"layouts": ["packed"]}
BF16: dict[str, Any] = {"dtypes": ["bf16"], "accuracy": {"bf16": "bf16"}}
BOTH: dict[str, Any] = {"dtypes": ["bf16", "fp8_e4m3"], "accuracy": {"bf16": "bf16", "fp8_e4m3": "fp8"}}
CACHED: dict[str, Any] = {
    "dtypes": ["bf16", "bf16_kv_fp8_e4m3"],
    "accuracy": {"bf16": "bf16", "bf16_kv_fp8_e4m3": "bf16"},
}
NO_LSE: dict[str, Any] = {"features": ["ragged"], "empty_row": {"out": "0", "lse": "-inf"}}
LSE: dict[str, Any] = {"features": ["lse", "ragged"], "empty_row": {"out": "0", "lse": "any"}, "lse": {"rel": 0.001}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PACKED, {"page_size": {"min": 16, "max": 64, "multiple_of": 16}}),
        (
            BF16 | {"fp8": {"weight_scale": 256}},
            BOTH | {"fp8": {"descale": "tensor", "value_factor": "after_rounding"}},
        ),
        (BF16, CACHED | {"fp8": {"cache": "rounded"}}),
        (NO_LSE, LSE),
    ],
    ids=("pages", "fp8", "fp8 cache", "lse"),
)
def test_limits_of_what_the_card_did_not_claim_before_are_no_weaker_ones(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    """A card that begins to claim pages, fp8 or the LSE asks more than before, whatever their limits are."""
    one, other = ({"one": terms_of(make_card(**changes))} for changes in (before, after))
    assert [] == told(demand(terms=one), demand(terms=other))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"*": "census\nnan"}, [("waiver of *", "none", "waives census, nan", 0)]),
        ({"*": "census"}, {"*": "census\nnan"}, [("waiver of *", "none", "waives nan", 0)]),
        ({"*": "census\nnan"}, {"*": "nan"}, []),
        (None, {"*": "census"}, []),
        ({"*": "census"}, None, []),
    ],
    ids=str,
)
def test_checks_that_a_wide_waiver_gained_are_named(before: Any, after: Any, expected: list[Any]) -> None:
    """Where nobody noted the waivers of one side, they are not compared."""
    assert expected == told(demand(stars=before), demand(stars=after))


PLAN, LIBRARY = (Refused(by=by, reasons=("no",)) for by in ("plan", "library"))


@pytest.mark.parametrize(
    ("outcome", "unclaimed", "asked"),
    [
        (RECORDS[0].outcome, (), True),
        (NotRun(reason="interrupted"), (), True),
        (LIBRARY, (), True),
        (PLAN, (), False),
        (RECORDS[0].outcome, ("head_dim=64 > 32",), False),
    ],
    ids=["measured", "not run", "refused by the library", "refused by the plan", "beyond the claims"],
)
def test_a_case_is_lost_where_nobody_asks_it_any_more(outcome: Outcome, unclaimed: Any, asked: bool) -> None:
    """And no news where nobody asked it before."""
    first = RECORDS[0]
    changed = Record(case=replace(first.case, unclaimed=unclaimed), outcome=outcome)
    assert asked == is_asked(changed)
    after = demand(records=[changed, *RECORDS[1:]])
    assert asked == (not told(demand(), after))
    assert [] == told(after, demand())
    assert asked == bool(told(after, demand(records=RECORDS[1:])))


def test_a_narrowed_run_lost_no_case() -> None:
    """What it left out is no change of the matrix; its policy is compared all the same."""
    part = demand({"timeout_s": 600}, records=RECORDS[:1], select="*")
    assert [("policy.timeout_s", "60", "600", 0)] == told(demand({"timeout_s": 60}), part)


def test_evidence_of_a_lower_level_is_named_case_by_case() -> None:
    """Also where only some of it is, from other runs; what was not measured has no level."""
    full = demand(level="full")
    assert [("level", "full", "smoke", 4)] == told(full, demand())
    assert [] == told(demand(), full)
    some = {RECORDS[1].case.id: "smoke", RECORDS[2].case.id: "full"}
    assert [("level", "full", "smoke", 1)] == told(full, demand(level="full", levels=some))
    higher = {record.case.id: "full" for record in RECORDS}
    assert [] == told(full, demand(levels=higher))
    lost = [Record(case=RECORDS[0].case, outcome=NotRun(reason="interrupted")), *RECORDS[1:]]
    assert [("level", "full", "smoke", 3)] == told(full, demand(records=lost))


ONE, TWO = ({"select": "*", "kernel": kernel} for kernel in KERNELS)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([ONE], [ONE | {"fallback": "two"}], ("one, fallback forbid", "one, fallback two", 2)),
        ([ONE | {"fallback": "two"}], [ONE | {"fallback": "record"}], ("one, fallback two", "one, fallback record", 2)),
        ([ONE | {"fallback": "record"}], [ONE | {"fallback": "two"}], None),
        ([ONE | {"fallback": "two"}], [ONE], None),
        ([ONE, TWO], [ONE], None),
        ([ONE], [TWO, ONE], ("one, fallback forbid", "two, fallback forbid", 2)),
        ([ONE], [ONE | {"select": "*/decode/*"}], ("one, fallback forbid", "none", 1)),
        ([], [ONE], None),
        ([], [ONE | {"fallback": "record"}], ("fallback forbid", "one, fallback record", 2)),
        ([], [ONE | {"fallback": "two"}], ("fallback forbid", "one, fallback two", 2)),
    ],
    ids=str,
)
def test_a_shape_is_expected_of_the_first_kernel_that_selects_it(before: Any, after: Any, expected: Any) -> None:
    """Another kernel, another fallback, or none: by shape, however the globs are written."""
    found = told(*(demand(matrix={"kernels": ["*"], "expect": expect}) for expect in (before, after)))
    assert ([("expect one", *expected)] if expected else []) == found


def test_a_shape_that_nobody_asked_has_no_expectation_to_lose() -> None:
    """Neither has one that is gone as a whole: its cases are named."""
    refused = [Record(case=record.case, outcome=PLAN) for record in RECORDS[:2]]
    before = demand(matrix={"kernels": ["*"], "expect": [ONE]}, records=[*refused, *RECORDS[2:]])
    assert [("expect one", "one, fallback forbid", "none", 1)] == told(before, demand(matrix={"kernels": ["*"]}))
    gone = demand(matrix={"kernels": ["*"]}, records=RECORDS[:2])
    assert [("phase decode", "2 cases", "none", 2)] == told(before, gone)


def test_a_failure_is_asked_as_much_as_a_pass() -> None:
    """Only what is required counts, not how it ended."""
    failed = Measured(evidence=make_evidence(make_finding("fail")))
    assert [] == told(demand(), demand(records=[Record(case=it.case, outcome=failed) for it in RECORDS]))
