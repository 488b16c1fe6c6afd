"""`qualify gate` and `qualify waiver check` as processes: exit codes, stdout, stderr."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_process import call
from stored_runs import IDS, MATRIX, NOW, PASSED, WRONG, store_run, write_waivers

from qualify.facts.outcome import Refused
from qualify.store.store import Store


def since(hours: float) -> timedelta:
    """An age before NOW so that the run began that many hours before the real present."""
    return NOW - datetime.now(UTC) + timedelta(hours=hours)


def today(days: int = 0) -> str:
    """A day from now."""
    return (datetime.now(UTC) + timedelta(days=days)).date().isoformat()


@pytest.fixture
def folder(tmp_path: Path, empty_sqlite: str) -> Path:
    """A folder with a matrix that names its waivers, an empty file of them, and an empty store."""
    (tmp_path / "serving.yaml").write_text(MATRIX + "waivers: waivers.yaml\n")
    write_waivers(tmp_path / "waivers.yaml")
    return tmp_path


def stored(folder: Path, outcome: Any = PASSED, hours: float = 1, **changes: Any) -> str:
    """A run in the folder's store; returns its id."""
    with Store.open(str(folder / "evidence.db")) as store:
        return store_run(store, folder / "serving.yaml", outcome, age=since(hours), **changes).id


def gate(folder: Path, *more: object) -> Any:
    """The gate in that folder."""
    return call("gate", "--db", "evidence.db", *more, cwd=folder)


def failing(case: Any) -> Any:
    """One failure among passes."""
    return WRONG if case.id == IDS[0] else PASSED


def test_a_waiver_turns_the_gate_green_without_a_new_run(folder: Path) -> None:
    """Exit 1, then a waiver in the file, then exit 0; expired, exit 1 again with file and line."""
    stored(folder, failing)
    before = gate(folder)
    assert (1, True) == (before.code, before.out.startswith("serving: not qualified ("))
    write_waivers(folder / "waivers.yaml", {"created": today(-10), "expires": today(30), "select": IDS[0]})
    after = gate(folder)
    who = f"{IDS[0]} by jane@example.com until {today(30)} (w0)"
    assert (0, f"do: promote; this accepts the waived failures: {who}") == (after.code, after.out.splitlines()[2])
    assert after.out.startswith(f"serving: qualified; waived: {who} (")
    assert "1 WAIVED" in after.out.splitlines()[0]
    data = gate(folder, "--json").data
    assert (["used"], [IDS[0]]) == ([each["state"] for each in data["waivers"]], data["waivers"][0]["waived"])
    write_waivers(folder / "waivers.yaml", {"created": today(-10), "expires": today(-1), "select": IDS[0]})
    expired = gate(folder)
    assert 1 == expired.code
    assert f"{folder}/waivers.yaml:2: waiver w0 of jane@example.com expired on {today(-1)}" in expired.out


def test_an_expired_waiver_fails_although_everything_passes(folder: Path) -> None:
    """Exit 1 in every format, each of which names its line; no baseline before it is gone."""
    stored(folder)
    assert 0 == gate(folder).code
    write_waivers(folder / "waivers.yaml", {"created": today(-10), "expires": today(-1), "select": "none*"})
    place = f"{folder}/waivers.yaml:2"
    todo = [line for line in gate(folder).out.splitlines() if line.startswith("do: ")]
    remove = f"do: {place}: waiver w0 has expired: remove it, or accept the failure again until another day"
    assert ["do: keep the release back", remove] == todo
    ended = gate(folder)
    assert (1, "serving: not qualified (") == (ended.code, ended.out[:24])
    do = f"do: {place}: waiver w0 has expired: remove it, or accept the failure again until another day"
    assert do in ended.out.splitlines()
    for form in ("json", "junit", "markdown", "github"):
        one = gate(folder, "--format", form)
        assert 1 == one.code
        assert re.search(r"waivers.yaml(:|,line=|&#58;)2", one.out), form
    accepted = call("baseline", "accept", "latest", "--by", "a", "--reason", "b", "--db", "evidence.db", cwd=folder)
    assert (1, True) == (accepted.code, f"a waiver has expired: {place}" in accepted.err)
    report = call("report", "--db", "evidence.db", cwd=folder)
    assert f"1 waiver expired ({place})" in (folder / report.out.strip()).read_text().replace("<wbr>", "")


