"""Series of times, their change points and their exports; and the dispatch table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_finding, make_timing
from cli_process import call
from ruamel.yaml import YAML
from stored_runs import CELL, IDS, MATRIX, NOW, make_stack, shipped_kernels, store_run

from qualify.errors import NoVerdict, UsageError
from qualify.facts.baseline import Baseline
from qualify.facts.best import BestKernel, TimedKernel
from qualify.facts.case import Case
from qualify.facts.outcome import Measured, Outcome
from qualify.judge.against import compare_with
from qualify.judge.beside import beside_baseline
from qualify.judge.best import best_kernels, median_interval
from qualify.judge.history import histories
from qualify.judge.judged import judge
from qualify.judge.suspects import look_slower
from qualify.plan.code import code_of_cards
from qualify.report import best as best_report
from qualify.report.history import to_csv, to_data, to_text, write_otava
from qualify.run.measure.timing import shared
from qualify.store.store import Store
from qualify.verdict.origin import taken_over

NIGHTS = 12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The matrix of two shapes and two kernels."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path / "serving.yaml"


def timed(us: Callable[[Case], float]) -> Callable[[Case], Measured]:
    """An outcome with that time."""
    return lambda case: Measured(evidence=replace(make_evidence(), timing=make_timing(us(case))))


def nights(store: Store, path: Path, count: int = NIGHTS, change: float = 1.10) -> None:
    """So many nights, each with its own temper of the card; from the seventh on one case takes longer."""
    for night in range(count):
        temper = 1 + 0.05 * ((night * 7) % 5)
        slower = change if night >= 6 else 1.0

        def us(case: Case, temper: float = temper, slower: float = slower, night: int = night) -> float:
            own = slower if case.id == IDS[0] else 1.0
            return 100 * temper * own * (1 + 0.002 * ((night * 3 + len(case.id)) % 3))

        stack = make_stack(torch="2.11.0" if night < 6 else "2.13.0")
        store_run(store, path, timed(us), age=timedelta(days=count - night), stack=stack)


def test_a_change_is_found_behind_the_temper_of_the_card(store: Store, path: Path) -> None:
    """The raw times vary by 20 %, the ratio to the anchor shows 10 %, and the stack that changed is named."""
    nights(store, path)
    (series,) = histories(store, "serving", IDS[0])
    assert "the median of 3 other cases" == series.anchor
    (change,) = series.changes
    assert abs(change.change - 0.10) < 0.01
    assert series.points[6].run == change.run
    assert "torch 2.11.0 → 2.13.0" == change.stack.partition(" sha")[0].partition(",")[0]
    assert "+10.0% from then on; with it changed torch 2.11.0 → 2.13.0" in to_text([series])
    assert f"{series.points[-1].ratio:.3f} times the median of 3 other cases" in to_text([series]).splitlines()[0]
    (calm,) = histories(store, "serving", IDS[3])
    assert () == calm.changes
    assert "no change of level" in to_text([calm])


def test_code_that_changed_is_named_before_the_stack(store: Store, path: Path) -> None:
    """A kernel of a --cards folder has files of its own, which no stack shows."""
    for night in range(NIGHTS):
        kernel = IDS[0].rpartition("/")[2]
        edited = night >= 6
        store_run(
            store,
            path,
            timed(lambda case, edited=edited: 110 if edited and case.id == IDS[0] else 100),  # type: ignore[misc]
            age=timedelta(days=NIGHTS - night),
            stack=make_stack(torch="2.11.0"),
            code={kernel: {"mine.py": f"{edited:064}"}},
        )
    (series,) = histories(store, "serving", IDS[0])
    assert ["mine.py"] == [change.code for change in series.changes]
    assert to_text([series]).endswith("from then on; with it changed the code of the kernel: mine.py")


def test_a_short_history_says_so(store: Store, path: Path) -> None:
    """Three runs are not eight."""
    nights(store, path, 3)
    (series,) = histories(store, "serving", IDS[0])
    assert "not enough history: 3 of at least 8 runs on this card" == series.why_not
    assert series.why_not in to_text([series])


def test_runs_without_the_anchor_are_told(store: Store, path: Path) -> None:
    """Nobody wonders where the runs of the case are: they did not time what it is compared with."""
    nights(store, path, 3)
    path.write_text(MATRIX.replace("      - 9\n", "      - 10\n"))
    store_run(store, path, timed(lambda case: 100.0))
    (series,) = histories(store, "serving", IDS[0], anchor=IDS[3])
    told = f"not enough history: 3 of at least 8 runs on this card; 1 more has no time of {IDS[3]}"
    assert (3, told) == (len(series.points), series.why_not)


def test_each_card_has_its_own_series(store: Store, path: Path) -> None:
    """Two cards of one model are not compared."""
    nights(store, path, 2)
    other = make_stack()
    store_run(store, path, timed(lambda case: 1.0), stack=replace(other, device=replace(other.device, uuid="cpu-1")))
    found = histories(store, None, IDS[0])
    assert [2, 1] == [len(series.points) for series in found]
    assert 2 == len({series.card for series in found})


def test_cards_that_share_a_run_have_their_own_series(store: Store, path: Path) -> None:
    """A run on two cards gives a case to either, and its record names the card."""
    for night, card in enumerate(["gpu-0", "gpu-1", "gpu-0"]):
        timing = make_timing(100.0 + night)
        outcome = Measured(evidence=replace(make_evidence(), timing=timing, device_uuid=card))
        store_run(store, path, outcome, age=timedelta(days=3 - night))
    found = {series.card.split()[-1]: series for series in histories(store, None, IDS[0])}
    assert {"gpu-0": [100.0, 102.0], "gpu-1": [101.0]} == {
        card: [point.us for point in series.points] for card, series in found.items()
    }


def test_times_of_another_level_are_left_out_of_a_series(store: Store, path: Path) -> None:
    """Nights at full, and two later runs at smoke, which times in fewer blocks: no change of level, and it is told."""
    nights(store, path, 10, change=1.0)
    for hours in (2, 1):
        short = Measured(evidence=replace(make_evidence(), timing=make_timing(300.0, samples_us=(300.0,) * 5)))
        store_run(store, path, short, age=timedelta(hours=hours))
    told = list[str]()
    (series,) = histories(store, "serving", IDS[0], tell=told.append)
    assert (10, ()) == (len(series.points), series.changes)
    why = "in another number of blocks than most of their case's, as at another level, and are left out"
    assert [f"8 times are measured {why}"] == told


@pytest.mark.parametrize(
    ("older", "points", "left_out", "out"),
    [(9, 9, "2 times are", "are left out"), (1, 2, "1 time is", "is left out")],
)
def test_times_of_the_other_cache_are_left_out_of_a_series(
    store: Store, path: Path, older: int, points: int, left_out: str, out: str
) -> None:
    """A warm cache makes every call faster: that is no change of the kernel, and the text says what is left out."""
    for night in range(older + 2):
        cold = night < older

        def outcome(case: Case, cold: bool = cold) -> Measured:
            warm = not cold and case.id == IDS[0]
            timing = make_timing(60.0 if warm else 100.0, cold=not warm)
            return Measured(evidence=replace(make_evidence(), timing=timing))

        store_run(store, path, outcome, age=timedelta(days=12 - night))
    told = list[str]()
    (series,) = histories(store, "serving", IDS[0], tell=told.append)
    assert (points, ()) == (len(series.points), series.changes)
    assert 1 == len({point.us for point in series.points})
    assert [f"{left_out} measured with another cache, warm or cold, than most of their case's, and {out}"] == told


def test_times_of_a_shared_card_are_left_out_of_a_series(store: Store, path: Path) -> None:
    """Another process used the card in the last four nights: its load is no change of the kernel."""
    nights(store, path, 10, change=1.0)
    for hours in (4, 3, 2, 1):
        found = replace(make_evidence(make_finding(), shared({7})), timing=make_timing(150.0))
        store_run(store, path, Measured(evidence=found), age=timedelta(hours=hours))
    told = list[str]()
    (series,) = histories(store, "serving", IDS[0], tell=told.append)
    assert (10, ()) == (len(series.points), series.changes)
    why = "measured on a card that others used, or that had no other user, unlike most of their case's"
    assert [f"16 times are {why}, and are left out"] == told


def test_times_of_another_call_are_left_out_of_a_series(store: Store, path: Path) -> None:
    """The model has four times as many heads: the id is the same, and the call takes longer for another reason."""
    nights(store, path, 10, change=1.0)
    path.write_text(MATRIX.replace("heads_q: 2, heads_kv: 2", "heads_q: 8, heads_kv: 8"))
    for hours in (9, 7, 5, 3, 1):
        store_run(store, path, timed(lambda case: 400.0 if case.id == IDS[0] else 100.0), age=timedelta(hours=hours))
    told = list[str]()
    (series,) = histories(store, "serving", IDS[0], tell=told.append)
    assert ([400.0] * 5, ()) == ([point.us for point in series.points], series.changes)
    assert "not enough history: 5 of at least 8 runs on this card" == series.why_not
    why = "of another call than their case's newest: its shape, its model or its kernel's card changed"
    assert [f"40 times are {why}, and are left out"] == told


def test_words_select_as_they_do_elsewhere(store: Store, path: Path) -> None:
    """Whoever types a kernel's name need not write a glob; an id is only itself."""
    nights(store, path, 1)
    own = [series.case for series in histories(store, None) if series.case.endswith("/tiled-torch")]
    assert own == [series.case for series in histories(store, None, "tiled-torch")]
    assert [IDS[0]] == [series.case for series in histories(store, None, IDS[0])]
    assert [] != own


