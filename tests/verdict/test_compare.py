"""Two runs compared: which change may be called what."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from builders import (
    budget_of,
    make_evidence,
    make_finding,
    make_launch,
    make_matrix,
    make_record,
    make_statistics,
    make_timing,
    make_witness,
)
from stored_runs import make_run, make_stack

from qualify.cards.policy import Drift
from qualify.facts.accuracy import CLASSES
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.comparison import Change, Comparison
from qualify.facts.differing import stack_changes
from qualify.facts.outcome import OTHERS, Crashed, Evidence, Launch, Measured, NotRun, Outcome, Refused, Statistics
from qualify.facts.run import Record
from qualify.report.diff_page import diff_page
from qualify.report.differences import to_text, told_topics
from qualify.verdict.compare import Side, compare, is_compared
from qualify.verdict.gate import conclude, forbid_drift
from qualify.verdict.policy import Rules

RUN = make_run()
PASSED = Measured(evidence=make_evidence())
WRONG = Measured(evidence=make_evidence(make_finding("fail", "sees key 9")))
OPEN = Measured(evidence=make_evidence(make_finding("inconclusive", "no sample")))
REFUSED = Refused(by="plan", reasons=("not installed",))


def side(*records: Record, **run: Any) -> Side:
    """A judged run of those records."""
    rules = Rules(matrix=make_matrix().card, patterns={}, partial=False)
    return Side(run=replace(RUN, **run), records=records, judgements=conclude(records, rules).judgements)


def compared(before: Outcome, after: Outcome, **run: Any) -> Comparison:
    """One case on both sides."""
    return compare(side(make_record(before)), side(make_record(after), **run))


def evidence(**changes: Any) -> Measured:
    """A case that passed, with changed evidence."""
    return Measured(evidence=replace(make_evidence(), **changes))


def only(changes: tuple[Change, ...]) -> tuple[str, str]:
    """Bucket and detail of the only change."""
    (change,) = changes
    return change.bucket, change.detail


@pytest.mark.parametrize(
    ("before", "after", "bucket", "detail"),
    [
        (PASSED, WRONG, "regression", "new failure: census: sees key 9"),
        (REFUSED, WRONG, "regression", "new failure"),
        (OPEN, WRONG, "suspicious", "was not decided before"),
        (WRONG, PASSED, "none", "fixed"),
        (PASSED, OPEN, "insufficient data", "not decided any more"),
        (PASSED, NotRun(reason="interrupted"), "insufficient data", "not decided any more: interrupted"),
        (PASSED, REFUSED, "suspicious", "is refused now: not installed"),
        (
            PASSED,
            Crashed(stage="call", error="SIGSEGV", log="", attempt=1),
            "regression",
            "new failure: crashed in its call",
        ),
    ],
)
def test_verdicts(before: Outcome, after: Outcome, bucket: str, detail: str) -> None:
    """New failures, fixed cells, and evidence that is gone."""
    found = compared(before, after)
    assert (bucket, True) == (only(found.verdicts)[0], only(found.verdicts)[1].startswith(detail))
    assert 1 == found.cases[bucket]  # type: ignore[index]


def test_equal_runs_differ_in_nothing() -> None:
    """The same run twice."""
    found = compared(PASSED, PASSED)
    assert [(), (), (), (), (), ()] == [found.stack, *(changes for _, changes in found.topics())]
    assert {"regression": 0, "suspicious": 0, "insufficient data": 0, "none": 1} == found.cases


def test_cases_of_one_side_only() -> None:
    """A case that came is no worry unless it fails; one that went is evidence that is missing."""
    one, other = make_record(PASSED), make_record(PASSED, "second")
    came, went = compare(side(one), side(one, other)), compare(side(one, other), side(one))
    assert ("none", "a new case") == only(came.verdicts)
    assert ("insufficient data", "the case is gone") == only(went.verdicts)
    failing = compare(side(one), side(one, make_record(WRONG, "second")))
    assert ("suspicious", "a new case, and it fails: census: sees key 9") == only(failing.verdicts)
    open_case = compare(side(one), side(one, make_record(OPEN, "second")))
    assert ("insufficient data", "a new case, not decided: census: no sample") == only(open_case.verdicts)


def launched(*launches: Launch, state: Any = "proven") -> Measured:
    """A case whose witness saw those launches."""
    expected = tuple(re.escape(launch.name) for launch in launches)
    return evidence(witness=replace(make_witness(state), launches=launches, expected=expected))


HOPPER = make_launch("FlashAttnFwdSm90<x>", family="flash-attention-3", generation="hopper")
AMPERE = make_launch("flash_fwd_kernel<x>", family="flash-attention-2", generation="ampere")


@pytest.mark.parametrize(
    ("before", "after", "bucket", "detail"),
    [
        (launched(HOPPER), launched(AMPERE), "regression", "fell back from hopper to ampere"),
        (launched(AMPERE), launched(HOPPER), "suspicious", "another kernel serves the shape"),
        (launched(HOPPER), launched(replace(HOPPER, name="FlashAttnFwdSm90<y>")), "suspicious", "another instance of"),
        (launched(HOPPER), launched(replace(HOPPER, grid=(64, 1, 1))), "suspicious", "the same kernel is launched in"),
        (
            launched(HOPPER),
            launched(replace(HOPPER, block=(256, 1, 1))),
            "suspicious",
            "the same kernel is launched in",
        ),
        (launched(HOPPER), launched(replace(HOPPER, count=2)), "suspicious", "the same kernel is launched in"),
        (launched(HOPPER), launched(AMPERE, state="unproven"), "insufficient data", "other kernels were seen, and one"),
        (launched(HOPPER, state="unproven"), launched(AMPERE), "insufficient data", "other kernels were seen, and one"),
        (launched(HOPPER), launched(make_launch("gemm")), "suspicious", "another kernel serves the shape"),
        (launched(make_launch("gemm")), launched(AMPERE), "suspicious", "another kernel serves the shape"),
        (launched(AMPERE, HOPPER), launched(AMPERE), "regression", "fell back from hopper to ampere"),
        (launched(HOPPER), launched(AMPERE, HOPPER), "suspicious", "another kernel serves the shape"),
    ],
)
def test_dispatch_drift(before: Outcome, after: Outcome, bucket: str, detail: str) -> None:
    """Another kernel, an older generation, another grid."""
    found = only(compared(before, after).kernels)
    assert (bucket, True) == (found[0], found[1].startswith(detail))


def test_another_grid_is_shown_before_and_after() -> None:
    """A trace may lack the size of a launch."""
    (change,) = compared(launched(HOPPER), launched(replace(HOPPER, grid=None))).kernels
    assert ("1 x grid 132x1x1 block 128x1x1",) == change.before
    assert ("1 x grid unknown block 128x1x1",) == change.after


def test_other_registers_of_the_same_kernel_are_a_note() -> None:
    """Another compiler gives the same name other registers: shown, with both sides, and no policy forbids it."""
    before, after = launched(HOPPER), launched(replace(HOPPER, registers=255, shared_bytes=1024))
    comparison = compared(before, after)
    (change,) = comparison.kernels
    told = "same name, other registers: 168 → 255 a thread; other shared memory: 0 → 1024 bytes a block"
    assert ("none", told) == (change.bucket, change.detail)
    assert ("168 registers, 0 bytes shared",) == change.before
    assert ("255 registers, 1024 bytes shared",) == change.after
    conclusion = conclude([make_record(after)], Rules(matrix=make_matrix().card, patterns={}, partial=False))
    assert () == forbid_drift(conclusion, comparison, Drift(kernels="fail"))[1]


def test_another_grid_names_other_registers_too() -> None:
    """One change, which says both; a trace that does not tell registers is no change of them."""
    (change,) = compared(launched(HOPPER), launched(replace(HOPPER, grid=(64, 1, 1), registers=255))).kernels
    told = "the same kernel is launched in another grid; other registers: 168 → 255 a thread"
    assert ("suspicious", told) == (change.bucket, change.detail)
    assert () == compared(launched(HOPPER), launched(replace(HOPPER, registers=None, shared_bytes=None))).kernels


def test_registers_that_a_trace_does_not_tell_are_unknown() -> None:
    """The shared memory beside them is still compared."""
    told = replace(HOPPER, registers=None, shared_bytes=0)
    (change,) = compared(launched(told), launched(replace(told, shared_bytes=1024))).kernels
    assert ("unknown registers, 0 bytes shared",) == change.before
    assert "same name, other shared memory: 0 → 1024 bytes a block" == change.detail


def test_of_several_kernels_the_one_is_named_whose_registers_changed() -> None:
    """By its name, because there are two."""
    other = replace(AMPERE, registers=64)
    (change,) = compared(launched(HOPPER, AMPERE), launched(HOPPER, other)).kernels
    assert "same name, other registers: flash_fwd_kernel<x> 168 → 64 a thread" == change.detail


def test_auxiliary_kernels_are_no_drift() -> None:
    """A copy beside the attention kernel may come and go."""
    copy = make_launch("memcpy", "auxiliary")
    assert () == compared(launched(HOPPER), launched(HOPPER, copy)).kernels


def counted(*statistics: Statistics) -> Measured:
    """A case with those error statistics."""
    return evidence(statistics=statistics, findings=tuple(map(budget_of, statistics)))


USUAL = make_statistics()


@pytest.mark.parametrize(
    ("after", "bucket", "detail"),
    [
        (replace(USUAL, measured_class=""), "regression", "measured class bf16 became none, on normal inputs"),
        (replace(USUAL, measured_class="fp8"), "regression", "measured class bf16 became fp8"),
        (replace(USUAL, measured_class="fp16"), "none", "measured class bf16 became fp16"),
        (replace(USUAL, measured_class="fp4"), "suspicious", "measured class bf16 became fp4"),
        (replace(USUAL, E=0.95), "suspicious", "error (worst element) 0.62 became 0.95, on normal inputs"),
        (replace(USUAL, E=0.7), "none", "error (worst element) 0.62 became 0.7"),
        (replace(USUAL, E=0.5), "none", "error (worst element) 0.62 became 0.5"),
        (replace(USUAL, E=0.6184), "none", "error (worst element) 0.62 became 0.618"),
        (replace(USUAL, R=1.2), "none", "error (worst row) 1.7 became 1.2"),
        (replace(USUAL, R=2.9), "suspicious", "error (worst row) 1.7 became 2.9"),
        (replace(USUAL, beta=-5e-4), "suspicious", "error (β) 0.00011 became -0.0005"),
        (replace(USUAL, G=math.nan), "suspicious", "error (all rows) 1.2 became nan"),
        (replace(USUAL, seed=9), "insufficient data", "the inputs have nothing in common"),
    ],
)
def test_numbers(after: Statistics, bucket: str, detail: str) -> None:
    """Measured class, then the statistic that came nearest to its limit."""
    found = only(compared(counted(USUAL), counted(after)).numbers)
    assert (bucket, True) == (found[0], found[1].startswith(detail))


@pytest.mark.parametrize(("at", "name"), list(enumerate(known.name for known in CLASSES)))
def test_classes_are_compared_in_the_order_of_the_error_budget(at: int, name: str) -> None:
    """A looser class is a regression and a tighter one is none, for every pair of classes."""
    for other, known in enumerate(CLASSES):
        if other != at:
            before, after = (counted(replace(USUAL, measured_class=it)) for it in (name, known.name))
            expected = "regression" if other > at else "none"
            assert (expected, f"measured class {name} became {known.name}, on normal inputs") == only(
                compared(before, after).numbers
            )


@pytest.mark.parametrize("same", [USUAL, replace(USUAL, G=math.nan), replace(USUAL, beta_limit=0.0)])
def test_equal_numbers_are_no_change(same: Statistics) -> None:
    """Not even where a statistic is NaN, or its limit is 0; nor is one that a run does not have."""
    assert () == compared(counted(same), counted(same)).numbers
    assert [(), ()] == [compared(counted(same), counted()).numbers, compared(counted(), counted(same)).numbers]


def test_a_statistic_that_stays_nan_hides_no_other() -> None:
    """E is NaN in both runs, and R comes near its limit."""
    broken = replace(USUAL, E=math.nan)
    found = compared(counted(broken), counted(replace(broken, R=2.9)))
    assert ("suspicious", "error (worst row) 1.7 became 2.9, on normal inputs") == only(found.numbers)


def test_a_change_of_numbers_shows_both_sides() -> None:
    """A class that none holds is shown as None."""
    (change,) = compared(counted(USUAL), counted(replace(USUAL, measured_class=""))).numbers
    shown = {"inputs": "normal", "measured_class": "bf16", "E": 0.62, "R": 1.7, "G": 1.2, "beta": 1.1e-4}
    assert (shown, shown | {"measured_class": None}) == (change.before, change.after)


def test_a_page_explains_numbers_by_the_words_that_it_shows() -> None:
    """And no letter that stands in none of its rows."""
    found = compared(counted(USUAL), counted(replace(USUAL, measured_class="")))
    (part,) = (it for it in diff_page(found).topics if it.topic == "numbers")
    shown = str(part.alike.data())
    for word in ("class", "worst element", "worst row", "all rows", "β"):
        assert (True, True) == (word in shown, word in part.alike.caption)
    assert "E:" not in part.alike.caption


@pytest.mark.parametrize("normal", [USUAL, replace(USUAL, E=0.5)], ids=["unchanged", "better"])
def test_a_statistic_that_grew_is_told_before_one_that_shrank(normal: Statistics) -> None:
    """Whatever the order of the inputs."""
    peaked = make_statistics("peaked")
    found = compared(counted(USUAL, peaked), counted(normal, replace(peaked, E=0.7)))
    assert ("none", "error (worst element) 0.62 became 0.7, on peaked inputs") == only(found.numbers)


def test_the_worst_input_kind_counts() -> None:
    """A class that is lost on peaked inputs is not hidden by normal ones."""
    peaked = make_statistics("peaked")
    found = compared(counted(USUAL, peaked), counted(USUAL, replace(peaked, measured_class="")))
    assert ("regression", "measured class bf16 became none, on peaked inputs") == only(found.numbers)


def test_numbers_of_other_checks_are_not_compared() -> None:
    """The limits themselves may have changed."""
    found = compared(counted(USUAL), counted(replace(USUAL, E=0.95)), check_version=CHECK_VERSION + 1)
    assert ((), True) == (
        found.numbers,
        f"the checks differ (version {CHECK_VERSION}, {CHECK_VERSION + 1})" in found.caveats[0],
    )


def timed(latency_us: float, **changes: Any) -> Measured:
    """A case of that time."""
    return evidence(timing=make_timing(latency_us, **changes))


@pytest.mark.parametrize(
    ("before", "after", "bucket", "detail"),
    [
        (timed(100.0), timed(110.0), "suspicious", "+10.0 %: slower, measured one after the other"),
        (timed(100.0), timed(90.0), "none", "-10.0 %: faster"),
        (
            timed(100.0),
            timed(110.0, roofline_us=55.0),
            "insufficient data",
            "+10.0 %: the card itself changed by +10.0 %",
        ),
        (
            timed(100.0),
            timed(110.0, roofline_us=54.5),
            "insufficient data",
            "+10.0 %: the card itself changed by +9.0 %",
        ),
        (timed(100.0), timed(110.0, roofline_us=60.0), "insufficient data", "+10.0 %: the card itself changed by +20"),
        (timed(100.0, roofline_us=0.0), timed(110.0), "suspicious", "+10.0 %: slower"),
        (timed(100.0), timed(110.0, roofline_us=math.inf), "suspicious", "+10.0 %: slower"),
        (timed(100.0, samples_us=(100.0,)), timed(110.0, samples_us=(110.0,)), "insufficient data", "+10.0 %: too few"),
        (timed(100.0), timed(110.0, cold=False), "insufficient data", "+10.0 %: one was measured with a cold cache"),
        (
            timed(100.0, samples_us=(100.0,) * 4),
            timed(110.0, samples_us=(110.0, math.nan, math.inf, 110.0)),
            "insufficient data",
            "+10.0 %: too few samples",
        ),
        (timed(100.0), timed(110.0, flops=1 << 31), "insufficient data", "+10.0 %: it is another call: 2.15e+09 FLOPs"),
        (timed(100.0), timed(240.0, flops=1 << 31, roofline_us=100.0), "insufficient data", "+140.0 %: it is another"),
        (timed(100.0), timed(60.0, compulsory_bytes=1 << 19), "insufficient data", "-40.0 %: it is another call"),
        (
            timed(100.0, samples_us=(90.0, 100.0, 120.0)),
            timed(490.0, samples_us=(450.0, 490.0, 600.0)),
            "insufficient data",
            "+390.0 %: too few samples",
        ),
        (
            timed(100.0, samples_us=(90.0, 100.0, 120.0)),
            timed(1000.0, samples_us=(900.0, 1000.0, 1300.0)),
            "suspicious",
            "+900.0 %: slower",
        ),
        (
            timed(100.0, samples_us=(90.0, 100.0, 950.0)),
            timed(1000.0, samples_us=(900.0, 1000.0, 1300.0)),
            "insufficient data",
            "+900.0 %: the samples overlap",
        ),
        (timed(1000.0, samples_us=(1000.0,)), timed(100.0, samples_us=(100.0,)), "none", "-90.0 %: faster"),
        (timed(100.0, samples_us=()), timed(1000.0, samples_us=()), "insufficient data", "+900.0 %: too few samples"),
        (
            timed(100.0, samples_us=(99.0, 100.0, 100.0, 101.0)),
            timed(103.0, samples_us=(90.0, 100.0, 103.0, 130.0)),
            "insufficient data",
            "+3.0 %: the middle",
        ),
        (
            timed(100.0, samples_us=(97.0, 97.0, 103.0, 103.0)),
            timed(106.0, samples_us=(103.0, 103.0, 109.0, 109.0)),
            "insufficient data",
            "+6.0 %: the middle",
        ),
        (
            timed(106.0, samples_us=(103.0, 103.0, 109.0, 109.0)),
            timed(100.0, samples_us=(97.0, 97.0, 103.0, 103.0)),
            "insufficient data",
            "-5.7 %: the middle",
        ),
        (timed(8.0), timed(9.0), "insufficient data", "+12.5 %: shorter than 10 µs"),
        (timed(9.0), timed(19.0), "suspicious", "+111.1 %: slower"),
        (timed(0.5), timed(0.8), "insufficient data", "+60.0 %: shorter than 10 µs"),
        (timed(10.0), timed(11.0), "suspicious", "+10.0 %: slower"),
        (timed(50.0), timed(51.25), "suspicious", "+2.5 %: slower"),
    ],
)
def test_times(before: Outcome, after: Outcome, bucket: str, detail: str) -> None:
    """Two runs one after the other never prove a regression of time."""
    found = only(compared(before, after).times)
    assert (bucket, True) == (found[0], found[1].startswith(detail))


@pytest.mark.parametrize(("before", "after"), [(100.0, 101.9), (30.0, 30.8), (5.0, 5.12), (100.0, 100.0)])
def test_times_below_the_least_effect_are_unchanged(before: float, after: float) -> None:
    """2 % from 50 µs on, 3 % from 10 µs on."""
    assert () == compared(timed(before), timed(after)).times


@pytest.mark.parametrize("latency_us", [0.0, -1.0, math.inf, math.nan])
def test_a_time_that_is_none_is_not_compared(latency_us: float) -> None:
    """On either side."""
    broken = evidence(timing=replace(make_timing(100.0), latency_us=latency_us))
    for other in (broken, PASSED):
        assert [(), ()] == [compared(other, timed(100.0)).times, compared(timed(100.0), other).times]


def test_a_kernel_that_was_fast_because_it_was_wrong_did_not_become_slower() -> None:
    """Where both results are wrong, for example under a waiver, their times are compared."""
    wrong, right = (make_evidence(*found) for found in ((make_finding("fail", "sees key 9"),), ()))
    times = [
        only(compared(*(Measured(evidence=replace(it, timing=make_timing(us))) for it, us in pair)).times)
        for pair in (((wrong, 60.0), (right, 100.0)), ((wrong, 60.0), (wrong, 100.0)), ((right, 60.0), (wrong, 100.0)))
    ]
    assert ["insufficient data", "suspicious", "suspicious"] == [bucket for bucket, _ in times]
    assert "+66.7 %: its earlier result was wrong, so its earlier time says nothing" == times[0][1]


def test_a_longer_time_beside_another_process_is_told_with_it() -> None:
    """Whichever of the two was taken so. It is still to be looked at."""
    note = replace(make_finding("note", "another process used the card", check="timing"), values={OTHERS: 1})
    shared, alone = make_evidence(note), make_evidence()
    for old, new in ((shared, alone), (alone, shared)):
        found = compared(
            Measured(evidence=replace(old, timing=make_timing(100.0))),
            Measured(evidence=replace(new, timing=make_timing(110.0))),
        )
        bucket, detail = only(found.times)
        assert "suspicious" == bucket
        assert detail.endswith("another process used the card while one of them was timed: run both when it is free")


def test_times_of_two_cards_are_not_compared() -> None:
    """Equal cards differ by more than kernels do."""
    other = make_stack()
    found = compared(timed(100.0), timed(200.0), stack=replace(other, device=replace(other.device, uuid="cpu-1")))
    assert ((), True) == (found.times, "two cards" in found.caveats[0])
    assert () == found.stack


def test_times_of_two_levels_are_not_compared() -> None:
    """Smoke times a case in 5 short blocks, full in 15 long ones: whichever is slower, the kernel is not to blame."""
    smoke, full = (timed(us, samples_us=(us,) * blocks) for us, blocks in ((100.0, 5), (200.0, 15)))
    for one, other in ((smoke, full), (full, smoke)):
        found = compared(one, other, level="full")
        assert () == found.times
        why = "1 of 1 cases were timed in another number of blocks: their times are not compared, because the level"
        assert [True] == [caveat.startswith(why) for caveat in found.caveats if "blocks" in caveat]
        assert "times: not compared" in to_text(found).splitlines()
        page = diff_page(found)
        assert ("Nothing that was compared got worse", "?", "INCONCLUSIVE") == (page.headline, page.glyph, page.badge)
        assert not is_compared("times", RUN, RUN, make_record(one), make_record(other))
    assert is_compared("times", RUN, RUN, make_record(full), make_record(full))


def test_what_was_compared_only_in_part_is_not_called_unchanged() -> None:
    """One time of three is unchanged, and nothing is known of the others."""
    cases = [make_record(timed(100.0)), *(make_record(timed(100.0, samples_us=(100.0,) * 5)) for _ in range(2))]
    cases = [replace(it, case=replace(it.case, id=f"{it.case.id}{number}")) for number, it in enumerate(cases)]
    other = [replace(it, outcome=timed(100.0)) for it in cases]
    assert "times: unchanged in 1 of 3 cases, and not compared in the others" in to_text(
        compare(side(*cases), side(*other))
    )
    alike = compare(side(*cases), side(*cases))
    assert ["unchanged"] * 5 == [line.partition(" ")[2] for line in told_topics(alike)]
    numbers = side(make_record(counted(USUAL)))
    later = replace(numbers, run=replace(RUN, check_version="0"))
    assert "numbers: not compared" in to_text(compare(numbers, later)).splitlines()


def test_stack_changes_come_from_what_to_what() -> None:
    """Versions and digests, what came, what went, variables, the device."""
    after = make_stack(torch=f"2.12.0:{'b' * 64}", vllm="0.24.0")
    after = replace(after, environment={"VLLM_X": "1"}, device=replace(after.device, units=4))
    before = replace(make_stack(), environment={"VLLM_Y": "2"})
    found = {it.component: (it.kind, it.before, it.after) for it in stack_changes(before, after)}
    assert {
        "units": ("device", "2", "4"),
        "torch": ("distribution", "2.11.0 sha256:aaaaaaaaaaaa", "2.12.0 sha256:bbbbbbbbbbbb"),
        "vllm": ("distribution", None, "0.24.0"),
        "VLLM_X": ("environment", None, "1"),
        "VLLM_Y": ("environment", "2", None),
    } == found
    assert tuple(stack_changes(make_stack(), after)) == compared(PASSED, PASSED, stack=after).stack


def test_the_worst_and_largest_stand_first() -> None:
    """By bucket, then by time over all layers."""
    small, large = timed(20.0), timed(900.0)
    before = side(*(make_record(outcome, name) for outcome, name in ((small, "a"), (large, "b"), (large, "c"))))
    records = [
        make_record(Measured(evidence=replace(outcome.evidence, findings=(make_finding("fail", "x"),))), name)
        for outcome, name in ((small, "a"), (large, "b"))
    ]
    after = side(*records, make_record(NotRun(reason="x"), "c"))
    assert ["b", "a", "c"] == [change.id.rpartition("/")[2] for change in compare(before, after).verdicts]


def test_the_impact_of_a_change_is_the_time_of_all_layers() -> None:
    """A short call of many layers stands above a long one of a few."""
    old = replace(timed(100.0).evidence, witness=launched(HOPPER).evidence.witness)
    new = replace(old, witness=launched(AMPERE).evidence.witness, findings=(make_finding("fail", "x"),))
    many, few = {"kernel": "many", "layers": 80}, {"kernel": "few", "layers": 2}

    def both(usual: Evidence) -> Side:
        long = replace(usual, timing=make_timing(1000.0))
        return side(make_record(Measured(evidence=long), **few), make_record(Measured(evidence=usual), **many))

    found = compare(both(old), both(new))
    (slower,) = compare(both(old), both(replace(old, timing=make_timing(110.0)))).times
    assert ("many", 100.0, 110.0, 800.0) == (
        slower.id.rpartition("/")[2],
        slower.before,
        slower.after,
        pytest.approx(slower.impact_us),
    )
    assert [((HOPPER.name,), (AMPERE.name,))] * 2 == [(it.before, it.after) for it in found.kernels]
    assert 0.0 == compared(launched(HOPPER), launched(AMPERE)).kernels[0].impact_us
    for changes in (found.verdicts, found.kernels):
        assert [("many", 8000.0), ("few", 2000.0)] == [(it.id.rpartition("/")[2], it.impact_us) for it in changes]


@pytest.mark.parametrize("us", [1e306, 1e14, float("inf"), float("nan"), 0.0, -1.0])
def test_a_time_that_no_call_can_have_is_no_change(us: float) -> None:
    """Somebody wrote it into the store. Times 1,000 layers it would be infinite, which JSON has no word for."""
    old = timed(100.0).evidence
    new = replace(old, timing=replace(make_timing(100.0), latency_us=us), findings=(make_finding("fail", "x"),))
    before, after = (side(make_record(Measured(evidence=each), layers=1000)) for each in (old, new))
    found = compare(before, after)
    assert () == found.times
    assert [100_000.0] == [change.impact_us for change in found.verdicts]


@pytest.mark.parametrize(
    ("drift", "after", "verdict", "forbidden"),
    [
        ({}, launched(AMPERE), "PASS", 0),
        ({"kernels": "fail"}, launched(AMPERE), "FAIL", 1),
        ({"numbers": "fail"}, launched(AMPERE), "PASS", 0),
        ({"kernels": "fail"}, launched(HOPPER), "PASS", 0),
        ({"kernels": "fail"}, launched(AMPERE, state="substituted"), "FAIL", 1),
        ({"kernels": "fail"}, launched(AMPERE, state="unproven"), "INCONCLUSIVE", 0),
    ],
)
def test_the_matrix_may_forbid_drift(drift: dict[str, Any], after: Outcome, verdict: str, forbidden: int) -> None:
    """Reported by default; a failure where the policy says so."""
    old, new = side(make_record(launched(HOPPER))), side(make_record(after))
    rules = Rules(matrix=make_matrix().card, patterns={}, partial=False)
    conclusion, changes = forbid_drift(conclude(new.records, rules), compare(old, new), Drift(**drift))
    exit_codes = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 5}
    assert (verdict, exit_codes[verdict], forbidden) == (conclusion.verdict, conclusion.exit_code, len(changes))


@pytest.mark.parametrize(
    ("after", "verdict", "exit_code"),
    [
        (replace(USUAL, E=0.5), "PASS", 0),
        (replace(USUAL, E=0.95), "FAIL", 1),
        (replace(USUAL, seed=9), "INCONCLUSIVE", 5),
    ],
    ids=["better", "worse", "other inputs"],
)
def test_only_numbers_that_got_worse_are_forbidden(after: Statistics, verdict: str, exit_code: int) -> None:
    """Better ones pass, and ones that cannot be compared are no verdict."""
    old, new = side(make_record(counted(USUAL))), side(make_record(counted(after)))
    rules = Rules(matrix=make_matrix().card, patterns={}, partial=False)
    conclusion, _ = forbid_drift(conclude(new.records, rules), compare(old, new), Drift(numbers="fail"))
    assert (verdict, exit_code) == (conclusion.verdict, conclusion.exit_code)


def test_forbidden_drift_that_cannot_be_decided_is_no_verdict() -> None:
    """Numbers of other checks, where numbers must not change."""
    old, new = side(make_record(PASSED)), side(make_record(PASSED), check_version=CHECK_VERSION + 1)
    rules = Rules(matrix=make_matrix().card, patterns={}, partial=False)
    conclusion, _ = forbid_drift(conclude(new.records, rules), compare(old, new), Drift(numbers="fail"))
    assert ("INCONCLUSIVE", 5) == (conclusion.verdict, conclusion.exit_code)


BITS = {"output_digest": "ab" * 32, "inputs_digest": "ef" * 32}


@pytest.mark.parametrize(
    ("changes", "run", "expected"),
    [
        ({}, {}, []),
        ({"output_digest": ""}, {}, []),
        ({"output_digest": "cd" * 32, "inputs_digest": "00" * 32}, {}, []),
        ({"output_digest": "cd" * 32}, {}, [("suspicious", "on the same stack")]),
        (
            {"output_digest": "cd" * 32},
            {"stack": make_stack(driver="600")},
            [("none", "on another stack")],
        ),
        ({"output_digest": "cd" * 32}, {"code": {"under-test": {"a": "1"}}}, [("none", "or by other code")]),
        (
            {"output_digest": "cd" * 32},
            {"terms": {"under-test": {"claims.deterministic": "false"}}},
            [("none", "claims no determinism")],
        ),
    ],
)
def test_other_bits_of_equal_inputs_are_told(changes: Any, run: Any, expected: Any) -> None:
    """Suspicious only where nothing changed that may change them; never where inputs differ or nobody took digests."""
    found = compared(evidence(**BITS), evidence(**(BITS | changes)), **run)
    assert [bucket for bucket, _ in expected] == [change.bucket for change in found.bits]
    for (_, words), change in zip(expected, found.bits, strict=True):
        assert (words in change.detail, BITS["output_digest"], changes["output_digest"]) == (
            True,
            change.before,
            change.after,
        )
