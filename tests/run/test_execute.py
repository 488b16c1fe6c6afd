"""A session on the CPU: every stage of a case, and what becomes of a kernel that misbehaves in it."""

from __future__ import annotations

import gc
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import CEILINGS, make_card, make_case, make_workload
from faults import Dense, Edited

from qualify.cards.kernel import KernelCard
from qualify.facts.outcome import Crashed, Evidence, Measured, Outcome, Refused, Substituted, evidence_of
from qualify.facts.stack import Device
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.registry import CHECKS
from qualify.run.execute import Limits, Session, first_call, seed_of
from qualify.run.host.hosts import LocalHosts
from qualify.run.host.interface import HostLost
from qualify.run.inputs.tensors import INPUT_KINDS, make_inputs
from qualify.run.machine.device import Cpu
from qualify.run.measure import recording
from qualify.run.process.messages import CaseEnded, CaseRequest, decode_answer
from qualify.run.process.repeats import failed
from qualify.run.process.worker import Pipe, _run_chunk
from qualify.run.running import Running

DEVICE = Device(
    kind="cpu", name="a CPU", uuid="", compute_capability="", units=2, memory_bytes=1 << 30, cache_bytes=1 << 20
)


class Failing:
    """A kernel that raises, in one of its stages."""

    def __init__(self, stage: str, error: Exception) -> None:
        self.stage = stage
        self.error = error
        self.calls = 0

    def prepare(self, call: AttentionCall) -> Prepared:
        if self.stage == "prepare":
            raise self.error
        return Prepared(launch=lambda: self._launch(call), result=self._result)

    def _launch(self, call: AttentionCall) -> Any:
        self.calls += 1
        if self.stage == "launch" or (self.stage == "witness" and self.calls > 1):
            raise self.error
        return TiledTorch().prepare(call).launch()

    def _result(self, native: Any) -> Any:
        if self.stage == "checks":
            raise self.error
        return native


def session(adapters: dict[str, Any], announce: Callable[[str, str], None], **changes: Any) -> Session:
    """A session with these kernels loaded."""
    cards = {name: make_card(kernel=name) for name in adapters}
    usual: dict[str, Any] = {"level": "smoke", "reference": "fp64", "hosts": LocalHosts(Cpu(), dict(adapters))}
    return Session(device=DEVICE, ceilings=CEILINGS, cards=cards, announce=announce, **usual | changes)


WORKLOAD = make_workload(seqlens_q=(20,), heads_q=4, heads_kv=2, head_dim=32)


def outcomes(adapters: dict[str, Any], **changes: Any) -> tuple[dict[str, Outcome], list[tuple[str, str]]]:
    """Outcome of one case of each kernel, in one chunk, and what was announced."""
    stages: list[tuple[str, str]] = []
    made = session(adapters, lambda case, stage: stages.append((case.rpartition("/")[2], stage)), **changes)
    requests = [CaseRequest(case=make_case(name, workload=WORKLOAD), attempt=1) for name in adapters]
    found = {ended.case.rpartition("/")[2]: ended.outcome for ended in made.run(requests)}
    assert list(adapters) == sorted(found, key=list(adapters).index)
    return found, stages


def test_the_first_verdict_waits_for_one_case() -> None:
    """The second case is prepared only after the first has its outcome; the others share a profiler session."""
    kernels = {name: TiledTorch() for name in "abc"}
    stages: list[tuple[str, str]] = []
    made = session(kernels, lambda case, stage: stages.append((case.rpartition("/")[2], stage)))
    case_of = {name: make_case(name, workload=WORKLOAD) for name in kernels}
    ended = made.run([CaseRequest(case=case, attempt=1) for case in case_of.values()])
    assert next(ended).case == case_of["a"].id
    assert {"a"} == {case for case, _ in stages}
    assert [case.id for name, case in case_of.items() if name != "a"] == [each.case for each in ended]
    prepared = [case for case, stage in stages if stage == "prepare"]
    assert ["a", "b", "c"] == prepared
    assert stages.index(("c", "prepare")) < stages.index(("b", "witness"))


