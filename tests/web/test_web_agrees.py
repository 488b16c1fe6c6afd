"""No page of the site contradicts the gate: whatever a run, its baseline, its waivers and its duels say."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from builders import make_evidence, make_finding
from duels import make_cell, make_duel
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from stored_runs import (
    CELL,
    MATRIX,
    NOW,
    OPEN,
    PASSED,
    WRONG,
    accept_run,
    make_run,
    real_age,
    real_days,
    shipped_kernels,
    store_run,
    write_waivers,
)

from qualify.cli.gate import GateOptions, _judged
from qualify.facts.checks import check_of
from qualify.facts.duel import DuelVerdict
from qualify.facts.outcome import Measured, Outcome
from qualify.facts.overview import RunQuery
from qualify.facts.run import Run
from qualify.facts.typed import PLAIN
from qualify.judge.judged import Judged
from qualify.report.causes import told
from qualify.report.sitepages.parts import parts_json, render_parts
from qualify.report.verdict_json import to_data
from qualify.report.views import WORDS
from qualify.store import Store
from qualify.web.metrics import exposition
from qualify.web.site import Site

CASES = 4
DAY = timedelta(days=1)
BUDGETS = """\
policy:
  {weaker}
  performance:
    require: {require}
    budgets:
      - {{phase: prefill, of: cell, percent: 5}}
"""
NAMES = [f"{CELL.format(size)}/tiled-torch" for size in (8, 9)]


@dataclass(frozen=True, kw_only=True)
class World:
    """What a store holds."""

    outcomes: Sequence[Outcome]
    before: Sequence[Outcome] | None
    """of the accepted baseline; None = nobody accepted one"""
    waived: bool
    budgets: bool
    required: bool
    duels: Sequence[tuple[tuple[DuelVerdict, float, float], str, bool]]
    """verdict, change and width of the first cell, B's stack, and whether somebody made the verdict SAME"""


FOUGHT: list[tuple[DuelVerdict, float, float]] = [
    *(("SLOWER", change, 0.005) for change in (0.03, 0.08)),
    *(("AMBIGUOUS", change, 0.04) for change in (0.0, 0.03, 0.08)),
    ("SAME", 0.0, 0.005),
    ("FASTER", -0.1, 0.005),
]
OUTCOMES = st.sampled_from([PASSED, PASSED, PASSED, WRONG, OPEN])
WORLDS = st.builds(
    World,
    outcomes=st.lists(OUTCOMES, min_size=CASES, max_size=CASES),
    before=st.none() | st.lists(OUTCOMES, min_size=CASES, max_size=CASES),
    waived=st.booleans(),
    budgets=st.booleans(),
    required=st.booleans(),
    duels=st.lists(
        st.tuples(
            st.sampled_from(FOUGHT),
            st.sampled_from(["here", "elsewhere"]),
            st.sampled_from([False, False, True]),
        ),
        max_size=2,
    ),
)


def build(store: Store, folder: Path, world: World) -> Run:
    """The store of a world; the run that is judged."""
    policy = BUDGETS.format(weaker="forbid_weaker: true", require="duel" if world.required else "nothing")
    (folder / "serving.yaml").write_text(
        MATRIX + (policy if world.budgets else "") + ("waivers: waivers.yaml\n" if world.waived else "")
    )
    write_waivers(folder / "waivers.yaml", *([{"checks": ["census"], **real_days()}] if world.waived else []))

    def stored(outcomes: Sequence[Outcome], age: timedelta) -> Run:
        left = iter(outcomes)
        return store_run(store, folder / "serving.yaml", lambda _: next(left), age=age)

    if world.before is not None:
        before = stored(world.before, timedelta(hours=9))
        accept_run(store, before)
    run = stored(world.outcomes, timedelta(hours=1))
    for number, ((verdict, change, width), b, edited) in enumerate(world.duels):
        stack = run.stack if b == "here" else replace(run.stack, components=run.stack.components[:1])
        cells = [make_cell(NAMES[0], change, verdict=verdict, width=width), make_cell(NAMES[1])]
        duel = make_duel(run, *cells, id=f"duel-20261121T025000Z-{number:06}", stack_b=stack)
        told = tuple(replace(cell, verdict="SAME") for cell in duel.cells) if edited else duel.cells
        store.add_duel(replace(duel, cells=told, finished_at=NOW - timedelta(minutes=10 - number)))
    return run


