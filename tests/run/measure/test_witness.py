"""What a trace proves: read from events, decided against a card, and seen on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_card, make_launch
from cli_process import server
from subjects import make_call, traces
from torch.nn.attention import SDPBackend, sdpa_kernel

from qualify.facts.outcome import Launch
from qualify.run.adapters.tiled_torch import create
from qualify.run.host.launch import HostSetup
from qualify.run.host.pool import Pool
from qualify.run.host.remote import Watch
from qualify.run.measure.recording import CALLS
from qualify.run.measure.tracing import NAMED, Trace, read_trace
from qualify.run.measure.witness import decide, findings, negative_control

FA3 = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<K> > >"
FA2 = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4> >"
MATH = ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n", "void softmax_warp_forward<float>")
PREPARE = "void flash::prepare_varlen_num_blocks_kernel<1, false>"

Events = list[dict[str, Any]]


class Timeline:
    """Chrome-trace events of a CUDA session, written one after another."""

    def __init__(self) -> None:
        self.events: Events = []
        self.now = 1000.0
        self.correlation = 0

    def range(self, name: str, *inside: Callable[[], Any]) -> Timeline:
        """A range with launches in it."""
        start = self.now
        self.now += 1
        for step in inside:
            step()
        self.now += 1
        event = {"cat": "user_annotation", "name": name, "ts": start, "dur": self.now - start, "tid": 1}
        self.events += [event, event | {"cat": "gpu_user_annotation"}]
        self.now += 1
        return self

    def launch(
        self,
        *kernels: str,
        api: str = "cudaLaunchKernel",
        dur: float = 5.0,
        cat: str = "kernel",
        tid: int = 1,
        **args: Any,
    ) -> Callable[[], None]:
        """One runtime call and the device records of what it started."""

        def add() -> None:
            self.correlation += 1
            runtime = {"cat": "cuda_runtime" if api.startswith("cuda") else "cuda_driver", "name": api, "tid": tid}
            own = {"correlation": self.correlation}
            self.events.append({**runtime, "ts": self.now, "dur": 0.5, "args": own})
            for kernel in kernels:
                shape = {"grid": [4, 2, 1], "block": [128, 1, 1], "registers per thread": 168, "shared memory": 1024}
                record = {
                    "cat": cat,
                    "name": kernel,
                    "ts": self.now + 500,
                    "dur": dur,
                    "args": {**own, **shape, **args},
                }
                self.events.append(record)
            self.now += 1

        return add

    def session(self, *calls: list[Callable[[], Any]]) -> Events:
        """A whole session of one case: sentinel, the calls, sentinel."""
        self.range("qualify#open", self.launch("sin_kernel"))
        for number, launches in enumerate(calls):
            self.range(f"qualify#0#{number}", *launches)
        self.range("qualify#close", self.launch("sin_kernel"))
        return self.events


def read(events: Events, count: int = 1) -> list[Trace]:
    """The traces of a CUDA session."""
    return read_trace(events, count=count, cuda=True)


def names(found: Trace) -> list[list[tuple[str, int]]]:
    """Names and counts of each call."""
    return [[(launch.name, launch.count) for launch in call] for call in found.calls]


def test_a_complete_trace_is_believed() -> None:
    """Three calls with two kernels each: names in order, geometry and time of the device records."""
    line = Timeline()
    (found,) = read(line.session(*[[line.launch(PREPARE, dur=2.0), line.launch(FA3, dur=30.0)]] * 3))
    assert "" == found.defect
    assert [[(PREPARE, 1), (FA3, 1)]] * CALLS == names(found)
    seen = found.calls[0][1]
    assert ((4, 2, 1), (128, 1, 1), 168, 1024, 30.0) == (
        seen.grid,
        seen.block,
        seen.registers,
        seen.shared_bytes,
        seen.duration_us,
    )
    assert ("attention", "flash-attention-3", "hopper") == (seen.role, seen.family, seen.generation)
    assert found.peak_bytes is None


def test_equal_launches_are_merged_and_other_grids_are_not() -> None:
    """Twice the same kernel counts two; the same name on another grid stands apart."""
    line = Timeline()
    call = [line.launch(FA2), line.launch(FA2), line.launch(FA2, grid=[9, 1, 1])]
    (found,) = read(line.session(call, call, call))
    assert [(FA2, 2), (FA2, 1)] == names(found)[0]
    assert [10.0, 5.0] == [launch.duration_us for launch in found.calls[0]]


def test_a_launch_without_a_device_record_is_a_defect() -> None:
    """The profiler lost a record: nothing is proved."""
    line = Timeline()
    (found,) = read(line.session([line.launch(FA3)], [line.launch(FA3), line.launch()], [line.launch(FA3)]))
    assert "cudaLaunchKernel has no device record" == found.defect


@pytest.mark.parametrize(
    "api",
    ["cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch", "cudaLaunchCooperativeKernel"],
)
def test_every_way_to_launch_needs_a_record(api: str) -> None:
    """Runtime, driver, cooperative and graph launches."""
    line = Timeline()
    (found,) = read(line.session(*[[line.launch(FA3, api=api)]] * 3))
    assert ("", [[(FA3, 1)]] * 3) == (found.defect, names(found))
    lost = Timeline()
    (found,) = read(lost.session(*[[lost.launch(FA3), lost.launch(api=api)]] * 3))
    assert f"{api} has no device record" == found.defect


@pytest.mark.parametrize(
    "api", ["cudaStreamSynchronize", "cudaEventRecord", "cudaFuncGetAttributes", "cudaMemcpyAsync"]
)
def test_other_runtime_calls_need_none(api: str) -> None:
    """Only launches start kernels."""
    line = Timeline()
    (found,) = read(line.session(*[[line.launch(FA3), line.launch(api=api)]] * 3))
    assert "" == found.defect


def test_a_graph_launch_brings_all_its_kernels() -> None:
    """One launch, three device records with its correlation."""
    line = Timeline()
    (found,) = read(line.session(*[[line.launch(PREPARE, FA3, FA3, api="cudaGraphLaunch")]] * 3))
    assert ("", [(PREPARE, 1), (FA3, 2)]) == (found.defect, names(found)[0])


def test_a_record_without_duration_is_a_defect() -> None:
    """A time of zero means that the profiler made it up."""
    line = Timeline()
    (found,) = read(line.session(*[[line.launch(FA3, dur=0.0)]] * 3))
    assert "a device record has no duration" == found.defect


def test_different_kernels_in_the_calls_are_a_defect() -> None:
    """The multiset of names must be the same in all three calls, counts included."""
    line = Timeline()
    (found,) = read(line.session([line.launch(FA3)], [line.launch(FA3)], [line.launch(FA2)]))
    told = f"the 3 traced calls launched different kernels: {FA3} 1, 1, 0 times, and 1 more"
    assert told == found.defect
    line = Timeline()
    (found,) = read(line.session([line.launch(FA3)], [line.launch(FA3)] * 2, [line.launch(FA3)]))
    assert f"the 3 traced calls launched different kernels: {FA3} 1, 2, 1 times" == found.defect
    line = Timeline()
    (found,) = read(line.session([line.launch("k" * 999)], [line.launch("k")], [line.launch("k")]))
    assert (
        f"the 3 traced calls launched different kernels: {'k' * (NAMED - 1)}… 1, 0, 0 times, and 1 more" == found.defect
    )


def test_the_order_of_equal_kernels_does_not_matter() -> None:
    """Names are compared as a multiset."""
    line = Timeline()
    one, two = line.launch(PREPARE), line.launch(FA3)
    (found,) = read(line.session([one, two], [two, one], [one, two]))
    assert "" == found.defect


def test_a_call_that_launches_nothing_is_a_defect() -> None:
    """An empty range proves nothing."""
    line = Timeline()
    (found,) = read(line.session([], [], []))
    assert "no kernel was launched" == found.defect


@pytest.mark.parametrize("name", ["open", "close"])
def test_a_lost_sentinel_spoils_the_session(name: str) -> None:
    """Its launch has no device record: the profiler missed the beginning or the end."""
    line = Timeline()
    events = line.session(*[[line.launch(FA3)]] * 3)
    span = next(event for event in events if event["name"] == f"qualify#{name}")
    lost = {
        event["args"]["correlation"]
        for event in events
        if event.get("cat") == "cuda_runtime" and span["ts"] <= event["ts"] <= span["ts"] + span["dur"]
    }
    kept = [event for event in events if event.get("cat") != "kernel" or event["args"]["correlation"] not in lost]
    assert [f"the profiler lost the session's {name}"] == [found.defect for found in read(kept)]
    without = [event for event in events if event["name"] != f"qualify#{name}"]
    assert [f"the profiler lost the session's {name}"] == [found.defect for found in read(without)]


def test_a_lost_range_spoils_its_case_only() -> None:
    """Two cases, one without its second range."""
    line = Timeline()
    line.range("qualify#open", line.launch("sin_kernel"))
    for index in range(2):
        for number in range(3):
            line.range(f"qualify#{index}#{number}", line.launch(FA3 if index else FA2))
    line.range("qualify#close", line.launch("sin_kernel"))
    kept = [event for event in line.events if event["name"] != "qualify#0#1"]
    first, second = read(kept, 2)
    assert ("the profiler lost the session's ranges", "") == (first.defect, second.defect)
    assert [[(FA3, 1)]] * 3 == names(second)


def test_copies_are_side_work() -> None:
    """Memory copies and fills are recorded with their role, whatever they are called."""
    line = Timeline()
    copy = line.launch("Memcpy DtoD (Device -> Device)", api="cudaMemcpyAsync", cat="gpu_memcpy")
    fill = line.launch("Memset (Device) of flash attention", api="cudaMemsetAsync", cat="gpu_memset")
    (found,) = read(line.session(*[[copy, fill, line.launch(FA3)]] * 3))
    assert "" == found.defect
    assert ["auxiliary", "auxiliary", "attention"] == [launch.role for launch in found.calls[0]]


def test_a_launch_from_another_thread_counts() -> None:
    """Libraries launch from threads of their own: time decides, not the thread."""
    line = Timeline()
    (found,) = read(line.session(*[[line.launch(FA3, tid=99)]] * 3))
    assert ("", [(FA3, 1)]) == (found.defect, names(found)[0])


def overlapping(events: Events) -> None:
    """Every range holds all events."""
    for event in events:
        if event["name"].startswith("qualify#0"):
            event |= {"ts": 0.0, "dur": 1e6}


def with_shared_records(events: Events) -> None:
    """All launches have the records of all."""
    for event in events:
        if "args" in event:
            event["args"]["correlation"] = 7


def with_ever_new_names(events: Events) -> None:
    """No two kernels are called the same."""
    for number, event in enumerate(events):
        if event["cat"] == "kernel":
            event["name"] += str(number)


def with_very_long_names(events: Events) -> None:
    """Few of them: an outcome that holds them all is longer than a message of a judge may be."""
    for number, event in enumerate(events):
        if event["cat"] == "kernel":
            event["name"] += f"{number % 700}{'x' * 3900}"


@pytest.mark.parametrize(
    ("forge", "defect"),
    [
        (overlapping, "the ranges of calls that ran one after another overlap"),
        (with_shared_records, "many launches have the same records of the device"),
        (with_ever_new_names, "more than 2,000 different kernels ran"),
        (with_very_long_names, "the names of the kernels that ran have more than 1,000,000 characters"),
    ],
)
def test_events_that_would_take_for_ever_to_read_are_not_read(forge: Callable[[Events], None], defect: str) -> None:
    """They are a host's word; a profiler makes none like them, however often a call launches."""
    line = Timeline()
    events = line.session(*[[line.launch(FA3) for _ in range(700)]] * CALLS)
    assert not read(events)[0].defect
    forge(events)
    (found,) = read(events)
    assert (defect, ()) == (found.defect, found.calls)


