"""A newer run of a part of a matrix stands beside the whole run, and hides nothing of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_timing
from stored_runs import MATRIX, NOW, PASSED, WRONG, shipped_kernels, store_run

from qualify.cards.terms import terms_of
from qualify.facts.case import Case
from qualify.facts.outcome import Measured, Outcome
from qualify.facts.overview import RunQuery
from qualify.facts.run import Run
from qualify.judge import signing
from qualify.judge.against import accepted
from qualify.judge.judged import judge
from qualify.report.sitepages.parts import PartsPage, parts_json, render_parts
from qualify.report.sitepages.standing import unfinished
from qualify.store import Store
from qualify.web.site import Site

BOTH, ONE = "kernels: [tiled-torch, torch-cpu-math]", "kernels: [torch-cpu-math]"


def part_of(store: Store, folder: Path, outcome: Outcome, *, minutes: int, **how: str) -> Run:
    """A run of torch-cpu-math alone, so many minutes ago; of both sequence lengths or of one."""
    folder.mkdir(exist_ok=True)
    text = MATRIX.replace(BOTH, ONE)
    (folder / "serving.yaml").write_text(text.replace("      - 9\n", "") if how.get("select") else text)
    return store_run(store, folder / "serving.yaml", outcome, age=timedelta(minutes=minutes), **how)


def whole(store: Store, folder: Path, failing: str = "none") -> Run:
    """A run of the whole matrix two hours ago, in which one kernel fails."""
    (folder / "serving.yaml").write_text(MATRIX)

    def outcome(case: Case) -> Outcome:
        return WRONG if case.kernel == failing else PASSED

    return store_run(store, folder / "serving.yaml", outcome, age=timedelta(hours=2))


def site_of(store: Store, *runs: Run) -> Site:
    """The site, which knows the verdicts and details of these runs."""
    site = Site(store, shipped_kernels())
    for run in runs:
        site.verdicts.details(site.head(run.id))
        site.verdicts.summary(site.head(run.id))
    return site


def rows(page: PartsPage, part: str) -> list[Mapping[str, Any]]:
    """A table of a page's JSON."""
    found: list[Mapping[str, Any]] = json.loads(parts_json("page", page))[part]
    return found


def named(page: PartsPage, part: str) -> dict[str, Mapping[str, Any]]:
    """The same by name; what is required and was run."""
    return {row["name"]: row for row in rows(page, part) if row["runs"]}


def test_the_matrix_stands_on_its_newest_whole_run(store, tmp_path):
    """The newer run of a part is named beside it, and is no reason for attention where it passed."""
    first = whole(store, tmp_path)
    part = part_of(store, tmp_path / "part", PASSED, minutes=30, kernel="torch-cpu-math")
    page = site_of(store, first, part).home()
    (state,) = rows(page, "states")
    assert (first.id, part.id, "✓ pass", "✓") == tuple(state[it] for it in ("run", "part", "verdict", "trend"))
    assert [] == [it for it in rows(page, "attention") if part.id in str(it)]
    text = render_parts(page).replace("<wbr>", "")
    assert f'Newer runs of a part: <a href="/runs/{part.id}">serving on Test CPU: {part.id}</a>' in text


def test_lists_of_runs_say_which_is_a_part(store, tmp_path):
    """A green line of a run of some cases does not look as if the whole matrix had passed."""
    first = whole(store, tmp_path)
    part = part_of(store, tmp_path / "part", PASSED, minutes=30, kernel="torch-cpu-math")
    site = site_of(store, first, part)
    listed = site.runs(RunQuery())
    words = {row.head.id: row.words for row in listed.table.rows}
    assert {first.id: False, part.id: True} == {row["run"]: row["narrowed"] for row in listed.more["runs"]}
    assert "✓ pass" == words[first.id]
    assert "(a part of the matrix)" in words[part.id]
    assert words[part.id] in render_parts(listed)
    assert words[part.id] in render_parts(site.compare("", ""))


