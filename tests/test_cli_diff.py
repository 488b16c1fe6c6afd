"""`qualify baseline`, `diff`, `bisect` and `gate --against` as processes, on real stores."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_timing, make_witness
from cli_process import call
from stored_runs import IDS, MATRIX, NOW, PASSED, WRONG, make_run, make_stack, store_run, write_waivers

from qualify.facts.outcome import Measured, NotRun, Refused
from qualify.store.store import Store
from qualify.verdict.origin import taken_over

EVIL = "void k<a::b>\n::error::x ]]>%0A|`<script>alert(1)</script>"
NEW = make_stack(torch=f"2.12.0:{'b' * 64}", triton="3.7.0", vllm="0.24.0")


@pytest.fixture
def folder(tmp_path: Path, empty_sqlite: str) -> Path:
    """A folder with a matrix and an empty store."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path


def stored(folder: Path, outcome: Any = PASSED, hours: float = 1, **changes: Any) -> str:
    """A run in the folder's store that began that many hours before the real present; returns its id."""
    age = NOW - datetime.now(UTC) + timedelta(hours=hours)
    with Store.open(str(folder / "evidence.db")) as store:
        return store_run(store, folder / "serving.yaml", outcome, age=age, **changes).id


def ask(folder: Path, *arguments: object) -> Any:
    """A command on that store."""
    return call(*arguments, "--db", "evidence.db", cwd=folder)


def accept(folder: Path, run: str, *more: str) -> Any:
    """`baseline accept`."""
    return ask(folder, "baseline", "accept", run, "--by", "jane", "--reason", "release 7", *more)


def failing(case: Any) -> Any:
    """One failure among passes."""
    return WRONG if case.id == IDS[0] else PASSED


def other_kernel(name: str) -> Measured:
    """A case that passed with a kernel of that name."""
    evidence = make_evidence()
    return Measured(evidence=replace(evidence, witness=make_witness("proven", name)))


def test_a_run_that_qualified_becomes_the_baseline(folder: Path) -> None:
    """Accepted once, listed, shown; a second one is current and the first stays."""
    first, second = stored(folder, hours=3), stored(folder, hours=2)
    done = accept(folder, first)
    assert (0, "") == (done.code, done.err)
    assert done.out.startswith(f"current  serving on Test CPU: run {first}, accepted by jane (unproven) on ")
    again = accept(folder, first)
    assert (2, True) == (again.code, "is the baseline of serving on Test CPU since" in again.err)
    assert 0 == accept(folder, second).code
    listed = ask(folder, "baseline", "list", "--json").data["baselines"]
    assert [(second, True), (first, False)] == [(item["run"], item["current"]) for item in listed]
    shown = ask(folder, "baseline", "show", "serving")
    assert (0, True) == (shown.code, f"run {second}, accepted by jane (unproven)" in shown.out.splitlines()[0])
    assert "serving: qualified (" in shown.out
    assert ["PASS"] == [it["verdict"] for it in ask(folder, "baseline", "show", "serving", "--json").data["baselines"]]


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"outcome": failing}, 1, "a case or a production shape fails, and no waiver accepts it"),
        ({"outcome": NotRun(reason="x")}, 5, "not everything was decided"),
        ({"state": "interrupted"}, 5, "the run is interrupted"),
        ({"state": "running"}, 5, "the run is not finished"),
        ({"select": "*q8*"}, 5, "the run was narrowed by --select or --kernel"),
        ({"check_version": 1}, 5, "it was made with check version 1"),
    ],
)
def test_what_cannot_become_a_baseline(folder: Path, changes: Any, code: int, message: str) -> None:
    """The exit code is that of its verdict, or 5; nothing is stored."""
    run = stored(folder, **changes)
    ended = accept(folder, run)
    assert (code, "", True) == (ended.code, ended.out, message in ended.err)
    assert "no baseline\n" == ask(folder, "baseline", "list").out