def test_launches_outside_the_ranges_do_not_count() -> None:
    """Work between two calls belongs to nobody."""
    line = Timeline()
    line.range("qualify#open", line.launch("sin_kernel"))
    for number in range(3):
        line.range(f"qualify#0#{number}", line.launch(FA3))
        line.launch(FA2)()
    line.range("qualify#close", line.launch("sin_kernel"))
    (found,) = read(line.events)
    assert [[(FA3, 1)]] * 3 == names(found)


def traced(*launches: Launch, defect: str = "") -> Trace:
    """A trace whose three calls launched the same."""
    return Trace(calls=(launches,) * 3, defect=defect, peak_bytes=None)


def attention(name: str, duration_us: float = 100.0) -> Launch:
    """A fused kernel as the table knows it."""
    family = "flash-attention-3" if "Sm90" in name else "flash-attention-2"
    return make_launch(name, "attention", duration_us=duration_us, family=family)


MUST, MAY = ("FlashAttnFwdSm90",), ("prepare_varlen_num_blocks",)


def test_the_claimed_kernel_is_proven() -> None:
    """With side work that the card names, and what else is known."""
    copy = make_launch("Memcpy DtoD", "auxiliary", duration_us=500)
    seen = decide(traced(make_launch(PREPARE, "auxiliary"), attention(FA3), copy), MUST, MAY)
    assert ("proven", "", MUST, 3) == (seen.state, seen.reason, seen.expected, seen.calls)
    assert (FA3,) == seen.attention_names