def test_what_was_never_timed_is_told(store: Store, path: Path) -> None:
    """Nothing stored, no such case, no such anchor."""
    with pytest.raises(NoVerdict, match=r"no run in .* has timed anything yet: qualify run MATRIX"):
        histories(store, "serving")
    nights(store, path, 1)
    stored = store.runs()[0].matrix
    told = rf"no run of matrix {stored}x in .*; perhaps you meant {stored}. Runs are stored of: {stored}$"
    with pytest.raises(NoVerdict, match=told):
        histories(store, f"{stored}x")
    with pytest.raises(UsageError, match="no case that was timed matches 'x'"):
        histories(store, "serving", "x")
    with pytest.raises(UsageError, match="--anchor x: it was never timed"):
        histories(store, "serving", anchor="x")


def test_exports(store: Store, path: Path, tmp_path: Path) -> None:
    """CSV has a line for each point; Otava's YAML names a CSV with its columns for each series; JSON has all."""
    nights(store, path, 2)
    found = histories(store, "serving", "*/tiled-torch", anchor=IDS[1])
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert 4 == len(rows)
    assert (IDS[0], IDS[1]) == (rows[0]["case"], rows[0]["anchor"])
    assert float(rows[0]["us"]) / float(rows[0]["anchor_us"]) == pytest.approx(float(rows[0]["ratio"]))
    (tmp_path / "o").mkdir()
    written = YAML(typ="safe").load(write_otava(tmp_path / "o", found).read_text())["tests"]
    for test in written.values():
        with Path(test["file"]).open() as file:
            lines = list(csv.DictReader(file, quotechar=test["csv_options"]["quote_char"]))
        assert 2 == len(lines)
        assert {test["time_column"], *test["attributes"], *test["metrics"]} == set(lines[0])
        assert all(float(line["ratio"]) > 0 for line in lines)
    assert 2 == len(to_data(found)["series"])