def test_waivers_that_do_nothing_are_named(folder: Path) -> None:
    """Unused warns, passing again is flagged, and one that ends soon is announced."""
    stored(folder, failing)
    days = {"created": today(-10), "expires": today(60)}
    write_waivers(
        folder / "waivers.yaml",
        {**days, "select": "none*"},
        {**days, "select": IDS[1]},
        {**days, "select": IDS[0], "expires": today(3)},
    )
    out = gate(folder).out
    assert f"note: {folder}/waivers.yaml:2: waiver w0 covers no failure and no case that passes; remove it" in out
    assert "waiver w1 is no longer needed: 1 of its cases pass; remove it" in out
    assert f"waiver w2 of jane@example.com ends on {today(3)}: from the day after, the gate fails" in out


def test_waivers_can_be_given_and_be_absent(folder: Path) -> None:
    """--waivers FILE stands for the named file; where that is gone, nothing is waived and the text says so."""
    stored(folder, failing)
    write_waivers(folder / "other.yaml", {"created": today(-10), "expires": today(60)})
    assert 0 == gate(folder, "--waivers", "other.yaml").code
    (folder / "waivers.yaml").unlink()
    ended = gate(folder)
    assert 1 == ended.code
    assert f"note: no waiver was applied: {folder}/waivers.yaml is not here; give the file with --waivers" in ended.out
    wrong = gate(folder, "--waivers", "serving.yaml")
    assert (2, "") == (wrong.code, wrong.out)


def test_a_matrix_is_judged_on_fresh_evidence(folder: Path) -> None:
    """Exit 0 on fresh evidence, 5 on stale; --max-age moves the limit; the report of the gate shows both."""
    stored(folder, hours=30)
    stale, wide = gate(folder, "--matrix", "serving.yaml"), gate(folder, "--matrix", "serving.yaml", "--max-age", "2d")
    assert (5, 0) == (stale.code, wide.code)
    assert "serving: no verdict (" in stale.out.splitlines()[0]
    assert "do: make fresh evidence on that stack: qualify run serving.yaml" in stale.out
    stored(folder, hours=1)
    assert 0 == gate(folder, "--matrix", "serving.yaml", "--max-age", "24h").code
    assert 5 == gate(folder, "--max-age", "30m").code


def test_a_run_below_the_wanted_level_is_no_verdict(folder: Path) -> None:
    """Of one run as of a matrix: smoke is no evidence where full is wanted; a failure stays one."""
    run = stored(folder)
    assert (0, 0) == (gate(folder, "--run", run).code, gate(folder, "--level", "smoke").code)
    below = gate(folder, "--run", run, "--level", "full")
    assert (5, True) == (below.code, f"note: run {run} was made at level smoke, below full" in below.out), below
    assert "promote" not in below.out
    assert 5 == gate(folder, "--matrix", "serving.yaml", "--level", "full").code
    stored(folder, failing)
    assert 1 == gate(folder, "--level", "full").code


