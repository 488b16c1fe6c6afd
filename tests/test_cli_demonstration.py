"""A CPU in the place of a GPU: it is said everywhere, it promotes nothing, and nobody gets it unasked."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_finding
from cli_process import call, environment, write_matrix
from stored_runs import NOW, PASSED, make_stack, shipped_kernels, store_run

from qualify.assets import AGAIN, again_line, shipped
from qualify.canary.advice import advise
from qualify.canary.child import seen_of
from qualify.errors import NoVerdict
from qualify.facts.case import Case
from qualify.facts.outcome import Measured, Outcome, Refused
from qualify.facts.overview import RunQuery
from qualify.judge.against import accepted, compare_with
from qualify.judge.judged import Judged, judge
from qualify.judge.signing import named
from qualify.report.beside import beside_of
from qualify.report.context import report_context
from qualify.report.formats import junit
from qualify.report.formats.in_toto import to_statement
from qualify.report.formats.interface import OutputOptions
from qualify.report.sitepages.parts import parts_json
from qualify.report.verdict_text import to_text
from qualify.store import Store
from qualify.web.site import Site

WORDS = "demonstration on a CPU"
NO_GPU = environment(CUDA_VISIBLE_DEVICES="")
NAMED = ("tiled-torch", "torch-sdpa")
"""a kernel that runs anywhere, and one that needs a GPU"""


def on_cpu(case: Case) -> Outcome:
    """What the plan and the worker make of a case without a GPU."""
    if case.kernel != "tiled-torch":
        return Refused(by="plan", reasons=(f"device=cpu ({case.kernel} requires cuda)",))
    return PASSED


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An empty store."""
    with Store.open(str(tmp_path / "evidence.db")) as opened:
        yield opened


def judged(store: Store, folder: Path, *kernels: str, **changes: Any) -> Judged:
    """A stored run of these kernels on a CPU, judged."""
    run = store_run(store, write_matrix(folder / "serving.yaml", *kernels), on_cpu, **changes)
    return judge(store, run.id, shipped_kernels(), now=NOW)


@pytest.mark.parametrize("matrix", ["hopper", "named.yaml"])
@pytest.mark.parametrize("more", [(), ("--device", "auto"), ("--kernel", "tiled-*")])
def test_no_cpu_takes_the_place_of_a_gpu_in_silence(tmp_path: Path, matrix: str, more: tuple[str, ...]) -> None:
    """A matrix that names CUDA kernels is exit 4 without a GPU, and nothing is stored."""
    if matrix == "hopper" and "--kernel" in more:
        more = ("--kernel", "torch-sdpa-is-causal")
    write_matrix(tmp_path / "named.yaml", *NAMED)
    ended = call("run", matrix, *more, cwd=tmp_path, env=NO_GPU)
    assert (4, "") == (ended.code, ended.out)
    assert "names kernels that need a GPU (" in ended.err
    assert f"qualify run {matrix} --device cpu" in ended.err
    assert [tmp_path / "named.yaml"] == list(tmp_path.iterdir())


def test_a_demonstration_of_named_kernels_never_qualifies(tmp_path: Path) -> None:
    """Asked for by --device cpu it runs, says what it is, and gives no verdict: nor does the gate on its evidence."""
    write_matrix(tmp_path / "named.yaml", *NAMED)
    ran = call("run", "named.yaml", "--device", "cpu", cwd=tmp_path, env=NO_GPU)
    gate = call("gate", cwd=tmp_path)
    fresh = call("gate", "--matrix", "named.yaml", cwd=tmp_path)
    assert (5, 5, 5) == (ran.code, gate.code, fresh.code)
    for text in (ran.out, gate.out, fresh.out):
        assert f"named: {WORDS}, which proves nothing about a GPU: no verdict" in text
        assert "promote" not in text
        assert "run it on the GPU host: qualify run named.yaml" in text
    assert ran.err.startswith(WORDS) or f"\n{WORDS}" in ran.err


def test_a_shipped_matrix_has_its_name_on_another_machine(tmp_path: Path) -> None:
    """The command for the GPU host does not name a folder of this machine."""
    ran = call("run", "smoke", "--select", "decode", "--kernel", "torch-cpu-math", cwd=tmp_path, env=NO_GPU)
    assert 0 == ran.code, ran.err
    assert "run it on the GPU host: qualify run smoke\n" in ran.out