def test_a_profiler_session_has_only_so_many_cases() -> None:
    """However many the judge is given at once: the first has one, and the others as many as the device allows."""
    names = [f"k{number}" for number in range(2 + Cpu().session_cases)]
    stages: list[tuple[str, str]] = []
    kernels = {name: TiledTorch() for name in names}
    made = session(kernels, lambda case, stage: stages.append((case.rpartition("/")[2], stage)))
    requests = [CaseRequest(case=make_case(name, workload=WORKLOAD), attempt=1) for name in names]
    assert len(names) == len(list(made.run(requests)))
    *_, last = (number for number, (_, stage) in enumerate(stages) if stage == "prepare")
    assert (names[-1], "prepare") == stages[last]
    assert (names[-2], "checks") in stages[:last]
    assert (names[1], "checks") not in stages[: stages.index((names[-2], "prepare"))]


def test_a_case_whose_host_still_starts_lets_others_run_first() -> None:
    """Where every case left would have to wait, the first one does; the cases of one kernel keep their order."""

    class Starting(LocalHosts):
        def busy(self, card: KernelCard) -> bool:
            return card.kernel == "slow" and not {"a", "b"} <= ended.keys()

    kernels = {name: TiledTorch() for name in ("slow", "a", "b")}
    ended: dict[str, int] = {}
    made = session(kernels, lambda case, stage: None, hosts=Starting(Cpu(), dict(kernels)))
    cases = [
        make_case(name, workload=make_workload(seqlens_q=(count,)))
        for name, count in (("slow", 20), ("a", 20), ("slow", 24), ("b", 20))
    ]
    order = []
    for settled in made.run([CaseRequest(case=case, attempt=1) for case in cases]):
        order.append(settled.case)
        ended[settled.case.rpartition("/")[2]] = len(order)
    assert [cases[number].id for number in (1, 3, 0, 2)] == order


def test_where_all_hosts_still_start_the_first_that_is_ready_decides() -> None:
    """A slow one, whose case comes first, does not keep the first verdict back. One that never gets ready runs last."""

    class Starting(LocalHosts):
        ready: frozenset[str] = frozenset()
        waits = iter((frozenset({"quick"}), None))

        def busy(self, card: KernelCard) -> bool:
            return card.kernel not in self.ready

        def wait(self) -> bool:
            now = next(self.waits)
            self.ready |= now or frozenset()
            return now is not None

    kernels = {name: TiledTorch() for name in ("slow", "quick")}
    made = session(kernels, lambda case, stage: None, hosts=Starting(Cpu(), dict(kernels)))
    requests = [CaseRequest(case=make_case(name, workload=WORKLOAD), attempt=1) for name in kernels]
    assert ["quick", "slow"] == [ended.case.rpartition("/")[2] for ended in made.run(requests)]


def test_a_failure_that_will_run_again_lets_a_process_begin() -> None:
    """A case that passes does not, nor one that nobody claims to work: neither runs again."""

    class Begun(LocalHosts):
        count = 0

        def expect_repeat(self) -> None:
            self.count += 1

    kernels = {"right": TiledTorch(), "wrong": Edited(result=lambda call, out, lse: (1.5 * out, lse))}
    hosts = Begun(Cpu(), dict(kernels))
    short, long = make_workload(seqlens_q=(20,)), make_workload(seqlens_q=(24,))
    cases = (
        make_case("right", workload=short),
        make_case("wrong", workload=short),
        make_case("wrong", "small.tp1/prefill/b1.q24.k24/bf16/causal", workload=long, unclaimed=("queries=24 > 20",)),
    )
    requests = tuple(CaseRequest(case=case, attempt=1) for case in cases)
    said = io.BytesIO()
    assert _run_chunk(session(kernels, lambda case, stage: None, hosts=hosts), hosts, requests, Pipe(said))
    ended = [message for line in said.getvalue().splitlines() if isinstance(message := decode_answer(line), CaseEnded)]
    assert [False, True, True] == [failed(message.outcome) for message in ended]
    assert 1 == hosts.count


def evidence(outcome: Outcome) -> Evidence:
    """The evidence of an outcome that has some."""
    found = evidence_of(outcome)
    assert found is not None
    return found