def test_the_command_writes_them(path: Path, tmp_path: Path, store: Store, empty_sqlite: str) -> None:
    """`qualify history`, with everything at once; without a case or a matrix it says what it needs."""
    nights(store, path, 2)
    ended = call("history", "--matrix", "serving", "--csv", "h.csv", "--json", "--db", empty_sqlite, cwd=tmp_path)
    assert 0 == ended.code, ended.err
    assert 4 == len(ended.data["series"])
    assert (9, True) == (len((tmp_path / "h.csv").read_text().splitlines()), "wrote h.csv" in ended.err)
    assert 2 == call("history", "--db", empty_sqlite, cwd=tmp_path).code


def test_places_of_the_files_are_said_as_they_are_typed(
    path: Path, tmp_path: Path, store: Store, empty_sqlite: str
) -> None:
    """A place that cannot be written is named by its option; a command with a space in it can be pasted."""
    nights(store, path, 2)
    command = ("history", "--matrix", "serving", "--db", empty_sqlite)
    (tmp_path / "taken").touch()
    ended = call(*command, "--csv", "taken/h.csv", cwd=tmp_path)
    assert (4, "") == (ended.code, ended.out)
    assert ended.err.startswith("qualify: --csv taken/h.csv: the history cannot be written: ")
    assert "otava --config-file 'a b/otava.yaml' list-tests" in call(*command, "--otava", "a b", cwd=tmp_path).err


