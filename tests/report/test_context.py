"""The header of the page, its small pictures, and the words for numbers and kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from builders import make_matrix, make_timing, make_workload
from report_examples import facts_of, make_case, make_evidence, wide_head

from qualify.facts.outcome import Measured
from qualify.facts.run import Conclusion, Record, Run
from qualify.judge.judged import Judged
from qualify.report import figures, inventory, overview, pictures, refused, run_facts, sections
from qualify.report.columns import Column, Limited
from qualify.report.context import repeat_command, report_context
from qualify.report.drawings import history, masks, strips
from qualify.report.names import short_name
from qualify.report.page import render_html
from qualify.report.questions import fallback, gains, kernels, packing, tolerance
from qualify.report.run_facts import COMPONENTS
from qualify.report.verdict_text import verdict_line
from qualify.report.views import join
from qualify.units import UNITS

TABLES = (
    COMPONENTS,
    refused.COLUMNS,
    overview.COLUMNS,
    pictures.COLUMNS,
    strips.COLUMNS,
    masks.COLUMNS,
    history.COLUMNS,
    inventory.COLUMNS,
    sections.LAUNCHES,
    sections.STATISTICS,
    kernels.COLUMNS,
    fallback.CASES,
    fallback.REFUSALS,
    packing.COLUMNS,
    gains.COLUMNS,
    tolerance.COLUMNS,
)


def test_summary_says_what_fails_and_names_the_worst(facts: Any) -> None:
    """One sentence has verdict, counts and worst case: a wrong mask before large errors, and both before a crash."""
    context = report_context(facts.run, facts.records, facts.conclusion)

    assert (
        "Not qualified: 4 of 46 cases fail, 2 of 46 cases are inconclusive, 1 of 11 production shapes lacks a proven "
        "path, 9 not required; worst: llama-3.1-8b.tp1/varlen/b6.q1024.k1024/bf16/causal/flash-attn-2."
    ) == context.summary


def test_summary_of_a_qualified_run(facts: Any, build: Callable[..., Any]) -> None:
    """Without a failure the sentence says what was proven."""
    good = build([record for record in facts.records if record.case.model == "gemma-2-9b.tp1"])
    context = report_context(replace(good.run, select=""), good.records, good.conclusion)

    assert (
        "Qualified: 4 production shapes have a proven path, 18 of 18 cases ran and pass, 2 not required."
    ) == context.summary


@pytest.mark.parametrize("planned", [True, False])
def test_where_no_case_ran_nothing_is_counted(build: Callable[..., Any], *, planned: bool) -> None:
    """Neither cases that pass nor shapes that are proven are counted out of none, in any part of the page."""
    none = build(wide_head() if planned else [])
    cells = tuple(replace(cell, verdict="NOT_REQUIRED") for cell in none.conclusion.cells)
    conclusion = replace(none.conclusion, verdict="INCONCLUSIVE", exit_code=5, cells=cells)
    context = report_context(none.run, none.records, conclusion)
    told = "No case ran, 5 not required." if planned else "None of its cases is stored yet."
    assert f"No verdict: {told[0].lower()}{told[1:]}" == context.summary
    html = re.sub("<[^>]+>", "", render_html(context))
    assert [] == re.findall(r"\b0 of 0\b|\b0/0\b|\b0 cases traced\b", html)
    shapes = "no production shape is required; 5 cases: " if planned else "none of its cases is stored yet; "
    assert f"({shapes}" in verdict_line(judged_of(none.run, none.records, conclusion))


def test_summary_of_a_demonstration_says_first_what_it_is(facts: Any) -> None:
    """It is the demonstration that proves nothing about a GPU, whatever became of its cases."""
    shown = report_context(facts.run, facts.records, replace(facts.conclusion, demonstration=True))
    told = "Demonstration on a CPU, which proves nothing about a GPU: not qualified, 4 of 46 cases fail, "
    assert (told, "Demonstration on a CPU, not qualified") == (shown.summary[: len(told)], shown.headline)


def test_counts_of_the_verdict_are_written_alike(facts: Any) -> None:
    """The number of all cases, and the numbers by verdict beside it, have the same comma."""
    many = replace(facts.conclusion, counts={"verdicts": {"PASS": 1204, "NOT_REQUIRED": 1808}, "outcomes": {}})
    judged = judged_of(facts.run, facts.records, many)
    assert " cases: 1,204 PASS, 1,808 NOT_REQUIRED; " in verdict_line(judged)


def judged_of(run: Run, records: list[Record], conclusion: Conclusion) -> Judged:
    """What the gate found in a run."""
    return Judged(
        run=run,
        records=records,
        conclusion=conclusion,
        matrix=make_matrix().card,
        selftest=None,
        runs=(run.id,),
        origins={},
        notes=(),
        waivers_path="",
        evidence_since=run.started_at,
    )


def test_counts_cover_every_case(facts: Any) -> None:
    """The header counts every verdict and every outcome once."""
    context = report_context(facts.run, facts.records, facts.conclusion)
    counts = {title: dict(entries) for title, entries in context.counts}

    assert {"PASS": 39, "FAIL": 4, "WAIVED": 1, "INCONCLUSIVE": 2, "NOT_REQUIRED": 9} == counts["verdicts"]
    assert len(facts.records) == sum(counts["outcomes"].values())


def test_a_case_without_a_verdict_is_an_error(facts: Any) -> None:
    """Facts that do not belong together are refused, not shown as something."""
    conclusion = replace(facts.conclusion, judgements=facts.conclusion.judgements[1:])

    with pytest.raises(KeyError, match="llama"):
        report_context(facts.run, facts.records, conclusion)


def test_repeat_command_is_quoted_for_a_shell(facts: Any) -> None:
    """Paths with spaces and globs survive a paste into a shell."""
    assert (
        "qualify run 'matrices/hopper serving.yaml' --fresh --level smoke --device cuda --select '*/bf16/*'"
    ) == repeat_command(facts.run)


def test_header_names_the_device_and_its_versions(facts: Any) -> None:
    """Device, driver and libraries stand in the header."""
    header = dict(report_context(facts.run, facts.records, facts.conclusion).facts)

    assert "NVIDIA H100 80GB HBM3" == header["Device"]
    assert ("580.82.07", "13.0", "2.11.0+cu130", "9.19.0") == tuple(
        header[name] for name in ("Driver", "CUDA", "PyTorch", "cuDNN")
    )
    assert "2026-11-20 23:45:00 UTC" == header["Started"]


@pytest.mark.parametrize("columns", TABLES)
def test_units_of_columns_are_in_the_table_of_units(columns: tuple[Column[Any], ...]) -> None:
    """A column with a unit uses a known one, and keys are unique."""
    symbols = {unit.symbol for unit in UNITS}
    keys = [column.key for column in columns]

    assert [] == [column.key for column in columns if column.unit and column.unit not in symbols]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("raw", "short"),
    [
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>>(Params)",
            "pytorch_flash::flash_fwd_kernel",
        ),
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::Main<2>>>>(P)",
            "flash::FlashAttnFwdSm90",
        ),
        (
            "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__tensorptr",
            "FlashAttentionForwardSm90",
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35_16x128x128_cga1x1x1_kernel0_0",
            "cudnn sdpa_sm80_flash_fprop_wmma_f16",
        ),
        (
            "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::P)",
            "fmha_cutlassF_bf16_aligned_64x128_rf_sm80",
        ),
        ("void at::native::(anonymous namespace)::softmax<float>(int)", "at::native::softmax"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention_for_cpu"),
        ("<script>", "<script>"),
        ("", ""),
        ("x" * 100, "x" * 63 + "…"),
    ],
)
def test_short_name_is_what_a_person_calls_the_kernel(raw: str, short: str) -> None:
    """Return types, wrappers, template arguments and tuning numbers go; nothing else does."""
    assert short == short_name(raw)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "us", "–"),
        (math.nan, "E", "NaN"),
        (-math.inf, "", "-∞"),
        (0.0, "us", "0.000"),
        (312.4, "us", "312"),
        (12345.6, "us", "12,346"),
        (0.634, "share", "63 %"),
        (229_376, "bytes", "224 KiB"),
        (512, "bytes", "512 B"),
        (7.9e14, "flops_per_s", "790 TFLOP/s"),
        (6.1e-4, "beta", "6.1e-4"),
        (True, "", "yes"),
        (4096, "count", "4,096"),
    ],
)
def test_numbers_are_shown_for_people(value: float | None, unit: str, shown: str) -> None:
    """Three digits, a scale, and a word for what is no number."""
    assert shown == figures.text(value, unit)


@pytest.mark.parametrize(
    ("us", "shown"), [(9.4, "9.40 µs"), (1240.0, "1.24 ms"), (3.7e6, "3.70 s"), (math.nan, "NaN µs")]
)
def test_durations_choose_their_unit(us: float, shown: str) -> None:
    """A time is readable at every size."""
    assert shown == figures.duration(us)


@pytest.mark.parametrize(
    ("value", "over", "bar"),
    [(0.5, False, 20.0), (1.0, False, 40.0), (-1.2, True, 48.0), (9.0, True, 56), (math.nan, True, 56)],
)
def test_bar_ends_at_the_limit(value: float, over: bool, bar: float) -> None:
    """The limit is 40 pixels; what breaks it is longer and is cut; NaN fills the bar."""
    limited = Limited(value=value, limit=1.0)

    assert (over, bar) == (limited.over, limited.bar_px)


@pytest.mark.parametrize(
    ("kind", "rates", "taken"),
    [
        ("cpu", {"bf16": 2e11, "fp16": 1e11, "fp32": 1e11, "fp8_e4m3": 1e11}, {"fp16": "fp32", "fp8_e4m3": "fp32"}),
        ("cpu", {"bf16": 1e11, "fp32": 1e11}, {"bf16": "fp32"}),
        ("cuda", {"bf16": 3e14, "fp16": 3e14, "fp32": 3e14, "fp8_e4m3": 3e14}, {"fp8_e4m3": "bf16"}),
        ("cuda", {"bf16": 8e14, "fp8_e4m3": 1.5e15}, {}),
    ],
)
def test_a_rate_that_nobody_measured_says_so(facts: Any, kind: Any, rates: dict[str, float], taken: Any) -> None:
    """It is that of another dtype, whose products the device computes instead."""
    device = replace(facts.run.stack.device, kind=kind)
    measured = replace(facts.run.ceilings, matmul_flops_per_s=rates)
    run = replace(facts.run, stack=replace(facts.run.stack, device=device), ceilings=measured)
    told = {term.removeprefix("Matrix product, "): value for term, value in run_facts.ceilings(run)}
    assert taken == {name: told[name].partition(", taken from ")[2] for name in rates if ", " in told[name]}


def test_a_cpu_has_no_uuid(facts: Any) -> None:
    """Its name stands in that place, or the name of one of several logical devices."""
    card = facts.run.stack.device
    cpu = replace(card, kind="cpu", uuid=card.name)
    assert card.uuid == dict(run_facts.device(card))["UUID"]
    assert "UUID" not in dict(run_facts.device(cpu))
    assert [("Logical device", "cpu-1")] == [
        it for it in run_facts.device(replace(cpu, uuid="cpu-1")) if it[1] == "cpu-1"
    ]


def test_one_of_a_kind_is_told_in_the_singular() -> None:
    """One KV head, one image span, one sample of one launch, one call."""
    workload = make_workload(heads_q=1, heads_kv=1, spans=((0, 20, 28),))
    assert "1 query head, 1 KV head · " in sections.workload_text(workload)
    assert " · 1 image span · " in sections.workload_text(workload)
    evidence = make_evidence("flash-attn-3")
    timing = make_timing(5.0, samples_us=(5.0,), launches_per_block=1)
    once = replace(evidence, timing=timing, witness=replace(evidence.witness, calls=1))
    case = make_case("m.tp1", "decode", "flash-attn-3", size=64, batch=1)
    facts = facts_of([Record(case=case, outcome=Measured(evidence=once))])
    shown = sections.section(join(facts.records, facts.conclusion)[0])
    assert shown.strip
    assert shown.strip.label.startswith("1 sample of 1 launch, ")
    assert "proven over 1 call" in dict(shown.facts)["Witness"]


def test_strip_spans_its_samples() -> None:
    """The lowest sample is left, the highest right; equal samples meet in the middle; NaN is left out."""
    assert [4.0, 160.0, 316.0] == figures.strip_positions((1.0, 1.5, 2.0), (1.0, 1.5, 2.0))
    assert [160.0] == figures.strip_positions((3.0, math.nan), (3.0, 3.0))
    assert [] == figures.strip_positions((math.nan,), (math.nan,))


@pytest.mark.parametrize(("share", "told"), [(0.9, False), (1.6, True)])
def test_more_than_the_ceiling_is_explained(share: float, told: bool) -> None:
    """A call whose data lay in a cache is faster than the memory that was measured; nothing allows that at best."""
    case = make_case("m.tp1", "decode", "torch-sdpa")
    evidence = replace(make_evidence("torch-sdpa", 100.0), timing=make_timing(100.0, ceiling_share=share))
    facts = facts_of([Record(case=case, outcome=Measured(evidence=evidence))])
    context = report_context(facts.run, facts.records, facts.conclusion)
    (drawings,) = (one.drawings for one in context.pictures)
    assert told == any("Above 100 % a call was faster than these measurements" in each.note for each in drawings)