def gate(store: Store, run: Run) -> Judged:
    """What `qualify gate --run RUN` finds."""
    asked = GateOptions(
        run=run.id,
        matrix="",
        max_age=None,
        stack="",
        level="smoke",
        against="",
        waivers=None,
        cards=(),
        environments={},
        keys=(),
        require_duel=False,
        typed=PLAIN,
    )
    return _judged(store, asked, None, datetime.now(UTC))


def check(site: Site, run: Run) -> None:
    """Every page that names the run's verdict names the gate's."""
    found = gate(site.store, run)
    data, words = to_data(found), " ".join(WORDS[found.conclusion.shown])
    report = json.loads(gzip.decompress(site.report(run.id, twin=True).content))
    assert (data["verdict"], data["exit_code"]) == (report["verdict"], report["exit_code"])
    assert data["performance"] == report["performance"]
    page = gzip.decompress(site.report(run.id, twin=False).content).decode()
    for use in found.performance.budgets if found.performance else ():
        assert use.name in page
        assert use.change is None or f"{100 * use.low:+.1f} % to {100 * use.high:+.1f} %" in page
    if found.performance and found.performance.why_not:
        assert "no duel" in page
    (state,) = json.loads(parts_json("home", site.home()))["states"]
    assert words == state["verdict"]
    listed = site.runs(RunQuery())
    assert listed.table is not None
    mine = next(row for row in listed.more["runs"] if row["run"] == run.id)
    assert (data["verdict"], words) == (
        mine["verdict"],
        next(it for it in listed.table.rows if it.head.id == run.id).words,
    )
    decision = site.decision(run.id, roles=("release",), may_write=False, proven=True)
    assert (found.conclusion.exit_code == 0) == decision.more["may_be_signed"]
    for judgement in found.conclusion.judgements:
        history = json.loads(parts_json("case", site.cases.history(judgement.case_id, may_write=False)))["history"]
        told = next(it for it in history if it["run"] == run.id)
        assert (" ".join(WORDS[judgement.verdict]), words) == (told["verdict"], told["run_verdict"])
    assert f"qualify_qualified{{{LABELS}}} {float(found.conclusion.exit_code == 0)}" in exposition(site).decode()


LABELS = 'device="Test CPU",matrix="serving"'


@pytest.mark.parametrize(
    ("wrong", "told"),
    [(1, "1 of 4 cases fails"), (2, "2 of 4 cases fail")],
)
def test_home_says_how_many_cases_stand_against_a_run(store: Store, tmp_path: Path, wrong: int, told: str) -> None:
    """Also where each production shape has a proven path: that alone looks like good news."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    outcomes = iter([*[WRONG] * wrong, *[PASSED] * (CASES - wrong)])
    run = store_run(store, tmp_path / "serving.yaml", lambda _: next(outcomes))
    site = Site(store, shipped_kernels())
    site.verdicts.summary(site.head(run.id))
    found = json.loads(parts_json("home", site.home()))["attention"]
    (detail,) = (it["detail"] for it in found if it["what"] == "✗ newest run is not qualified")
    assert detail.startswith(f"{told}; ")
    assert detail.endswith(" of 2 production shapes have a proven path")


def test_metrics_and_home_count_the_age_of_evidence_as_the_gate_does(store: Store, tmp_path: Path) -> None:
    """A run whose date is later than the day on which it came from another store is at least as old as that day."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    came = datetime.now(UTC).replace(microsecond=0) - 9 * DAY
    run = store_run(store, tmp_path / "serving.yaml", age=real_age(hours=2), received_at=came)
    assert came == gate(store, run).evidence_since
    site = Site(store, shipped_kernels())
    text = exposition(site).decode()
    for name in ("qualify_last_run_timestamp_seconds", "qualify_last_success_timestamp_seconds"):
        (line,) = (it for it in text.splitlines() if it.startswith(f"{name}{{"))
        assert came.timestamp() == float(line.rpartition(" ")[2])
    assert "the newest run came here 9 days ago" == attention(store)["? old evidence", "serving on Test CPU"]