@pytest.mark.usefixtures("settled")
def test_a_finished_case_is_let_go() -> None:
    """Of a chunk only what is still to be checked is held, besides the case at hand."""
    names = ("one", "two", "three")
    made = session({name: TiledTorch() for name in names}, lambda case, stage: None)
    requests = [CaseRequest(case=make_case(name, workload=WORKLOAD), attempt=1) for name in names]
    held = []
    for _ in made.run(requests):
        gc.collect()
        held.append(sum(type(item) is Running for item in gc.get_objects()))
    assert [1, 2, 1] == held  # the first case of a session is alone in its chunk


def test_a_correct_kernel_is_measured_with_everything() -> None:
    """Findings of every check, statistics, a proven witness, a timing, costs; each stage announced in order."""
    found, stages = outcomes({"right": TiledTorch()})
    assert isinstance(found["right"], Measured)
    seen = evidence(found["right"])
    asked = {finding.check for finding in seen.findings if finding.verdict == "pass"}
    assert {"pass", "note"} == {finding.verdict for finding in seen.findings}
    assert {"contract", "budget", "lse", "census", "needle", "suffix", "repeat", "parameters"} <= asked
    smoke = {check.name for check in CHECKS if "smoke" in check.levels}
    assert smoke <= {finding.check for finding in seen.findings}
    assert ("proven", ("qualify::tiled_attention",)) == (seen.witness.state, seen.witness.attention_names)
    assert ["normal"] == [record.inputs for record in seen.statistics]
    assert seen.timing is not None
    assert seen.timing.latency_us > 0
    assert seen.first_call_us > 0
    assert seen.peak_temporary_bytes is not None
    assert seen.wall_s > 0
    named = [stage for _, stage in stages]
    assert ["load", "prepare", "witness", "witness", "checks"] == named[:5]
    announced = [stage.removeprefix("checks:") for stage in named if stage.startswith("checks:")]
    assert [check.name for check in CHECKS if check.name in announced] == announced
    assert asked & smoke <= set(announced) <= smoke
    assert "timing" == named[-1]


def test_level_full_asks_more() -> None:
    """Every kind of inputs."""
    found, _ = outcomes({"right": TiledTorch()}, level="full", reference="fp32")
    records = evidence(found["right"]).statistics
    assert (len(INPUT_KINDS), {"fp32"}) == (len(records), {record.reference for record in records})


@pytest.mark.parametrize(
    ("stage", "expected"),
    [("prepare", "prepare"), ("launch", "prepare"), ("witness", "witness"), ("checks", "checks")],
)
def test_an_exception_is_the_outcome_of_its_case(stage: str, expected: str) -> None:
    """The stage, one line and the traceback are kept; the kernel beside it is measured."""
    bad = Failing(stage, RuntimeError("no kernel image\nis available"))
    found, _ = outcomes({"right": TiledTorch(), "bad": bad, "last": TiledTorch()})
    crashed = found["bad"]
    assert isinstance(crashed, Crashed)
    assert (expected, "RuntimeError: no kernel image", 1) == (crashed.stage, crashed.error, crashed.attempt)
    assert "Traceback" in crashed.log
    assert ["measured", "measured"] == [found[name].outcome for name in ("right", "last")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "CUDA out of memory. Tried to allocate 10.00 GiB.\nOf the rest",
            "CUDA out of memory. Tried to allocate 10.00 GiB.",
        ),
        ("", "OutOfMemoryError"),
    ],
)
def test_checks_without_room_are_inconclusive(text: str, told: str) -> None:
    """They are no fault of the kernel, and no pass: what could be asked is kept, and the case is measured."""
    found, _ = outcomes({"full": Failing("checks", torch.OutOfMemoryError(text))})
    findings = {finding.check: finding for finding in evidence(found["full"]).findings}
    assert {"inconclusive"} == {findings[name].verdict for name in ("census", "budget", "timing")}
    assert f"not run: no room for it on the device ({told})" == findings["budget"].detail


def test_a_library_that_refuses_is_a_refusal() -> None:
    """With its own reason."""
    found, _ = outcomes({"refuses": Failing("prepare", LibraryRefusal("head_dim 64 is not supported"))})
    assert Refused(by="library", reasons=("head_dim 64 is not supported",)) == found["refuses"]


