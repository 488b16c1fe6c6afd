"""A part is no whole: requirements weaker than the accepted baseline's are named, and fail the gate."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from junitparser import JUnitXml
from stored_runs import IDS, MATRIX, NOW, PASSED, WRONG, make_stack, shipped_kernels, store_run, write_waivers

from qualify.canary.child import seen_of
from qualify.cards.load import load_matrix
from qualify.facts import codec
from qualify.facts.artifact import parse_artifact
from qualify.facts.comparison import Change
from qualify.facts.run import Run
from qualify.facts.weaker import Less
from qualify.judge.against import accepted, compare_with
from qualify.judge.beside import beside_baseline
from qualify.judge.evidence import Fresh
from qualify.judge.gathered import gather
from qualify.judge.judged import Judged, judge
from qualify.judge.signing import named
from qualify.report.beside import Beside
from qualify.report.context import report_context
from qualify.report.contract import gate_schema
from qualify.report.diff_page import diff_page
from qualify.report.differences import to_data as diff_data
from qualify.report.differences import to_text as diff_text
from qualify.report.document import to_json
from qualify.report.formats import github, junit, markdown, sarif
from qualify.report.formats.in_toto import to_statement
from qualify.report.formats.interface import OutputOptions
from qualify.report.page import render_html, render_page
from qualify.report.verdict_json import to_data
from qualify.report.verdict_text import to_text
from qualify.store.store import Store

SUBJECT = parse_artifact("--subject", f"x@sha256:{'ab' * 32}")
POLICY = "policy: {{{0}}}\n"
EXPECT = "expect: [{{select: '*', kernel: tiled-torch{0}}}]\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the matrix is written."""
    return tmp_path / "serving.yaml"


def run_of(store: Store, path: Path, text: str, hours: int, outcome: Any = PASSED, **changes: Any) -> Judged:
    """A run of that matrix, judged on its own."""
    path.write_text(text)
    run = store_run(store, path, outcome, age=timedelta(hours=hours), **changes)
    return judge(store, run.id, shipped_kernels(), now=NOW)


def baseline(store: Store, path: Path, text: str = MATRIX, **changes: Any) -> Run:
    """An accepted run of three hours ago."""
    judged = run_of(store, path, text, 3, **changes)
    assert accepted(store, judged, by=named("jane", "ci"), reason="release 7", now=NOW - timedelta(hours=2))
    return judged.run


def later(store: Store, path: Path, text: str = MATRIX, **changes: Any) -> Judged:
    """A run of an hour ago, judged as `run` and `gate` do."""
    return beside_baseline(store, run_of(store, path, text, 1, **changes))


def told(judged: Judged) -> list[tuple[str, str, str, int]]:
    """The weaker requirements."""
    changes: tuple[Less, ...] = judged.weaker.changes if judged.weaker else ()
    return [(less.what, less.then, less.now, less.count) for less in changes]


