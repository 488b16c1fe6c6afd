"""What a gate reads of the evidence is enough: the same verdict, in the same words, as from all of it."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_finding, make_statistics, make_timing, make_witness
from stored_runs import MATRIX, NOW, make_run, shipped_kernels, store_run

from qualify.assets import shipped
from qualify.cards.load import load_matrix
from qualify.facts.case import Case
from qualify.facts.outcome import Crashed, Finding, Measured, NotRun, Outcome, Refused, Substituted, TimedOut
from qualify.judge.against import accepted
from qualify.judge.beside import beside_baseline
from qualify.judge.gathered import Fresh, gather
from qualify.judge.judged import Judged, judge
from qualify.report.formats import FormatName, format_named
from qualify.report.formats.interface import OutputOptions
from qualify.report.verdict_json import to_data
from qualify.report.verdict_text import to_text
from qualify.store.store import Store
from qualify.verdict.origin import taken_over

SEEDS = range(6)
SHALLOW: tuple[FormatName, ...] = ("text", "markdown", "github", "junit", "sarif")
ALLOWED = "policy: {fallback: record}\nexpect: [{select: '*/b1.q*', kernel: tiled-torch, fallback: torch-cpu-math}]\n"
FINDINGS = (
    make_finding(),
    make_finding("note", "not asked: no pages", "page_permutation"),
    Finding(check="census", verdict="pass", detail="every key", values={"inputs": "normal"}),
)


def random_outcome(chance: random.Random) -> Outcome:
    """An outcome of any kind, more often one that ran."""
    worse = [make_finding("fail", "row 3", "needle"), make_finding("inconclusive", "no sample", "budget")]
    found = [*FINDINGS, *chance.sample(worse, chance.choice((0, 0, 0, 1, 2)))]
    evidence = replace(
        make_evidence(*chance.sample(found, len(found))),
        witness=make_witness(chance.choice(("proven", "proven", "unproven")), "aten::_scaled_dot_product_math"),
        statistics=(make_statistics(),),
        timing=chance.choice((None, make_timing(chance.uniform(50, 500)))),
    )
    kinds: list[Outcome] = [
        *[Measured(evidence=evidence)] * 8,
        taken_over(Measured(evidence=evidence), make_run(started_at=NOW - timedelta(hours=30))),
        Substituted(evidence=replace(evidence, witness=make_witness("substituted", *chance.choices("ab", k=2)))),
        Substituted(
            evidence=replace(evidence, witness=make_witness("substituted", "aten::_scaled_dot_product_attention_math"))
        ),
        Crashed(stage="call", error="SIGSEGV", log="…" * 99, attempt=1, findings=tuple(found)),
        TimedOut(stage="timing", limit_s=60.0, attempt=2, findings=tuple(found)),
        Refused(by="library", reasons=("head_dim=80",)),
        NotRun(reason="interrupted"),
    ]
    return chance.choice(kinds)


def words(judged: Judged) -> list[str]:
    """The verdict in every format that reads no more than it needs."""
    options = OutputOptions(now=NOW)
    return [format_named(name).load()(judged, options) for name in SHALLOW]


def same(one: Judged, other: Judged) -> None:
    """Both judge alike, and say the same."""
    assert (one.conclusion, one.stale, one.notes, one.slower) == (
        other.conclusion,
        other.stale,
        other.notes,
        other.slower,
    )
    assert words(one) == words(other)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A matrix of forty shapes and two kernels, which allows some substitutions."""
    sizes = "".join(f"      - {size}\n" for size in range(8, 48))
    (tmp_path / "serving.yaml").write_text(MATRIX.replace("      - 8\n      - 9\n", sizes) + ALLOWED)
    return tmp_path / "serving.yaml"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_verdict_needs_no_more(store: Store, path: Path, seed: int) -> None:
    """Outcomes of all kinds at random: one run, and the matrix from two runs, against an accepted baseline."""
    chance = random.Random(seed)
    usual = Measured(evidence=replace(make_evidence(), timing=make_timing(100)))
    before = store_run(store, path, usual, age=timedelta(hours=3))
    assert accepted(store, judge(store, before.id, shipped_kernels(), now=NOW), by="jane", reason="7", now=NOW)
    store_run(store, path, lambda _: random_outcome(chance), age=timedelta(hours=2))
    run = store_run(store, path, lambda _: random_outcome(chance))
    same(
        *(
            beside_baseline(store, judge(store, run.id, shipped_kernels(), now=NOW, depth=it))
            for it in ("whole", "verdict")
        )
    )
    same(*(beside_baseline(store, gate(store, path, depth=it)) for it in ("whole", "verdict")))


def gate(store: Store, path: Path, **changes: Any) -> Judged:
    """The gate on the matrix."""
    wanted = Fresh(now=NOW, max_age=timedelta(hours=24), level="smoke", **changes)
    return gather(store, load_matrix(str(path)), shipped_kernels(), wanted, waivers=(), waivers_path="")


@pytest.mark.parametrize("asked", ["census", "needle"])
def test_an_incident_is_told_alike(store: Store, asked: str) -> None:
    """Whether an incident was asked for is in findings that passed."""
    outcome = Measured(evidence=make_evidence(make_finding(check=asked), *FINDINGS))
    run = store_run(store, shipped("matrices") / "incidents.yaml", outcome)
    found = [judge(store, run.id, shipped_kernels(), now=NOW, depth=it) for it in ("whole", "verdict")]
    same(*found)
    assert "incidents: " in to_text(found[1], NOW)


def test_what_was_not_read_is_not_taken_for_nothing(store: Store, path: Path) -> None:
    """A format that shows every finding refuses evidence of which only some was read."""
    run = store_run(store, path)
    found = judge(store, run.id, shipped_kernels(), now=NOW, depth="verdict")
    assert {()} == {record.outcome.evidence.findings for record in found.records}  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="all of it is needed"):
        to_data(found)


def test_the_times_are_read_alone(store: Store, path: Path) -> None:
    """Whoever compares times gets them with their samples, and nothing else."""
    evidence = replace(make_evidence(), timing=make_timing(123), statistics=(make_statistics(),))
    run = store_run(store, path, lambda case: _crashed(case) if "q8." in case.id else Measured(evidence=evidence))
    bare = replace(evidence, findings=(), statistics=(), witness=replace(evidence.witness, launches=()))
    found = {record.outcome for record in store.records(run.id, "times") if isinstance(record.outcome, Measured)}
    assert [bare] == [outcome.evidence for outcome in found]


def _crashed(case: Case) -> Crashed:
    return Crashed(stage="call", error=case.id, log="long", attempt=1)
