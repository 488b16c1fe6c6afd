"""Two runs compared: which change of a verdict may be called what, and what a comparison cannot say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import make_record
from stored_runs import make_run

from qualify.facts.run import Judgement, Verdict
from qualify.verdict.compare import Side, code_caveats, compare

NAME = make_record().case.kernel
RUN = make_run(code={NAME: {"mine.py": "1", "torch 2.11.0": "2"}})


def judged(verdict: Verdict = "PASS", **run: Any) -> Side:
    """A run of one case with that verdict."""
    record = make_record()
    judgement = Judgement(case_id=record.case.id, verdict=verdict, reasons=())
    return Side(run=replace(RUN, **run), records=[record], judgements=[judgement])


@pytest.mark.parametrize(
    ("before", "after", "bucket", "detail"),
    [
        ("PASS", "WAIVED", "suspicious", "new failure, and it is waived"),
        ("PASS", "NOT_REQUIRED", "suspicious", "is refused now"),
        ("WAIVED", "NOT_REQUIRED", "suspicious", "is refused now"),
        ("WAIVED", "FAIL", "regression", "new failure"),
        ("WAIVED", "PASS", "none", "changed"),
        ("FAIL", "WAIVED", "none", "changed"),
        ("FAIL", "NOT_REQUIRED", "none", "changed"),
        ("FAIL", "INCONCLUSIVE", "insufficient data", "not decided any more"),
        ("INCONCLUSIVE", "PASS", "none", "changed"),
    ],
)
def test_a_verdict_that_became_another(before: Verdict, after: Verdict, bucket: str, detail: str) -> None:
    """A failure that is waived now was one before or is a new one."""
    (change,) = compare(judged(before), judged(after)).verdicts
    assert (bucket, detail, before, after) == (change.bucket, change.detail, change.before, change.after)


@pytest.mark.parametrize(
    ("changes", "caveat"),
    [
        ({"matrix": "hopper"}, "the runs are of two matrices, serving and hopper: only cases with equal ids are"),
        ({"matrix_hash": "cd" * 32}, "the matrix changed between the runs: "),
        ({"level": "full"}, "the levels differ (smoke, full): fewer checks were asked of one side"),
        ({"stack": None}, "the stack of one run is unknown: stacks and times are not compared"),
        ({"state": "interrupted"}, "one of the runs did not complete"),
        (
            {"code": {NAME: {"mine.py": "2", "torch 2.12.0": "3"}}},
            f"the code of {NAME} changed between the runs, which no component of the stack shows: mine.py",
        ),
    ],
)
def test_what_a_comparison_cannot_say_is_told(changes: dict[str, Any], caveat: str) -> None:
    """Whichever of the two runs it is."""
    found = compare(judged(), judged(**changes)).caveats
    assert (1, True) == (len(found), found[0].startswith(caveat))
    assert 1 == len(compare(judged(**changes), judged()).caveats)
    assert () == compare(judged(), judged()).caveats


def test_kernels_whose_same_files_changed_are_one_caveat() -> None:
    """So that an upgrade of all adapters is no page of caveats; other libraries are told as the stack."""
    names = [f"k{number}" for number in range(5)]
    one, other = ({name: {"a.py": version, "torch 2": version} for name in names} for version in ("1", "2"))
    sides = [
        Side(run=replace(RUN, code=code), records=[make_record(kernel=name) for name in names], judgements=[])
        for code in (one, other)
    ]
    told = "the code of k0, k1, k2 and 2 more changed between the runs, which no component of the stack shows: a.py"
    assert [told] == list(code_caveats(*(side.run for side in sides), names))