WEAKER = [
    (MATRIX, MATRIX.replace("      - 9\n", ""), ("shape b1.q9.k9", "2 cases", "none", 2)),
    (MATRIX, MATRIX.replace(", torch-cpu-math", ""), ("kernel torch-cpu-math", "2 cases", "none", 2)),
    (MATRIX, f"{MATRIX}exclude: ['*k9*']\n", ("exclude *k9*", "2 cases", "none", 2)),
    (MATRIX + EXPECT.format(""), MATRIX, ("expect tiled-torch", "tiled-torch, fallback forbid", "none", 2)),
    (
        MATRIX + EXPECT.format(""),
        MATRIX + EXPECT.format(", fallback: record"),
        ("expect tiled-torch", "tiled-torch, fallback forbid", "tiled-torch, fallback record", 2),
    ),
    (
        MATRIX + EXPECT.format(""),
        MATRIX + EXPECT.format("").replace("tiled-torch}", "torch-cpu-math}"),
        ("expect tiled-torch", "tiled-torch, fallback forbid", "torch-cpu-math, fallback forbid", 2),
    ),
    (MATRIX, MATRIX + POLICY.format("fallback: record"), ("policy.fallback", "forbid", "record", 0)),
    (MATRIX, MATRIX + POLICY.format("timeout_s: 600"), ("policy.timeout_s", "60", "600", 0)),
    (MATRIX, MATRIX + POLICY.format("compile_timeout_s: 601"), ("policy.compile_timeout_s", "600", "601", 0)),
    (MATRIX, MATRIX + POLICY.format("reference: fp32"), ("policy.reference", "fp64", "fp32", 0)),
    (MATRIX, MATRIX + POLICY.format("claims: ignore"), ("policy.claims", "enforce", "ignore", 0)),
    (MATRIX, MATRIX + POLICY.format("forbid_weaker: false"), ("policy.forbid_weaker", "true", "false", 0)),
    (MATRIX + POLICY.format("drift: {kernels: fail}"), MATRIX, ("policy.drift.kernels", "fail", "report", 0)),
    (MATRIX + POLICY.format("drift: {times: fail}"), MATRIX, ("policy.drift.times", "fail", "warn", 0)),
    (
        MATRIX + POLICY.format("performance: {budgets: [{of: p99, percent: 3}]}"),
        MATRIX + POLICY.format("performance: {budgets: [{of: p99, percent: 4}]}"),
        ("policy.performance.budgets of p99, all phases", "3 %", "4 %", 0),
    ),
    (
        MATRIX + POLICY.format("performance: {require: duel}"),
        MATRIX,
        ("policy.performance.require", "duel", "nothing", 0),
    ),
    (
        MATRIX,
        MATRIX + POLICY.format("performance: {evidence: either}"),
        ("policy.performance.evidence", "duel", "either", 0),
    ),
    (MATRIX + POLICY.format("waivers: {max_days: 9}"), MATRIX, ("policy.waivers.max_days", "9", "no limit", 0)),
    (MATRIX + POLICY.format("waivers: {stars: forbid}"), MATRIX, ("policy.waivers.stars", "forbid", "allow", 0)),
    (MATRIX + POLICY.format("waivers: {owners: ann}"), MATRIX, ("policy.waivers.owners", "ann", "anybody", 0)),
]


@pytest.mark.parametrize(("before", "after", "expected"), WEAKER, ids=lambda value: str(value)[:30])
def test_a_weaker_requirement_is_named_and_fails(
    store: Store, path: Path, before: str, after: str, expected: tuple[str, str, str, int]
) -> None:
    """Every case passes; exit 1 all the same, and one line says what was required then and what is required now."""
    baseline(store, path, before)
    judged = later(store, path, after)
    assert [expected] == told(judged)
    assert (1, "FAIL") == (judged.conclusion.exit_code, judged.conclusion.verdict)
    text = to_text(judged, NOW)
    assert "and its requirements are weaker than the accepted baseline's" in text.splitlines()[0]
    what, then, now, _ = expected
    assert any(line.startswith(f"WEAKER       {what}: then {then}, now {now}") for line in text.splitlines())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (MATRIX, MATRIX),
        (MATRIX, MATRIX.replace("      - 9\n", "      - 9\n      - 10\n")),
        (MATRIX, MATRIX + EXPECT.format("")),
        (MATRIX + EXPECT.format(""), MATRIX + EXPECT.format("").replace("'*'", "'toy*'")),
        (MATRIX + EXPECT.format(", fallback: record"), MATRIX + EXPECT.format(", fallback: torch-cpu-math")),
        (MATRIX + POLICY.format("timeout_s: 600"), MATRIX),
        (MATRIX, MATRIX + POLICY.format("timeout_s: 20, waivers: {max_days: 9}, drift: {times: fail}")),
        (f"{MATRIX}exclude: ['*k9*']\n", f"{MATRIX}exclude: ['*q9.k9*']\n"),
        (f"{MATRIX}exclude: ['*k9*']\n", MATRIX.replace("      - 9\n", "")),
        (MATRIX, MATRIX.replace("      - 9\n", "      - 9\n      - 10\n") + "exclude: ['*k10*']\n"),
    ],
)
def test_as_much_or_more_is_no_news(store: Store, path: Path, before: str, after: str) -> None:
    """The effect counts: another glob for the same shapes is no change, and neither is an exclusion of new ones."""
    baseline(store, path, before)
    judged = later(store, path, after)
    assert ([], 0) == (told(judged), judged.conclusion.exit_code)
    assert "do: promote" in to_text(judged, NOW).splitlines()