OPEN_RUNS = ("? newest run was interrupted", "? newest run does not end")


@pytest.mark.parametrize(("state", "what"), [("interrupted", OPEN_RUNS[0]), ("running", OPEN_RUNS[1])])
@pytest.mark.parametrize("of_part", [False, True])
def test_a_newer_run_that_did_not_end_needs_attention(store, tmp_path, state, what, of_part):
    """The whole run before it passed, and the page stands on that one; a run of a part is nobody's nightly run."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    first = store_run(store, tmp_path / "serving.yaml", age=timedelta(hours=60))
    narrowed = {"kernel": "torch-cpu-math"} if of_part else {}
    late = store_run(store, tmp_path / "serving.yaml", age=timedelta(hours=50), state=state, **narrowed)
    found = [it for it in rows(site_of(store, first).home(), "attention") if it["what"] in OPEN_RUNS]
    expected = [] if of_part else [(what, "serving on Test CPU")]
    assert expected == [(it["what"], it["subject"]) for it in found]
    assert of_part or f"it began on {late.started_at:%Y-%m-%d %H:%M} UTC; " in found[0]["detail"]


def test_a_run_that_ended_later_answers_for_one_that_did_not(store, tmp_path):
    """A newer completed run stands for the matrix; so it does for a run whose device nobody reported."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    store_run(store, tmp_path / "serving.yaml", age=timedelta(hours=60), state="interrupted")
    blind = store_run(store, tmp_path / "serving.yaml", age=timedelta(hours=55), state="interrupted")
    last = store_run(store, tmp_path / "serving.yaml", age=timedelta(hours=50))
    site = site_of(store, last)
    heads = site.store.overview.runs(RunQuery()).heads
    unreported = tuple(replace(it, variant="") if it.id == blind.id else it for it in heads)
    assert () == unfinished(heads) == unfinished(unreported)
    assert [blind.id] == [it.id for it in unfinished(unreported[1:2])]


def test_a_newer_part_that_fails_needs_attention(store, tmp_path):
    """The whole run before it passed: only this run shows what broke since."""
    first = whole(store, tmp_path)
    part = part_of(store, tmp_path / "part", WRONG, minutes=30, kernel="torch-cpu-math")
    page = site_of(store, first, part).home()
    (item,) = [it for it in rows(page, "attention") if "part" in it["what"]]
    assert "✗ newer run of a part is not qualified" == item["what"]
    assert item["detail"].startswith("only a part of the matrix was selected; 2 of 2 cases fail; ")


@pytest.mark.parametrize(("times", "told"), [(1.0, []), (3.0, ["◐ newest run became slower"])])
def test_a_run_whose_cases_became_slower_needs_attention(store, tmp_path, times, told):
    """It qualifies, and the gate does not simply say promote; so the first page does not say that all is well."""
    (tmp_path / "serving.yaml").write_text(MATRIX)

    def timed(factor):
        return Measured(evidence=replace(make_evidence(), timing=make_timing(100.0 * factor)))

    before = store_run(store, tmp_path / "serving.yaml", timed(1.0), age=timedelta(hours=2))
    judged = judge(store, before.id, shipped_kernels(), now=NOW)
    assert accepted(store, judged, by=signing.named("jane", "ci"), reason="release 7", now=NOW)
    newest = store_run(store, tmp_path / "serving.yaml", timed(times))
    found = [it for it in rows(site_of(store, newest).home(), "attention") if "slower" in it["what"]]
    assert told == [it["what"] for it in found]
    detail = f"4 cases are slower than in run {before.id}: 3 times as long at most"
    assert [detail for _ in told] == [it["detail"] for it in found]