def test_no_statement_sends_a_shipped_matrix_to_the_gpu_host_by_a_path(store: Store, tmp_path: Path) -> None:
    """The message about a statement gives the same command as the gate's text, whole in what follows it."""
    found = judged(store, tmp_path, "*")
    found = replace(found, run=replace(found.run, matrix_path=str(shipped("matrices") / "smoke.yaml")))
    assert "run it on the GPU host: qualify run smoke\n" in to_text(found, NOW) + "\n"
    with pytest.raises(NoVerdict, match=r"On the GPU host, `qualify run smoke` runs it\.$"):
        to_statement(found)


def test_a_check_is_made_anew_on_the_gpu_host(store: Store, tmp_path: Path) -> None:
    """Its matrix lies on this machine only and has shapes for a CPU; text and page do not send it there."""
    found = judged(store, tmp_path, *NAMED)
    asked = again_line(["Qwen/Qwen3-8B", "--dtype", "fp16", "--backend", "a b"])
    for path, source, command in (
        (
            ".qualify/checks/toy.yaml",
            f"# of toy\n{asked}\n",
            "qualify check Qwen/Qwen3-8B --dtype fp16 --backend 'a b'",
        ),
        (".qualify/checks/toy.yaml", f"{AGAIN}toy --db elsewhere", "qualify check MODEL"),
        (".qualify/checks/toy.yaml", f"{AGAIN}toy; id", "qualify check MODEL"),
        (".qualify/checks/toy.yaml", f"{AGAIN}'", "qualify check MODEL"),
        (".qualify/checks/toy.yaml", "", "qualify check MODEL"),
        (str(shipped("matrices") / "smoke.yaml"), asked, "qualify run smoke"),
    ):
        there = replace(found, run=replace(found.run, matrix_path=path, matrix_source=source))
        assert f"run it on the GPU host: {command}\n" in to_text(there, NOW) + "\n"
        context = report_context(there.run, there.records, there.conclusion, beside_of(there))
        (told,) = (it.command for it in context.why.hindrances if "stood in" in it.title)
        assert command == told


def test_what_no_comment_can_hold_is_no_command() -> None:
    """A model's path of two lines, or one that begins as an option does, would not come out as it went in."""
    assert ["", "", ""] == [again_line(words) for words in ((), ("a\nmatrix: b",), ("a", "--dtype"))]


def test_a_portable_matrix_demonstrates_with_exit_0(tmp_path: Path) -> None:
    """`*` takes what the machine can run, as smoke does: without a GPU every form says that it was a demonstration."""
    write_matrix(tmp_path / "portable.yaml", "*")
    ran = call("run", "portable.yaml", cwd=tmp_path, env=NO_GPU)
    assert (0, "") == (ran.code, "".join(line for line in ran.out.splitlines() if "promote" in line))
    assert f"portable: {WORDS}, which proves nothing about a GPU: every case passed (" in ran.out
    assert "do: this result says nothing about a GPU" in ran.out
    folder = next((tmp_path / "out").iterdir())
    page, data = (folder / "report.html").read_text(), json.loads((folder / "report.json").read_text())
    assert "Demonstration on a CPU, which proves nothing about a GPU: " in page
    assert 'class="badge NOT_REQUIRED"' in page
    assert "Nobody has signed this evidence" in page
    assert ("PASS", True, 0) == (data["verdict"], data["demonstration"], data["exit_code"])
    found = call("gate", "--json", cwd=tmp_path).data
    assert ("PASS", True, 0) == (found["verdict"], found["demonstration"], found["exit_code"])
    for form in ("markdown", "github", "junit"):
        text = call("gate", "--format", form, cwd=tmp_path)
        assert (0, True) == (text.code, WORDS in text.out)
        assert "do: promote" not in text.out
        assert "1. promote" not in text.out


def test_a_cpu_that_was_meant_qualifies(store: Store, tmp_path: Path) -> None:
    """A matrix whose kernels all run on a CPU is no demonstration there."""
    found = judged(store, tmp_path, "tiled-torch")
    assert ("PASS", False) == (found.conclusion.verdict, found.conclusion.demonstration)


