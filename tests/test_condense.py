"""Whole evidence becomes the small files of docs/evidence: the same from a store, its archive and an extract."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from builders import budget_of, lse_of, make_evidence, make_statistics, make_timing, make_witness
from cli_process import Ended, server
from stored_runs import CELL, MATRIX, OPEN, WRONG, store_run

from condensing.figures import figures, worst
from condensing.files import text_of
from condensing.incidents import incidents
from condensing.runs import EXTRACT, gathered, newest
from condensing.spent import spent
from qualify.facts.outcome import Measured
from qualify.store.store import Store

ROOT = Path(__file__).resolve().parent.parent


def condense(*arguments: str, cwd: Path) -> Ended:
    """The command."""
    return server().run([*arguments], cwd, 240, script=str(ROOT / "docs" / "condense.py"))


def incident_report(run, cases, versions=("2.11.0",)):
    """What a report tells of one incident: (kernel, state) of its cases."""
    parts = [{"kind": "distribution", "name": "torch", "version": version, "digest": ""} for version in versions]
    told = [
        {"id": f"i/{kernel}", "kernel": kernel, "state": state, "why": [f"{run}: {state}"]} for kernel, state in cases
    ]
    return {
        "run": run,
        "stack": {"device": {"name": "H100"}, "components": parts},
        "parameters": {"level": "full", "kernel": "", "qualify_version": "0"},
        "incidents": [{"incident": "flash-attention-1", "cases": told}],
    }


@pytest.mark.parametrize(
    ("later", "state", "kernels"),
    [
        ([("a", "not reproduced")], "not reproduced", ["a", "b"]),
        ([("a", "open")], "reproduced", ["a"]),
        ([("a", "not applicable")], "reproduced", ["a"]),
        ([("b", "fails otherwise")], "reproduced", ["a"]),
        ([("c", "not reproduced")], "reproduced", ["a"]),
    ],
    ids=["ran again", "left open", "refused since", "another case", "a new case"],
)
def test_the_last_report_that_ran_an_incident_counts(later, state, kernels):
    """A run that was cut off before a case, or cannot run it any more, leaves the earlier result standing."""
    first = incident_report("first", [("a", "reproduced"), ("b", "not reproduced")])
    evidence = incidents([first, incident_report("second", later)])
    found = evidence["incidents"]["flash-attention-1"]
    assert (state, kernels) == (found["state"], found["kernels"])
    assert "first, second" == evidence["run"]


@pytest.mark.parametrize(
    ("later", "state"),
    [
        ([("a", "not reproduced")], "not reproduced"),
        ([("a", "not reproduced"), ("b", "open")], "reproduced"),
        ([("a", "not applicable")], "reproduced"),
    ],
    ids=["to the end", "cut off", "not run"],
)
def test_evidence_stands_until_an_incident_is_replayed_to_the_end(later, state):
    """One incident can be run again alone; the others stay as they are."""
    first = incident_report("first", [("a", "reproduced")])
    first["incidents"].append({**first["incidents"][0], "incident": "flash-attention-2"})
    evidence = incidents([first])
    after = incidents([evidence, incident_report("second", later)])
    assert state == after["incidents"]["flash-attention-1"]["state"]
    assert evidence["incidents"]["flash-attention-2"] == after["incidents"]["flash-attention-2"]
    assert "first, second" == after["run"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameters": {"level": "smoke", "kernel": ""}}, "level"),
        ({"parameters": {"level": "full", "kernel": "torch-*"}}, "kernel"),
        ({"stack": incident_report("", [], ["2.13.0"])["stack"]}, "stack"),
        ({"stack": incident_report("", [])["stack"] | {"device": {"name": "A100"}}}, "stack"),
    ],
    ids=["other level", "some kernels", "other versions", "other device"],
)
def test_evidence_takes_only_what_is_like_it(changes, message):
    """Whole incidents of the same level and stack."""
    evidence = incidents([incident_report("first", [("a", "reproduced")])])
    later = incident_report("second", [("a", "not reproduced")]) | changes
    with pytest.raises(SystemExit, match=message):
        incidents([evidence, later])


def test_evidence_comes_before_the_reports():
    """It is what they change."""
    report = incident_report("first", [("a", "reproduced")])
    evidence = incidents([report])
    for wrong in ([evidence], [report, evidence]):
        with pytest.raises(SystemExit, match="comes first"):
            incidents(wrong)


def test_incidents_of_two_stacks_are_not_mixed():
    """Evidence is about one stack."""
    reports = [incident_report(version, [("a", "reproduced")], [version]) for version in ("2.11.0", "2.13.0")]
    with pytest.raises(SystemExit, match="several stacks"):
        incidents(reports)


SLOW, FAST = make_timing(100.0), make_timing(80.0)


def measured(case):
    """A case of 8 tokens fails; of the others one kernel has a slow and a fast result, and one an infinite error."""
    if "q8." in case.id and case.kernel == "torch-cpu-math":
        return WRONG
    lse_rel = float("inf") if case.kernel == "torch-cpu-math" else 8e-7
    statistics = (make_statistics(E=0.5), make_statistics("peaked", E=0.7, lse_rel=lse_rel))
    witness = make_witness("proven", "void flash::fwd<64>(Params)")
    timing = SLOW if "q8." in case.id else FAST
    said = [say(it) for it in statistics for say in (budget_of, lse_of)]
    evidence = replace(
        make_evidence(*said, witness=witness),
        statistics=statistics,
        timing=timing,
        wall_s=0.25,
    )
    return Measured(evidence=replace(evidence, first_call_us=2e6))


@pytest.fixture
def stored(tmp_path: Path) -> tuple[str, str]:
    """A store with an older run of four cases that are open, and a newer one; its address, and the newer run's id."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    address = str(tmp_path / "evidence.db")
    with Store.open(address) as store:
        store_run(store, tmp_path / "serving.yaml", OPEN, age=timedelta(hours=2))
        return address, store_run(store, tmp_path / "serving.yaml", measured).id


