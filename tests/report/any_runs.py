"""Runs in which anything may have happened, as hypothesis draws them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import make_evidence, make_finding, make_matrix, make_statistics, make_timing, make_witness
from hypothesis import strategies as st
from report_examples import PROBES, make_case, make_run
from stored_runs import NOW

from qualify.facts.case import Phase
from qualify.facts.outcome import Crashed, FindingVerdict, Measured, NotRun, Outcome, Refused, Substituted, TimedOut
from qualify.facts.run import Record
from qualify.facts.waiver import Waiver
from qualify.judge.judged import Judged
from qualify.verdict.gate import conclude
from qualify.verdict.policy import Rules
from qualify.verdict.waivers import Waivers

KERNELS = ("torch-sdpa", "flash-attn-2", "flash-attn-3")
MODELS = ("llama-3.1-8b.tp1", "gemma-2-9b.tp1")
PHASES: tuple[Phase, ...] = ("prefill", "chunked", "varlen", "decode", "verify")
PATTERNS = dict.fromkeys(KERNELS, ("under_test",))


def measured(latency_us: float = 300.0, *, state: str = "proven", **verdicts: FindingVerdict) -> Measured:
    """Every probe and the budget pass, but for those that are named."""
    checks = dict.fromkeys((*PROBES, "budget"), "pass") | verdicts
    findings = [make_finding(verdict, check=check) for check, verdict in checks.items()]  # type: ignore[arg-type]
    evidence = make_evidence(*findings, witness=make_witness(state, reason="" if state == "proven" else "lost"))
    return Measured(evidence=replace(evidence, statistics=(make_statistics(),), timing=make_timing(latency_us)))


PASSES = st.sampled_from([100.0, 101.0, 200.0, 300.0]).map(measured)
WRONG: list[Outcome] = [
    *(measured(**{check: verdict}) for check in ("census", "budget", "layout") for verdict in ("fail", "inconclusive")),  # type: ignore[arg-type]
    measured(state="unproven"),
    Substituted(evidence=measured().evidence),
    Substituted(evidence=measured(state="substituted", needle="fail").evidence),
    Substituted(evidence=measured(state="substituted", budget="inconclusive").evidence),
    Crashed(stage="call", error="SIGSEGV", log="", attempt=2),
    TimedOut(stage="call", limit_s=60.0, attempt=1),
    Refused(by="plan", reasons=("head_dim=320 > 256",)),
    Refused(by="library", reasons=("not supported",)),
    NotRun(reason="interrupted"),
]
OUTCOMES = st.one_of(PASSES, PASSES, st.sampled_from(WRONG))


def waiver(select: str) -> Waiver:
    """Somebody answers for wrong masks and crashes of some cases."""
    day = NOW.date()
    fields: dict[str, Any] = {"owner": "jane", "reason": "known", "link": "https://example.com/1", "stack": {}}
    checks = ("census", "crash", "substitution", "needle")
    return Waiver(
        id="known",
        path="w.yaml",
        line=1,
        select=select,
        checks=checks,
        created=day,
        expires=day.replace(month=12),
        **fields,
    )


EXPIRED = replace(waiver("*/flash-attn-2"), created=NOW.date().replace(day=1), expires=NOW.date().replace(day=2))


@st.composite
def runs(draw: Any) -> Judged:
    """A run of up to two models, five phases, three kernels, in which anything may have happened."""
    records = []
    for model in draw(st.sampled_from([MODELS, MODELS[:1]])):
        for phase in draw(st.lists(st.sampled_from(PHASES), min_size=1, max_size=3, unique=True)):
            for size in draw(st.sampled_from([(1024,), (1024, 2048)])):
                for kernel in draw(st.lists(st.sampled_from(KERNELS), min_size=1, unique=True)):
                    case = make_case(model, phase, kernel, size=size)
                    if not draw(st.integers(0, 9)):
                        case = replace(case, unclaimed=("head_dim=128 > 64",))
                    records.append(Record(case=case, outcome=draw(OUTCOMES)))
    expect = draw(st.sampled_from([(), [{"select": "*", "kernel": "flash-attn-3"}]]))
    policy = draw(st.sampled_from([{}, {"fallback": "record"}, {"claims": "ignore"}]))
    items = draw(st.sampled_from([(), (waiver("*"),), (waiver("*/flash-attn-2"),), (EXPIRED,)]))
    matrix = make_matrix(expect=list(expect), policy=policy, kernels=list(KERNELS))
    partial = draw(st.booleans())
    run = replace(make_run(), select="*" if partial else "", matrix_source=matrix.source)
    waivers = Waivers(items=items, today=NOW.date(), stacks={"": run.stack})
    conclusion = conclude(records, Rules(matrix=matrix.card, patterns=PATTERNS, partial=partial, waivers=waivers))
    rest: dict[str, Any] = {"selftest": None, "runs": (run.id,), "origins": {}, "notes": (), "waivers_path": ""}
    rest["evidence_since"] = run.started_at
    return Judged(run=run, records=records, conclusion=conclusion, matrix=matrix.card, **rest)