def test_home_names_no_waived_failure_among_those_that_count(store: Store, tmp_path: Path) -> None:
    """The groups behind a count are the counted ones: an accepted failure does not stand against the run."""
    (tmp_path / "serving.yaml").write_text(MATRIX + "waivers: waivers.yaml\n")
    write_waivers(tmp_path / "waivers.yaml", {"select": "*/tiled-torch", **real_days()})
    store_run(store, tmp_path / "serving.yaml", WRONG)
    detail = attention(store)["✗ newest run is not qualified", "serving on Test CPU"]
    assert "2 of 4 cases fail; torch-cpu-math · census · prefill: 2 cases; 0 of 2 " in detail
    assert "tiled-torch" not in detail


def test_home_findings_and_report_have_one_order(store: Store, tmp_path: Path) -> None:
    """The kernel with most failed cases first, and of a kernel the check that says most, however few its cases are."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    large = Measured(evidence=make_evidence(make_finding("fail", "too large", "budget")))
    outcomes = iter([WRONG, WRONG, large, WRONG])
    run = store_run(store, tmp_path / "serving.yaml", lambda _: next(outcomes))
    detail = attention(store)["✗ newest run is not qualified", "serving on Test CPU"]
    site = Site(store, shipped_kernels())
    site.verdicts.details(site.head(run.id))
    site.verdicts.summary(site.head(run.id))
    rows = json.loads(parts_json("findings", site.findings()))["findings"]
    found = [(row["kernel"], row["check"], row["count"]) for row in rows]
    assert [("tiled-torch", "census", 1), ("tiled-torch", "budget", 1), ("torch-cpu-math", "census", 2)] == found
    places = [detail.index(f"{kernel} · {check} · prefill") for kernel, check, _ in found]
    assert sorted(places) == places
    report = gzip.decompress(site.report(run.id, twin=False).content).decode().replace("<wbr>", "")
    places = [report.rindex(f"{kernel} · {check} · prefill: ") for kernel, check, _ in found]
    assert sorted(places) == places


def test_a_list_counts_no_shapes_out_of_none(store: Store, tmp_path: Path) -> None:
    """A run that needs no production shape says so, and one without a case that it has none."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    begun = make_run(state="running", finished_at=None, started_at=datetime.now(UTC), stack=None)
    store.begin(begun)
    empty = make_run(state="interrupted", started_at=NOW - timedelta(hours=2))
    store.begin(empty)
    whole = store_run(store, tmp_path / "serving.yaml", age=timedelta(hours=3))
    (tmp_path / "refused.yaml").write_text(MATRIX.replace("[tiled-torch, torch-cpu-math]", "[flash-attn-2]"))
    bare = store_run(store, tmp_path / "refused.yaml", age=timedelta(hours=4), kernel="flash-attn-2")
    site = Site(store, shipped_kernels())
    for head in store.overview.runs(RunQuery()).heads:
        site.verdicts.summary(head)
    told = {row["run"]: row["proven"] for row in json.loads(parts_json("runs", site.runs(RunQuery())))["list"]}
    assert {begun.id: "no case yet", empty.id: "no case", whole.id: "2 of 2", bare.id: "no shape is required"} == told


def test_the_report_of_one_case_is_in_the_singular(store: Store, tmp_path: Path) -> None:
    """In the tiles and in the answers; of a case that was not run, the cause is not told twice."""
    one = MATRIX.replace("      - 9\n", "").replace(", torch-cpu-math", "")
    (tmp_path / "serving.yaml").write_text(one)
    run = store_run(store, tmp_path / "serving.yaml")
    site = Site(store, shipped_kernels())

    def report(run_id: str) -> str:
        return gzip.decompress(site.report(run_id, twin=False).content).decode()

    page = report(run.id)
    assert [True] * 3 == [it in page for it in ("1 of 1 has a proven path", "1 of 1 passes", "The one shape proven")]
    begun = replace(run, id=f"{run.id}0", state="interrupted", finished_at=None)
    store.begin(begun)
    store.add_cases(begun.id, [record.case for record in store.records(run.id)])
    blocks = report(begun.id).partition('id="why"')[2].partition("<details")[0]
    assert 1 == blocks.count("the run goes on, or ended before its turn")