@pytest.mark.parametrize(
    ("raised", "told"),
    [("prepare", "load"), ("launch", "load"), ("witness", "witness"), ("checks", "checks")],
)
def test_a_library_that_does_not_import_crashes_in_load(raised: str, told: str) -> None:
    """Also where its first call imports it; once a call has returned, the library is there and a later one fails."""
    found, _ = outcomes({"missing": Failing(raised, ImportError("libcudart.so.12: no such file"))})
    crashed = found["missing"]
    assert isinstance(crashed, Crashed)
    assert (told, "ImportError: libcudart.so.12: no such file") == (crashed.stage, crashed.error)


def test_an_entry_that_raises_at_import_could_not_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its import raises; the kernel never got as far as preparing a call."""
    (tmp_path / "needs_a_license.py").write_text("raise RuntimeError('no license')\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = session({}, lambda case, stage: None)
    made.cards["own"] = make_card(kernel="own", adapter="call", entry="needs_a_license:attend")
    (ended,) = made.run([CaseRequest(case=make_case("own", workload=make_workload(seqlens_q=(5,))), attempt=1)])
    assert isinstance(ended.outcome, Crashed)
    assert ("load", "RuntimeError: no license") == (ended.outcome.stage, ended.outcome.error)


def test_a_kernel_that_is_not_loaded_yet_is_loaded_by_its_card() -> None:
    """And the loading is announced, because it may take minutes."""
    stages: list[str] = []
    made = session({}, lambda case, stage: stages.append(stage))
    made.cards["own"] = make_card(kernel="own")
    (ended,) = made.run([CaseRequest(case=make_case("own", workload=make_workload(seqlens_q=(5,))), attempt=2)])
    assert ["load", "prepare"] == stages[:2]
    assert 2 == evidence(ended.outcome).attempt


def test_a_breach_of_the_contract_ends_the_checks() -> None:
    """Nothing more can be asked of a result of the wrong shape; it is still measured, and fails."""
    found, _ = outcomes({"short": Edited(result=lambda call, out, lse: (out[1:], lse))})
    findings = evidence(found["short"]).findings
    assert [("contract", "fail")] == [(finding.check, finding.verdict) for finding in findings]


def test_a_first_call_of_another_shape_is_told_as_a_breach_by_the_check_that_saw_it() -> None:
    """Every later call is right, so the check of the contract passes; the case has evidence, and has not crashed."""
    calls: list[int] = []

    def first_is_short(call: AttentionCall, out: Any, lse: Any) -> Any:
        calls.append(1)
        return (out if len(calls) > 1 else out[1:]), lse

    found, _ = outcomes({"short": Edited(result=first_is_short)})
    (failed,) = [finding for finding in evidence(found["short"]).findings if finding.verdict == "fail"]
    words = "the contract says (20, 4, 32) (seen by the check repeat; other calls returned what it says)"
    assert ("contract", f"out has shape (19, 4, 32), {words}") == (failed.check, failed.detail)


def test_another_kernel_is_a_substitution() -> None:
    """The card promises the portable kernel, and plain operators do the work."""
    found, _ = outcomes({"other": Dense(), "right": TiledTorch()})
    assert isinstance(found["other"], Substituted)
    assert evidence(found["other"]).witness.reason.startswith("no attention kernel ran, the math path did: ")
    assert isinstance(found["right"], Measured)


def test_a_failed_negative_control_leaves_nothing_proven() -> None:
    """If the math path does not look like the math path, the witness cannot be believed."""

    class Doubted(LocalHosts):
        """Hosts whose control failed."""

        def control(self, card: KernelCard) -> str:
            return "the math path shows only copies"

    found, _ = outcomes({"right": TiledTorch()}, hosts=Doubted(Cpu(), {"right": TiledTorch()}))
    seen = evidence(found["right"]).witness
    assert ("unproven", "negative control failed: the math path shows only copies") == (seen.state, seen.reason)


def test_a_host_that_ends_in_its_negative_control_costs_its_case_only() -> None:
    """The session goes on: the control is a part of the case's witness, and how that ended is told."""

    class Dying(LocalHosts):
        """Hosts of which one ends."""

        def control(self, card: KernelCard) -> str:
            if card.kernel == "late":
                raise HostLost("the process exited with status 3", log="bye", limit_s=None)
            return ""

    kernels = {"late": TiledTorch(), "right": TiledTorch()}
    found, _ = outcomes(kernels, hosts=Dying(Cpu(), dict(kernels)))
    late = found["late"]
    assert isinstance(late, Crashed)
    assert ("witness", "the process exited with status 3", "bye") == (late.stage, late.error, late.log)
    assert isinstance(found["right"], Measured)


