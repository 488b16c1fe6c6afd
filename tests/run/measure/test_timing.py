"""Timing: the work counted pair by pair, the ceilings, and real measurements on the CPU."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from builders import CEILINGS, make_workload, sees
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.facts.case import Level, Workload
from qualify.facts.dtypes import FORMATS
from qualify.facts.outcome import Timing
from qualify.run.host.local import host_us, sample
from qualify.run.machine.device import Cpu
from qualify.run.measure import ceilings
from qualify.run.measure.ceilings import measure_ceilings
from qualify.run.measure.timing import (
    EFFORTS,
    MAX_COPIES,
    Work,
    copies_needed,
    findings,
    roofline,
    timing_of,
    work_of,
)


def counted(workload: Workload) -> Work:
    """Work by asking every query about every key."""
    visible = keys = 0
    for seqlen_q, seqlen_k in zip(workload.seqlens_q, workload.seqlens_k, strict=True):
        seen = [
            {
                j
                for j in range(seqlen_k)
                if sees(
                    i,
                    j,
                    seqlen_q,
                    seqlen_k,
                    workload.mask.causal,
                    workload.mask.window,
                    dilation=workload.mask.size,
                )
            }
            for i in range(seqlen_q)
        ]
        visible += sum(map(len, seen))
        keys += len(set().union(*seen)) if seen else 0
    dims = workload.head_dim + workload.head_dim_v
    elements = sum(workload.seqlens_q) * workload.heads_q * dims + keys * workload.heads_kv * dims
    return Work(
        flops=2 * workload.heads_q * dims * visible,
        compulsory_bytes=FORMATS[workload.dtype].bytes * elements,
        exps=workload.heads_q * visible,
    )


@settings(deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), min_size=1, max_size=4),
    causal=st.booleans(),
    window=st.tuples(st.integers(-1, 5), st.integers(-1, 5)),
    heads=st.sampled_from([(1, 1), (6, 2), (4, 4)]),
    dims=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    dilation=st.integers(0, 4),
)
def test_work_equals_counting(
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    dims: tuple[int, int],
    **mask: Any,
) -> None:
    """FLOPs, bytes and exponentials of any batch: keys that nobody sees are not read."""
    workload = make_workload(
        seqlens_q=tuple(q for q, _ in lengths),
        seqlens_k=tuple(k for _, k in lengths),
        heads_q=heads[0],
        heads_kv=heads[1],
        head_dim=dims[0],
        head_dim_v=dims[1],
        **mask,
    )
    assert counted(workload) == work_of(workload)


def test_work_of_a_known_shape() -> None:
    """Decode of one token: 4 · heads · d · context FLOPs, and the cache read once."""
    work = work_of(make_workload(seqlens_q=(1,), seqlens_k=(8192,), heads_q=32, heads_kv=8, head_dim=128))
    assert 4 * 32 * 128 * 8192 == work.flops
    assert 2 * (2 * 8192 * 8 * 128 + 2 * 32 * 128) == work.compulsory_bytes
    assert 32 * 8192 == work.exps


def test_a_latent_cache_is_read_once() -> None:
    """Values that are part of the keys cost operations, and no bytes of their own."""
    shape = {"seqlens_q": (1,), "seqlens_k": (8192,), "heads_q": 128, "heads_kv": 1, "head_dim": 576, "head_dim_v": 512}
    own, latent = (work_of(make_workload(**shape, latent=latent)) for latent in (False, True))
    assert 2 * (8192 * 576 + 128 * (576 + 512)) == latent.compulsory_bytes
    assert (own.flops, own.exps) == (latent.flops, latent.exps)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work(flops=10**9, compulsory_bytes=10, exps=10), (1000.0, "flops")),
        (Work(flops=10, compulsory_bytes=10**7, exps=10), (100.0, "bytes")),
        (Work(flops=10, compulsory_bytes=10, exps=10**6), (100.0, "exps")),
        (Work(flops=10, compulsory_bytes=10, exps=10), (3.0, "launch")),
    ],
)
def test_the_tightest_ceiling_binds(work: Work, expected: tuple[float, str]) -> None:
    """10^12 FLOP/s, 10^11 B/s, 10^10 exp/s, 3 µs a launch."""
    time_us, bound = roofline(work, "bf16", CEILINGS)
    assert expected == (pytest.approx(time_us), bound)


def test_the_roofline_is_that_of_the_dtype() -> None:
    """fp32 products are half as fast here."""
    work = Work(flops=10**9, compulsory_bytes=0, exps=0)
    assert 2 * roofline(work, "bf16", CEILINGS)[0] == pytest.approx(roofline(work, "fp32", CEILINGS)[0])


@pytest.mark.parametrize(
    ("input_bytes", "cache_bytes", "budget_bytes", "kind", "expected"),
    [
        (10, 0, 10**9, "large", 1),  # unknown cache: no point in copies
        (100, 20, 10**9, "large", 2),  # one more than five caches need
        (30, 60, 10**9, "large", 11),
        (31, 60, 10**9, "large", 11),  # rounded up
        (1, 1000, 10**9, "large", MAX_COPIES["large"]),
        (1, 1000, 10**9, "small", MAX_COPIES["small"]),
        (30, 60, 100, "large", 3),  # the memory budget
        (300, 60, 100, "large", 1),  # at least the inputs themselves
        (0, 60, 100, "large", MAX_COPIES["large"]),  # a call without inputs
    ],
)
def test_copies_fill_five_caches_within_the_budget(
    input_bytes: int, cache_bytes: int, budget_bytes: int, kind: Any, expected: int
) -> None:
    """Enough copies that no launch finds its inputs warm, as far as memory and patience allow."""
    assert expected == copies_needed(input_bytes, cache_bytes, budget_bytes, 10.0, kind)


@given(input_bytes=st.integers(1, 10**6), cache_bytes=st.integers(1, 10**6), budget_bytes=st.integers(0, 10**8))
def test_copies_are_enough_or_limited(input_bytes: int, cache_bytes: int, budget_bytes: int) -> None:
    """Either a full round of the others is five caches long, or a limit was reached."""
    copies = copies_needed(input_bytes, cache_bytes, budget_bytes, 10.0, "large")
    assert copies >= 1
    enough = (copies - 1) * input_bytes >= 5 * cache_bytes
    assert enough or copies == MAX_COPIES["large"] or (copies + 1) * input_bytes > budget_bytes
    assert copies == 1 or copies * input_bytes <= budget_bytes


@pytest.mark.parametrize(("call_us", "expected"), [(0.1, 24), (2_000, 24), (10_000, 5), (60_000, 1)])
def test_a_slow_call_is_not_copied_often(call_us: float, expected: int) -> None:
    """All copies together may cost 50 ms of the host's time."""
    assert expected == copies_needed(1, 1000, 10**9, call_us, "large")