def test_pages_and_report_tell_one_cause_of_two_phases_once(store: Store, tmp_path: Path) -> None:
    """With the number of cases of each phase, in the same words; for programs each phase stays a row."""
    decode = "  decode: {context: [9]}\n"
    (tmp_path / "serving.yaml").write_text(MATRIX.replace("dtypes:", f"{decode}dtypes:"))
    run = store_run(store, tmp_path / "serving.yaml", WRONG)
    site = Site(store, shipped_kernels())
    detail = attention(store)["✗ newest run is not qualified", "serving on Test CPU"]
    site.verdicts.details(site.head(run.id))
    site.verdicts.summary(site.head(run.id))
    report = gzip.decompress(site.report(run.id, twin=False).content).decode().replace("<wbr>", "")
    for kernel in ("tiled-torch", "torch-cpu-math"):
        title = f"{kernel} · census · prefill (2), decode (1): 3 cases"
        assert (1, True) == (detail.count(kernel), title in report)
        assert title in detail
    page = site.findings()
    assert "2 groups" == page.parts[0].count
    assert 2 == render_parts(page).count(">prefill (2), decode (1)</td>")
    assert 1 == render_parts(site.kernel("tiled-torch")).count(">prefill (2), decode (1)</td>")
    rows = json.loads(parts_json("findings", page))["findings"]
    assert [("prefill", 2), ("decode", 1)] * 2 == [(row["phase"], row["count"]) for row in rows]
    assert {("serving", "Test CPU")} == {(row["matrix"], row["device"]) for row in rows}
    shown = page.parts[0].shown
    assert shown is not None
    assert ["Where", "Run"] == [column.title for column in shown.columns][-2:]


def test_a_row_of_findings_names_the_first_models(store: Store, tmp_path: Path) -> None:
    """Of many models a row of the page stays low; for programs it has them all."""
    model = "  - model: {name}\n    geometry: {geometry}\n"
    head, _, rest = MATRIX.partition("  - model: toy\n    geometry: ")
    geometry, _, end = rest.partition("\n")
    models = "".join(model.format(name=f"toy{number}", geometry=geometry) for number in range(6))
    (tmp_path / "serving.yaml").write_text(f"{head}{models}{end}")
    run = store_run(store, tmp_path / "serving.yaml", WRONG)
    site = Site(store, shipped_kernels())
    site.verdicts.details(site.head(run.id))
    site.verdicts.summary(site.head(run.id))
    page = site.findings()
    rows = json.loads(parts_json("findings", page))["findings"]
    assert {", ".join(f"toy{number}.tp1" for number in range(6))} == {row["models"] for row in rows}
    assert 2 == render_parts(page).count(">toy0.tp1, toy1.tp1, toy2.tp1, toy3.tp1 and 2 others</td>")


def test_home_tells_the_last_days_of_a_waiver_as_the_gate_does(store: Store, tmp_path: Path) -> None:
    """Days are counted in words, and a waiver of another stack, which fails no gate, is no news after its last day."""
    (tmp_path / "serving.yaml").write_text(MATRIX + "waivers: waivers.yaml\n")
    today = datetime.now(UTC).date()
    days = [{"created": str(today - DAY), "expires": str(today + left * DAY)} for left in range(3)]
    past = {"created": str(today - 2 * DAY), "expires": str(today - DAY)}
    write_waivers(tmp_path / "waivers.yaml", *days, past, {**past, "stack": {"device": "Another"}})
    store_run(store, tmp_path / "serving.yaml", WRONG)
    told = {subject[:2]: (what, it) for (what, subject), it in attention(store).items() if "waiver" in what}
    assert {
        "w0": ("◐ waiver", "ends today"),
        "w1": ("◐ waiver", f"ends on {today + DAY}, in 1 day"),
        "w2": ("◐ waiver", f"ends on {today + 2 * DAY}, in 2 days"),
        "w3": ("✗ waiver", f"ended on {today - DAY}"),
    } == told