@pytest.mark.parametrize("wrong", [{}, {"select": "*q8*"}, {"hours": 30}, {"state": "interrupted"}])
def test_below_the_wanted_level_the_advice_makes_evidence_of_that_level(folder: Path, wrong: dict[str, Any]) -> None:
    """Whatever else is wrong with the run: a command without the level would end with a green at smoke."""
    stored(folder, **wrong)
    below = gate(folder, "--level", "full", "--max-age", "24h")
    pasted = [line for line in below.out.splitlines() if line.startswith("do: ") and "qualify" in line]
    assert (5, 1) == (below.code, len(pasted)), below.out
    assert f"qualify run {folder}/serving.yaml --level full --device cpu" in pasted[0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--run", "latest", "--matrix", "serving.yaml"], 2, "--run and --matrix: give one of them"),
        (["--stack", "here"], 2, "--stack here needs --matrix"),
        (["--matrix", "serving.yaml", "--max-age", "soon"], 2, "--max-age soon: give a number and its unit"),
        (["--matrix", "serving.yaml", "--max-age", "99999999d"], 2, "at most 3650d"),
        (["--max-age", "24", "--db", "no.db"], 2, "--max-age 24: give a number and its unit"),
        (["--matrix", "serving.yaml", "--max-age", "0h"], 2, "--max-age 0h: no evidence is so young; give a"),
        (["--matrix", "serving.yaml", "--stack", "HERE"], 2, "--stack HERE: give here, or the hex digits of a finger"),
        (["--matrix", "serving.yaml", "--stack", "ffff"], 5, "no run of serving on the stack ffff; there is one on"),
        (
            ["--matrix", "serving.yaml", "--stack", "here"],
            5,
            "no run of serving on this machine's stack. The newest is of another one (",
        ),
        (["--matrix", "smoke"], 5, "no run of smoke in evidence.db yet. Make one: qualify run smoke"),
        (["--matrix", "other.yaml"], 5, "no run of other in evidence.db yet. Make one: qualify run other.yaml"),
        (["--matrix", "nothing.yaml"], 2, "nothing.yaml: no such file"),
        (["--run", ""], 2, "--run is empty: the variable that it comes from is probably not set"),
        (["--matrix", ""], 2, "--matrix is empty"),
        (["--matrix", "serving.yaml", "--stack", ""], 2, "--stack is empty"),
        (["--max-age", ""], 2, "--max-age is empty"),
        (["--against", ""], 2, "--against is empty"),
        (["--subject", "image@sha256:" + "0" * 64], 2, "--subject needs --format in-toto"),
        (["--format", "in-toto", "--subject", "image@sha256:" + "0" * 63], 2, "give NAME@sha256:HEX with 64"),
        (["--format", "in-toto", "--subject", "image@sha256:" + "G" * 64], 2, "give NAME@sha256:HEX with 64"),
        (["--format", "in-toto", "--subject", "image:latest"], 2, "give NAME@sha256:HEX with 64"),
        (["--format", "in-toto"], 5, "has nothing that a statement could name: no image with a digest (QUALIFY_IMAGE)"),
        (["--github", "--format", "junit"], 2, "--github and --format junit: both print to stdout"),
        (["--junit", "a.xml", "--markdown", "./a.xml"], 2, "--junit and --markdown: both name a.xml"),
        (["--junit", ""], 2, "--junit is empty"),
        (["--junit", "evidence.db"], 2, "--junit evidence.db: the gate reads that file"),
        (["--junit", "evidence.db-wal"], 2, "--junit evidence.db-wal: the gate reads that file"),
        (
            ["--matrix", "serving.yaml", "--markdown", "./serving.yaml"],
            2,
            "--markdown serving.yaml: the gate reads that file",
        ),
        (["--waivers", "waivers.yaml", "--json", "waivers.yaml"], 2, "--json waivers.yaml: the gate reads that file"),
        (["--json", ""], 2, "--json is empty"),
        (["--format", "xml"], 2, "'xml' is not one of 'text', 'json', 'junit', 'sarif', 'markdown', 'github'"),
    ],
)
def test_what_the_gate_refuses(folder: Path, arguments: list[str], code: int, message: str) -> None:
    """One line on stderr, its exit code, and nothing on stdout but the annotation for GitHub.

    Where only the format is refused, a second line has the verdict.
    """
    (folder / "other.yaml").write_text(MATRIX.replace("serving", "other"))
    stored(folder)
    ended = gate(folder, *arguments)
    first, *more = ended.err.splitlines()
    verdict = "The verdict is qualified, exit 0; the gate ends with exit 5."
    assert (code, [verdict] if code == 5 and "in-toto" in arguments else []) == (ended.code, more)
    assert message in first
    assert ("--github" in arguments) == ended.out.startswith("::error ") != (not ended.out)


def test_where_every_case_is_refused_nothing_is_proven(folder: Path) -> None:
    """That is why there is no verdict; no note says it."""
    run = stored(folder, Refused(by="plan", reasons=("dtype=bf16 (it claims fp32)",)), select="*q8*")
    ended = gate(folder)
    told = "do: nothing failed, and nothing was proven: every case is refused, or beyond the claims of its card."
    assert (5, True) == (ended.code, f"{told} See why: qualify report {run} --db evidence.db" in ended.out), ended.out