def test_many_newer_parts_hide_no_whole_run(store, tmp_path):
    """However many they are: more than a list of the newest runs holds."""
    first = whole(store, tmp_path)
    parts = [
        part_of(store, tmp_path / "part", PASSED, minutes=50 - number, kernel="torch-cpu-math") for number in range(14)
    ]
    site = site_of(store, first, *parts)
    (state,) = rows(site.home(), "states")
    assert (first.id, parts[-1].id) == (state["run"], state["part"])
    assert {"tiled-torch", "torch-cpu-math"} == set(named(site.kernels(), "kernels"))


def test_without_a_whole_run_the_matrix_stands_on_a_part(store, tmp_path):
    """There is nothing else, and the page says that only a part was selected."""
    part = part_of(store, tmp_path / "part", PASSED, minutes=30, kernel="torch-cpu-math")
    page = site_of(store, part).home()
    (state,) = rows(page, "states")
    assert (part.id, None) == (state["run"], state["part"])
    assert "Newer runs of a part" not in render_parts(page)


def test_each_kernel_has_the_newest_run_that_ran_it(store, tmp_path):
    """A run of one kernel stands for this kernel only; the other one has the whole run."""
    first = whole(store, tmp_path, failing="torch-cpu-math")
    part = part_of(store, tmp_path / "part", PASSED, minutes=30, kernel="torch-cpu-math")
    site = site_of(store, first, part)
    found = named(site.kernels(), "kernels")
    assert {("tiled-torch", 2, 0, 1), ("torch-cpu-math", 2, 0, 1)} == {
        (name, row["pass"], row["fail"], row["runs"]) for name, row in found.items()
    }
    assert [part.id] == [row["run"] for row in rows(site.kernel("torch-cpu-math"), "measured")]
    assert [first.id] == [row["run"] for row in rows(site.kernel("tiled-torch"), "measured")]
    assert [first.id, part.id] == [row["run"] for row in rows(site.model("toy.tp1"), "measured")]
    assert [] == rows(site.findings(), "findings")


@pytest.mark.parametrize(("outcome", "expected"), [(PASSED, (0, 2, 1)), (WRONG, (0, 3, 2))])
def test_fewer_cases_of_a_kernel_replace_no_whole_run(store, tmp_path, outcome, expected):
    """A selection that passed makes no failure green; one that failed is shown beside the whole run."""
    first = whole(store, tmp_path, failing="torch-cpu-math")
    part = part_of(store, tmp_path / "part", outcome, minutes=30, select="*q8*")
    found = named(site_of(store, first, part).kernels(), "kernels")["torch-cpu-math"]
    assert expected == tuple(found[it] for it in ("pass", "fail", "runs"))


def test_where_one_signs_a_newer_failure_is_told(store: Store, tmp_path: Path) -> None:
    """Nobody vouches for a run without knowing that the same stack has failed since."""
    passed = whole(store, tmp_path)
    site = site_of(store)

    def told() -> object:
        page = site.decision(passed.id, roles=["release"], may_write=True, proven=True)
        assert page.more["notes"] == list(page.parts[0].notes)
        return page.more["notes"]

    assert [] == told()
    failed = store_run(store, tmp_path / "serving.yaml", WRONG, age=timedelta(hours=1))
    note = f"run {failed.id} is newer than run {passed.id}, on the same stack, and not qualified."
    assert [f"{note} See: qualify gate --run {failed.id}"] == told()


def test_what_another_card_made_may_nobody_sign(store: Store, tmp_path: Path) -> None:
    """As on the command line: the page says which card, and what it promised; lists judge the run as it was made."""
    name = "tiled-torch"
    then = {name: {**terms_of(shipped_kernels()[name].card), "claims.deterministic": "other"}}
    (tmp_path / "serving.yaml").write_text(MATRIX)
    run = store_run(store, tmp_path / "serving.yaml", terms=then)
    site = site_of(store, run)
    page = site.decision(run.id, roles=["release"], may_write=True, proven=True)
    why = f"{name} must run again: its card changed since: claims.deterministic was other, and is true"
    assert (False, why) == (page.more["may_be_signed"], page.more["why_not"])
    assert "PASS" == site.verdicts.summary(site.head(run.id)).verdict