class Calls:
    """Callables that count how often each of them ran."""

    def __init__(self, number: int) -> None:
        self.counts = [0] * number
        self.launches = [self._launch(index) for index in range(number)]

    def _launch(self, index: int) -> Any:
        def launch() -> None:
            self.counts[index] += 1
            sum(range(2000))

        return launch


def measure(calls: Calls, *, level: Level = "smoke", workload: Workload | None = None, cache_bytes: int = 0) -> Timing:
    """A timing of these calls, each of whose inputs has 1000 bytes."""
    samples, _ = sample(calls.launches, EFFORTS[level, "small"], Cpu())
    return timing_of(
        samples,
        copies=len(calls.launches),
        workload=workload or make_workload(),
        input_bytes=1000,
        cache_bytes=cache_bytes,
        ceilings=CEILINGS,
    )


@pytest.mark.parametrize("level", ["smoke", "full"])
def test_a_measurement_runs_every_copy_and_keeps_all_samples(level: Level) -> None:
    """Blocks as the effort says, the copies in turn, and the median of what was sampled."""
    calls = Calls(3)
    effort = EFFORTS[level, "small"]
    found = measure(calls, level=level, cache_bytes=500)
    assert effort.blocks == len(found.samples_us)
    assert sorted(found.samples_us)[effort.blocks // 2] == found.latency_us
    assert 1 <= found.launches_per_block <= effort.launches
    # Warm-up, host time, estimate, blocks.
    assert 3 + 5 + 3 + effort.blocks * found.launches_per_block == sum(calls.counts)
    assert max(calls.counts) - min(calls.counts) <= 3
    assert all(sample > 1 for sample in found.samples_us)
    assert found.host_us > 1
    assert (3000, True) == (found.rotated_bytes, found.cold)


def test_a_measurement_keeps_what_the_last_copy_returned() -> None:
    """The judge looks at it: whoever computes nothing while it is timed shows."""
    turns = [0, 0]

    def launching(index: int) -> Any:
        def launch() -> tuple[int, int]:
            turns[index] += 1
            return index, turns[index]

        return launch

    _, kept = sample([launching(0), launching(1)], EFFORTS["smoke", "small"], Cpu())
    assert (1, turns[1]) == kept


def test_a_measurement_holds_work_and_ceilings() -> None:
    """FLOPs and bytes of the workload, the roofline, and the share of it that was reached."""
    workload = make_workload()
    found = measure(Calls(1), workload=workload)
    work = work_of(workload)
    assert (work.flops, work.compulsory_bytes, work.exps) == (found.flops, found.compulsory_bytes, found.exps)
    assert roofline(work, "bf16", CEILINGS) == (found.roofline_us, found.bound)
    assert found.roofline_us / found.latency_us == found.ceiling_share
    assert not found.cold


@pytest.mark.parametrize(("cache_bytes", "cold"), [(0, False), (200, True), (201, False)])
def test_cold_means_five_caches(cache_bytes: int, cold: bool) -> None:
    """An unknown cache is never called cold."""
    found = measure(Calls(1), cache_bytes=cache_bytes)
    assert cold == found.cold


def a_timing(latency_us: float, *, cold: bool = True, flops: int = 10**9, compulsory_bytes: int = 10**7) -> Timing:
    """A timing of 10^9 FLOPs (1000 µs at the ceiling) and 10^7 bytes (100 µs)."""
    return Timing(
        latency_us=latency_us,
        samples_us=(latency_us,),
        launches_per_block=1,
        rotated_bytes=10**9,
        cold=cold,
        host_us=1.0,
        flops=flops,
        compulsory_bytes=compulsory_bytes,
        exps=0,
        roofline_us=1000.0,
        bound="flops",
        ceiling_share=1000.0 / latency_us,
    )


@pytest.mark.parametrize(("latency_us", "fails"), [(2000, False), (1000, False), (920, False), (900, True), (1, True)])
def test_an_impossible_time_fails_on_a_gpu(latency_us: float, fails: bool) -> None:
    """More than a tenth faster than the measured ceiling: the work was skipped."""
    found = findings(a_timing(latency_us), make_workload(), CEILINGS, "cuda")
    assert (["fail"] if fails else []) == [finding.verdict for finding in found]
    if fails:
        assert {"latency_us": latency_us, "least_us": pytest.approx(1000)} == found[0].values
        assert "faster than this card can be" in found[0].detail


def test_memory_is_a_ceiling_only_where_the_inputs_were_cold() -> None:
    """Warm inputs come from the cache, which is faster than memory."""
    quick = a_timing(50, flops=10)
    assert 1 == len(findings(quick, make_workload(), CEILINGS, "cuda"))
    assert [] == findings(replace(quick, cold=False), make_workload(), CEILINGS, "cuda")


def test_a_cpu_has_no_firm_ceiling() -> None:
    """Its clocks and caches move: nothing is called impossible."""
    assert [] == findings(a_timing(1), make_workload(), CEILINGS, "cpu")


def test_ceilings_of_this_cpu_are_positive_and_fair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dtype is granted at least the float32 product; all rates are of a real machine."""
    monkeypatch.setattr(ceilings, "MATMUL_SIZE", {"small": 128})
    monkeypatch.setattr(ceilings, "COPY_BYTES", {"small": 8 << 20})
    found = measure_ceilings(Cpu())
    rates = found.matmul_flops_per_s
    assert {"bf16", "fp16", "fp32", "fp8_e4m3"} == set(rates)
    assert all(rate >= rates["fp32"] > 1e8 for rate in rates.values())
    assert found.copy_bytes_per_s > 1e8
    assert found.exps_per_s > 1e6
    assert 0 < found.launch_us < 10_000


def test_the_best_of_two_measurements_is_the_least_disturbed() -> None:
    """Higher rates, and the shorter launch."""
    slower = replace(CEILINGS, matmul_flops_per_s={"bf16": 2e12, "fp16": 1e11, "fp32": 5e11, "fp8_e4m3": 1e11})
    slower = replace(slower, launch_us=2.0, copy_bytes_per_s=1e10, exps_per_s=2e10)
    best = ceilings.best_of(CEILINGS, slower)
    assert {"bf16": 2e12, "fp16": 1e12, "fp32": 5e11, "fp8_e4m3": 1e12} == best.matmul_flops_per_s
    assert (1e11, 2e10, 2.0) == (best.copy_bytes_per_s, best.exps_per_s, best.launch_us)
    assert best == ceilings.best_of(slower, CEILINGS)


def test_the_clock_measures_what_it_ran() -> None:
    """A block of launches takes at least as long as the sleep in it."""
    assert Cpu().block_us([lambda: time.sleep(0.002)] * 3, ahead_us=0) >= 6000
    assert host_us(Cpu(), lambda: time.sleep(0.002)) >= 2000