def test_report_json_has_the_fields_that_the_reference_lists_and_says_what_the_gate_says(folder: Path) -> None:
    """A program may read either of the two documents of one run."""
    run = stored(folder, failing)
    assert 0 == call("report", "latest", "--db", "evidence.db", cwd=folder).code
    report = json.loads((folder / "out" / run / "report.json").read_text())
    said = gate(folder, "--json").data
    pages = (Path(__file__).parents[1] / "docs" / "reference.md").read_text()
    listed = pages.partition("\nAs `gate --json` has them:\n")[2].partition("\n\nEvery case")[0]
    alike, own = (re.findall("`([a-z_]+)`", part) for part in listed.split("\nIts own:\n"))
    assert {"schema", *alike, *own} - {"cells"} == report.keys()
    for case in report["cases"]:
        case |= {"line": case.pop("case")["line"], "ended_at": case.pop("details")["ended_at"]}
    assert [said[name] for name in alike] == [report[name] for name in alike]


def test_a_part_of_a_matrix_is_no_reason_to_promote(folder: Path) -> None:
    """A run that --select narrowed is no verdict on the matrix: the text and the exit code say so, in every format."""
    stored(folder, select="*q8*")
    ended = gate(folder)
    lines = ended.out.splitlines()
    assert 5 == ended.code
    assert lines[0].startswith("serving: no verdict, in the selected part of the matrix (")
    whole = f"qualify gate --matrix {folder}/serving.yaml"
    assert f"do: promote nothing on a part of the matrix; judge all of it: {whole} --db evidence.db" in lines
    assert [] == [line for line in lines if line.startswith("do: promote;") or line == "do: promote"]
    assert "note: the run was narrowed by --select '*q8*': what it selected passed, and the rest of the" in ended.out
    data = gate(folder, "--json").data
    assert ("INCONCLUSIVE", 5, True) == (data["verdict"], data["exit_code"], data["narrowed"])
    for form in ("junit", "markdown", "github"):
        assert 5 == gate(folder, "--format", form).code
    stated = gate(folder, "--format", "in-toto", "--subject", "image@sha256:" + "0" * 64)
    assert (5, "", True) == (stated.code, stated.out, f"Judge all of it: {whole} --format in-toto" in stated.err)


def test_a_failure_in_a_part_of_a_matrix_is_a_failure(folder: Path) -> None:
    """Exit 1: what was selected and fails is as wrong as in a whole run."""
    stored(folder, failing, select="*q8*")
    assert 1 == gate(folder).code


def test_evidence_from_the_future_is_not_believed(folder: Path) -> None:
    """A run of next year is no verdict, is not the latest, and hides no failure of today; minutes are forgiven."""
    ahead = stored(folder, hours=-24 * 300)
    for arguments in (["--run", ahead], ["--matrix", "serving.yaml"], ["--max-age", "1h"]):
        ended = gate(folder, *arguments)
        assert 5 == ended.code
        assert "dated in the future" in ended.out + ended.err
    first = gate(folder, "--run", ahead).out.splitlines()
    assert first[0].startswith("serving: no verdict, and the evidence is dated in the future (")
    assert "dated 300 d ahead of now" in first[1]
    assert any(line.startswith("do: set the clock that is wrong, then make fresh evidence: qualify") for line in first)
    real = stored(folder, failing, hours=1)
    for arguments in (["--run", "latest"], ["--matrix", "serving.yaml"], []):
        ended = gate(folder, *arguments)
        assert (1, True) == (ended.code, real in ended.out)
    assert 1 == gate(folder, "--matrix", "serving.yaml", "--max-age", "3650d").code
    soon = stored(folder, hours=0)  # it ended five minutes from now
    assert (0, True) == ((ended := gate(folder)).code, soon in ended.out)