def test_another_family_is_a_substitution() -> None:
    """Both alone and beside the claimed kernel; the reason has the foreign name."""
    for launches in ((attention(FA2),), (attention(FA3), attention(FA2))):
        seen = decide(traced(*launches), MUST, MAY)
        assert "substituted" == seen.state
        assert f"another attention kernel ran: flash-attention-2 ({FA2})" == seen.reason


def test_the_math_path_is_a_substitution() -> None:
    """Matrix products and a softmax, and no attention kernel."""
    launches = (make_launch(MATH[0], "gemm"), make_launch(MATH[1], "softmax"))
    seen = decide(traced(*launches), MUST, MAY)
    assert ("substituted", f"no attention kernel ran, the math path did: {MATH[0]}, {MATH[1]}") == (
        seen.state,
        seen.reason,
    )


def test_an_unknown_kernel_instead_is_unproven() -> None:
    """Nobody knows what it is: neither proof nor substitution."""
    for others, launched in (((), ""), ((make_launch(MATH[0], "gemm", duration_us=900),), f"{MATH[0]}, ")):
        seen = decide(traced(make_launch("my_kernel", "unclassified", duration_us=5), *others), MUST, MAY)
        told = "no launched kernel matches must_match (FlashAttnFwdSm90) and none is known as attention"
        assert ("unproven", f"{told}; launched: {launched}my_kernel") == (seen.state, seen.reason)
    many = [make_launch(f"k{number}", "unclassified", duration_us=9 - number) for number in range(5)]
    assert decide(traced(*many), MUST, MAY).reason.endswith("; launched: k0, k1, k2 and 2 more")
    assert decide(traced(), MUST, MAY).reason.endswith("; nothing was launched")