def test_figures_of_a_run(stored):
    """Every figure is that of the newest results, counted by hand."""
    address, run = stored
    found = figures(gathered([address], [], []))
    assert [run] == [each["run"] for each in found["runs"]]
    assert {"PASS": 3, "FAIL": 1} == {k: v for k, v in found["runs"][0]["counts"]["verdicts"].items() if v}
    assert [found["runs"][0]["stack"]] == list(found["stacks"])
    assert "uuid" not in found["stacks"][found["runs"][0]["stack"]]["device"]
    assert {"cases": 2, "wall_s": 0.5, "first_call_s": 4.0} == found["runs"][0]["spent"]["tiled-torch"]
    own, other = found["measured"]
    share = abs(make_statistics().beta) / make_statistics().beta_limit
    assert {
        "kernel": "tiled-torch",
        "phase": "prefill",
        "cases": 2,
        "launched": [("flash::fwd", "")],
        "E": [0.7],
        "R": [1.7],
        "G": [1.2],
        "beta_share": [share],
        "lse_rel": [8e-7],
        "latency_us": [80.0, 100.0],
        "ceiling_share": [(50 / 80 + 50 / 100) / 2, 50 / 80],
    } == own
    assert ("torch-cpu-math", [None]) == (other["kernel"], other["lse_rel"])
    assert {CELL.format(8): ["tiled-torch"], CELL.format(9): ["tiled-torch", "torch-cpu-math"]} == found["passed"]
    failed = f"{CELL.format(8)}/torch-cpu-math"
    assert [failed] == list(found["failed"])
    assert "row 3 sees key 9" in found["failed"][failed]


def test_the_archive_gives_the_same_file(stored, tmp_path):
    """Runs that were exported and imported into another store are condensed to the same bytes, by the command too."""
    address, run = stored
    kept = text_of(figures(gathered([address], [run], [])))
    other = str(tmp_path / "other.db")
    with Store.open(address, create=False) as store, Store.open(other) as archive:
        store.export_run(run, tmp_path / "run.gz")
        archive.import_run(tmp_path / "run.gz")
    out = tmp_path / "figures.json"
    done = condense("runs", "--db", other, "--out", str(out), cwd=tmp_path)
    assert (0, "") == (done.code, done.err)
    assert kept == out.read_text()
    assert f"{'tiled-torch':24}     2 cases     0.5 s, first calls    4.0 s" in spent(json.loads(kept), run)