def test_what_a_session_of_the_profiler_lost_is_traced_again_case_by_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, in the same process; a case by itself that is lost stays unproven."""
    real, traced = recording.record, []

    def losing(launches: Sequence[Any], *arguments: Any, **options: Any) -> list[dict[str, Any]]:
        traced.append(len(launches))
        events = real(launches, *arguments, **options)
        lost = len(launches) > 1 or len(traced) == 3
        return [event for event in events if not (lost and event["name"] == "qualify#close")]

    monkeypatch.setattr(recording, "record", losing)
    found, _ = outcomes({"first": TiledTorch(), "one": TiledTorch(), "two": TiledTorch()})
    assert [1, 2, 1, 1] == traced
    states = {name: evidence(outcome).witness.state for name, outcome in found.items()}
    assert {"first": "proven", "one": "unproven", "two": "proven"} == states


def test_checks_that_do_not_apply_say_so() -> None:
    """A note with the reason instead of silence."""
    made = session({"right": TiledTorch()}, lambda case, stage: None)
    narrow = make_workload(seqlens_q=(5,), head_dim=16, causal=False)
    (ended,) = made.run([CaseRequest(case=make_case("right", workload=narrow), attempt=1)])
    notes = {finding.check: finding.detail for finding in evidence(ended.outcome).findings if finding.verdict == "note"}
    assert "not run: head_dim 16 < 32: too few orthogonal codes" == notes["needle"]
    assert "not run: one sequence without a mask: every query sees every key" == notes["suffix"]


def test_the_seed_of_a_case_is_its_own_and_repeats() -> None:
    """It follows from the content hash."""
    one, other = make_case("a"), make_case("b")
    assert seed_of(one) == seed_of(make_case("a"))
    assert seed_of(one) != seed_of(other)


class Told(LocalHosts):
    """Hosts that keep which limits were set, and which kernels were loaded; the first load of each one fails."""

    def __init__(self, *names: str, error: Exception | None = None, fresh: bool = False) -> None:
        super().__init__(Cpu(), {name: TiledTorch() for name in names})
        self.limits: list[float] = []
        self.loaded: list[str] = []
        self.error = error
        self.is_fresh = fresh

    def begin(self, limit_s: float) -> None:
        self.limits.append(limit_s)

    def fresh(self, card: KernelCard) -> bool:
        return self.is_fresh

    def kernel(self, card: KernelCard, *, alone: bool = False) -> Any:
        self.loaded.append(card.kernel)
        if self.error is not None and self.loaded.count(card.kernel) == 1:
            raise self.error
        return super().kernel(card, alone=alone)


@pytest.mark.parametrize(("jit", "compiling"), [("never", 1.0), ("kernels", 9.0), ("shapes", 9.0)])
def test_a_stage_in_which_a_library_may_compile_has_more_time(jit: str, compiling: float) -> None:
    """Loading always, preparing and each check where the card says so; a limit is set before its stage is announced."""
    hosts, seen = Told("right"), []
    made = session({"right": TiledTorch()}, lambda case, stage: seen.append((stage, hosts.limits[-1])), hosts=hosts)
    made.cards["right"] = make_card(kernel="right", jit=jit)
    made.limits = Limits(stage_s=1.0, compile_s=9.0)
    (ended,) = made.run([CaseRequest(case=make_case("right", workload=make_workload(seqlens_q=(5,))), attempt=1)])
    assert isinstance(ended.outcome, Measured)
    limits = {stage: limit for stage, limit in dict(seen).items() if not stage.startswith("checks")}
    assert {compiling} == {limit for stage, limit in seen if stage not in limits}
    assert (9.0, compiling) == (limits.pop("load"), limits.pop("prepare"))
    assert {1.0} == set(limits.values())
    assert len(hosts.limits) == len(seen)


@pytest.mark.parametrize(
    ("fresh", "error", "loads", "second"),
    [
        (True, ImportError("no such library"), 1, "crashed"),
        (False, ImportError("no such library"), 2, "measured"),
        (True, LibraryRefusal("not on this device"), 2, "measured"),
        (False, LibraryRefusal("not on this device"), 2, "measured"),
    ],
    ids=["new and broken", "used and broken", "new and refusing", "used and refusing"],
)
def test_a_kernel_that_cannot_be_loaded_where_nothing_ran_is_not_loaded_again(
    fresh: bool, error: Exception, loads: int, second: str
) -> None:
    """Where something had run before, that may be to blame; a refusal is that case's only."""
    hosts = Told("right", error=error, fresh=fresh)
    made = session({"right": TiledTorch()}, lambda case, stage: None, hosts=hosts)
    cases = [make_case("right", workload=make_workload(seqlens_q=(size,))) for size in (5, 6)]
    ended = list(made.run([CaseRequest(case=case, attempt=1) for case in cases]))
    assert loads == hosts.loaded.count("right")
    assert [second, fresh] == [ended[1].outcome.outcome, ended[0].fresh]
    assert fresh == ended[1].fresh