def test_a_refusal_tells_where_the_card_is_gone(store: Store, tmp_path: Path) -> None:
    """The gate of a run whose cards nobody gave it still knows that a kernel needed a GPU."""
    run = store_run(store, write_matrix(tmp_path / "serving.yaml", *NAMED), on_cpu)
    known = {name: kernel for name, kernel in shipped_kernels().items() if name == "tiled-torch"}
    found = judge(store, run.id, known, now=NOW).conclusion
    assert ("INCONCLUSIVE", True) == (found.verdict, found.demonstration)


def test_a_demonstration_that_failed_keeps_no_release_back(store: Store, tmp_path: Path) -> None:
    """No release hangs on a CPU: the first line sends to the GPU host, the next ones repeat the failure."""

    def wrong_on_cpu(case: Case) -> Outcome:
        wrong = Measured(evidence=make_evidence(make_finding("fail", "row 3 sees key 9")))
        return wrong if case.kernel == "tiled-torch" else on_cpu(case)

    run = store_run(store, write_matrix(tmp_path / "serving.yaml", "*"), wrong_on_cpu)
    lines = to_text(judge(store, run.id, shipped_kernels(), now=NOW), NOW).splitlines()
    todo = [line for line in lines if line.startswith("do: ")]
    assert todo[0].startswith("do: this result says nothing about a GPU; run it on the GPU host: qualify run ")
    assert todo[1].startswith("do: repeat the worst failure: qualify repro ")
    assert "keep the release back" not in "".join(lines)


def test_no_statement_and_no_green_test_of_a_demonstration(store: Store, tmp_path: Path) -> None:
    """in-toto has nothing to promote, and JUnit's test of the verdict is skipped."""
    found = judged(store, tmp_path, "*")
    assert "PASS" == found.conclusion.verdict
    with pytest.raises(NoVerdict, match=WORDS):
        to_statement(found)
    text = junit.render(found, OutputOptions(now=NOW))
    assert '<skipped message="NOT_REQUIRED: serving: demonstration on a CPU' in text


def test_a_canary_holds_on_a_demonstration(store: Store, tmp_path: Path) -> None:
    """Its advice is not to promote, whatever passed and whatever baseline there is."""
    before = judged(store, tmp_path, "*", age=timedelta(hours=2))
    accepted(store, before, by=named("jane", "ci"), reason="the first", now=NOW)
    found = compare_with(store, judged(store, tmp_path, "*"), "baseline", shipped_kernels(), now=NOW)
    counsel = advise(seen_of(found, 0.1))
    assert "hold" == counsel.advice
    assert any(WORDS in reason for reason in counsel.reasons)


def test_the_baseline_of_a_cpu_stands_for_no_gpu(store: Store, tmp_path: Path) -> None:
    """A demonstration that somebody accepted is not what a run on a GPU is compared with."""
    accepted(store, judged(store, tmp_path, "*"), by=named("jane", "ci"), reason="a demonstration", now=NOW)
    stack = make_stack()
    gpu = replace(stack, device=replace(stack.device, kind="cuda", name="NVIDIA H100", units=132))
    served = store_run(store, tmp_path / "serving.yaml", PASSED, stack=gpu, device="cuda")
    with pytest.raises(NoVerdict, match="no baseline of serving on NVIDIA H100"):
        compare_with(store, judge(store, served.id, shipped_kernels(), now=NOW), "baseline", shipped_kernels(), now=NOW)


def test_the_site_calls_it_a_demonstration(store: Store, tmp_path: Path) -> None:
    """In every list that has the verdict on the run; the lists of models and kernels name the device of their runs."""
    head = judged(store, tmp_path, "*").run.id
    site = Site(store, shipped_kernels())
    site.verdicts.details(site.head(head))
    site.verdicts.summary(site.head(head))
    words = f"– {WORDS}"
    (state,) = json.loads(parts_json("home", site.home()))["states"]
    assert (words, [words]) == (state["verdict"], [row.words for row in site.runs(RunQuery()).table.rows])
    for kind, page in (("models", site.models()), ("kernels", site.kernels())):
        rows = json.loads(parts_json(kind, page))[kind]
        assert {state["device"]} == {row["devices"] for row in rows if row["runs"]}