def test_only_side_work_is_unproven() -> None:
    """Copies alone prove nothing."""
    assert "unproven" == decide(traced(make_launch("Memcpy", "auxiliary")), MUST, MAY).state


@pytest.mark.parametrize(
    ("unknown_us", "state"), [(4.9, "proven"), (5.2, "proven"), (5.4, "unproven"), (50, "unproven")]
)
def test_unknown_kernels_may_take_a_twentieth_of_the_time(unknown_us: float, state: str) -> None:
    """Beside 100 µs of the claimed kernel, 5.26 µs are 5 %."""
    seen = decide(traced(attention(FA3), make_launch("my_kernel", "unclassified", duration_us=unknown_us)), MUST, MAY)
    assert state == seen.state
    assert state == "proven" or "unknown kernels took" in seen.reason
    assert state == "proven" or seen.reason.endswith("my_kernel")


def test_a_defect_is_unproven_whatever_was_seen() -> None:
    """An incomplete trace proves nothing."""
    seen = decide(traced(attention(FA3), defect="a device record has no duration"), MUST, MAY)
    assert ("unproven", "a device record has no duration") == (seen.state, seen.reason)


def test_a_card_knows_its_own_kernels_better_than_the_table() -> None:
    """A name that the table does not know is attention by must_match, and side work by may_match."""
    launches = (make_launch("company_kernel", "unclassified"), make_launch("company_helper", "unclassified"))
    seen = decide(traced(*launches), ["company_kernel"], ["helper"])
    assert ("proven", ["attention", "auxiliary"]) == (seen.state, [launch.role for launch in seen.launches])


def test_what_a_card_names_as_side_work_is_side_work() -> None:
    """Even a kernel that the table knows as attention; it stays visible among the launches."""
    seen = decide(traced(attention(FA3), attention(FA2)), MUST, ["flash_fwd"])
    assert ["attention", "auxiliary"] == [launch.role for launch in seen.launches]
    assert ("proven", "") == (seen.state, seen.reason)


def test_any_kernel_beside_asserts_no_identity() -> None:
    """may_match: [".*"] turns foreign attention into side work: the kernel ran, and nobody knows whether it served."""
    seen = decide(traced(attention(FA3), attention(FA2)), MUST, [".*"])
    reason = "identity is not asserted: may_match .* accepts any other kernel beside it"
    assert ("proven", reason, False) == (seen.state, seen.reason, seen.identity_asserted)