def attention(store: Store) -> dict[tuple[str, str], str]:
    """What the first page says of each thing, once its runs are judged."""
    site = Site(store, shipped_kernels())
    for head in store.overview.runs(RunQuery(limit=9)).heads:
        site.verdicts.details(head)
        site.verdicts.summary(head)
    return {
        (it["what"], it["subject"]): it["detail"] for it in json.loads(parts_json("home", site.home()))["attention"]
    }


def test_a_waiver_says_where_it_is_written(store: Store, tmp_path: Path) -> None:
    """Whoever prolongs or removes it finds its file and line, and where it is tracked; rows of many columns fit."""
    (tmp_path / "serving.yaml").write_text(MATRIX + "waivers: waivers.yaml\n")
    path = write_waivers(tmp_path / "waivers.yaml", {})
    run = store_run(store, tmp_path / "serving.yaml", WRONG)
    site = Site(store, shipped_kernels())
    site.verdicts.details(site.head(run.id))
    site.verdicts.summary(site.head(run.id))
    (row,) = json.loads(parts_json("waivers", site.waivers()))["waivers"]
    assert (f"{path}:2", "https://example.com/issues/1") == (row["place"], row["link"])
    told = f"fixed in the next release; tracked in https://example.com/issues/1; written in {path}:2"
    assert told in render_parts(site.waivers()).replace("<wbr>", "")


def test_home_and_report_count_the_same_cases(store: Store, tmp_path: Path) -> None:
    """Cases that no card claims stand against nobody: neither counts them."""
    refusing = MATRIX.replace("torch-cpu-math]", "torch-cpu-math, flash-attn-2]")
    (tmp_path / "serving.yaml").write_text(refusing)
    outcomes = iter([WRONG, *[PASSED] * CASES])
    run = store_run(store, tmp_path / "serving.yaml", lambda _: next(outcomes), age=real_age(hours=1))
    site = Site(store, shipped_kernels())
    summary = site.verdicts.summary(site.head(run.id))
    ran = sum(summary.cases.values()) - summary.cases["NOT_REQUIRED"]
    assert summary.cases["NOT_REQUIRED"] > 0
    (item,) = json.loads(parts_json("home", site.home()))["attention"]
    assert item["detail"].startswith(f"1 of {ran} cases fails; ")
    assert f"1 of {ran} fails" in gzip.decompress(site.report(run.id, twin=False).content).decode()


def test_a_waived_finding_says_what_was_found(store: Store, tmp_path: Path) -> None:
    """The waiver stands behind it: who reads the findings asks first what is wrong."""
    (tmp_path / "serving.yaml").write_text(MATRIX + "waivers: waivers.yaml\n")
    days = real_days()
    write_waivers(tmp_path / "waivers.yaml", days)
    run = store_run(store, tmp_path / "serving.yaml", WRONG)
    site = Site(store, shipped_kernels())
    site.verdicts.details(site.head(run.id))
    site.verdicts.summary(site.head(run.id))
    rows = json.loads(parts_json("findings", site.findings()))["findings"]
    assert 2 == len(rows), "a group for each kernel"
    for row in rows:
        found, _, waiver = row["reason"].partition("; ")
        assert ("◐ waived", "census: row 3 sees key 9") == (row["verdict"], found)
        assert waiver.startswith(f"waived by w0 until {days['expires']} (jane@example.com: fixed in the next release; ")