def test_five_hundred_cases_are_one_line(store: Store, path: Path) -> None:
    """Grouped by what is gone, and counted; the JSON names the first three."""
    sizes = "".join(f"      - {size}\n" for size in range(8, 258))
    many = MATRIX.replace("      - 8\n      - 9\n", sizes).replace("[fp32]", "[fp32, bf16]")
    baseline(store, path, many)
    judged = later(store, path, many.replace("[fp32, bf16]", "[fp32]"))
    assert [("dtype bf16", "500 cases", "none", 500)] == told(judged)
    assert 1 == sum(line.startswith("WEAKER") for line in to_text(judged, NOW).splitlines())
    (change,) = to_data(judged)["weaker"]["changes"]
    assert (500, 3) == (change["count"], len(change["first"]))
    assert len(markdown.render(judged, OutputOptions(now=NOW))) < 5000


def test_each_cause_has_its_line(store: Store, path: Path) -> None:
    """Two exclusions are two lines; where nothing is gone as a whole, the model and the phase say where to look."""
    two = MATRIX.replace("[fp32]", "[fp32, bf16]")
    baseline(store, path, two)
    judged = later(store, path, two + "exclude: ['*k8/bf16*', '*k9/fp32*']\n")
    assert [("exclude *k8/bf16*", "2 cases", "none", 2), ("exclude *k9/fp32*", "2 cases", "none", 2)] == told(judged)
    second = (
        "  - model: mate\n    geometry: {groups: [{layers: [0], heads_q: 2, heads_kv: 2, head_dim: 32, mask: full}]}\n"
    )
    both = MATRIX.replace("phases:", f"{second}phases:")
    baseline(store, path, both)
    swapped = both.replace("causal", "none").replace("mask: full", "mask: causal").replace("none", "full")
    expected = [(f"cases of {name}.tp1/prefill", "4 cases", "none", 4) for name in ("toy", "mate")]
    assert expected == told(later(store, path, swapped))


@pytest.mark.parametrize(
    ("key", "then", "now", "shown"),
    [
        ("accuracy.fp32", "fp32", "bf16", "bf16"),
        ("claims.lse.rel", "1e-05", "0.002", "0.002"),
        ("claims.deterministic", "true", "false", "false"),
        ("claims.empty_row.out", "0", "any", "any"),
        ("claims.features", "graph\nlse", "lse", "lse"),
        ("witness.may_match", "", "memcpy\n.*", "also .*, memcpy"),
        ("witness.must_match", "flash", ".+\nflash", "also .+"),
    ],
)
def test_a_card_that_promises_less(store: Store, path: Path, key: str, then: str, now: str, shown: str) -> None:
    """The run keeps what its cards promised: a later card is compared with that. The other way round is no news."""
    judged = run_of(store, path, MATRIX, 3, terms={"tiled-torch": {key: then}})
    assert accepted(store, judged, by=named("jane", "ci"), reason="r", now=NOW)
    weaker = later(store, path, terms={"tiled-torch": {key: now}})
    assert [f"card tiled-torch: {key}"] == [what for what, _, _, _ in told(weaker)]
    assert (shown, 1) == (told(weaker)[0][2], weaker.conclusion.exit_code)


def test_a_card_that_promises_more(store: Store, path: Path) -> None:
    """Tighter classes and fewer names are no news."""
    loose = {"accuracy.fp32": "bf16", "witness.may_match": "a\nb", "claims.nan": "any", "claims.features": "lse"}
    tight = {"accuracy.fp32": "fp32", "witness.may_match": "a", "claims.nan": "propagates", "claims.features": "a\nlse"}
    baseline(store, path, terms={"tiled-torch": loose})
    assert [] == told(later(store, path, terms={"tiled-torch": tight}))


def test_an_older_run_says_what_is_not_compared(store: Store, path: Path) -> None:
    """A run of before qualify noted its cards: a note, and no failure."""
    before = baseline(store, path, terms=None)
    judged = later(store, path)
    assert (None, 0) == (judged.weaker, judged.conclusion.exit_code)
    note = f"run {before.id} of an older qualify did not note what its cards promise: cards are not compared"
    assert f"note: {note}" in to_text(judged, NOW).splitlines()