def test_a_waived_failure_can_be_accepted(folder: Path) -> None:
    """Somebody answers for it already."""
    run = stored(folder, failing)
    today = datetime.now(UTC).date()
    write_waivers(
        folder / "known.yaml", {"created": str(today), "expires": str(today + timedelta(days=9)), "select": IDS[0]}
    )
    assert 1 == accept(folder, run).code
    assert 0 == accept(folder, run, "--waivers", "known.yaml").code


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["baseline", "show", "serving"],
            5,
            "has no baseline of any matrix. If its last whole run qualifies, accept it: qualify baseline accept ",
        ),
        (["gate", "--against", "baseline"], 5, "can become the first: qualify baseline accept "),
        (["diff", "baseline"], 5, "no baseline of serving on Test CPU"),
        (["diff", "baseline:main"], 5, "no baseline named main of serving on Test CPU"),
        (["diff", "none"], 2, "no run 'none' in evidence.db"),
        (["diff", "latest", "baseline"], 2, "give baseline first, then the run"),
        (["bisect", "latest", "latest"], 2, "add --plan, and it lists the stacks to test"),
    ],
)
def test_what_is_not_there(folder: Path, arguments: list[str], code: int, message: str) -> None:
    """One line on stderr, and its exit code."""
    stored(folder)
    ended = ask(folder, *arguments)
    assert (code, "", 1, True) == (ended.code, ended.out, len(ended.err.splitlines()), message in ended.err)


TAKE_A_RUN = {
    "gate": ("gate", "--run"),
    "against": ("gate", "--against"),
    "diff": ("diff",),
    "diff to": ("diff", "latest"),
    "bisect": ("bisect", "--plan", "latest"),
    "accept": ("baseline", "accept", "--by", "jane", "--reason", "x"),
    "report": ("report",),
    "export": ("db", "export", "--out", "x.gz"),
}


@pytest.mark.parametrize("command", TAKE_A_RUN.values(), ids=TAKE_A_RUN)
def test_a_run_that_is_unknown_or_means_several(folder: Path, command: tuple[str, ...]) -> None:
    """Exit 2, with the runs that may be meant; nothing is written."""
    stored(folder, hours=2)
    stored(folder, hours=1)
    shared = f"{datetime.now(UTC):%Y}"
    for asked, message in (("nonsense", "no run 'nonsense' in evidence.db"), (shared, "may be any of 2: ")):
        ended = ask(folder, *command, asked)
        assert (2, "", 1) == (ended.code, ended.out, len(ended.err.splitlines()))
        assert message in ended.err
    assert {"evidence.db", "serving.yaml"} == {path.name for path in folder.iterdir()}


def test_a_compared_run_that_contradicts_itself_is_named(folder: Path) -> None:
    """Somebody edited a case of it: what did not get worse since then proves nothing."""
    first = stored(folder, hours=3)
    second = stored(folder, Measured(evidence=replace(make_evidence(), timing=make_timing(50.0))))
    with closing(sqlite3.connect(folder / "evidence.db")) as database, database:
        case = "select key from cases where run_id = ? and case_id = ?"
        database.execute(f"update outcomes set latency_us = 1 where case_key = ({case})", (second, IDS[0]))
    caveat = f"run {second} contradicts itself: {IDS[0]}: the latency is 1 µs, and the median of its samples 50 µs"
    assert f"caveat: {caveat}" in ask(folder, "diff", first, second).out.splitlines()
    blamed = ask(folder, "bisect", first, second, "--plan").out.splitlines()
    unknown = "nothing is known to have got worse, and 1 case is not decided: look at the caveats and at the changes"
    assert (f"caveat: {caveat}", f"{unknown}: qualify diff {first} {second} --db evidence.db") == (*blamed[-2:],)


def test_a_compared_run_of_the_future_is_named(folder: Path) -> None:
    """A clock was wrong, so nobody knows which run came first: `diff` and `bisect` say so."""
    first, second = stored(folder, hours=3), stored(folder, hours=-3)
    (caveat,) = ask(folder, "diff", first, second, "--json").data["caveats"]
    assert caveat.startswith("the evidence is dated ")
    assert [caveat.split("UTC")[0]] == [
        told.split("UTC")[0] for told in ask(folder, "bisect", first, second, "--plan", "--json").data["caveats"]
    ]


