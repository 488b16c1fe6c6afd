"""Why a run is not qualified: who failed, by what, where, what is known of it, and what to do next."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_xid
from report_examples import everything, facts_of, make_case, make_evidence, make_finding

from qualify.facts.case import Phase
from qualify.facts.checks import CHECKS, FINDINGS
from qualify.facts.outcome import Crashed, Finding, Measured, NotRun, Refused, Substituted, TimedOut, noted
from qualify.facts.run import Record
from qualify.facts.stages import ending
from qualify.facts.typed import Typed
from qualify.report.beside import Beside
from qualify.report.causes import ENDINGS, cause_of, diagnose, explain, finding_text
from qualify.report.context import ReportContext, report_context
from qualify.report.known import FOLDER, KNOWN, known_finding, known_to_all
from qualify.report.page import FEW_MODELS, render_html
from qualify.report.room import PartSizes
from qualify.report.views import join
from qualify.report.whynot import SHOWN_OF_GROUP
from qualify.verdict.faults import failed_cards, with_faults

MODEL = "gpt-oss-20b.tp1"

PHASES: tuple[Phase, ...] = ("decode", "prefill")


def failed(
    model: str, size: int, check: str, kernel: str = "flash-attn-3", phase: Phase = "decode", **values: str
) -> Record:
    """A case, usually of decode, that one check found wrong."""
    finding = make_finding(check, "fail", expected=0.5, actual=0.0, **values)
    case = make_case(model, phase, kernel, size=size, batch=1)
    return Record(case=case, outcome=Measured(evidence=replace(make_evidence(kernel), findings=(finding,))))


def context_of(records: list[Record], **changes: Any) -> ReportContext:
    """The page of a run of these records."""
    facts = facts_of(records)
    return report_context(
        replace(facts.run, **changes), records, facts.conclusion, Beside(typed=Typed(cards=("my cards",)))
    )


@pytest.mark.parametrize(("room", "words"), [(6_000, ""), (40, "1 more kernel and cause"), (1, "3 kernels and causes")])
def test_what_has_no_room_is_more_only_below_what_has(monkeypatch: Any, room: int, words: str) -> None:
    """Where none stands above, nobody may look for it there."""
    monkeypatch.setattr(PartSizes, "why", room)
    page = render_html(context_of([failed(MODEL, 256, check) for check in ("needle", "poison", "suffix")]))
    found = re.findall(r"<summary>(\d+ (?:more )?kernels? and causes?)</summary>", page)
    assert ([words] if words else []) == found


def test_alike_failures_stand_together() -> None:
    """One group for each kernel and check, the most cases first, with phases, models, diagnosis and command."""
    records = [failed(MODEL, size, "needle") for size in (256, 512, 1024, 2048, 4096)]
    records += [failed("llama-3.1-8b.tp1", 256, "needle"), failed(MODEL, 256, "poison", "flash-attn-4")]
    first, second = context_of(records).why.groups

    assert ("flash-attn-3", "needle", 6) == (first.kernel, first.cause, first.count)
    assert (("decode", 6),) == first.phases
    assert ((MODEL, 5), ("llama-3.1-8b.tp1", 1)) == first.models
    assert ("flash-attn-4", "poison", 1) == (second.kernel, second.cause, second.count)
    assert (SHOWN_OF_GROUP, 6, ()) == (first.whole, len(first.sections), first.lines)
    assert first.diagnosis.sentence.startswith(
        "A query that one key dominates does not return that key's value: expected 0.500, seen 0.000. Likely cause: "
    )
    assert f"qualify repro {records[0].case.id} --run 20261120T234500Z-1f3a9c --cards 'my cards'" == first.repro
    assert [KNOWN[0].words] == list(first.known)


def test_one_cause_is_told_once_for_all_its_phases() -> None:
    """Five blocks that say the same are one, which names each phase with the number of its cases."""
    records = [failed(MODEL, size, "needle") for size in (256, 512)]
    records += [failed(MODEL, 256, "needle", phase=phase) for phase in ("chunked", "prefill", "varlen", "verify")]
    page = context_of(records)
    (group,) = page.why.groups
    title = "flash-attn-3 · needle · decode (2), chunked (1), prefill (1), varlen (1), verify (1): 6 cases"
    assert title == group.title
    html = render_html(page)
    why = html[html.index('id="why"') : html.index('id="answers"')]
    assert 1 == why.count(title) == why.count("flash-attn-3 · needle")


def test_another_cause_in_another_phase_is_told_by_itself() -> None:
    """Where a check knows the mistake and it is another one there, or where a crash says something else."""
    records = [
        failed(MODEL, 256, "census", looks_like="a window of 7 keys"),
        failed(MODEL, 256, "census", phase="prefill", looks_like="a causal mask"),
    ]
    assert ["decode", "prefill"] == [group.phases[0][0] for group in context_of(records).why.groups]
    crashed = [
        Record(
            case=make_case(MODEL, phase, "flash-attn-3"), outcome=Crashed(stage="call", error=error, log="", attempt=2)
        )
        for phase, error in zip(PHASES, ("out of memory: 12 GiB", "an illegal memory access"), strict=True)
    ]
    assert 2 == len(context_of(crashed).why.groups)
    alike = replace(crashed[1], outcome=replace(crashed[1].outcome, error="out of memory: 7 GiB"))
    assert 1 == len(context_of([crashed[0], alike]).why.groups)


def test_the_first_reason_counts_all_phases_and_says_what_was_seen() -> None:
    """The head of the page has room for one reason: here a fallback in two phases, and no values to show."""
    evidence = make_evidence("flash-attn-3")
    outcome = Substituted(
        evidence=replace(evidence, witness=replace(evidence.witness, state="substituted", reason="x"))
    )
    cases = [make_case(MODEL, phase, "flash-attn-3") for phase in PHASES]
    page = context_of([Record(case=case, outcome=outcome) for case in cases])
    first = page.why.first
    assert first is not None
    assert "flash-attn-3 · substitution · decode (1), prefill (1): 2 cases" == first[0]
    assert "Another kernel did the work: x. Likely cause: the library chose a fallback for this call." == first[1]
    page = context_of([failed(MODEL, 256, "needle"), failed(MODEL, 256, "poison", "flash-attn-4")])
    assert page.why.first == (page.why.groups[0].title, page.why.groups[0].diagnosis.sentence)


def test_every_way_to_fail_has_a_cause() -> None:
    """A case that failed is counted under how it ended, or under the first check that failed."""
    ends = {
        "crash": Crashed(stage="prepare", error="SIGSEGV", log="", attempt=2),
        "hang": TimedOut(stage="checks:needle", limit_s=60.0, attempt=1),
        "refusal": Refused(by="library", reasons=("no",)),
        "not run": NotRun(reason="interrupted"),
    }
    case = make_case(MODEL, "decode", "flash-attn-3")
    for cause, outcome in ends.items():
        facts = facts_of([Record(case=case, outcome=outcome)])
        (view,) = join(facts.records, facts.conclusion)
        assert cause == cause_of(view)
        assert ENDINGS[cause][0] in diagnose(view, cause).sentence


@pytest.mark.parametrize(("number", "verdict", "titles"), [
    (79, "INCONCLUSIVE", ["Card GPU-1 failed while it ran"]), (31, "FAIL", []),
])  # fmt: skip
def test_an_error_of_the_driver_is_the_cause(number: int, verdict: str, titles: list[str]) -> None:
    """Of a case that the gate does not count for it; a card that failed is named with what to do."""
    facts = everything()
    passed = next(record for record, it in zip(facts.records, facts.conclusion.judgements, strict=True)
                  if it.verdict == "PASS" and isinstance(record.outcome, Measured))  # fmt: skip
    record = replace(passed, outcome=noted(passed.outcome, make_xid(number)))
    facts = facts_of([record])
    judged = with_faults([record], facts.conclusion.judgements, "GPU-1")
    conclusion = replace(facts.conclusion, judgements=tuple(judged), verdict=judged[0].verdict)
    (view,) = join(facts.records, conclusion)
    assert (verdict, "xid") == (view.verdict, cause_of(view))
    assert ENDINGS["xid"][0] in diagnose(view, "xid").sentence
    beside = Beside(failed_cards=failed_cards([record], "GPU-1"))
    found = report_context(facts.run, [record], conclusion, beside).why.hindrances
    assert titles == [it.title for it in found]
    assert all("the GPU has fallen off the bus" in it.detail and "nvidia-smi -q" in it.detail for it in found)


def test_stages_stand_in_words() -> None:
    """A page never says what qualify calls its own stages."""
    facts = everything()
    record = facts.records[0]
    outcome = Crashed(stage="prepare", error="SIGSEGV", log="", attempt=2)
    conclusion = facts_of([replace(record, outcome=outcome)]).conclusion
    told = replace(conclusion.judgements[0], reasons=(ending(outcome),))
    conclusion = replace(conclusion, judgements=(told,))
    html = render_html(report_context(facts.run, [replace(record, outcome=outcome)], conclusion))

    assert "crashed while its call was prepared: SIGSEGV" in html
    assert "in prepare" not in html


def test_every_finding_is_explained() -> None:
    """Each check says what a failure means and what is behind it, in one sentence without raw values."""
    for known in CHECKS:
        assert known.wrong[0].isupper(), known.name
        assert not known.wrong.endswith("."), known.name
        assert known.cause, known.name
    for name in FINDINGS:
        sentence = explain(Finding(check=name, verdict="fail", detail="x", values={})).sentence
        assert re.fullmatch(r"[A-Z].{15,}\. Likely cause: .{5,}\.", sentence), name


def test_a_case_has_one_likely_cause() -> None:
    """Where one fault breaks several checks, each says what is wrong, and only one says why."""
    case = make_case(MODEL, "decode", "flash-attn-3")
    failing = tuple(make_finding(check, "fail") for check in ("census", "needle", "budget"))
    record = Record(case=case, outcome=Measured(evidence=replace(make_evidence("flash-attn-3"), findings=failing)))
    (section,) = context_of([record]).why.groups[0].sections
    cause = cause_of(section.view)
    told = [finding_text(finding, cause) for finding in section.findings]
    assert "census" == cause
    assert [1, 0, 0] == [text.count("Likely cause: ") for text in told]
    wrong = {known.name: known.wrong for known in CHECKS}
    assert all(text.startswith(wrong[finding.check]) for text, finding in zip(told, section.findings, strict=True))
    # The page has the diagnosis in its head, at the head of the group, and with the case.
    page = render_html(context_of([record]))
    for known in CHECKS:
        assert page.count(f"Likely cause: {known.cause}") == (3 if known.name == "census" else 0), known.name
    sure = make_finding("census", "fail", looks_like="a window of 7 keys")
    assert finding_text(sure, "needle").endswith("Likely cause: a window of 7 keys, which explains every row.")


def test_budget_says_which_limit_is_broken() -> None:
    """Only the errors beyond their limits are told, each with its limit."""
    values = {"E": 1.26, "R": 2.0, "G": 4.47, "G_limit": 1.89, "beta": -0.001, "beta_limit": 0.01}
    found = explain(Finding(check="budget", verdict="fail", detail="x", values=values))

    assert ("worst element ≤ 1, all rows ≤ 1.89", "worst element 1.26, all rows 4.47") == (found.expected, found.seen)


def test_known_findings_are_those_of_the_documentation() -> None:
    """Each names a page by its title, and a shipped card."""
    root = Path(__file__).parents[2]
    titles = {page.stem: page.read_text().splitlines()[0] for page in (root / FOLDER).glob("*.md")}

    assert [] == [known.page for known in KNOWN if titles.get(known.page) != f"# {known.title}"]
    assert [] == [name for known in KNOWN for name in known.kernels if not (root / "kernels" / f"{name}.yaml").exists()]
    assert [] == [cause for known in KNOWN for cause in known.causes if cause not in {*FINDINGS, *ENDINGS}]


@pytest.mark.parametrize(
    ("model", "kernel", "cause", "known"),
    [
        (MODEL, "flash-attn-3", "needle", True),
        (MODEL, "flash-attn-3@next", "needle", True),
        ("llama-3.1-8b.tp1", "flash-attn-3", "needle", False),
        (MODEL, "flash-attn-3", "poison", False),
        (MODEL, "flash-attn-4", "poison", True),
    ],
)
def test_a_known_finding_fits_its_kernel_and_check(model: str, kernel: str, cause: str, *, known: bool) -> None:
    """Another model, kernel or check is another failure."""
    assert known == (known_finding(make_case(model, "decode", kernel), cause) is not None)


def test_a_qualified_run_has_no_such_block() -> None:
    """Nothing to explain where everything passed."""
    case = make_case(MODEL, "decode", "flash-attn-3")
    page = context_of([Record(case=case, outcome=Measured(evidence=make_evidence("flash-attn-3")))])

    assert page.why.empty
    assert 'id="why"' not in render_html(page)


def test_what_is_no_failure_of_a_case_is_told() -> None:
    """An unfinished run, a demonstration, and evidence that does not count say so, with the next command."""
    record = Record(
        case=make_case(MODEL, "decode", "flash-attn-3"), outcome=Measured(evidence=make_evidence("flash-attn-3"))
    )
    facts = facts_of([record])
    open_ = replace(facts.conclusion, verdict="INCONCLUSIVE", exit_code=5)
    for change, state, words, command in (
        ({}, "interrupted", "The run is interrupted", "--resume"),
        ({}, "running", "The run is not finished", "--resume"),
        ({"demonstration": True}, "completed", "A CPU stood in for the GPU", "qualify run"),
        ({}, "completed", "but the evidence does not count", "qualify gate --run"),
    ):
        page = report_context(replace(facts.run, state=state), [record], replace(open_, **change))
        (told,) = page.why.hindrances
        assert words in told.title
        assert command in told.command
        assert told.title in render_html(page)
        assert (state == "running") == ("First wait for a process that still works on it" in told.detail)


def test_notes_say_what_limits_the_evidence() -> None:
    """They stand on the page, and where nothing else holds the run back they are the reason."""
    case = make_case(MODEL, "decode", "flash-attn-3")
    facts = facts_of([Record(case=case, outcome=Measured(evidence=make_evidence("flash-attn-3")))])
    open_ = replace(facts.conclusion, verdict="INCONCLUSIVE", exit_code=5)
    beside = Beside(notes=("flash-attn-3 must run again: <its code> changed",))
    page = report_context(facts.run, facts.records, open_, beside)
    (told,) = page.why.hindrances
    assert beside.notes[0] == told.detail
    assert 3 == render_html(page).count("flash-attn-3 must run again: &lt;its code&gt; changed")  # and in the head
    assert 'id="notes"' not in render_html(report_context(facts.run, facts.records, open_))


def test_symbols_of_errors_are_explained_where_they_stand() -> None:
    """Below the answers, without a script and without another page; letters that stand in no answer are not named."""
    html = render_html(context_of([failed(MODEL, 256, "needle")]))
    answers = html[html.index('id="answers"') : html.index('id="signoffs"')]
    for part in ("error/limit", "β is the share", "LSE"):
        assert part in answers
    assert "G of all rows" not in answers
    many = render_html(context_of([failed(f"model-{number}.tp1", 256, "needle") for number in range(FEW_MODELS + 1)]))
    assert "error/limit" not in many[many.index('id="answers"') : many.index('id="signoffs"')]  # it has no errors there


@pytest.mark.parametrize(
    ("kernel", "cases", "cause", "page"),
    [
        (
            "flash-attn-3",
            ("gpt-oss-20b.tp1/decode/a", "gpt-oss-20b.tp1/decode/b"),
            "parameters",
            "fa3-sinks-split-keys",
        ),
        ("flash-attn-3@next", ("gpt-oss-20b.tp1/decode/a",), "needle", "fa3-sinks-split-keys"),
        ("flash-attn-3", ("gpt-oss-20b.tp1/decode/a", "llama-3.1-8b.tp1/decode/a"), "parameters", None),
        ("flashinfer-fa2", ("llama-3.1-8b.tp1/chunked/a",), "census", None),
    ],
)
def test_a_group_is_known_if_one_defect_explains_all_of_it(
    kernel: str, cases: tuple[str, ...], cause: str, page: str | None
) -> None:
    """By ids; a defect of calls with more queries than keys cannot be told by them."""
    known = known_to_all(kernel, cases, cause)
    assert page == (known.page if known else None)
