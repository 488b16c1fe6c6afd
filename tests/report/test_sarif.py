"""The gate's SARIF: valid, the same failure always the same result, and every result on the line that asked for it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_finding, make_witness
from jsonschema import Draft4Validator
from stored_runs import IDS, MATRIX, NOW, OPEN, PASSED, WRONG, make_stack, shipped_kernels, store_run, write_waivers

from qualify.facts.checks import FINDINGS
from qualify.facts.outcome import Crashed, Measured, NotRun, Refused, Substituted, TimedOut
from qualify.judge.judged import Judged, judge
from qualify.report.formats.interface import OutputOptions
from qualify.report.formats.sarif import FINGERPRINT, MOST, OTHERS, render
from qualify.store.store import Store

SCHEMA = json.loads(Path(__file__).with_name("sarif-2.1.0-rtm.5.json").read_text())
"""OASIS' schema of SARIF 2.1.0, as the npm package @microsoft/jest-sarif 1.0.0-beta.0 (MIT) carries it"""
CRASHED = Crashed(stage="call", error="SIGSEGV", log="", attempt=1)
HOSTILE = ("[x](http://evil)", "nul\x00esc\x1b[31m surrogate\udcff bom\ufffe", "{0} 100% ::error::x", "é" * 3000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The matrix, which names its waivers."""
    (tmp_path / "serving.yaml").write_text(MATRIX + "waivers: waivers.yaml\n")
    write_waivers(tmp_path / "waivers.yaml")
    return tmp_path / "serving.yaml"


def judged_run(store: Store, path: Path, outcome: Any = PASSED, **changes: Any) -> Judged:
    """A stored run, judged at NOW."""
    return judge(store, store_run(store, path, outcome, **changes).id, shipped_kernels(), now=NOW)


def every(case: Any) -> Any:
    """One case of each kind: failed, inconclusive, crashed, passed."""
    return dict(zip(IDS, (WRONG, OPEN, CRASHED, PASSED), strict=True))[case.id]


def log_of(judged: Judged, workspace: Path | None = None) -> Any:
    """The one run of a valid log."""
    data = json.loads(render(judged, OutputOptions(now=NOW, workspace=workspace)))
    assert [] == [error.message for error in Draft4Validator(SCHEMA).iter_errors(data)]
    (run,) = data["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    return run


def fingerprints(judged: Judged) -> set[str]:
    """Of all results, each once."""
    found = [result["partialFingerprints"][FINGERPRINT] for result in log_of(judged)["results"]]
    assert len(found) == len(set(found))
    return set(found)


def place(result: Any) -> tuple[str, int]:
    """File and line of a result."""
    physical = result["locations"][0]["physicalLocation"]
    return physical["artifactLocation"]["uri"], physical["region"]["startLine"]


def test_the_schema_refuses_what_is_none(store: Store, path: Path) -> None:
    """It is the real one: a result without a message is an error."""
    data = json.loads(render(judged_run(store, path, WRONG), OutputOptions(now=NOW)))
    del data["runs"][0]["results"][0]["message"]
    assert [] != list(Draft4Validator(SCHEMA).iter_errors(data))


def test_a_qualified_run_has_no_result(store: Store, path: Path) -> None:
    """Nothing to look at: then code scanning closes what was open."""
    run = log_of(judged_run(store, path))
    assert ([], 0, True) == (
        run["results"],
        run["invocations"][0]["exitCode"],
        run["invocations"][0]["executionSuccessful"],
    )


def test_results_have_rule_level_and_line(store: Store, path: Path) -> None:
    """A failure is an error, an open end a warning, and a waived failure is suppressed by its waiver's line."""
    write_waivers(path.parent / "waivers.yaml", {"select": IDS[2], "checks": ["crash"]})
    run = log_of(judged_run(store, path, every), path.parent)
    rules = [result["ruleId"] for result in run["results"] if result["ruleId"] != "shape"]
    assert ["census", "census", "crash"] == rules
    results = {result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"]: result for result in run["results"]}
    assert ["error", "warning", "error"] == [results[name]["level"] for name in IDS[:3]]
    assert IDS[3] not in results
    assert "row 3 sees key 9" in results[IDS[0]]["message"]["text"]
    lines = MATRIX.splitlines()
    assert ["serving.yaml"] * 3 == [place(results[name])[0] for name in IDS[:3]]
    assert ["      - 8", "      - 8", "      - 9"] == [lines[place(results[name])[1] - 1] for name in IDS[:3]]
    (suppression,) = results[IDS[2]]["suppressions"]
    assert ("external", "accepted") == (suppression["kind"], suppression["status"])
    assert "waiver w0 of jane@example.com until 2026-12-31" in suppression["justification"]
    assert "waivers.yaml" == suppression["location"]["physicalLocation"]["artifactLocation"]["uri"]
    assert [] == [name for name in IDS[:2] if "suppressions" in results[name]]


def test_the_same_failure_is_the_same_result(store: Store, tmp_path: Path) -> None:
    """Another run, stack, machine, folder, place in the file and number in the message change no fingerprint."""

    def failing(text: str) -> Any:
        wrong = Measured(evidence=make_evidence(make_finding("fail", text)))
        return lambda case: {IDS[0]: wrong, IDS[2]: CRASHED}.get(case.id, PASSED)

    first, second = tmp_path / "here" / "serving.yaml", tmp_path / "elsewhere" / "deep" / "serving.yaml"
    for file, before in ((first, ""), (second, "# one\n# two\n")):
        file.parent.mkdir(parents=True)
        file.write_text(before + MATRIX)
    one = judged_run(store, first, failing("row 3 sees key 9"))
    stack = make_stack(torch="2.12.0")
    stack = replace(stack, device=replace(stack.device, name="Other CPU", uuid="cpu-7"))
    other = judged_run(store, second, failing("row 5 sees key 11"), age=timedelta(hours=30), stack=stack)
    assert 2 == len(fingerprints(one))
    assert fingerprints(one) == fingerprints(other)
    assert [8, 11] != sorted(place(result)[1] for result in log_of(other)["results"])


def test_another_failure_is_another_result(store: Store, path: Path) -> None:
    """Another case, another check, another matrix."""
    seen: list[str] = []
    for name, outcome in ((IDS[0], WRONG), (IDS[1], WRONG), (IDS[0], CRASHED)):
        judged = judged_run(
            store, path, lambda case, name=name, outcome=outcome: outcome if case.id == name else PASSED
        )
        seen += fingerprints(judged)
    path.write_text(path.read_text().replace("matrix: serving", "matrix: other"))
    seen += fingerprints(judged_run(store, path, lambda case: WRONG if case.id == IDS[0] else PASSED))
    assert 4 == len(seen) == len(set(seen))


@pytest.mark.parametrize(
    ("outcome", "rule"),
    [
        (TimedOut(stage="call", limit_s=60, attempt=1), "hang"),
        (Refused(by="library", reasons=("head_dim",)), "refusal"),
        (NotRun(reason="never made"), "not_run"),
        (Substituted(evidence=make_evidence(witness=make_witness("substituted"))), "substitution"),
        (Measured(evidence=make_evidence(witness=make_witness("unproven"))), "unproven"),
    ],
)
def test_every_bad_end_has_its_rule(store: Store, path: Path, outcome: Any, rule: str) -> None:
    """What is wrong beside the checks is named, one result for the case."""
    run = log_of(judged_run(store, path, lambda case: outcome if case.id == IDS[0] else PASSED))
    assert [rule] == [result["ruleId"] for result in run["results"] if IDS[0] in result["message"]["text"]]


def test_rules_come_from_the_table_of_checks(store: Store, path: Path) -> None:
    """Every finding that may fail is a rule, once, with the question that its check asks."""
    rules = [rule["id"] for rule in log_of(judged_run(store, path))["tool"]["driver"]["rules"]]
    assert set(FINDINGS) | set(OTHERS) == set(rules)
    assert len(rules) == len(set(rules))


def test_no_verdict_is_a_result(store: Store, path: Path) -> None:
    """Every case passed, and the run was interrupted: that must not close what was open."""
    run = log_of(judged_run(store, path, state="interrupted"))
    assert [("verdict", "warning")] == [(result["ruleId"], result["level"]) for result in run["results"]]


def test_an_expired_waiver_is_a_result_on_its_line(store: Store, path: Path) -> None:
    """Its owner sees it in the file of waivers."""
    write_waivers(path.parent / "waivers.yaml", {"created": "2026-09-01", "expires": "2026-10-01"})
    run = log_of(judged_run(store, path), path.parent)
    assert [("waiver", "error", ("waivers.yaml", 2))] == [
        (result["ruleId"], result["level"], place(result)) for result in run["results"]
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_names_of_others_are_text(store: Store, path: Path, text: str) -> None:
    """No link, no control character, no endless message; the file outside of the checkout has a URI."""
    outcome = Measured(evidence=make_evidence(make_finding("fail", text)))
    run = log_of(judged_run(store, path, outcome), Path("/nowhere"))
    for result in run["results"]:
        message = result["message"]["text"]
        assert len(message) <= 1000
        assert [] == re.findall(r"\]\(|[\r\n\ud800-\udfff]", message)
        assert place(result)[0].startswith("file:///")


def test_no_more_results_than_github_takes(store: Store, path: Path) -> None:
    """The worst stay, and the log says how many are missing."""
    judged = judged_run(store, path, WRONG)
    record, item = judged.records[0], judged.conclusion.judgements[0]
    cases = [replace(record.case, id=f"toy/prefill/{number}/fp32/causal/k") for number in range(MOST + 7)]
    many = replace(
        judged,
        records=[replace(record, case=case) for case in cases],
        conclusion=replace(
            judged.conclusion,
            cells=(),
            judgements=tuple(replace(item, case_id=case.id) for case in cases),
        ),
    )
    run = json.loads(render(many, OutputOptions(now=NOW)))["runs"][0]
    assert MOST == len(run["results"])
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"].startswith("7 more results do not fit here")