def test_runs_of_two_matrices(folder: Path) -> None:
    """They can be compared, with a caveat, in the cases that both have; a baseline of one is none of the other."""
    first = stored(folder, hours=3)
    assert 0 == accept(folder, first).code
    (folder / "serving.yaml").write_text(MATRIX.replace("matrix: serving", "matrix: other").replace("- 9", "- 10"))
    second = stored(folder, failing, hours=1)
    caveat = "the runs are of two matrices, serving and other: only cases with equal ids are compared"
    text = ask(folder, "diff", first, second)
    assert (0, f"caveat: {caveat}") == (text.code, text.out.splitlines()[1])
    data = ask(folder, "diff", first, second, "--json").data
    assert caveat in data["caveats"]
    assert {(IDS[0], "regression")} == {
        (item["id"], item["bucket"]) for item in data["verdicts"] if "absent" not in (item["from"], item["to"])
    }
    none = ask(folder, "gate", "--against", "baseline")
    assert (5, True) == (none.code, "no baseline of other on Test CPU" in none.err)
    assert caveat in ask(folder, "gate", "--against", first).out
    shown = ask(folder, "baseline", "show", "other")
    assert (5, True) == (
        shown.code,
        "no baseline of other in evidence.db, which has one of serving on Test CPU. If its" in shown.err,
    )
    listed = [ask(folder, "baseline", "list", "--matrix", name).out for name in ("other", "serving")]
    assert ("no baseline\n", "current  serving") == (listed[0], listed[1][:16])


def test_the_json_names_the_page_beside_it(two: tuple[Path, str, str]) -> None:
    """With --out and --json: the path of the page, and else what its twin holds."""
    folder, before, after = two
    data = ask(folder, "diff", before, after, "--out", "pages", "--json").data
    twin = json.loads((folder / "pages" / f"{before}..{after}" / "diff.json").read_text())
    assert str(Path("pages") / f"{before}..{after}" / "diff.html") == data.pop("report")
    assert data == twin


def test_everything_on_both_databases(address: str, folder: Path) -> None:
    """Accept, list, show, judge against it, compare, blame, and prune what nobody accepted."""

    def on(*arguments: object) -> Any:
        ended = call(*arguments, "--db", address, "--json", cwd=folder)
        assert "" == ended.err or arguments[:2] == ("db", "prune")
        return ended

    with Store.open(address) as store:
        began = NOW - datetime.now(UTC)
        path = folder / "serving.yaml"
        old = make_stack(vllm="0.23.0")
        stray = store_run(store, path, age=began + timedelta(days=3), stack=old).id
        before = store_run(store, path, age=began + timedelta(days=2), stack=old).id
        after = store_run(store, path, changed, age=began + timedelta(hours=1), stack=NEW).id
    assert before == on("baseline", "accept", before, "--by", "jane", "--reason", "release 7").data["run"]
    assert [(before, True)] == [(it["run"], it["current"]) for it in on("baseline", "list").data["baselines"]]
    assert ["PASS"] == [item["verdict"] for item in on("baseline", "show", "serving").data["baselines"]]
    gate = on("gate", "--matrix", "serving.yaml", "--against", "baseline")
    assert (1, before, [IDS[0]]) == (
        gate.code,
        gate.data["against"]["run"],
        [item["id"] for item in gate.data["against"]["verdicts"]],
    )
    diff = on("diff", "baseline", after).data
    assert (1, 1) == (diff["buckets"]["regression"], diff["buckets"]["suspicious"])
    assert ["torch", "vllm"] == on("bisect", before, after, "--plan").data["candidates"]
    pruned = on("db", "prune", "--keep-days", "1", "--yes").data
    assert ([stray], [before]) == (pruned["removed"], pruned["held"])


def test_an_empty_name_is_refused(folder: Path) -> None:
    """It stays with the baseline for ever."""
    ended = ask(folder, "baseline", "accept", stored(folder), "--by", " ", "--reason", "x")
    assert (2, True) == (ended.code, "empty" in ended.err), ended.err


def changed(case: Any) -> Any:
    """A new failure, a fixed cell (of what failed before), another kernel, and one unchanged."""
    return {IDS[0]: WRONG, IDS[2]: other_kernel(EVIL)}.get(case.id, PASSED)


@pytest.fixture
def two(folder: Path) -> tuple[Path, str, str]:
    """A baseline, and a later run on another stack."""
    before = stored(folder, hours=5, stack=make_stack(vllm="0.23.0"))
    assert 0 == accept(folder, before).code
    return folder, before, stored(folder, changed, hours=1, stack=NEW)