def test_files_for_otava_replace_only_their_own(path: Path, tmp_path: Path, store: Store, empty_sqlite: str) -> None:
    """A configuration that somebody wrote by hand stays, and is named; one of an earlier call is made anew."""
    nights(store, path, 2)
    (tmp_path / "otava.yaml").write_text("tests:\n  mine: {}\n")
    command = ("history", "--matrix", "serving", "--db", empty_sqlite, "--otava")
    ended = call(*command, ".", cwd=tmp_path)
    assert 2 == ended.code
    assert "--otava otava.yaml: the file that is there is of another kind, so it stays" in ended.err
    assert "mine" in (tmp_path / "otava.yaml").read_text()
    write_otava(tmp_path / "o", [])
    assert 0 == call(*command, "o", cwd=tmp_path).code
    assert 4 == len(YAML(typ="safe").load((tmp_path / "o" / "otava.yaml").read_text())["tests"])


def test_the_fastest_proven_kernel_serves_a_shape(store: Store, path: Path) -> None:
    """A faster one that gave wrong numbers does not; the interval of the next one says whether that is decided."""
    wrong = make_finding("fail", "row 3 sees key 9")

    def outcome(case: Case) -> Measured:
        fast = case.kernel == "tiled-torch"
        us = 50.0 if fast else 80.0
        found = (wrong,) if fast and ".q9." in case.id else ()
        samples = tuple(us + 0.1 * number for number in range(9))
        timing = make_timing(samples[4], samples_us=samples)
        return Measured(evidence=replace(make_evidence(*found), timing=timing))

    run = store_run(store, path, outcome)
    judged = judge(store, run.id, shipped_kernels(), now=NOW)
    first, second = best_kernels(judged)
    assert (CELL.format(8), "tiled-torch", True) == (first.shape, first.fastest and first.fastest.kernel, first.decided)
    assert ["torch-cpu-math"] == [other.kernel for other in first.others]
    assert second.fastest is not None
    assert ("torch-cpu-math", ()) == (second.fastest.kernel, second.others)
    assert "tiled-torch  50.4 µs [50.1, 50.7]" in best_report.to_text(judged, [first, second], NOW)
    data = json.loads(json.dumps(best_report.to_data(judged, [first], NOW)))
    assert (2, 32, True) == (data["shapes"][0]["heads_q"], data["shapes"][0]["head_dim"], data["shapes"][0]["decided"])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        (
            {"select": "*.q8.*"},
            " was narrowed by --select or --kernel, so this is not the whole matrix serving. For all",
        ),
        ({"state": "running"}, " is not finished, so this is not the whole matrix serving. Finish it: qualify run "),
        ({"state": "interrupted"}, " is interrupted, so this is not the whole matrix serving. Finish it: qualify run "),
    ],
)
def test_the_fastest_of_a_part_of_the_matrix_are_told_as_that(
    store: Store, path: Path, changes: dict[str, Any], why: str
) -> None:
    """The newest run may be a part of the matrix: who routes by its table must know that shapes are absent."""
    run = store_run(store, path, **changes)
    told = best_report.why_partial(judge(store, run.id, shipped_kernels(), now=NOW, part=True))
    assert told.startswith(f"run {run.id}{why}") if why else told == ""