def test_what_a_case_cost_is_all_of_its_stages() -> None:
    """From the loading of its kernel on, and not only the last one."""

    class Slow(LocalHosts):
        """Hosts that take half a second to load a kernel."""

        def kernel(self, card: KernelCard, *, alone: bool = False) -> Any:
            time.sleep(0.5)
            return super().kernel(card, alone=alone)

    began = time.monotonic()
    found, _ = outcomes({"right": TiledTorch()}, hosts=Slow(Cpu(), {"right": TiledTorch()}))
    assert 0.5 <= evidence(found["right"]).wall_s <= time.monotonic() - began


class Computed:
    """A kernel that computes when it prepares a call, and copies the result when it launches."""

    def prepare(self, call: AttentionCall) -> Prepared:
        out, lse = TiledTorch().prepare(call).launch()
        return Prepared(launch=lambda: (out.clone(), lse.clone()), result=lambda native: native)


def test_the_result_is_no_temporary_memory() -> None:
    """What a launch returns is the caller's; the LSE and what was held beside it counts."""
    found, _ = outcomes({"copies": Computed()})
    peak = evidence(found["copies"]).peak_temporary_bytes
    assert peak is not None
    assert 0 <= peak < 20 * 8 * 64 * 2


def test_a_call_that_a_check_alters_may_be_refused() -> None:
    """That is told, and no fault; but without the case's own call nothing was compared, so the budget is open."""

    class Once(TiledTorch):
        """A kernel of a library that takes one call."""

        taken = False

        def prepare(self, call: AttentionCall) -> Prepared:
            if self.taken:
                raise LibraryRefusal("one call was taken")
            self.taken = True
            return super().prepare(call)

    found, _ = outcomes({"once": Once()}, timed=False)
    told = {(finding.check, finding.verdict, finding.detail) for finding in evidence(found["once"]).findings}
    refused = "not run: one call was taken"
    assert {("census", "note", refused), ("budget", "inconclusive", refused)} <= told


def test_a_first_call_is_one_launch_of_the_case_s_own_inputs() -> None:
    """Processes that compile ahead make it: what they compile is what the case will launch."""
    launched: list[AttentionCall] = []

    class Watched(TiledTorch):
        """Keeps what it launches, and takes its time."""

        def prepare(self, call: AttentionCall) -> Prepared:
            prepared = super().prepare(call)

            def launch() -> Any:
                launched.append(call)
                time.sleep(0.02)
                return prepared.launch()

            return replace(prepared, launch=launch)

    case, card = make_case("right", workload=make_workload(seqlens_q=(20,))), make_card(kernel="right")
    began = time.monotonic()
    took_us = first_call(case, card, LocalHosts(Cpu(), {"right": Watched()}), "cpu")
    assert 20_000 <= took_us <= 1e6 * (time.monotonic() - began)
    (call,) = launched
    expected = make_inputs(case.workload, kind="normal", seed=seed_of(case), device=torch.device("cpu")).call
    assert torch.equal(expected.q, call.q)