def test_the_gate_compares_with_the_baseline(two: tuple[Path, str, str]) -> None:
    """New failures, changed kernels, and the stack that changed; what to do names the way back."""
    folder, before, after = two
    ended = ask(folder, "gate", "--against", "baseline")
    lines = ended.out.splitlines()
    assert 1 == ended.code
    assert lines[0].startswith("serving: not qualified (")
    assert f"against: run {before}, accepted by jane (unproven) on {datetime.now(UTC):%Y-%m-%d}: " in lines[2]
    assert lines[2].endswith(
        "verdicts 1 regression; kernels 1 suspicious; numbers unchanged; times unchanged; bits unchanged"
    )
    assert "changed: torch 2.11.0 → 2.12.0, triton 3.6.0 → 3.7.0, vllm 0.23.0 → 0.24.0" == lines[3]
    assert f"do: find the component to blame: qualify bisect {before} {after} --plan --db evidence.db" in lines
    whole = ask(folder, "gate", "--against", "baseline", "--json").data
    assert [line.removeprefix("do: ") for line in lines if line.startswith("do: ")] == whole["do"]
    data = whole["against"]
    since = {name: data[name] for name in ("run", "accepted_by", "accepted_proven", "accepted_at", "stack")}
    assert since | {"code": {}} == whole["since"] == ask(folder, "gate", "--json").data["since"]
    assert (before, "jane", []) == (data["run"], data["accepted_by"], data["forbidden"])
    assert [IDS[0]] == [item["id"] for item in data["verdicts"]]
    alone = ask(folder, "gate").out.splitlines()
    accepted = f"accepted by jane (unproven) on {datetime.now(UTC):%Y-%m-%d}"
    assert f"since: run {before}, {accepted}: {lines[3].removeprefix('changed: ')}" in alone
    assert f"do: see what changed since the accepted baseline: qualify diff {before} {after} --db evidence.db" in alone
    assert f"do: find the component to blame: qualify bisect {before} {after} --plan --db evidence.db" in alone


def test_drift_fails_where_the_matrix_forbids_it(folder: Path) -> None:
    """All cases pass, another kernel serves one: reported, or exit 1 by policy."""
    (folder / "serving.yaml").write_text(MATRIX + "policy: {drift: {kernels: fail}}\n")
    assert 0 == accept(folder, stored(folder, hours=3)).code
    stored(folder, lambda case: other_kernel(EVIL) if case.id == IDS[2] else PASSED)
    ended = ask(folder, "gate", "--against", "baseline")
    assert (0, 1) == (ask(folder, "gate").code, ended.code)
    assert f"DRIFT        {IDS[2]}" in ended.out.splitlines()
    assert [] == [line for line in ended.out.splitlines() if line.startswith("::")]


def test_diff_says_the_stack_first(two: tuple[Path, str, str]) -> None:
    """Text in that order; JSON with the fields of the contract; exit 0, because it is no verdict."""
    folder, before, after = two
    ended = ask(folder, "diff", before, after)
    assert (0, "") == (ended.code, ended.err)
    heads = [line.partition(":")[0] for line in ended.out.splitlines() if not line.startswith(" ")]
    assert ["stack", "verdicts", "kernels", "numbers", "times", "bits"] == heads[1:]
    assert "1 regression, 1 suspicious, 0 with insufficient data, 2 unchanged or harmless" in ended.out.splitlines()[0]
    assert "  vllm: 0.23.0 -> 0.24.0" in ended.out.splitlines()
    back = ask(folder, "diff", after, before).out.splitlines()
    assert "verdicts: 1 harmless" in back
    assert f"  harmless          {IDS[0]}" in back
    data = ask(folder, "diff", "baseline", after, "--json").data
    assert "qualify.diff/1" == data["schema"]
    assert {"component": "vllm", "kind": "distribution", "from": "0.23.0", "to": "0.24.0"} in data["stack"]
    assert [(IDS[0], "PASS", "FAIL", "regression")] == [
        (item["id"], item["from"], item["to"], item["bucket"]) for item in data["verdicts"]
    ]
    assert [(["under_test"], [EVIL])] == [(item["from"], item["to"]) for item in data["kernels"]]
    assert [[], []] == [data["numbers"], data["times"]]


def test_diff_writes_a_page_and_its_twin(two: tuple[Path, str, str]) -> None:
    """A kernel's hostile name is text on the page."""
    folder, before, after = two
    ended = ask(folder, "diff", before, after, "--out", "out")
    page = folder / "out" / f"{before}..{after}" / "diff.html"
    assert ended.out.endswith(f"report: {page.relative_to(folder)}\n")
    html, twin = page.read_text(), json.loads((page.parent / "diff.json").read_text())
    assert "<script" not in html
    assert 'data-label="From → to, and why">pass → fail: new failure' in html
    assert ("PASS", "FAIL") == (twin["verdicts"][0]["from"], twin["verdicts"][0]["to"])
    assert [EVIL] == twin["kernels"][0]["to"]
    assert html.index('id="stack"') < html.index('id="verdicts"') < html.index('id="kernels"')
    (folder / "file").touch()
    assert 4 == ask(folder, "diff", before, after, "--out", "file").code