def test_evidence_of_older_checks_is_stale(folder: Path) -> None:
    """Limits and questions have changed since: no verdict, and the command that makes one."""
    stored(folder, check_version=1)
    ended = gate(folder)
    assert (5, True) == (ended.code, "the evidence is stale" in ended.out), ended.out
    assert "the run was made with check version 1" in ended.out
    assert "serving.yaml" in ended.out.partition("do:")[2]
    assert "--fresh" in ended.out
    assert "promote" not in ended.out.partition("do:")[2]


def test_a_baseline_from_the_future_is_none(folder: Path) -> None:
    """A run that is dated ahead is not accepted; one that was is no baseline while a real one is there."""
    ahead, real = stored(folder, hours=-48), stored(folder, hours=1)

    def accept(run: str) -> Any:
        return call("baseline", "accept", run, "--by", "a", "--reason", "b", "--db", "evidence.db", cwd=folder)

    refused = accept(ahead)
    assert (5, True) == (refused.code, "it is dated in the future" in refused.err)
    assert 0 == accept(real).code
    with Store.open(str(folder / "evidence.db")) as store:
        (accepted,) = store.baselines()
        store.accept(replace(accepted, run_id=ahead, accepted_at=datetime.now(UTC) + timedelta(hours=40)))
        assert [real, ahead] == [item.run_id for item in store.baselines()]
        assert real == store.baseline("serving", accepted.variant).run_id
    listed = call("baseline", "list", "--db", "evidence.db", cwd=folder).out.splitlines()
    assert ["current", "earlier"] == [line.split()[0] for line in listed]
    compared = gate(folder, "--against", ahead)
    assert (5, True) == (compared.code, f"caveat: run {ahead} is dated in the future" in compared.out)


def check(folder: Path, *arguments: str) -> Any:
    """`qualify waiver check`."""
    return call("waiver", "check", *arguments, cwd=folder)


def test_waiver_check_of_a_file_and_of_a_matrix(folder: Path) -> None:
    """Exit 0 in force, 1 with an expired one, 2 for a wrong file; a matrix tells which match no case."""
    assert (0, "waivers.yaml: no waivers\n") == (check(folder, "waivers.yaml").code, check(folder, "waivers.yaml").out)
    days = {"created": today(-10), "expires": today(5)}
    write_waivers(folder / "waivers.yaml", days, {**days, "select": "none*"})
    text, data = check(folder, "serving.yaml"), check(folder, "serving.yaml", "--json")
    assert (0, 0, "qualify.waivers/1") == (text.code, data.code, data.data["schema"])
    assert [(4, "in force", 5), (0, "in force", 5)] == [
        (item["cases"], item["state"], item["days_left"]) for item in data.data["waivers"]
    ]
    assert "matches no case" in text.out
    assert "selects 4 cases" in text.out
    write_waivers(folder / "waivers.yaml", days, {"created": today(-20), "expires": today(-2)})
    expired = check(folder, "waivers.yaml")
    assert (1, f"EXPIRED {today(-2)}") == (expired.code, expired.out[:18])
    assert expired.out.endswith("waivers.yaml: 2 waivers, 1 expired\n")
    write_waivers(folder / "waivers.yaml", {**days, "owner": "jane\nwaivers.yaml: 0 waivers"})
    assert 2 == len(check(folder, "waivers.yaml").out.splitlines())
    write_waivers(folder / "waivers.yaml", {"owner": ""})
    wrong = check(folder, "waivers.yaml")
    assert (2, "", True) == (
        wrong.code,
        wrong.out,
        wrong.err.startswith("qualify: waivers.yaml:5:12: waivers[0].owner"),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"created": "2026-09-01", "expires": "2026-12-31"},
            "9:14: waivers[0].expires: is 2026-12-31, 121 days after created; at most 90 are allowed, until 2026-11-30",
        ),
        ({"expires": "2026-10-01"}, "9:14: waivers[0].expires: is 2026-10-01, before created = 2026-11-01"),
        (
            {"expires": "2026-02-30"},
            "9:14: waivers[0].expires: must be a day that exists (day is out of range for month)",
        ),
        ({"checks": ["cenus"]}, 'but is "cenus"; perhaps you meant census'),
        ({"checks": []}, "4:13: waivers[0].checks: must hold at least 1 value"),
        ({"link": "soon"}, "7:11: waivers[0].link: must be a URL like https://…, or owner/repository#number, but is"),
        ({"stack": {"torch": ">=two"}}, "10:22: waivers[0].stack.torch: must be a glob like 2.11.*, or a"),
        ({"onwer": "joe"}, "10:5: waivers[0].onwer: unknown key; perhaps you meant owner"),
    ],
)
def test_a_wrong_waiver_is_named_by_its_place(folder: Path, change: dict[str, Any], message: str) -> None:
    """`waiver check` and the gate say the same: exit 2, file, line and column, the value; nothing is judged."""
    stored(folder)
    write_waivers(folder / "waivers.yaml", change)
    for ended, path in ((check(folder, "waivers.yaml"), "waivers.yaml"), (gate(folder), f"{folder}/waivers.yaml")):
        assert (2, "", True) == (ended.code, ended.out, ended.err.startswith(f"qualify: {path}:"))
        assert message in ended.err