def test_findings_say_what_is_wrong_and_why(store: Store, tmp_path: Path) -> None:
    """In a sentence for each group; of one that is open, only what its check says of itself."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    run = store_run(store, tmp_path / "serving.yaml", WRONG)
    site = Site(store, shipped_kernels())
    site.verdicts.details(site.head(run.id))
    site.verdicts.summary(site.head(run.id))
    rows = json.loads(parts_json("findings", site.findings()))["findings"]
    known = check_of("census")
    assert known is not None
    words = f"{known.wrong}. Likely cause: {known.cause}."
    assert {(words, "census: row 3 sees key 9")} == {(row["cause"], row["reason"]) for row in rows}
    open_ = make_finding("inconclusive", "no sample")
    assert "Likely cause: too little to compare, or a disturbed machine." in told("census", open_, "").sentence
    assert "Likely cause: work that was skipped or cached" in told("timing", None, "").sentence


def test_findings_and_report_tell_the_same_cause(store: Store, tmp_path: Path) -> None:
    """What the first case proves of its cause stands on the pages of findings and kernels as in the report."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    seen = {"expected": 8, "actual": 1, "looks_like": "a mask aligned to the top left corner"}
    finding = replace(make_finding("fail", "row 3 sees key 9"), values=seen)
    run = store_run(store, tmp_path / "serving.yaml", Measured(evidence=make_evidence(finding)))
    site = Site(store, shipped_kernels())
    site.verdicts.details(site.head(run.id))
    site.verdicts.summary(site.head(run.id))
    (cause,) = {row["cause"] for row in json.loads(parts_json("findings", site.findings()))["findings"]}
    assert "expected 8, seen 1. Likely cause: a mask aligned to the top left corner, which explains every row." in cause
    assert cause in gzip.decompress(site.report(run.id, twin=False).content).decode().replace("<wbr>", "")
    page = render_parts(site.kernel("tiled-torch"))
    assert cause in page.replace("<wbr>", "")


def test_home_says_that_only_a_part_was_run(store: Store, tmp_path: Path) -> None:
    """Every case that was selected passed: without a reason it would look as if nothing were missing."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    run = store_run(store, tmp_path / "serving.yaml", select="*/decode/*")
    site = Site(store, shipped_kernels())
    site.verdicts.summary(site.head(run.id))
    found = json.loads(parts_json("home", site.home()))["attention"]
    (detail,) = (it["detail"] for it in found if it["what"] == "? newest run has no verdict")
    assert detail.startswith("only a part of the matrix was selected; ")


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # a store and a plan for each example: what fails first is small enough
)
@given(world=WORLDS)
def test_no_page_contradicts_the_gate(world):
    """Lists, report, decision and metrics say what the gate says; the report names each budget with its interval."""
    with tempfile.TemporaryDirectory() as name, Store.open(str(Path(name) / "e.db")) as store:
        run = build(store, Path(name), world)
        check(Site(store, shipped_kernels()), run)


def test_what_is_stored_later_changes_the_verdict_of_a_page(store, tmp_path):
    """A duel, and then an acceptance, that come after a page was made are in the next one."""
    world = World(outcomes=[PASSED] * CASES, before=None, waived=False, budgets=True, required=True, duels=())
    run, site = build(store, tmp_path, world), Site(store, shipped_kernels())
    check(site, run)
    assert "INCONCLUSIVE" == site.verdicts.summary(site.head(run.id)).verdict
    store.add_duel(make_duel(run, make_cell(NAMES[0]), make_cell(NAMES[1])))
    check(site, run)
    assert "PASS" == site.verdicts.summary(site.head(run.id)).verdict
    slower = make_duel(run, make_cell(NAMES[0], 0.08, verdict="SLOWER"), id="duel-20261121T025900Z-000002")
    store.add_duel(replace(slower, started_at=NOW, finished_at=NOW))
    accept_run(store, run)
    check(site, run)
    assert "FAIL" == site.verdicts.summary(site.head(run.id)).verdict


def test_an_edited_duel_is_shown_as_one(store, tmp_path):
    """On its page, in the list and on the first page: what it says is not green there."""
    world = World(outcomes=[PASSED] * CASES, before=None, waived=False, budgets=True, required=True, duels=())
    run, site = build(store, tmp_path, world), Site(store, shipped_kernels())
    duel = make_duel(run, make_cell(NAMES[0], 0.08, verdict="SLOWER"), make_cell(NAMES[1]))
    store.add_duel(replace(duel, cells=tuple(replace(cell, verdict="SAME") for cell in duel.cells)))
    page = site.duel(duel.id)
    assert "verdict is SAME, but its times give SLOWER" in page.more["why_not"]
    assert page.parts[0].notes[0].startswith("This duel proves nothing: it contradicts itself: ")
    for shown in (site.duels(), site.home()):
        rows = json.loads(parts_json("page", shown))["duels"]
        assert ["? edited: its page says what differs"] == [row["worst"] for row in rows]
    check(site, run)