@pytest.mark.parametrize("named", ["run", "baseline"])
def test_no_page_of_an_earlier_command_is_left_where_a_later_one_fails(two: tuple[Path, str, str], named: str) -> None:
    """A job would publish the page of yesterday. What belongs to other runs stays, and so does what nobody wrote."""
    folder, before, after = two
    earlier, fails = before if named == "run" else "baseline", ("--waivers", "missing.yaml")
    places = {"report": folder / "out" / after, "diff": folder / "out" / f"{before}..{after}"}
    words = {"report": ("report", after, "--against", earlier), "diff": ("diff", earlier, after)}
    assert 0 == ask(folder, "report", before).code
    for command, place in places.items():
        assert 0 == ask(folder, *words[command], "--out", "out").code
        (place / "mine.txt").touch()
        assert 2 == ask(folder, *words[command], "--out", "out", *fails).code
        assert ["mine.txt"] == [path.name for path in place.iterdir()]
    assert (folder / "out" / before / "report.html").is_file()


def test_a_diff_without_a_folder_leaves_the_pages(two: tuple[Path, str, str]) -> None:
    """It writes none, so none of an earlier one looks new."""
    folder, before, after = two
    assert 0 == ask(folder, "diff", before, after, "--out", "out").code
    assert 2 == ask(folder, "diff", before, after, "--waivers", "missing.yaml").code
    assert (folder / "out" / f"{before}..{after}" / "diff.html").is_file()


def test_the_report_shows_what_changed(two: tuple[Path, str, str]) -> None:
    """--against, a run or the accepted one: the same changes as `qualify diff`, on the page and in its twin."""
    folder, before, after = two
    for other in (before, "baseline"):
        ended = ask(folder, "report", after, "--against", other)
        assert (0, "") == (ended.code, ended.err)
        page = folder / ended.out.strip()
        html, twin = page.read_text(), json.loads((page.parent / "report.json").read_text())
        assert f"Changes <small>against run {before}</small>" in html
        assert ("release 7" in html) == (other == "baseline")
        assert ["changed-stack", "changed-verdicts", "changed-kernels"] == re.findall(
            r'<section id="(changed-(?:stack|verdicts|kernels))"', html
        )
        assert EVIL not in html
        diff = ask(folder, "diff", before, after, "--json").data
        topics = ("stack", "verdicts", "kernels", "numbers", "times", "bits", "buckets")
        assert {name: diff[name] for name in topics} == {name: twin["against"][name] for name in topics}
        ids = re.findall(r' id="([^"]+)"', html)
        assert len(ids) == len(set(ids))
    plain = ask(folder, "report", after)
    assert 'id="changes"' not in (folder / plain.out.strip()).read_text()
    assert json.loads((folder / "out" / after / "report.json").read_text())["against"] is None
    empty = ask(folder, "report", after, "--against", "")
    assert (2, True) == (empty.code, "--against is empty" in empty.err)


@pytest.mark.parametrize(
    "command",
    [
        ("diff", "latest"),
        ("diff", "latest", "latest"),
        ("bisect", "latest", "latest", "--plan"),
        ("gate", "--against", "latest"),
        ("report", "--against", "latest"),
    ],
    ids=" ".join,
)
def test_a_run_is_not_compared_with_itself(two: tuple[Path, str, str], command: tuple[str, ...]) -> None:
    """Exit 2, and the command that was probably meant; nothing is written."""
    folder, before, after = two
    ended = ask(folder, *command)
    message = f"run {after} was to be compared with 'latest', which is the same run: nothing can differ. "
    assert (2, "", f"qualify: {message}Try: qualify diff {before} {after} --db evidence.db\n") == (
        ended.code,
        ended.out,
        ended.err,
    )
    assert not (folder / "out").exists()


def test_a_run_that_took_evidence_over_is_not_compared_with_itself(two: tuple[Path, str, str]) -> None:
    """Its evidence is of two runs, and it is one."""
    folder, before, _ = two
    with Store.open(str(folder / "evidence.db")) as store:
        earlier = store.run(before)
    latest = stored(folder, lambda case: taken_over(PASSED, earlier) if case.id == IDS[0] else PASSED, hours=0.5)
    ended = ask(folder, "diff", "latest")
    assert (2, "") == (ended.code, ended.out)
    assert f"run {latest} was to be compared with 'latest', which is the same run" in ended.err


