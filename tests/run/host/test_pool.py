"""Host processes of one judge: which kernel lives in which, and the spare ones for cases that run alone."""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
import torch
from builders import make_card
from cli_process import THIRD_PARTY
from subjects import make_call

from qualify.cards.kernel import KernelCard
from qualify.cards.load import load_kernels
from qualify.errors import DeviceError
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.host import messages as says
from qualify.run.host.arena import ALIGNED
from qualify.run.host.events import AT_ONCE
from qualify.run.host.interface import Effort, HostLost, KernelRaised
from qualify.run.host.launch import HostProcess, HostSetup
from qualify.run.host.local import LocalKernel, turned
from qualify.run.host.pool import CORES_EACH, Pool, side_by_side
from qualify.run.host.remote import RemoteHost, Watch
from qualify.run.host.remote_kernel import RemoteKernel
from qualify.run.host.serve import Server
from qualify.run.measure.tracing import read_trace


@pytest.fixture
def pool(forked: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """Nothing started yet; kernels of third_party.py can be loaded."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    setup = HostSetup(device="cpu", import_paths=(str(THIRD_PARTY.parent),), memory_bytes=4 << 30)
    made = Pool(setup, Watch())
    yield made
    made.close()


def card_of(function: str) -> KernelCard:
    """A third party's card."""
    return make_card(kernel=function, adapter="call", entry=f"third_party:{function}", shipped_by=...)


def test_copies_to_time_are_made_in_the_host(pool: Pool) -> None:
    """Each has memory of its own, and queries that have moved on: the last one's result shows which."""
    card, call = card_of("correct"), make_call(seqlens_q=(9,), seqlens_k=(9,), heads_q=2, heads_kv=2)
    bound = pool.kernel(card).prepare(call)
    copies = bound.turned((1, 3))
    _, native = pool.host(card).sample([bound, *copies], Effort(blocks=2, block_us=1, launches=3))
    out, _ = bound.result(native)
    expected, _ = pool.kernel(card).run(turned(call, 3))
    assert torch.equal(expected, out)
    assert not torch.equal(pool.kernel(card).run(call)[0], out)


def test_a_copy_to_time_shares_nothing_with_its_call() -> None:
    """What are views of the same memory stay so among themselves, with their strides; only the queries move."""
    pair = torch.arange(6 * 2 * 4, dtype=torch.float32).view(6, 2, 4)
    call = replace(make_call(seqlens_q=(6,), seqlens_k=(6,), heads_q=1, heads_kv=1), k=pair[:, :1], v=pair[:, 1:])
    copy = turned(call, 2)
    assert copy.k.untyped_storage()._cdata == copy.v.untyped_storage()._cdata != pair.untyped_storage()._cdata
    assert copy.k.stride() == call.k.stride()
    assert torch.equal(call.q.roll(2, 0), copy.q)
    copy.k.zero_()
    assert torch.equal(pair[:, :1], call.k)
    assert call.k.any()


def pid_of(pool: Pool, card: KernelCard) -> int:
    """The process in which a kernel lives."""
    return pool.host(card).child.process.pid


def test_hosts_for_repeats_start_together(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with cores to spare they start side by side, before any is waited for; each case has its own.

    One of them is killed while it waits: its case runs in another.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    real, waiting = RemoteHost.greet, []

    def greet(host: RemoteHost) -> None:
        waiting.append(len(pool.spares))
        real(host)

    monkeypatch.setattr(RemoteHost, "greet", greet)
    pool.prepare_spares(5)
    assert [4] * 4 == waiting[:4]
    assert all(spare.started and spare.alive for spare in pool.spares)
    spares = [spare.child.process.pid for spare in pool.spares]
    victim = pool.spares[-1].child.process
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    card, used = card_of("correct"), []
    for _ in range(5):
        pool.kernel(card, alone=True)
        assert pool.fresh(card)
        used.append(pid_of(pool, card))
    assert 5 == len(set(used))
    assert set(spares) - {victim.pid} == set(used[:3])
    assert not pool.spares
    assert not any(Path(f"/proc/{pid}").exists() for pid in (*spares, *used) if pid != used[-1])


@pytest.mark.parametrize(("cores", "wanted", "started"), [(1, 5, 1), (2, 1, 1), (8, 2, 2), (64, 9, 8)])
def test_spares_are_as_many_as_there_are_cores_for(
    cores: int, wanted: int, started: int, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least one, no more than cases that need them, and eight at most."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(Pool, "_start", lambda pool: Waiting())
    pool.prepare_spares(wanted)
    assert started == len(pool.spares)
    pool.spares.clear()


def test_the_process_for_a_repeat_begins_with_the_failure(forked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it imports torch beside the next cases, and two more do: the last failures find theirs ready.

    They are as many as would start together, and end with the pool.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    pool = Pool(HostSetup(device="cuda", import_paths=(), memory_bytes=4 << 30), Watch())
    counts = []
    for _ in range(3):
        pool.expect_repeat()
        counts.append(len(pool.expected))
    assert [3, 4, 4] == counts
    started = [process.child.process.pid for process in pool.expected]
    assert all(Path(f"/proc/{pid}").exists() for pid in started)
    pool.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


def test_no_process_begins_beside_what_a_cpu_times(pool: Pool) -> None:
    """It would take a core from the kernel."""
    pool.expect_repeat()
    assert not pool.expected


def test_a_repeat_gets_the_process_that_has_begun(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others start beside it, and in place of one that was killed meanwhile: no case is blamed for that."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    pool.expected += [HostProcess(pool.setup) for _ in range(2)]
    killed, begun = (process.child.process for process in pool.expected)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    pool.prepare_spares(2)
    assert 2 == len(pool.spares)
    assert begun.pid == pool.spares[0].child.process.pid
    assert not pool.expected
    assert all(spare.alive for spare in pool.spares)


def test_a_case_gets_a_process_although_the_one_that_had_begun_was_killed(pool: Pool) -> None:
    """Where no hosts start together, too."""
    pool.expected.append(HostProcess(pool.setup))
    killed = pool.expected[0].child.process
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    card = card_of("correct")
    pool.kernel(card)
    assert killed.pid != pid_of(pool, card)
    assert pool.host(card).alive


class Waiting:
    """A host that is there at once."""

    def greet(self) -> None:
        """It is."""

    begin_control = finish_control = greet


def test_what_ran_there_before_is_told(pool: Pool) -> None:
    """A host is fresh until a case ran in it; a case that needs a fresh one replaces a used one only."""
    card = card_of("correct")
    assert pool.fresh(card)
    pool.kernel(card)
    first = pid_of(pool, card)
    assert [True, False] == [pool.fresh(card), pool.fresh(card)]
    pool.kernel(card)
    assert first == pid_of(pool, card)
    pool.kernel(card, alone=True)
    assert first != pid_of(pool, card)
    assert not Path(f"/proc/{first}").exists()
    second = pid_of(pool, card)
    pool.kernel(card, alone=True)
    assert second == pid_of(pool, card)


def test_kernels_of_one_library_share_a_host_and_third_parties_do_not(pool: Pool) -> None:
    """One process for each distribution, and one for each card with an entry of its own."""
    one, other = make_card(kernel="one"), make_card(kernel="other")
    own, another = card_of("correct"), card_of("slow")
    for card in (one, other, own, another):
        pool.kernel(card)
    assert pid_of(pool, one) == pid_of(pool, other)
    assert 3 == len({pid_of(pool, card) for card in (one, own, another)})


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device can be taken")
def test_a_host_that_cannot_take_its_device_is_asked_once(forked: None) -> None:
    """As where an environment's torch has no CUDA: who asks next hears the same, and waits for no second answer.

    Hosts that start early or for repeats say so with the case that needs them.
    """
    pool = Pool(HostSetup(device="cuda", import_paths=(), memory_bytes=4 << 30), Watch())
    try:
        card = make_card()
        pool.begin_start([card])
        pool.finish_start(lambda _: None)
        pool.begin_controls()
        pool.prepare_spares(1)
        with pytest.raises(KernelRaised, match="no CUDA device"):
            pool.kernel(card)
        assert "cannot work here (no CUDA device" in str(pool.host(card).lost)
    finally:
        pool.close()


def test_a_machine_without_room_for_a_process_is_no_kernels_fault(pool: Pool) -> None:
    """Whoever asks hears of the machine; no case is blamed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())), hard))
    try:
        with pytest.raises(DeviceError, match=r"no process can be started for a kernel: .* is stored"):
            pool.kernel(card_of("correct"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_of_the_address_space_is_no_kernels_fault(pool: Pool) -> None:
    """As some clusters set it for a job (``ulimit -v``): the judge cannot map what it shares with a host."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (1 << 30), hard))
    try:
        with pytest.raises(DeviceError, match=r"no memory can be shared .* look at `ulimit -v`"):
            pool.kernel(card_of("correct"))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert not pool.places


def test_a_python_that_was_removed_is_told(pool: Pool, tmp_path: Path) -> None:
    """An upgrade takes an environment away in mid-run: nobody looks for memory on this machine."""
    pool.environments["old"] = str(tmp_path / "python")
    with pytest.raises(DeviceError, match=r"/python'\. That Python has probably been removed .* is stored"):
        pool.kernel(make_card().model_copy(update={"kernel": "tiled-torch@old"}))


def test_what_this_process_started_itself_lives_on(pool: Pool) -> None:
    """A host ends with what it started; other children, in sessions of their own too, are nobody's strays here."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as own:
        card = card_of("correct")
        pool.kernel(card)
        pool.lost(card)
        try:
            assert own.poll() is None
        finally:
            own.kill()


def test_a_host_forgets_what_the_judge_has_dropped(pool: Pool) -> None:
    """Prepared calls, results and inputs: it holds none of them once nobody here does."""
    kernel = pool.kernel(make_card())
    assert isinstance(kernel, RemoteKernel)
    for seed in range(4):
        bound = kernel.prepare(make_call(seed=seed))
        bound.result(bound.launch())
    del bound
    kernel.host.mirror.sweep()
    assert 0 == kernel.host.ask_numbers(says.Memory(collect=True))[-2]


def test_a_host_is_busy_until_its_negative_control_is_made(pool: Pool) -> None:
    """It is stopped meanwhile: a case of another kernel need not wait for it. One that has ended answers at once."""
    card = card_of("correct")
    assert not pool.busy(card)
    pool.kernel(card)
    host = pool.host(card)
    os.kill(host.child.process.pid, signal.SIGSTOP)
    pool.begin_controls()
    assert pool.busy(card)
    assert not pool.busy(card_of("wrong"))
    os.kill(host.child.process.pid, signal.SIGCONT)
    host.child.readable.poll(60_000)
    assert not pool.busy(card)
    assert not pool.control(card)
    host.begin_control()
    os.kill(host.child.process.pid, signal.SIGKILL)
    host.child.readable.poll(60_000)
    assert not pool.busy(card)


def test_the_first_of_several_hosts_that_is_ready_is_waited_for(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are stopped. A single one is waited for by the case that needs it, and none for ever."""
    cards = [card_of("correct"), card_of("raises")]
    for card in cards:
        pool.kernel(card)
    pids = [pid_of(pool, card) for card in cards]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    pool.begin_controls()
    monkeypatch.setattr("qualify.run.host.pool.FIRST_S", 0.1)
    assert not pool.wait()
    monkeypatch.setattr("qualify.run.host.pool.FIRST_S", 60)
    os.kill(pids[1], signal.SIGCONT)
    assert pool.wait()
    assert [True, False] == [pool.busy(card) for card in cards]
    assert not pool.wait()
    os.kill(pids[0], signal.SIGCONT)


class SlowLibrary(TiledTorch):
    """Counts how often it was warmed up, on which device; it may fail."""

    def __init__(self, error: str = "") -> None:
        super().__init__()
        self.error = error
        self.warmed: list[torch.device] = []

    def warm_up(self, device: torch.device) -> None:
        """Note it."""
        self.warmed.append(device)
        if self.error:
            raise RuntimeError(self.error)


def test_what_is_slow_at_first_warms_up_with_the_negative_control() -> None:
    """Every library of the host that offers it; one that fails does not harm the others, nor the control."""
    server = Server(io.BytesIO(), [])
    failing, slow = SlowLibrary("no kernel image"), SlowLibrary()
    adapters = {"failing": failing, "quick": TiledTorch(), "slow": slow}
    server.kernels = {name: LocalKernel(adapter, server.processor) for name, adapter in adapters.items()}
    assert isinstance(server.control(says.Control(warm_up=False)), says.Events)
    assert not failing.warmed
    assert not slow.warmed
    assert isinstance(server.control(says.Control(warm_up=True)), says.Events)
    assert [torch.device("cpu")] == failing.warmed == slow.warmed


@pytest.mark.parametrize("names", [("correct",), ("correct", "raises")])
def test_hosts_warm_up_where_another_has_cases_meanwhile(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """Alone, a library gets ready when a case needs it: the first verdict would only come later."""
    asked: list[bool] = []
    monkeypatch.setattr(RemoteHost, "begin_control", lambda _, *, warm_up=False: asked.append(warm_up))
    for name in names:
        pool.kernel(card_of(name))
    pool.begin_controls()
    assert [len(names) > 1] * len(names) == asked


def test_libraries_load_side_by_side(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are cores for; each waits here until the other has begun."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(2 * CORES_EACH)))
    begun, load = Barrier(2, timeout=20), RemoteHost.load

    def together(host: RemoteHost, card: KernelCard) -> None:
        begun.wait()
        load(host, card)

    monkeypatch.setattr(RemoteHost, "load", together)
    shipped = {name: loaded.card for name, loaded in load_kernels().items()}
    cards = [shipped["tiled-torch"], shipped["torch-cpu-flash"].model_copy(update={"shipped_by": ("another>=1",)})]
    announced: list[str] = []
    pool.begin_start(cards)
    pool.finish_start(announced.append)
    assert ["tiled-torch"] == announced
    assert [{card.kernel} for card in cards] == [place.host.loaded for place in pool.places.values()]
    assert [1, 1, 2] == [side_by_side(count) for count in (0, 1, 9)]


def test_a_host_that_names_endless_software_is_ended(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file would be read, and each name stored."""
    card = card_of("correct")
    pool.kernel(card)
    told = says.HostSoftware(
        components=(), binaries=tuple(f"/libtorch_{number}.so" for number in range(1001)), environment={}
    )
    monkeypatch.setattr(RemoteHost, "ask", lambda *_: told)
    with pytest.raises(HostLost, match="more software than a process has"):
        pool.host(card).describe()
    assert not pool.host(card).alive


def test_parts_of_a_result_do_not_overlap(pool: Pool) -> None:
    """Each is copied: of a large room, said again and again, the copies would fill the judge's memory."""
    card = card_of("correct")
    pool.kernel(card)
    host = pool.host(card)
    room = host.room(make_call())
    part = says.ReturnedPart(kind="Tensor", dtype="uint8", shape=(ALIGNED,), device="cpu", offset=0)
    beside = replace(part, offset=ALIGNED)
    assert 2 == len(host.returned(says.Returned(several=True, parts=(part, beside)), room))
    with pytest.raises(HostLost, match="a result outside of its room"):
        host.returned(says.Returned(several=True, parts=(beside, part)), room)
    assert not host.alive


def test_a_dtype_that_a_host_names_is_one(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch imports some of its modules, or warns, when it is asked for a name: the judge asks for none of a host's."""
    monkeypatch.setattr(torch, "__getattr__", lambda name: pytest.fail(f"torch was asked for {name}"))
    card = card_of("correct")
    pool.kernel(card)
    host = pool.host(card)
    part = says.ReturnedPart(kind="Tensor", dtype="onnx_of_a_host", shape=(1,), device="cpu", offset=0)
    returned = host.returned(says.Returned(several=False, parts=(part,)), host.room(make_call()))
    assert not isinstance(returned, torch.Tensor)


def test_a_call_of_very_many_launches_is_traced(pool: Pool) -> None:
    """A kernel that loops in Python: its three calls give more events than one part of a trace has."""
    card = card_of("loops")
    bound = pool.kernel(card).prepare(make_call(seqlens_q=(9,), seqlens_k=(9,), heads_q=2, heads_kv=2))
    events = pool.host(card).trace([bound], lambda _: None, times=3, memory=True)
    assert len(events) > AT_ONCE
    (trace,) = read_trace(events, count=1, cuda=False)
    assert "" == trace.defect
    assert 1_000 == sum(launch.count for launch in trace.calls[0] if launch.name == "aten::add_")