def test_an_extract_gives_the_same_file(stored, tmp_path):
    """The format of the runs that were never exported is read as well; another file is named."""
    address, run = stored
    runs = gathered([address], [run], [])
    extract = tmp_path / "extract.json"
    extract.write_text(json.dumps({"schema": EXTRACT, "runs": runs}))
    assert text_of(figures(runs)) == text_of(figures(gathered([], [], [extract])))
    extract.write_text(json.dumps({"schema": "qualify.report/1", "runs": runs}))
    with pytest.raises(SystemExit, match=r"extract.json: no extract \(qualify.evidence/1\)"):
        gathered([], [], [extract])


def test_what_is_not_there_is_named(stored):
    """A run that no store has, and one that a file of figures does not have."""
    address, run = stored
    with pytest.raises(SystemExit, match=r"no such run in .*evidence.db: gone"):
        gathered([address], [run, "gone"], [])
    with pytest.raises(SystemExit, match=f"no run gone there. It has: {run}"):
        spent(figures(gathered([address], [], [])), "gone")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "--extract", "none.json", "--out", "x.json"], "none.json: No such file or directory. The name is"),
        (["runs", "--db", "none.db", "--out", "x.json"], "none.db"),
        (["runs", "--out", "x.json"], "name the evidence with --db or --extract"),
        (["incidents", "x", "text.json"], "text.json: it is no JSON"),
        (["spent", "run", "none.json"], "none.json: No such file"),
    ],
    ids=["no extract", "no store", "no evidence", "no JSON", "no figures"],
)
def test_bad_input_is_one_message(arguments, message, tmp_path):
    """Nothing is written, and no traceback is shown."""
    (tmp_path / "text.json").write_text("notes of somebody")
    done = condense(*arguments, cwd=tmp_path)
    assert done.code in {1, 2}
    assert message in done.err
    assert "Traceback" not in done.err
    assert ["text.json"] == [path.name for path in tmp_path.iterdir()]


def test_the_newest_result_of_a_matrix_and_level_counts():
    """A case of another level is another result; a run that has no case left is left out."""
    runs = [
        {"run": name, "matrix": "m", "level": level, "cases": [{"id": case} for case in cases]}
        for name, level, cases in (("a", "smoke", "x"), ("b", "full", "x"), ("c", "smoke", "xy"), ("d", "smoke", "y"))
    ]
    kept = {run["run"]: [case["id"] for case in run["cases"]] for run in newest(runs)}
    assert {"b": ["x"], "c": ["x"], "d": ["y"]} == kept


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([1.0, 3.0, 2.0], [3.0]),
        ([1.0, None], [None]),
        ([float("nan"), 1.0], [None]),
        ([float("inf")], [None]),
    ],
)
def test_the_worst_value_is_never_hidden(values, expected):
    """A NaN or an infinity is worse than every number."""
    assert expected == worst(values)


def test_a_file_changes_by_lines():
    """Each entry is a line, numbers are short, and what JSON does not know is null."""
    data = {"schema": "s", "rows": [{"a": 1 / 3, "b": [float("nan")]}], "cells": {"x": ("k",)}, "none": {}}
    lines = ['"schema": "s",', '"rows": [', '{"a":0.33333333,"b":[null]}', "],", '"cells": {', '"x": ["k"]', "},"]
    assert ["{", *lines, '"none": {}', "}"] == text_of(data).splitlines()
    assert json.loads(text_of(data))["rows"] == [{"a": 0.33333333, "b": [None]}]


def test_whole_evidence_is_not_in_git():
    """The folder holds what the documents show: below 1 MB, and no extract; README.md names each of its files."""
    files = sorted((ROOT / "docs" / "evidence").glob("*.json"))
    assert sum(path.stat().st_size for path in files) <= 1_000_000
    assert [] == [path.name for path in files if f'"{EXTRACT}"' in path.read_text()[:100]]
    named = (ROOT / "docs" / "evidence" / "README.md").read_text()
    assert [] == [path.name for path in files if path.name not in named and not path.name.startswith("incidents-")]