@pytest.mark.parametrize(
    ("changes", "stale", "words"),
    [
        ({}, False, []),
        ({"age": timedelta(days=3)}, False, ["the evidence is 3 d old: `qualify gate --matrix` takes none older than"]),
        ({"device": "cuda"}, False, ["contradicts itself: "]),
        ({"terms": {"tiled-torch": {"claims.nan": "none"}}}, True, ["tiled-torch must run again: its card changed"]),
        ({"age": -timedelta(days=1)}, False, ["the evidence is dated 2026-11-22 "]),
    ],
    ids=["fresh", "old", "edited", "another card", "the future"],
)
def test_the_table_of_the_fastest_has_the_caveats_of_the_gate(
    store: Store, path: Path, changes: dict[str, Any], stale: bool, words: list[str]
) -> None:
    """Who routes by it reads them in the text and in the JSON."""
    judged = judge(store, store_run(store, path, **changes).id, shipped_kernels(), now=NOW, code=code_of_cards(()))
    data = best_report.to_data(judged, best_kernels(judged), NOW)
    assert stale == data["stale"]
    assert len(words) == len(data["notes"])
    assert all(word in note for word, note in zip(words, data["notes"], strict=True))
    lines = best_report.to_text(judged, best_kernels(judged), NOW).splitlines()
    assert [f"note: {note}" for note in data["notes"]] == [line for line in lines if line.startswith("note: ")]


@pytest.mark.parametrize(("cards", "decided"), [(("gpu-0", "gpu-0"), True), (("gpu-0", "gpu-1"), False)])
def test_times_of_two_cards_decide_nothing(store: Store, path: Path, cards: tuple[str, str], decided: bool) -> None:
    """Cards that share a run may time the kernels of one shape, and equal cards differ by more than the kernels do."""

    def outcome(case: Case) -> Measured:
        fast = case.kernel == "tiled-torch"
        timing = make_timing(50.0 if fast else 80.0)
        return Measured(evidence=replace(make_evidence(), timing=timing, device_uuid=cards[0 if fast else 1]))

    judged = judge(store, store_run(store, path, outcome).id, shipped_kernels(), now=NOW)
    found = best_kernels(judged)
    assert [decided] * 2 == [shape.decided for shape in found]
    text = best_report.to_text(judged, found, NOW)
    assert decided != ("two cards timed them" in text)
    assert decided != ("(undecided: the next one may be faster)" in text)


@pytest.mark.parametrize(
    ("older", "cold", "why"), [(False, True, ""), (True, True, "two runs timed them"), (False, False, "warm cache")]
)
def test_times_that_were_measured_differently_decide_nothing(
    store: Store, path: Path, older: bool, cold: bool, why: str
) -> None:
    """Two runs on one card differ by 3.5 % without any change, and a kernel with a warm cache looks faster."""
    before = store_run(store, path, timed(lambda case: 80.0), age=timedelta(hours=3))

    def outcome(case: Case) -> Outcome:
        fast = case.kernel == "tiled-torch"
        timing = make_timing(79.0 if fast else 80.0, cold=cold or not fast)
        own = Measured(evidence=replace(make_evidence(), timing=timing))
        return taken_over(own, before) if older and not fast else own

    judged = judge(store, store_run(store, path, outcome).id, shipped_kernels(), now=NOW)
    found = best_kernels(judged)
    assert [not why] * 2 == [shape.decided for shape in found]
    assert (why != "") == (
        "(undecided: the next one may be faster)" in (text := best_report.to_text(judged, found, NOW))
    )
    assert why in text