def test_promises_that_an_older_run_did_not_note_are_told(store: Store, path: Path) -> None:
    """Which keys of a card are compared has grown: where the run noted only some, a note says which are not."""
    old = {"accuracy.fp32": "fp32", "claims.nan": "any"}
    new = old | {"accuracy.bf16": "bf16", "claims.masks": "causal", "jit": "never"}
    before = baseline(store, path, terms={"tiled-torch": old})
    judged = later(store, path, terms={"tiled-torch": new})
    note = (
        f"run {before.id} of an older qualify did not note all that its cards promise. Not compared: claims.masks, jit"
    )
    assert (None, 0, True) == (judged.weaker, judged.conclusion.exit_code, note in judged.notes)
    again = later(store, path, terms={"tiled-torch": old})
    assert not [note for note in again.notes if "did not note" in note]


def test_a_later_run_of_an_older_qualify_says_what_is_not_compared(store: Store, path: Path) -> None:
    """It is the one that did not note its cards, and is named; the rest is compared."""
    baseline(store, path)
    judged = later(store, path, terms=None)
    note = f"run {judged.run.id} of an older qualify did not note what its cards promise: cards are not compared"
    assert (0, True) == (judged.conclusion.exit_code, note in judged.notes)


@pytest.mark.parametrize(("state", "acceptable"), [("completed", True), ("interrupted", False)])
def test_only_a_whole_run_is_advised_as_the_next_baseline(
    store: Store, path: Path, state: str, acceptable: bool
) -> None:
    """`baseline accept` would refuse another one: nobody types a command that cannot work."""
    baseline(store, path)
    judged = later(store, path, MATRIX.replace("      - 9\n", ""), state=state)
    assert judged.weaker is not None
    assert acceptable == judged.weaker.acceptable


def test_a_claim_that_is_taken_back(store: Store, path: Path) -> None:
    """A case that ran, and that the plan refuses now, is asked no more."""
    from qualify.facts.outcome import Refused

    baseline(store, path)
    refused = Refused(by="plan", reasons=("head_dim=32 is not claimed",))
    judged = later(store, path, outcome=lambda case: refused if case.kernel == "tiled-torch" else PASSED)
    expected = ("claims of kernel tiled-torch", "2 cases", "refused: head_dim=32 is not claimed", 2)
    assert ([expected], 1) == (told(judged), judged.conclusion.exit_code)


def test_a_lower_level_is_no_verdict(store: Store, path: Path) -> None:
    """More evidence may say better: exit 5, and the command makes it."""
    baseline(store, path, level="full")
    judged = later(store, path)
    assert ([("level", "full", "smoke", 4)], 5) == (told(judged), judged.conclusion.exit_code)
    assert f"do: make evidence of level full: qualify run {path} --level full --device cpu" in to_text(judged, NOW)
    assert 0 == later(store, path, level="full").conclusion.exit_code


@pytest.mark.parametrize("select", ["*", "*/tiled-torch", "toy*"])
def test_a_waiver_of_everything_is_weaker(store: Store, path: Path, select: str) -> None:
    """One that leaves kernel or case open, and that nobody accepted with the baseline; a narrow one is usual."""
    text = f"{MATRIX}waivers: w.yaml\n"
    write_waivers(path.parent / "w.yaml")
    baseline(store, path, text)
    write_waivers(path.parent / "w.yaml", {"select": IDS[0]})
    assert [] == told(later(store, path, text, outcome=lambda case: WRONG if case.id == IDS[0] else PASSED))
    write_waivers(path.parent / "w.yaml", {"select": select})
    judged = later(store, path, text)
    assert ([(f"waiver of {select}", "none", "waives census", 0)], 1) == (told(judged), judged.conclusion.exit_code)
    assert accepted(store, judged, by=named("jane", "ci"), reason="known", now=NOW) is None
    whole = judge(store, judged.run.id, shipped_kernels(), now=NOW)
    assert accepted(store, whole, by=named("jane", "ci"), reason="known", now=NOW)
    assert [] == told(later(store, path, text))