def test_a_narrowed_run_is_named_where_cases_are_absent(two: tuple[Path, str, str]) -> None:
    """Cases that nobody selected did not vanish."""
    folder, before, _ = two
    latest = stored(folder, hours=0.5, select="decode", stack=NEW)
    ended = ask(folder, "diff", before)
    expected = f"caveat: run {latest} was narrowed by --select or --kernel: cases of the rest of the matrix are absent"
    assert (0, expected) == (ended.code, ended.out.splitlines()[1])


def test_the_baseline_itself_has_no_difference(folder: Path) -> None:
    """Diff says so; the gate of the accepted run is what it was."""
    run = stored(folder)
    assert 0 == accept(folder, run).code
    ended = ask(folder, "diff", "baseline")
    message = f"run {run} is the accepted baseline itself: nothing can differ. No earlier run of serving is stored."
    assert (2, "", f"qualify: {message}\n") == (ended.code, ended.out, ended.err)
    assert 0 == ask(folder, "gate", "--against", "baseline").code


def test_bisect_plans_and_uses_what_is_stored(two: tuple[Path, str, str]) -> None:
    """Two parts changed: one test; the stored run of that stack then names the one to blame."""
    folder, before, after = two
    plan = ask(folder, "bisect", before, after, "--plan")
    assert 0 == plan.code
    assert "may be to blame: torch, vllm. Stacks to test, in any order: 1" in plan.out
    assert "test 1: the earlier stack with vllm of the later one, then: qualify run" in plan.out
    middle = stored(folder, changed, hours=2, stack=make_stack(vllm="0.24.0"))
    found = ask(folder, "bisect", before, after, "--plan")
    assert f"tested: the earlier stack with vllm of the later one: bad (run {middle})" in found.out
    assert found.out.endswith("if a single component is to blame, it is vllm\n")
    data = ask(folder, "bisect", before, after, "--plan", "--json").data
    assert ("vllm", [], "verdicts") == (data["blame"], data["tests"], data["symptom"]["topic"])


def test_bisect_of_cases_that_do_not_exist(two: tuple[Path, str, str]) -> None:
    """A mistyped glob is not "nothing got worse": exit 3; a glob of good cases is."""
    folder, before, after = two
    ended = ask(folder, "bisect", before, after, "--plan", "--select", "*/fp64/*")
    assert (3, "", True) == (ended.code, ended.out, "--select '*/fp64/*' matches no case of the two runs" in ended.err)
    good = ask(folder, "bisect", before, after, "--plan", "--select", IDS[1])
    assert (0, True) == (good.code, "nothing got worse between the runs" in good.out)


def test_bisect_needs_both_stacks(folder: Path) -> None:
    """Where a first worker never began, nothing can be blamed: no verdict."""
    before = stored(folder, hours=3)
    with Store.open(str(folder / "evidence.db")) as store:
        lost = make_run(id="20261121T020000Z-00dead", stack=None, state="interrupted")
        store.begin(lost)
    ended = ask(folder, "bisect", before, lost.id, "--plan")
    assert (5, "", True) == (ended.code, ended.out, "the stack of one of the runs is unknown" in ended.err)


def test_bisect_of_what_did_not_get_worse(folder: Path) -> None:
    """Nothing is blamed for nothing."""
    before, after = stored(folder, failing, hours=3), stored(folder, stack=NEW)
    assert "nothing got worse between the runs" in ask(folder, "bisect", before, after, "--plan").out
    worse = stored(folder, failing, hours=0.5, stack=NEW)
    assert "both runs have the same stack" in ask(folder, "bisect", after, worse, "--plan").out


def test_refusals_and_reasons_of_a_changed_install(folder: Path) -> None:
    """A kernel that is not installed any more is suspicious, and its reason is told."""
    before = stored(folder, hours=3)
    gone = Refused(by="plan", reasons=("not installed (pip install 'x')",))
    after = stored(folder, lambda case: gone if case.id == IDS[1] else PASSED, stack=NEW)
    out = ask(folder, "diff", before, after).out
    assert "  pass -> not required: is refused now: not installed (pip install 'x')" in out