def test_any_kernel_proves_a_card_that_asserts_no_identity() -> None:
    """must_match: [".+"] accepts what runs, side work excepted, and the witness says so."""
    seen = decide(traced(make_launch("whatever", "unclassified"), make_launch("Memcpy", "auxiliary")), [".+"], [])
    assert ("proven", ("whatever",)) == (seen.state, seen.attention_names)
    assert "identity is not asserted: must_match .+ accepts any kernel" == seen.reason
    assert "unproven" == decide(traced(make_launch("Memcpy", "auxiliary")), [".+"], []).state
    seen = decide(traced(make_launch("my_kernel", "unclassified")), ["kernel"], [])
    begins = "identity is not asserted: must_match kernel accepts what is no attention: void at::native::elementwise_"
    assert ("proven", begins, False) == (seen.state, seen.reason[: len(begins)], seen.identity_asserted)


GEMM, SOFTMAX = make_launch(MATH[0], "gemm"), make_launch(MATH[1], "softmax")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (traced(GEMM, SOFTMAX), ""),
        (traced(GEMM, SOFTMAX, make_launch("Memcpy", "auxiliary")), ""),
        (traced(make_launch("aten::_scaled_dot_product_attention_math")), ""),
        (traced(GEMM, SOFTMAX, attention(FA2)), "the math path shows fused attention kernels: "),
        (traced(GEMM), "the math path shows no matrix product and softmax, only gemm"),
        (traced(SOFTMAX), "the math path shows no matrix product and softmax, only softmax"),
        (traced(make_launch("my_kernel", "unclassified")), "the math path shows no matrix product and softmax"),
        (traced(GEMM, SOFTMAX, defect="no kernel was launched"), "the math path could not be traced"),
    ],
)
def test_the_negative_control(found: Trace, reason: str) -> None:
    """The math path must look like the math path, or the witness cannot be believed."""
    said = negative_control(found)
    assert said.startswith(reason)
    assert bool(said) == bool(reason)


def sdpa(backend: SDPBackend) -> Callable[[], Any]:
    """A pinned SDPA call on the CPU."""
    q = torch.randn(1, 4, 64, 32, dtype=torch.bfloat16)

    def call() -> None:
        with sdpa_kernel([backend]):
            torch.nn.functional.scaled_dot_product_attention(q, q, q)

    return call


def test_real_calls_on_the_cpu_are_told_apart() -> None:
    """One session: flash, math and the portable kernel, each recognised by its own names."""
    announced: list[int] = []
    prepared = create({}).prepare(make_call(seqlens_q=(300,)))
    calls = [sdpa(SDPBackend.FLASH_ATTENTION), sdpa(SDPBackend.MATH), prepared.launch]
    found = traces(calls, announce=announced.append)
    assert [0, 1, 2] == announced
    assert ["", "", ""] == [each.defect for each in found]
    cards = [
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_attention_math",
        "qualify::tiled_attention",
    ]
    states = [[decide(each, [card], ["^aten::(?!_scaled)"]).state for card in cards] for each in found]
    assert [
        ["proven", "substituted", "substituted"],
        ["substituted", "proven", "substituted"],
        ["substituted", "substituted", "proven"],
    ] == states


def test_a_call_that_is_no_attention_is_unproven_or_substituted() -> None:
    """A matrix product and a copy do not pass for attention."""
    a = torch.randn(64, 64)
    product, copy = traces([lambda: torch.softmax(a @ a, -1) @ a, a.clone])
    must = ["aten::_scaled_dot_product_flash_attention_for_cpu"]
    assert ["substituted", "unproven"] == [decide(each, must, []).state for each in (product, copy)]


def test_calls_that_differ_on_the_cpu_are_a_defect() -> None:
    """A kernel that takes another path in its third call is not believed."""
    turn = iter(range(3))
    flash, math_path = sdpa(SDPBackend.FLASH_ATTENTION), sdpa(SDPBackend.MATH)
    (found,) = traces([lambda: math_path() if next(turn) == 2 else flash()])
    told = "different kernels: aten::_scaled_dot_product_flash_attention_for_cpu 1, 1, 0 times, and "
    assert f"the 3 traced calls launched {told}" in found.defect


class Counted(dict[str, Any]):
    """An event that counts how often it is read."""

    reads = 0

    def __getitem__(self, key: str) -> Any:
        Counted.reads += 1
        return super().__getitem__(key)


def operator(name: str, ts: float, dur: float) -> Counted:
    """An operator on a CPU."""
    return Counted(name=name, cat="cpu_op", ts=ts, dur=dur, args={})