def test_who_means_it_accepts_it(store: Store, path: Path) -> None:
    """The printed command does; the next gate is green. A policy that allows it counts once it was accepted."""
    before = baseline(store, path)
    less = MATRIX.replace("      - 9\n", "")
    judged = later(store, path, less)
    (line,) = [line for line in to_text(judged, NOW).splitlines() if "baseline accept" in line]
    reason = shlex.quote(f"weaker requirements than {before.id} in 1 point")
    command = f'qualify baseline accept {judged.run.id} --reason {reason} --by "$USER"'
    assert f"do: or, if weaker requirements are intended, accept it as the baseline: {command}" == line
    whole = judge(store, judged.run.id, shipped_kernels(), now=NOW)
    assert accepted(store, whole, by=named("jane", "ci"), reason="fewer shapes", now=NOW)
    assert 0 == later(store, path, less).conclusion.exit_code
    allowed = less + POLICY.format("forbid_weaker: false")
    switched = later(store, path, allowed)
    assert (1, "policy.forbid_weaker") == (switched.conclusion.exit_code, told(switched)[0][0])
    again = judge(store, switched.run.id, shipped_kernels(), now=NOW)
    assert accepted(store, again, by=named("jane", "ci"), reason="may shrink", now=NOW)
    free = later(store, path, allowed.replace(", torch-cpu-math", ""))
    assert (0, ["kernel torch-cpu-math"]) == (free.conclusion.exit_code, [what for what, _, _, _ in told(free)])
    assert "the policy allows that" in to_text(free, NOW)


def test_a_policy_that_forbids_it_again_counts_at_once(store: Store, path: Path) -> None:
    """The baseline allowed it: who tightens the policy and drops a kernel in one step gets no green one."""
    baseline(store, path, MATRIX + POLICY.format("forbid_weaker: false"))
    judged = later(store, path, MATRIX.replace(", torch-cpu-math", ""))
    assert (1, ["kernel torch-cpu-math"]) == (judged.conclusion.exit_code, [what for what, *_ in told(judged)])


def gathered(store: Store, path: Path, text: str) -> Judged:
    """The verdict of `gate --matrix` on the matrix as it is now."""
    path.write_text(text)
    wanted = Fresh(now=NOW, max_age=timedelta(hours=24), level="smoke")
    judged = gather(store, load_matrix(str(path)), shipped_kernels(), wanted, waivers=(), waivers_path="")
    return beside_baseline(store, judged)


def test_a_matrix_that_shrank_on_old_evidence(store: Store, path: Path) -> None:
    """The evidence is the baseline's own: only the matrix requires less. It must run as it is before it is accepted."""
    baseline(store, path)
    assert 0 == gathered(store, path, MATRIX).conclusion.exit_code
    judged = gathered(store, path, MATRIX.replace("      - 9\n", ""))
    assert ([("shape b1.q9.k9", "2 cases", "none", 2)], 1) == (told(judged), judged.conclusion.exit_code)
    lines = to_text(judged, NOW).splitlines()
    first = "do: or, if weaker requirements are intended, run the matrix as it is"
    assert f"{first}: qualify run {path} --device cpu" in lines
    assert any(line.startswith("do: then accept it as the baseline: qualify baseline accept latest ") for line in lines)


def test_a_part_that_was_selected_is_no_weaker_matrix(store: Store, path: Path) -> None:
    """A narrowed run is no verdict anyway; what it left out is no change of the matrix."""
    baseline(store, path)
    path.write_text(MATRIX)
    run = store_run(store, path, select="*k8*")
    judged = judge(store, run.id, shipped_kernels(), now=NOW, part=True)
    assert beside_baseline(store, judged).weaker is None


def test_a_canary_holds_on_it(store: Store, path: Path) -> None:
    """Its advice names the points; its level is its own, so that one of smoke may run beside a baseline at full."""
    baseline(store, path, level="full")
    judged = later(store, path, MATRIX.replace(", torch-cpu-math", ""))
    assert 2 == len(told(judged))
    (point,) = seen_of(judged, 0.1).weaker
    assert point.startswith("kernel torch-cpu-math: then 2 cases, now none")
    assert () == seen_of(later(store, path), 0.1).weaker


def test_another_device_has_another_baseline(store: Store, path: Path) -> None:
    """What is asked there is compared with what was accepted there."""
    baseline(store, path)
    stack = make_stack()
    other = replace(stack, device=replace(stack.device, name="Other CPU"))
    assert later(store, path, MATRIX.replace("      - 9\n", ""), stack=other).weaker is None