def test_waiver_check_of_what_is_none(folder: Path) -> None:
    """A missing file, a folder, a matrix without waivers, and a name that nothing has."""
    (folder / "bare.yaml").write_text(MATRIX)
    (folder / "empty.yaml").touch()
    none = check(folder, "bare.yaml")
    assert (0, "serving: no waivers\n") == (none.code, none.out)
    for target, message in (
        ("nothing.yaml", "nothing.yaml: no such file"),
        ("empty.yaml", "empty.yaml: is empty; it must hold a mapping with the keys waivers"),
        (".", "."),
        ("nothing", "no matrix is called 'nothing'"),
    ):
        ended = check(folder, target)
        assert (2, "", True) == (ended.code, ended.out, message in ended.err)


def test_the_report_shows_the_waivers(folder: Path) -> None:
    """The page has their table, and its twin their states."""
    run_id = stored(folder, failing)
    write_waivers(folder / "waivers.yaml", {"created": today(-1), "expires": today(9), "reason": "<b>soon</b>"})
    assert 0 == call("report", "--db", "evidence.db", cwd=folder).code
    page = (folder / "out" / run_id / "report.html").read_text()
    twin = json.loads((folder / "out" / run_id / "report.json").read_text())
    assert '<section id="waivers"' in page
    assert "&lt;b&gt;soon&lt;/b&gt;" in page
    assert ["used"] == [item["state"] for item in twin["waivers"]]


SPOILED = ["x", "", "/", "incidents", "a/b", "incidents/"]
"""ids that no case has"""


@pytest.mark.parametrize("name", SPOILED)
def test_an_id_that_somebody_spoiled_gives_no_verdict(folder: Path, name: str) -> None:
    """Whoever writes the store or an export can write any id: no output of the gate ends with an internal error."""
    run = stored(folder)
    with closing(sqlite3.connect(folder / "evidence.db")) as connection, connection:
        connection.execute("UPDATE cases SET case_id = ? WHERE case_id = ?", (name, IDS[0]))
    for form in ("text", "json", "junit", "sarif", "markdown", "github", "in-toto"):
        ended = gate(folder, "--run", run, "--format", form)
        assert 5 == ended.code, (form, ended.err)
        assert "internal error" not in ended.err
    for words in (("report", run), ("verify", run), ("db", "export", run), ("history", "--matrix", "serving")):
        ended = call(*words, "--db", "evidence.db", cwd=folder)
        assert "internal error" not in ended.err, words


def test_a_copy_of_a_store_in_use_promotes_no_older_run(folder: Path) -> None:
    """The file is copied without its log while a newer run has begun: there is no verdict yet, as beside the file."""
    stored(folder)
    with Store.open(str(folder / "evidence.db")) as store:
        older = store.run(store.resolve("latest"))
        store.begin(replace(older, id=f"{older.id[:-1]}x", state="running", finished_at=None))
        shutil.copy(folder / "evidence.db", folder / "copy.db")
        for name in ("copy.db", "evidence.db"):
            ended = gate(folder, "--db", name)
            assert 5 == ended.code
            first = ended.out.splitlines()[0]
            assert "the run is not finished (none of its cases is stored yet; run " in first
