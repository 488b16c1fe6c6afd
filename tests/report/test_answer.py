"""The lines of a check: which kernel is chosen, and why."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from report_examples import conclude, make_case, make_evidence, make_finding

from qualify.facts.outcome import Measured, Outcome, Refused
from qualify.facts.run import Record
from qualify.report.answer import CheckAnswer, PhaseLine, _alike, _right_line, _row, _table, lines_of, unused_of

REFUSED = Refused(by="plan", reasons=("head_dim=512 > 256 (flash-attn-2 claims ≤ 256)",))


def measured(kernel: str, latency_us: float | None, *, wrong: bool = False) -> Measured:
    evidence = make_evidence(kernel, latency_us)
    finding = make_finding("census", "fail") if wrong else make_finding("census")
    return Measured(evidence=replace(evidence, findings=(finding,)))


def line_of(**outcomes: Outcome) -> PhaseLine:
    """The one line of a prefill, with the outcome of each kernel."""
    names = {name: name.replace("_", "-") for name in outcomes}
    records = [Record(case=make_case("m.tp1", "prefill", names[name]), outcome=it) for name, it in outcomes.items()]
    (line,) = lines_of(records, conclude(records))
    return line


def test_a_wrong_kernel_is_never_chosen_however_fast() -> None:
    """The fastest of the right ones is; the wrong one is kept with its failure."""
    line = line_of(
        flash_attn_2=measured("flash-attn-2", 300.0),
        torch_sdpa=measured("torch-sdpa", 450.0),
        flash_attn_3=measured("flash-attn-3", 100.0, wrong=True),
    )
    assert line.best
    assert "flash-attn-2" == line.best.kernel
    assert "fastest of 2 that are correct; torch-sdpa takes 1.50× as long" == line.why
    assert ["flash-attn-3"] == [each.kernel for each in line.kernels if each.failed]


def test_where_none_is_right_the_failure_is_the_reason() -> None:
    """And where none claims the shape, the refusal is."""
    wrong = line_of(flash_attn_3=measured("flash-attn-3", 100.0, wrong=True), flash_attn_2=REFUSED)
    assert wrong.best is None
    case = "m.tp1/prefill/b1.q8192.k8192/bf16/causal/flash-attn-3"
    assert wrong.why.startswith(f"flash-attn-3 is not correct: {case}: cen")
    refused = line_of(flash_attn_2=REFUSED)
    assert (None, REFUSED.reasons[0]) == (refused.best, refused.why)


def test_the_only_kernel_and_one_without_a_time() -> None:
    """Neither is called the fastest."""
    assert "the only one that serves it" == line_of(flash_attn_2=measured("flash-attn-2", 300.0)).why
    untimed = line_of(flash_attn_2=measured("flash-attn-2", None), torch_sdpa=measured("torch-sdpa", None))
    assert "one of 2 that are correct; nothing was timed" == untimed.why


def test_a_kernel_that_serves_all_shapes_goes_before_a_faster_one_that_serves_some() -> None:
    """The phase needs one kernel for all of its shapes."""
    records = [
        Record(case=make_case("m.tp1", "prefill", kernel, size=size), outcome=outcome)
        for kernel, size, outcome in (
            ("torch-sdpa", 512, measured("torch-sdpa", 450.0)),
            ("torch-sdpa", 8192, measured("torch-sdpa", 450.0)),
            ("flash-attn-2", 512, measured("flash-attn-2", 100.0)),
            ("flash-attn-2", 8192, REFUSED),
        )
    ]
    (line,) = lines_of(records, conclude(records))
    assert ("torch-sdpa", 2) == (line.kernels[0].kernel, line.shapes)
    assert "the only one that serves all of its shapes" == line.why
    assert {} == unused_of(records)
    assert {"flash-attn-2": REFUSED.reasons[0]} == unused_of(records[3:])


def right_line(*records: Record) -> str:
    """The line that says whether what ran is correct."""
    conclusion = conclude(records)
    judged: Any = SimpleNamespace(records=records, conclusion=conclusion)
    lines = lines_of(records, conclusion)
    return _right_line(CheckAnswer(judged=judged, origin="", described=(), lines=lines, unused={}, demonstration=False))


def test_whether_what_ran_is_correct() -> None:
    """How many cases passed every check, or which kernel failed first; refused cases did not run."""
    right = Record(case=make_case("m.tp1", "prefill", "torch-sdpa"), outcome=measured("torch-sdpa", 450.0))
    wrong = Record(
        case=make_case("m.tp1", "prefill", "flash-attn-2"), outcome=measured("flash-attn-2", 9.0, wrong=True)
    )
    refused = Record(case=make_case("m.tp1", "prefill", "flash-attn-3"), outcome=REFUSED)
    assert "not proven: no case ran" == right_line(refused)
    assert "correct: 1 of 1 case passed every check" == right_line(right, refused)
    told = "NOT correct: flash-attn-2; 1 of 2 cases did not pass, first m.tp1/prefill/"
    assert right_line(right, wrong, refused).startswith(told)


def test_masks_that_come_to_the_same_kernel_share_a_row() -> None:
    """A model with windows in some layers is no longer answer than another one; each mask keeps its time."""
    line = line_of(flash_attn_2=measured("flash-attn-2", 300.0), torch_sdpa=measured("torch-sdpa", 450.0))
    window = replace(line, mask="window4096", kernels=(replace(line.kernels[0], latency_us=120.0), *line.kernels[1:]))
    other = replace(line, mask="full", kernels=tuple(reversed(line.kernels)))
    both, alone = _alike([line, window, other])
    assert ("prefill (causal, window4096)", "flash-attn-2") == _row(both)[:2]
    assert "300 µs / 120 µs" == _row(both)[3]
    assert ("prefill (full)", "torch-sdpa") == _row(alone)[:2]


def test_each_mask_of_a_row_keeps_its_reason() -> None:
    """A kernel that is far ahead under one mask may be hardly ahead, or the only one, under another."""
    line = line_of(flash_attn_2=measured("flash-attn-2", 300.0), torch_sdpa=measured("torch-sdpa", 450.0))
    window = replace(line, mask="window4096", kernels=line.kernels[:1])
    (both,) = _alike([line, window])
    fastest = "fastest of 2 that are correct; torch-sdpa takes 1.50× as long"
    assert f"{fastest} / the only one that serves it" == _row(both)[4]
    assert fastest == _row([line, replace(line, mask="full")])[4]


def test_a_narrow_terminal_has_a_block_for_each_phase() -> None:
    """Every word of the table stands there, in lines that fit; a wide terminal and a file have the table."""
    line = line_of(flash_attn_2=measured("flash-attn-2", 300.0), torch_sdpa=measured("torch-sdpa", 450.0))
    row = _row([line])
    wide = _table([row], None)
    assert 1 == len(wide)
    assert wide == _table([row], len(wide[0]))
    narrow = _table([row], 60)
    assert ["prefill (causal)", "  flash-attn-2, 300 µs"] == narrow[:2]
    assert all(len(line) <= 60 for line in narrow)
    assert set(" ".join(row).split()) - {"flash-attn-2"} <= set(" ".join(narrow).split())
    assert ["decode (causal)", "  none: nothing ran"] == _table(
        [("decode (causal)", "none", "", "", "nothing ran")], 20
    )