def test_every_format_says_it(store: Store, path: Path) -> None:
    """Text, JSON by its schema, Markdown, JUnit, GitHub, in-toto, the page and its twin."""
    before = baseline(store, path)
    judged = later(store, path, MATRIX.replace(", torch-cpu-math", ""))
    said = "kernel torch-cpu-math: then 2 cases, now none"
    data = json.loads(codec.to_json({"schema": "qualify.run/1", **to_data(judged)}))
    Draft7Validator(gate_schema()).validate(data)
    assert (before.id, True, 1) == (data["weaker"]["run"], data["weaker"]["forbidden"], len(data["weaker"]["changes"]))
    assert "kernel torch-cpu-math | 2 cases | none | 2 cases" in unescape(
        markdown.render(judged, OutputOptions(now=NOW))
    )
    suites = JUnitXml.fromstring(junit.render(judged, OutputOptions(now=NOW)).encode())
    cases = {case.name: case for suite in suites for case in suite}
    assert said in cases["kernel torch-cpu-math as in the baseline"].result[0].message
    errors = [line for line in github.render(judged, OutputOptions(now=NOW)).splitlines() if line.startswith("::error")]
    assert any(said in line for line in errors)
    assert said in sarif.render(judged, OutputOptions(now=NOW))
    predicate = to_statement(judged, [SUBJECT])["predicate"]
    assert "FAILED" == predicate["result"]
    assert said in predicate["configuration"][0]["annotations"]["asks_less"][0]
    context = report_context(judged.run, judged.records, judged.conclusion, Beside(weaker=judged.weaker))
    html = render_html(context)
    assert '<section id="weaker"' in html
    assert "kernel torch-cpu-math" in html
    assert '"what":"kernel torch-cpu-math"' in to_json(context)
    assert "1 requirement is weaker than in baseline run" in context.summary


def test_a_compared_baseline_is_read_once(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gate --against baseline` compares with what it read and judged: of 50,000 cases a second reading takes 2 s."""
    before = baseline(store, path)
    judged = run_of(store, path, MATRIX, 1)
    asked: list[str] = []
    records = Store.records

    def counted(self: Store, run_id: str, *more: Any, **options: Any) -> Any:
        asked.append(run_id)
        return records(self, run_id, *more, **options)

    monkeypatch.setattr(Store, "records", counted)
    compared = beside_baseline(store, compare_with(store, judged, "baseline", shipped_kernels(), now=NOW))
    assert [before.id] == asked
    assert compared.against is not None
    assert [record.case for record in judged.records] == [record.case for record in compared.against.records]


def test_a_comparison_names_the_weaker_requirements(store: Store, path: Path) -> None:
    """Every case passes, and `diff` in text, JSON and page says what is weaker; never that nothing got worse.

    The page has one row for changes that look the same, and all of them beneath.
    """
    before = run_of(store, path, MATRIX, 3).run
    judged = run_of(store, path, MATRIX.replace("      - 9\n", "") + POLICY.format("timeout_s: 600"), 1)
    against = compare_with(store, judged, before.id, shipped_kernels(), now=NOW).against
    assert against is not None
    found = against.comparison
    assert ["shape b1.q9.k9", "policy.timeout_s"] == [item["what"] for item in diff_data(found)["weaker"]]
    lines = diff_text(found).splitlines()
    at = lines.index(f"weaker: run {judged.run.id} requires less than run {before.id} in 2 points")
    assert "  policy.timeout_s: then 60, now 600" == lines[at + 2]
    only = replace(found, cases={**found.cases, "insufficient data": 0}, verdicts=())
    page = unescape(render_page("diff.html", diff_page(only)))
    assert [True, True, False] == [text in page for text in ("Weaker requirements", "b1.q9.k9", "Nothing got worse")]
    failing = tuple(
        Change(
            id=f"m/decode/b{n}/bf16/causal/k", bucket="regression", before="PASS", after="FAIL", detail=why, impact_us=n
        )
        for n, why in ((3, "new failure: budget"), (2, "new failure: budget"), (1, "new failure: budget"))
    )
    page = render_page("diff.html", diff_page(replace(found, verdicts=failing))).replace("<wbr>", "")
    first, _, rest = page.partition("All 3 changes, one by one")
    assert [1, 0, 0] == [first.count(f"m/decode/b{n}/") for n in (3, 2, 1)]
    assert [1, 1, 1] == [rest.count(f"m/decode/b{n}/") for n in (3, 2, 1)]
    same = compare_with(store, run_of(store, path, MATRIX, 0), before.id, shipped_kernels(), now=NOW).against
    assert same is not None
    assert ((), False) == (same.comparison.weaker, "weaker" in diff_text(same.comparison))