def test_every_other_kernel_must_be_slower() -> None:
    """The third by its median may be the fastest by its interval."""
    first, second, wide = (
        TimedKernel(kernel=name, case=name, us=us, low_us=low, high_us=high, card="", measured_by="", cold=True)
        for name, us, low, high in (("a", 50.0, 49.0, 51.0), ("b", 60.0, 59.0, 61.0), ("c", 70.0, 48.0, 90.0))
    )
    shape = BestKernel(
        shape="m/decode/b1.q1.k8/bf16/causal", model="m", phase="decode", dtype="bf16", mask="causal", batch=1,
        longest_q=1, longest_k=8, heads_q=2, heads_kv=2, head_dim=64, page_size=0, fastest=first, others=(second, wide),
    )  # fmt: skip
    assert (False, wide) == (shape.decided, shape.rival)
    assert replace(shape, others=(second,)).decided


def test_the_interval_of_a_median() -> None:
    """By order: of nine samples the second and the eighth; of five all."""
    assert (1.0, 7.0) == median_interval([float(number) for number in range(9)])
    assert (0.0, 4.0) == median_interval([float(number) for number in range(5)])
    assert (3.0, 3.0) == median_interval([3.0])


def test_what_rose_since_the_baseline_looks_slower(store: Store, path: Path) -> None:
    """Two runs of one night cannot say so; the history can, until a run after the rise is accepted."""
    nights(store, path)
    runs = store.runs("serving")
    newest = judge(store, runs[0].id, shipped_kernels(), now=NOW)
    assert (IDS[0],) == look_slower(store, newest)
    risen = next(run for run in reversed(runs) if run.stack.version("torch") == "2.13.0")
    for before, expected in ((runs[-1], (IDS[0],)), (risen, ()), (runs[2], ())):
        accepted = Baseline(
            matrix="serving", variant=runs[0].stack.device.variant, run_id=before.id, accepted_by="j", reason="r",
            accepted_at=NOW,
        )  # fmt: skip
        store.accept(accepted)
        compared = compare_with(store, newest, "baseline", shipped_kernels(), now=NOW)
        assert expected == tuple(case for case in look_slower(store, compared) if case == IDS[0])
    earlier = judge(store, runs[1].id, shipped_kernels(), now=NOW)
    assert () == look_slower(store, earlier), "the history is that of the newest run"


def test_what_is_slower_than_in_the_baseline_looks_slower_without_a_history(store: Store, path: Path) -> None:
    """Two runs are enough to ask for a duel; the largest factor comes first."""
    first = store_run(store, path, timed(lambda case: 100.0), age=timedelta(hours=3))
    facts = {"variant": make_stack().device.variant, "accepted_by": "j", "reason": "r", "accepted_at": NOW}
    store.accept(Baseline(matrix="serving", run_id=first.id, **facts))
    factors = {IDS[1]: 2.0, IDS[2]: 3.0}
    second = store_run(store, path, timed(lambda case: 100.0 * factors.get(case.id, 1.0)))
    judged = beside_baseline(store, judge(store, second.id, shipped_kernels(), now=NOW))
    assert (IDS[2], IDS[1]) == look_slower(store, judged)


def test_what_became_faster_does_not_look_slower(store: Store, path: Path) -> None:
    """No machine's time is spent to confirm a gain; what nobody timed looks like nothing."""
    untimed = store_run(store, path, age=timedelta(days=NIGHTS + 1))
    assert () == look_slower(store, judge(store, untimed.id, shipped_kernels(), now=NOW))
    nights(store, path, change=0.90)
    newest = judge(store, store.runs("serving")[0].id, shipped_kernels(), now=NOW)
    assert IDS[0] not in look_slower(store, newest)


def test_a_rise_that_was_undone_does_not_look_slower(store: Store, path: Path) -> None:
    """The last change counts: that of the repair."""
    nights(store, path, 24, change=1.10)
    for night in range(10):
        calm = timed(lambda case, night=night: 100 * (1 + 0.002 * ((night * 3 + len(case.id)) % 3)))
        store_run(store, path, calm, age=timedelta(hours=20 - night), stack=make_stack(torch="2.13.0"))
    newest = judge(store, store.runs("serving")[0].id, shipped_kernels(), now=NOW)
    assert IDS[0] not in look_slower(store, newest)
