"""The answers to the five questions, from facts of known content."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from report_examples import PROBES, make_finding

from qualify.facts.outcome import Measured, Refused, Witness
from qualify.facts.run import Record
from qualify.report.context import report_context
from qualify.report.questions import QUESTIONS, Answer
from qualify.report.views import anchor


def answer(facts: Any, model: str, key: str) -> Answer:
    """One answer out of the page of a run."""
    context = report_context(facts.run, facts.records, facts.conclusion)
    answers = next(entry.answers for entry in context.models if entry.model == model)
    return dict(zip((question.key for question in QUESTIONS), answers, strict=True))[key]


def lines(found: Answer) -> list[str]:
    """The lines of an answer as plain text."""
    return [" | ".join(filter(None, (line.term, line.text, line.note))) for line in found.lines]


def keep(facts: Any, build: Callable[..., Any], wanted: Callable[[Record], bool]) -> Any:
    """A run with some of the records."""
    return build([record for record in facts.records if wanted(record)])


def test_kernels_names_the_launched_kernel_of_each_phase(facts: Any) -> None:
    """The launched attention kernel, its family and generation stand beside the number of proven shapes."""
    found = answer(facts, "llama-3.1-8b.tp1", "kernels")

    assert ("bad", "All 6 shapes proven; 4 cases failed; 2 cases undecided") == (found.state, found.headline)
    assert [
        "prefill 2/2 | flash::FlashAttnFwdSm90 | flash-attention-3, hopper; 2 other cards proven too",
        "varlen 2/2 | flash::FlashAttnFwdSm90 | flash-attention-3, hopper; 2 other cards proven too",
        "decode 2/2 | cudnn sdpa_sm90_flash_fprop_wgmma_f16 | cudnn, hopper; 1 other card proven too",
    ] == lines(found)


def test_kernels_counts_only_what_proves_a_shape(facts: Any) -> None:
    """A failed, unproven or substituted case adds nothing to the proven shapes of its card."""
    rows = answer(facts, "llama-3.1-8b.tp1", "kernels").tables[0].data()
    proven = {(row["phase"], row["kernel"]): (row["proven"], row["shapes"], row["fastest"]) for row in rows}

    assert (1, 2, 0) == proven["prefill", "flash-attn-2"]
    assert (1, 2, 0) == proven["prefill", "flashinfer-fa3"]
    assert (1, 2, 1) == proven["decode", "flash-attn-3"]
    assert (2, 2, 2) == proven["prefill", "flash-attn-3"]
    assert ("varlen", "flash-attn-4") not in proven


def test_kernels_links_each_shape_without_a_path(facts: Any) -> None:
    """A shape that every kernel refuses is the evidence against the model."""
    found = answer(facts, "wide-head.tp1", "kernels")

    assert ("bad", "0 of 1 shape proven") == (found.state, found.headline)
    assert ["prefill 0/1 | no proven path"] == lines(found)
    assert [anchor("shape", "wide-head.tp1/prefill/b1.q8192.k8192/bf16/causal")] == [k.anchor for k in found.links]


def test_fallback_names_what_replaced_the_card(facts: Any) -> None:
    """A substitution names the card and the launched kernel; refusals say who serves the shape instead."""
    found = answer(facts, "llama-3.1-8b.tp1", "fallback")

    assert ("bad", "1 substitution in 25 traced cases") == (found.state, found.headline)
    assert [
        'flash-attn-3 became | <script>alert(1)</script>"&(int) | 1 case',
        "unproven | 1 case | never counts as a pass",
        "refused | 2 cases | all proven by another kernel",
        "detected by | names of launched kernels",
    ] == lines(found)
    assert ["flash_fwd"] == [row["expected"] for row in found.tables[0].data()]


def test_fallback_tells_who_serves_refused_shapes(facts: Any) -> None:
    """Each refusing card has its reason, the kernels that prove the shapes, and what nobody proves."""
    served = answer(facts, "gemma-2-9b.tp1", "fallback").tables[0].data()
    unserved = answer(facts, "wide-head.tp1", "fallback").tables[0].data()

    assert [
        {
            "kernel": "flash-attn-4",
            "refused": 2,
            "reason": "layout=paged not in claims.layouts (packed)",
            "instead": "torch-sdpa (2), flash-attn-2 (2), flash-attn-3 (2), flashinfer-fa3 (2)",
            "unserved": 0,
        }
    ] == served
    assert [("none", 1)] * 5 == [(row["instead"], row["unserved"]) for row in unserved]


def test_fallback_admits_that_identity_was_not_asserted(facts: Any, build: Callable[..., Any]) -> None:
    """A card that accepts any kernel is named, because its trace proves nothing."""
    record = facts.records[0]
    witness = replace(record.outcome.evidence.witness, expected=(".+",))
    outcome = Measured(evidence=replace(record.outcome.evidence, witness=witness))
    found = answer(build([replace(record, outcome=outcome)]), "llama-3.1-8b.tp1", "fallback")

    assert "Identity was not asserted for torch-sdpa: the card's patterns accept any kernel." == found.notes[-1]


def test_packing_names_the_kernel_with_the_wrong_mask(facts: Any) -> None:
    """A failed census on a packed shape answers the question with no, for that kernel."""
    found = answer(facts, "llama-3.1-8b.tp1", "packing")

    assert ("bad", "Not for flash-attn-2") == (found.state, found.headline)
    assert ["ran | 8 of 10 packed cases", "census | 7 of 8 pass", "needle, poison, suffix | all pass"] == lines(found)
    assert ["llama-3.1-8b.tp1/varlen/b6.q1024.k1024/bf16/causal/flash-attn-2"] == [link.text for link in found.links]


def test_packing_is_exact_where_every_probe_passes(facts: Any, build: Callable[..., Any]) -> None:
    """Without the wrong kernel the answer is yes."""
    good = keep(facts, build, lambda record: record.case.kernel == "flash-attn-3")
    found = answer(good, "llama-3.1-8b.tp1", "packing")

    assert ("good", "Yes, exactly") == (found.state, found.headline)


def test_packing_without_packed_shapes_is_not_tested(facts: Any) -> None:
    """A matrix without a varlen phase gives no answer, and says so."""
    found = answer(facts, "gemma-2-9b.tp1", "packing")

    assert ("untested", "Not tested by this matrix") == (found.state, found.headline)


def test_packing_is_open_where_no_packed_case_ran(facts: Any, build: Callable[..., Any]) -> None:
    """Planned but not run is neither yes nor untested."""
    idle = keep(facts, build, lambda record: record.case.phase == "varlen" and record.case.kernel == "flash-attn-4")
    found = answer(idle, "llama-3.1-8b.tp1", "packing")

    assert ("open", "Not proven: no packed case ran") == (found.state, found.headline)


def test_gains_separates_prefill_from_decode(facts: Any) -> None:
    """The fastest passing kernel is compared with torch-sdpa, phase by phase."""
    found = answer(facts, "gemma-2-9b.tp1", "gains")

    assert "In prefill only; 4 of 4 shapes compared" == found.headline
    assert [
        "prefill | 1.47× | flash-attn-3 (2) vs torch-sdpa; 70 % of the ceiling; 2 of 2 shapes compared",
        "decode | 1.01× | flash-attn-3 (2) vs torch-sdpa; 70 % of the ceiling; 2 of 2 shapes compared",
    ] == lines(found)
    assert [pytest.approx(1 / 0.68), pytest.approx(1 / 0.995)] == [row["ratio"] for row in found.tables[0].data()]


def test_gains_ignores_the_time_of_a_failed_case(facts: Any, build: Callable[..., Any]) -> None:
    """A kernel that computes the wrong thing cannot be the fastest."""
    wrong = keep(
        facts,
        build,
        lambda record: (
            record.case.phase == "decode"
            and record.case.model.startswith("llama")
            and record.case.kernel in ("torch-sdpa", "flash-attn-3")
        ),
    )
    found = answer(wrong, "llama-3.1-8b.tp1", "gains")

    assert [
        "decode | 1.01× | flash-attn-3 (1) vs torch-sdpa; 69 % of the ceiling; 1 of 2 shapes compared",
        "decode, paged | one kernel only | fastest torch-sdpa (1); none of 1 shape compared",
    ] == lines(found)
    assert "None in decode; prefill is not compared; 1 of 2 shapes compared" == found.headline


def test_only_is_said_where_every_shape_was_compared(facts: Any, build: Callable[..., Any]) -> None:
    """A decode shape without the default kernel leaves open what is gained there."""
    paged = "gemma-2-9b.tp1/decode/b32.q1.k4096.p16/bf16/causal/torch-sdpa"
    refused = Refused(by="plan", reasons=("layout=paged not in claims.layouts (packed)",))
    records = [replace(it, outcome=refused) if it.case.id == paged else it for it in facts.records]
    found = answer(build(records), "gemma-2-9b.tp1", "gains")

    assert "In prefill; 3 of 4 shapes compared" == found.headline
    assert "open" == found.state
    assert lines(found)[1].endswith("; 1 of 2 shapes compared")
    assert "decode, paged | no baseline | fastest flash-attn-3 (1); none of 1 shape compared" == lines(found)[2]


def test_a_wrong_mask_in_any_phase_is_no_preserved_mask(facts: Any, build: Callable[..., Any]) -> None:
    """A probe that fails in prefill answers the question of the mask too, where it fails and for whom."""
    record = next(it for it in facts.records if it.case.phase == "prefill" and it.case.kernel == "flash-attn-3")
    wrong = Measured(evidence=replace(record.outcome.evidence, findings=(make_finding("census", "fail"),)))
    good = keep(facts, build, lambda it: it.case.kernel == "flash-attn-3")
    records = [replace(it, outcome=wrong) if it.case.id == record.case.id else it for it in good.records]
    found = answer(build(records), record.case.model, "packing")

    assert ("bad", "Not for flash-attn-3 in prefill") == (found.state, found.headline)
    assert "prefill | fails census in 1 of 2 cases" == lines(found)[-1]


def test_packing_says_which_probe_fails_for_whom_and_where(facts: Any, build: Callable[..., Any]) -> None:
    """A needle that is missed is no wrong mask, and no kernel is blamed for a phase in which it passes."""
    failing = {("flash-attn-3", "prefill"): ("needle",), ("torch-sdpa", "decode"): ("census", "needle")}
    records = []
    for it in facts.records:
        checks = failing.get((it.case.kernel, it.case.phase), ())
        found = tuple(make_finding(check, "fail" if check in checks else "pass") for check in PROBES)
        wrong = isinstance(it.outcome, Measured) and it.case.model == "llama-3.1-8b.tp1"
        records.append(
            replace(it, outcome=Measured(evidence=replace(it.outcome.evidence, findings=found))) if wrong else it
        )
    answered = answer(build(records), "llama-3.1-8b.tp1", "packing")

    assert "Not for flash-attn-3 in prefill; torch-sdpa in decode" == answered.headline
    assert ["prefill | fails needle in 2 of 10 cases", "decode | fails census in 2, needle in 2 of 7 cases"] == lines(
        answered
    )[-2:]
    assert "Cases in which a probe fails" == answered.links_title


def test_gains_takes_the_next_kernel_without_the_default(facts: Any, build: Callable[..., Any]) -> None:
    """Without torch-sdpa the second fastest kernel is the yardstick."""
    rest = keep(facts, build, lambda record: record.case.kernel != "torch-sdpa" and "gemma" in record.case.model)
    found = answer(rest, "gemma-2-9b.tp1", "gains")

    assert ["next kernel", "next kernel"] == [row["against"] for row in found.tables[0].data()]
    assert pytest.approx(0.74 / 0.68) == found.tables[0].data()[0]["ratio"]
    assert "In both; 4 of 4 shapes compared" == found.headline


def test_gains_says_when_there_is_one_kernel_only(facts: Any, build: Callable[..., Any]) -> None:
    """One timed kernel is no comparison."""
    alone = keep(facts, build, lambda record: record.case.kernel == "flash-attn-3" and "gemma" in record.case.model)

    assert "One kernel only" == answer(alone, "gemma-2-9b.tp1", "gains").headline
    assert "Not timed" == answer(facts, "wide-head.tp1", "gains").headline


def test_tolerance_puts_a_number_that_is_none_first(facts: Any) -> None:
    """NaN is the worst value there is, and the case that has it is linked."""
    found = answer(facts, "llama-3.1-8b.tp1", "tolerance")
    row = found.tables[0].rows[0]

    assert ("bad", "1 of 24 cases over a limit") == (found.state, found.headline)
    assert math.isnan(row.worst["E"].value.value)
    assert 4.2 == row.worst["R"].value.value
    assert ["llama-3.1-8b.tp1/prefill/b1.q1024.k1024/bf16/causal/flash-attn-2"] == [link.text for link in found.links]


def test_tolerance_states_the_worst_of_each_statistic_beside_its_limit(facts: Any) -> None:
    """A model within its limits shows how near it came, and its measured accuracy class."""
    found = answer(facts, "gemma-2-9b.tp1", "tolerance")
    data = found.tables[0].data()[0]

    assert ("good", "All 18 cases within limits") == (found.state, found.headline)
    assert {"value": 0.71, "limit": 1.0} == data["E"]
    assert {"value": 1.1e-4, "limit": 6.1e-4} == data["beta"]
    assert {"value": 8e-7, "limit": 1e-5} == data["lse_rel"]
    assert ("bf16", "bf16", 0) == (data["declared"], data["measured"], data["over"])
    assert ["Worst element, E ≤ 1", "Worst row, R ≤ 3"] == [it.title for it in found.tables[0].columns[4:6]]


def test_tolerance_leaves_substituted_cases_out(facts: Any, build: Callable[..., Any]) -> None:
    """The error of another kernel says nothing about the card."""
    only = keep(facts, build, lambda record: record.outcome.outcome == "substituted")

    assert "Not measured" == answer(only, "llama-3.1-8b.tp1", "tolerance").headline


def test_unproven_evidence_leaves_the_fallback_open(facts: Any, build: Callable[..., Any]) -> None:
    """Where a trace could not tell, the answer is open, not good."""
    record = facts.records[0]
    witness: Witness = replace(record.outcome.evidence.witness, state="unproven", reason="dropped records")
    outcome = Measured(evidence=replace(record.outcome.evidence, witness=witness))

    found = answer(build([replace(record, outcome=outcome)]), "llama-3.1-8b.tp1", "fallback")
    assert ("open", "No substitution in 1 traced case; 1 case unproven") == (found.state, found.headline)


@pytest.mark.parametrize(("verdict", "state"), [("FAIL", "bad"), ("WAIVED", "open"), ("INCONCLUSIVE", "open")])
def test_a_refusal_of_what_the_card_claims_is_told_in_the_answer(facts: Any, verdict: Any, state: str) -> None:
    """The words beside the cross say what is held against the model, and do not only say what is well."""
    model = "gemma-2-9b.tp1"
    refused = {it.case.id for it in facts.records if it.case.model == model and isinstance(it.outcome, Refused)}
    judgements = tuple(
        replace(it, verdict=verdict) if it.case_id in refused else it for it in facts.conclusion.judgements
    )
    found = answer(replace(facts, conclusion=replace(facts.conclusion, judgements=judgements)), model, "fallback")
    assert 2 == len(refused)
    assert (state, "No substitution in 18 traced cases; 2 claimed cases refused") == (found.state, found.headline)


def test_a_shape_that_every_kernel_refused_is_told_in_the_answer(facts: Any, build: Callable[..., Any]) -> None:
    """Beside cases that were traced it is the reason why the answer is open."""
    model = "wide-head.tp1"
    other = next(record for record in facts.records if record.case.model == "gemma-2-9b.tp1")
    traced = replace(
        other, case=replace(other.case, id=f"{model}{other.case.id.removeprefix(other.case.model)}", model=model)
    )
    found = answer(build([*(it for it in facts.records if it.case.model == model), traced]), model, "fallback")
    assert "open" == found.state
    assert "No substitution in 1 traced case; 1 shape refused by every kernel" == found.headline


def judged(facts: Any, cell: str, **changes: Any) -> Any:
    """The same run with another verdict on one production shape."""
    cells = tuple(replace(entry, **changes) if entry.cell == cell else entry for entry in facts.conclusion.cells)
    return replace(facts, conclusion=replace(facts.conclusion, cells=cells))


def test_kernels_counts_a_shape_that_lacks_its_expected_kernel(facts: Any) -> None:
    """Another proven kernel does not help where the matrix expects one by name."""
    cell = "gemma-2-9b.tp1/prefill/b1.q1024.k1024/bf16/causal"
    reason = "the matrix expects flash-attn-3, which is not proven here"
    found = answer(judged(facts, cell, verdict="FAIL", reasons=(reason,)), "gemma-2-9b.tp1", "kernels")

    assert ("bad", "3 of 4 shapes proven") == (found.state, found.headline)
    assert [f"prefill/b1.q1024.k1024/bf16/causal ({reason})"] == [link.text for link in found.links]
    assert lines(found)[0].startswith("prefill 1/2 | ")


def test_kernels_asks_nothing_of_shapes_that_are_not_required(facts: Any) -> None:
    """A shape that the gate does not require is named, and held against nobody."""
    cell = "wide-head.tp1/prefill/b1.q8192.k8192/bf16/causal"
    found = answer(judged(facts, cell, verdict="NOT_REQUIRED"), "wide-head.tp1", "kernels")

    assert ("untested", "No shape is required") == (found.state, found.headline)
    assert "not required | 1 shape" == lines(found)[-1]


def test_tolerance_counts_a_failed_case_without_statistics(facts: Any, build: Callable[..., Any]) -> None:
    """An output full of NaN leaves no statistics; it is over the limit all the same."""
    record = facts.records[0]
    failed = (make_finding("budget", "fail"),)
    outcome = Measured(evidence=replace(record.outcome.evidence, statistics=(), findings=failed))
    found = answer(build([replace(record, outcome=outcome)]), "llama-3.1-8b.tp1", "tolerance")

    assert ("bad", "1 of 1 case over a limit") == (found.state, found.headline)
    assert ["bf16 | no statistics | declared unknown, measured unknown"] == lines(found)


def test_cases_beyond_the_claims_are_held_against_nobody(facts: Any, build: Callable[..., Any]) -> None:
    """A wrong mask or a wrong number that no card claims changes no answer."""
    beyond = [
        replace(record, case=replace(record.case, unclaimed=("head_dim=128 > 64",)))
        if record.case.kernel == "flash-attn-2"
        else record
        for record in facts.records
    ]

    packing = answer(build(beyond), "llama-3.1-8b.tp1", "packing")
    assert ("open", "Not proven: no proof for 2 packed cases") == (packing.state, packing.headline)  # flash-attn-4's
    assert "good" == answer(build(beyond), "llama-3.1-8b.tp1", "tolerance").state


def test_packing_takes_a_note_for_no_verdict(facts: Any, build: Callable[..., Any]) -> None:
    """A probe that only notes something has not shown that the mask is right."""
    record = next(entry for entry in facts.records if entry.case.phase == "varlen")
    noted = (make_finding("poison", "note"),)
    outcome = Measured(evidence=replace(record.outcome.evidence, findings=noted))
    found = answer(build([replace(record, outcome=outcome)]), "llama-3.1-8b.tp1", "packing")

    assert "open" == found.state


def test_an_allowed_substitution_is_told_and_not_held_against_the_model(facts: Any) -> None:
    """Where the matrix allows the fallback, the verdict is a pass and the answer says what replaced what."""
    judgements = tuple(replace(entry, verdict="PASS") for entry in facts.conclusion.judgements)
    allowed = replace(facts, conclusion=replace(facts.conclusion, judgements=judgements))
    found = answer(allowed, "llama-3.1-8b.tp1", "fallback")

    assert "1 substitution in 25 traced cases, none of them forbidden" == found.headline
    assert lines(found)[0].startswith("flash-attn-3 became | ")


def test_checking_drafted_tokens_is_generation(facts: Any, build: Callable[..., Any]) -> None:
    """A gain in verify is no gain in prefill."""
    rest = keep(facts, build, lambda record: record.case.phase == "decode" and "gemma" in record.case.model)
    moved = [replace(record, case=replace(record.case, phase="verify")) for record in rest.records]
    found = answer(build(moved), "gemma-2-9b.tp1", "gains")

    assert "prefill is not compared" in found.headline
    assert "verify" in lines(found)[0]