def test_operators_within_operators_take_time_once() -> None:
    """Each has its own; to find that takes as long as there are operators, however deep they lie."""
    depth = 400
    span = {"cat": "user_annotation", "args": {}}
    found = [{"name": f"qualify#{name}", "ts": ts, "dur": 1.0, **span} for name, ts in (("open", 0.0), ("close", 9e3))]
    found += [operator("aten::sin", event["ts"] + 0.5, 0.1) for event in found]
    found.append({"name": "qualify#0#0", "ts": 10.0, "dur": 2000.0, **span})
    found += [operator(f"deep{number}", 11.0 + number, 1000.0 - 2 * number) for number in range(depth)]
    found += [operator("beside", 1100.0 + number, 0.5) for number in range(2)]
    found.append(operator("around", 1200.0, 10.0))
    found += [operator(name, ts, 2.0) for name, ts in (("within", 1201.0), ("within", 1203.0), ("other", 1206.0))]
    (trace,) = read_trace(found, count=1, cuda=False, calls=1)
    assert not trace.defect
    took = {launch.name: launch.duration_us for launch in trace.calls[0]}
    assert {2.0} == {took[f"deep{number}"] for number in range(depth - 1)}
    assert [1.0, 4.0, 4.0, 2.0] == [took[name] for name in ("beside", "around", "within", "other")]
    assert Counted.reads < 20 * depth


def test_peak_memory_on_the_cpu_is_that_of_the_call() -> None:
    """A call that holds two megabytes at its height and one at its end."""

    def call() -> torch.Tensor:
        one = torch.zeros(1 << 18)
        return one + torch.ones(1 << 18).sum()

    (found,) = traces([call])
    assert found.peak_bytes is not None
    assert 2 << 20 <= found.peak_bytes < (2 << 20) + 4096


def test_the_negative_control_holds_on_this_cpu() -> None:
    """The real math path shows what it must show, in the process where a kernel lives."""
    card = make_card()
    pool = Pool(HostSetup(device="cpu", import_paths=(), memory_bytes=8 << 30), Watch())
    try:
        pool.kernel(card)
        assert "" == pool.control(card)
    finally:
        pool.close()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_trace_does_not_load_the_compiler(device: str, tmp_path: Path) -> None:
    """A host does not pay for what it does not use. Who forks this process has not imported the compiler either."""
    program = tmp_path / "program.py"
    program.write_text(
        "import io, sys; from qualify.run.host import messages, serve; server = serve.Server(io.BytesIO(), [])\n"
        f"server.start(messages.Start(device={device!r}, import_paths=()))\n"
        "assert server.control(messages.Control(warm_up=True)).rows\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules])\n"
    )
    ended = server().run([], tmp_path, 300, script=str(program))
    assert (0, "[]") == (ended.code, ended.out.splitlines()[-1]), ended.err


def test_an_idle_card_is_noted() -> None:
    """12 blocks on 132 multiprocessors for longer than 20 µs."""
    seen = decide(traced(make_launch(FA3, grid=(12, 1, 1), duration_us=90.0)), MUST, MAY)
    (note,) = findings(seen, latency_us=90.0, units=132)
    assert ("grid", "note", {"blocks": 12, "units": 132}) == (note.check, note.verdict, note.values)
    short = decide(traced(make_launch(FA3, grid=(12, 1, 1), duration_us=10.0)), MUST, MAY)
    assert [] == findings(short, latency_us=10.0, units=132)


def test_side_work_that_costs_is_noted() -> None:
    """Copies that the card does not name take more than a twentieth of the device time."""
    copy = make_launch("Memcpy", "auxiliary", duration_us=30.0)
    (note,) = findings(decide(traced(attention(FA3), copy), MUST, MAY), latency_us=130.0, units=132)
    assert "auxiliary" == note.check
    assert "copies and elementwise kernels take 23% of the device time" == note.detail
    own = make_launch(PREPARE, "auxiliary", duration_us=30.0, family="flash-attention-3")
    assert [] == findings(decide(traced(attention(FA3), own), MUST, MAY), latency_us=130.0, units=132)


@pytest.mark.parametrize(
    ("traced_us", "latency_us", "noted"), [(1000, 1050, False), (1000, 1200, True), (1000, 800, True), (40, 90, False)]
)
def test_a_trace_that_disagrees_with_the_clock_is_noted(traced_us: float, latency_us: float, noted: bool) -> None:
    """More than 10 % apart, unless both are so short that gaps explain it."""
    found = findings(decide(traced(attention(FA3, traced_us)), MUST, MAY), latency_us, 132)
    assert (["trace"] if noted else []) == [note.check for note in found]
