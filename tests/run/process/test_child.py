"""A child with real processes: its end takes everything along that it started, and says what happened."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import alive

from qualify.run.process.awake import AwakeClock
from qualify.run.process.child import Child, Gone, not_started, worker
from qualify.run.process.folder import usual_caches, without_usual_caches
from qualify.run.process.messages import Ready

GIGABYTE = 1 << 30
PRELUDE = """
import os, subprocess, sys, time
out, notes = int(sys.argv[3]), os.environ["NOTES"]

def ready():
    os.write(out, b'{"event":"ready"}\\n')

def note(pid):
    with open(notes, "a") as file:
        file.write(f"{pid}\\n")

def sleep():
    time.sleep(60)
    os._exit(9)
"""
Start = Callable[..., Child]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where a child's processes leave their ids."""
    return tmp_path / "pids"


@pytest.fixture
def start(notes: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a child that runs a script, and waits until it says that it is ready."""
    children = []

    def begin(script: str, memory_bytes: int = GIGABYTE, *, wait: bool = True, folder: bool = False) -> Child:
        monkeypatch.setattr("qualify.run.process.child.BOOT", PRELUDE + script)
        monkeypatch.setenv("NOTES", str(notes))
        children.append(child := Child(memory_bytes, replace(worker(), folder=folder)))
        while wait and child.receive(30) != Ready():
            pass
        return child

    yield begin
    for child in children:
        if not child.output.closed:
            child.stop()
    for pid in pids(notes):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def pids(notes: Path) -> list[int]:
    """The processes that left their id."""
    return [int(line) for line in notes.read_text().split()] if notes.exists() else []


def end_of(child: Child, limit_s: float = 30, within_s: float = 60) -> Gone:
    """How the life of a child ends while its parent listens."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            child.receive(limit_s)
        except Gone as gone:
            assert child.process.returncode is not None
            return gone
    raise AssertionError("it lives for ever")


SLEEPER = '[sys.executable, "-c", "import time; time.sleep(60)"]'
ESCAPES = {
    "a-session-of-its-own": f"note(subprocess.Popen({SLEEPER}, start_new_session=True).pid)",
    "without-environment": f"note(subprocess.Popen({SLEEPER}, start_new_session=True, env={{}}).pid)",
    "daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note(os.getpid())
        sleep()
    os._exit(0)
os.wait()
while not (os.path.exists(notes) and os.path.getsize(notes)):
    time.sleep(0.01)
""",
    "stopped": f"note(pid := subprocess.Popen({SLEEPER}, start_new_session=True).pid); os.kill(pid, 19)",
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
def test_a_kill_ends_what_left_the_group(escape: str, start: Start, notes: Path) -> None:
    """A process in a session of its own, and a daemon whose parents ended."""
    child = start(f"{escape}\nready()\nsleep()")
    (pid,) = pids(notes)
    assert alive(pid)
    child.kill()
    assert not alive(pid)
    assert -signal.SIGKILL == child.process.returncode


@pytest.mark.parametrize("escape", [ESCAPES["a-session-of-its-own"], ESCAPES["daemon"]], ids=["session", "daemon"])
def test_what_a_dead_process_left_ends_too(escape: str, start: Start, notes: Path) -> None:
    """The process ended by itself: what it started has other parents by now, and is found by its environment."""
    child = start(f"{escape}\nready()\nos._exit(3)")
    (pid,) = pids(notes)
    assert "the process exited with status 3" == end_of(child).error
    assert not alive(pid)


def test_no_fork_escapes(start: Start, tmp_path: Path) -> None:
    """Processes that start others all the time, each in a session of its own, are stopped before they are killed."""
    child = start(f"""
ready()
mark, until = {str(tmp_path)!r}, time.monotonic() + 3
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        while time.monotonic() < until:
            if os.fork() == 0:
                os.setsid()
                os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(30)", mark])
            time.sleep(0.05)
        os._exit(0)
sleep()
""")
    time.sleep(1)
    assert len(running_with(str(tmp_path))) > 4
    child.kill()
    time.sleep(0.5)
    assert [] == running_with(str(tmp_path))


def running_with(mark: str) -> list[int]:
    """Processes with this text among their arguments, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if alive(pid)]


def test_others_live_on(start: Start, notes: Path) -> None:
    """Another child of this process, another worker, and a process that somebody else started."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    other = start("ready()\nsleep()")
    with (
        subprocess.Popen(sleeper) as mine,
        subprocess.Popen(sleeper, start_new_session=True) as apart,
    ):
        child = start(f"{ESCAPES['a-session-of-its-own']}\nready()\nsleep()")
        child.kill()
        child.kill()
        assert all(alive(pid) for pid in (mine.pid, apart.pid, other.process.pid))
        mine.kill()
        apart.kill()
    assert not alive(pids(notes)[0])


def test_an_id_that_is_somebody_elses_now_is_left_alone(start: Start) -> None:
    """The child ended and was waited for; another process leads a group with its id since then."""
    child = start("ready()\nsleep()")
    child.process.kill()
    child.process.wait()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0) as other:
        child.process.pid = child.tree.pid = other.pid
        child.kill()
        assert alive(other.pid)
        other.kill()


FORKS = """
chunk, parts = {chunk}, []
for _ in range({forks}):
    if os.fork() == 0:
        {leave}
        parts.append(b"x" * chunk)
        sleep()
ready()
sleep()
"""


@pytest.mark.parametrize("leave", ["pass", "os.setsid()"], ids=["group", "session"])
def test_memory_of_the_whole_tree_counts(leave: str, start: Start) -> None:
    """Four processes with a part each are too much together."""
    child = start(FORKS.format(chunk=100 << 20, forks=4, leave=leave), memory_bytes=300 << 20)
    gone = end_of(child, within_s=20)
    assert gone.error.startswith("killed: it and 4 processes that it started used 0.")
    assert gone.error.endswith("GB of host memory, more than the 0.3 GB it may take")


def test_shared_memory_counts_once(start: Start) -> None:
    """Forks that only read what they share with their parent take nothing: 150 MiB, not 750."""
    child = start("block = b'x' * (150 << 20)\n" + FORKS.format(chunk=1, forks=4, leave="pass"), 400 << 20)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        assert child.receive(30) is None
    assert 5 == len(child.tree.members)


def test_memory_counts_while_messages_come(start: Start) -> None:
    """A process that always has something to say is weighed too."""
    script = "parts = []\nready()\nwhile True:\n    ready()\n    parts.append(b'x' * (4 << 20))\n    time.sleep(0.01)"
    gone = end_of(start(script, 200 << 20), within_s=20)
    assert gone.error.startswith("killed: it used 0.")


def test_memory_beyond_what_was_shared_counts(start: Start) -> None:
    """What it fills in its judge's file is no memory of the process, and still its fault."""
    child = start("ready()\nsleep()")
    child.beyond_bytes = lambda: 3 * GIGABYTE
    words = "killed: it used 3.2 GB of host memory (3.2 GB of it in memory that it shares with its judge), more than"
    assert end_of(child, within_s=20).error.startswith(words)


def test_shared_memory_of_its_own_counts(start: Start) -> None:
    """What it or a fork of it maps so that others could see it, beyond what its judge has lent it."""
    script = """
import mmap
ready()
if os.fork() == 0:
    own = mmap.mmap(-1, 400 << 20)
    for at in range(0, 400 << 20, 1 << 20):
        own[at : at + (1 << 20)] = b"x" * (1 << 20)
sleep()
"""
    child = start(script, memory_bytes=200 << 20)
    child.lent_bytes = lambda: 150 << 20
    assert end_of(child, within_s=20).error.startswith("killed: it and 1 process that it started used 0.")


def test_memory_that_its_judge_has_lent_does_not_count(start: Start) -> None:
    """However much of it the host has mapped, and however often."""
    script = """
import mmap
lent = mmap.mmap(-1, 150 << 20)
for at in range(0, 150 << 20, 1 << 20):
    lent[at : at + (1 << 20)] = b"x" * (1 << 20)
if os.fork() == 0:
    lent.find(b"y")
    sleep()
ready()
sleep()
"""
    child = start(script, memory_bytes=100 << 20)
    child.lent_bytes = lambda: 150 << 20
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert child.receive(30) is None


def test_who_kills_itself_was_not_out_of_memory(start: Start) -> None:
    """SIGKILL alone says nothing about memory."""
    gone = end_of(start("ready()\nos.kill(os.getpid(), 9)"))
    assert "killed by signal 9 (SIGKILL), by itself or by someone on this machine" == gone.error


def test_the_kernels_count_is_evidence_of_too_little_memory(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rose since the child was started. The files stand in for a machine that is full."""
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 7\n")
    monkeypatch.setattr("qualify.run.process.memory.PROC", tmp_path)
    child = start("ready()\nsleep()")
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 8\n")
    os.kill(child.process.pid, signal.SIGKILL)
    error = "killed by signal 9 (SIGKILL), probably because the machine ran out of memory"
    assert error == end_of(child).error


def test_an_endless_log_reaches_no_disk(start: Start) -> None:
    """The parent is busy elsewhere for a second while the child prints; only the end is kept."""
    before = own_files_bytes()  # what an earlier test has mapped may still be there
    child = start(
        "ready()\nline = b'x' * 65536\ntimes = 0\nuntil = time.monotonic() + 1\n"
        "while time.monotonic() < until:\n    os.write(1, line)\n    times += 1\n"
        "os.write(1, b'%d blocks, the end' % times)\nready()\nsleep()"
    )
    time.sleep(1)
    while child.receive(30) is None:
        pass
    assert own_files_bytes() - before < 1 << 20
    child.kill()
    assert child.log_tail().endswith(" blocks, the end")
    assert int(child.log_tail().rpartition("x")[2].split()[0]) > 1000
    assert len(child.log_tail()) <= 4000


def own_files_bytes() -> int:
    """Size of the deleted files that this process has open."""
    size = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            entry = link.stat()
        except OSError:  # the one that lists them
            continue
        size += entry.st_size if stat.S_ISREG(entry.st_mode) and entry.st_nlink == 0 else 0
    return size


@pytest.mark.parametrize(
    "script",
    ["os.close(1); os.close(2)", "sys.stdout = sys.stderr = None", "import io; sys.stdout = io.StringIO()"],
    ids=["closed", "gone", "replaced"],
)
def test_stdout_is_the_childs_own_affair(script: str, start: Start) -> None:
    """Messages come as before, and so does its end."""
    child = start(f"print('before', flush=True)\n{script}\nready()\ntime.sleep(0.5)\nready()\nos._exit(5)")
    while child.receive(30) is None:
        pass
    assert "the process exited with status 5" == end_of(child).error
    assert "before\n" == child.log_tail()


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("os.closerange(3, 256)\nsleep()", "something in the process closed qualify's own pipe, so it was killed"),
        (
            "os.closerange(3, 256)\nready()",
            "something in the process closed qualify's own pipe, so it ended (OSError: [Errno 9] Bad file descriptor)",
        ),
        (
            "os.close(int(sys.argv[2]))\nready()\nos.read(int(sys.argv[2]), 1)",
            "something in the process closed qualify's own pipe, so it ended (OSError: [Errno 9] Bad file descriptor)",
        ),
    ],
    ids=["goes-on", "writes", "reads"],
)
def test_who_closes_the_pipe_is_told_so(script: str, error: str, start: Start) -> None:
    """And not that qualify's own code failed to write into it."""
    assert error == end_of(start(f"ready()\n{script}")).error


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("os._exit(0)", "the process exited with status 0"),
        ("os.close(out); time.sleep(1); raise SystemExit(7)", "the process exited with status 7"),
        ("os.abort()", "killed by signal 6 (SIGABRT)"),
    ],
    ids=["at-once", "slowly", "fault"],
)
def test_who_only_ends_did_not_close_the_pipe(call: str, error: str, start: Start) -> None:
    """Every end closes the pipe too; Python's own a while before the process ends, and before its threads do."""
    threads = "import threading\nfor _ in range(20):\n    threading.Thread(target=sleep, daemon=True).start()\n"
    assert error == end_of(start(f"{threads}ready()\n{call}")).error


SCARCE = "Thread creation failed: Resource temporarily unavailable"
FEW = "; the machine, or its container, probably allows too few: look at ulimit -u and pids.max"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("nothing of note", ""),
        (f"libgomp: {SCARCE}", f" (libgomp: {SCARCE}{FEW})"),
        ("RuntimeError: can't start new thread", f" (RuntimeError: can't start new thread{FEW})"),
        ("OMP: Error #34: System unable to allocate", " (OMP: Error #34: System unable to allocate)"),
    ],
    ids=["nothing", "GNU OpenMP", "Python", "LLVM OpenMP"],
)
def test_who_ends_for_want_of_threads_says_so(words: str, told: str, start: Start) -> None:
    """OpenMP ends the process itself. In a container with few processes that looked like a kernel's own crash."""
    script = f"ready()\nprint({words!r}, file=sys.stderr, flush=True)\nos._exit(1)"
    assert f"the process exited with status 1{told}" == end_of(start(script)).error


def test_ever_new_steps_are_chatter(start: Start) -> None:
    """A process that invents a step at a time, without any result, does not renew its limit for ever."""
    child = start(
        """
ready()
number = 0
while True:
    os.write(out, b'{"event":"at","case":"a","stage":"step %d"}\\n' % number)
    number += 1
    time.sleep(0.0001)
"""
    )
    assert end_of(child, limit_s=1, within_s=20).error.startswith("no progress for 1 s")
    assert len(child.steps) <= 2000


def test_a_busy_parent_is_not_filled(start: Start) -> None:
    """What a child writes meanwhile waits in the pipe: a message takes no more memory than a line may have."""
    child = start("while True:\n    ready()", wait=False)
    time.sleep(1)
    for _ in range(1000):
        child.receive(30)
    assert len(child.buffer) <= 1 << 16
    child.kill()


@pytest.mark.parametrize(
    "name", ["QUALIFY_SIGNING_PIN_FILE", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "SIGSTORE_ID_TOKEN", "AWS_SECRET_ACCESS_KEY"]
)
def test_a_child_cannot_sign(name: str, start: Start, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What leads to the signing key, or makes a token that signs, is not in its environment; the rest is."""
    monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("HF_TOKEN", "for models")
    start(f"note(sorted(os.environ.keys() & {{'HF_TOKEN', {name!r}}})); ready(); time.sleep(60)")
    assert "['HF_TOKEN']\n" == notes.read_text()
    notes.write_text("")


class Paused:
    """A clock that jumps in every wait, as if the machine had been paused for so long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pause_s: float) -> None:
        self.at_s, self._pause_s = 0.0, pause_s
        clock = AwakeClock(lambda: self.at_s)
        wait = clock.wait
        monkeypatch.setattr(clock, "wait", lambda _, milliseconds: wait(self, milliseconds))
        monkeypatch.setattr("qualify.run.process.child.AWAKE", clock)
        self.clock = clock

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        """Nothing comes while it waits."""
        self.at_s += self._pause_s or milliseconds / 1000
        return []


@pytest.mark.parametrize(("pause_s", "waits"), [(0.0, 13), (0.5, 7), (1000.0, 13)])
def test_a_paused_machine_is_no_hanging_kernel(
    pause_s: float, waits: int, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the time counts in which its parent ran; a wait that ends a little late counts as a whole."""
    monkeypatch.setattr("qualify.run.process.child.LAST_BREATH_S", 0)
    paused = Paused(monkeypatch, pause_s)
    child = start("ready(); sleep()", wait=False)
    for _ in range(waits - 1):
        assert child.receive(3.0) is None
    with pytest.raises(Gone, match="no sign of life for 3 s"):
        child.receive(3.0)
    assert waits * (pause_s or 0.25) == pytest.approx(paused.at_s)


def test_threads_that_notice_one_pause_count_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each card of a run has a thread that waits for its judge."""
    paused = Paused(monkeypatch, 100.0)

    class WaitsBeside:
        def poll(self, milliseconds: int) -> list[tuple[int, int]]:
            AwakeClock.wait(paused.clock, paused, milliseconds)
            return []

    AwakeClock.wait(paused.clock, WaitsBeside(), 250)
    assert (100.0, 0.25) == (paused.at_s, pytest.approx(paused.clock.now()))


LEAVES = """
import socket, tempfile
own = tempfile.gettempdir()
assert own == os.environ["TMP"] == os.environ["TEMP"]
os.makedirs(f"{own}/library/closed/deep")
open(f"{own}/library/closed/deep/compiled", "w").close()
socket.socket(socket.AF_UNIX).bind(f"{own}/library/socket")
os.symlink(outside, f"{own}/library/closed/link")
os.chmod(f"{own}/library/closed", 0)
os.chdir(own)
for _ in range(2500):
    os.mkdir("d")
    os.chdir("d")
open("deepest", "w").close()
ready()
sleep()
"""
"""a library's lock files, sockets and caches, where even their owner may not look, if it is not root; and folders in
folders, deeper than a path can be long"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The usual place for temporary files; pytest's own is too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="t") as place:
        monkeypatch.setenv("TMPDIR", place)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(place)


@pytest.mark.parametrize("number", [signal.SIGKILL, None], ids=["killed", "ended-by-its-judge"])
def test_temporary_files_of_a_host_go_with_it(number: int | None, start: Start, temporary: Path) -> None:
    """Each host has a folder of its own, which others may not enter; nothing beside it is touched."""
    (outside := temporary / "outside").mkdir()
    (outside / "kept").touch()
    children = [start(f"outside = {str(outside)!r}\n{LEAVES}", folder=True) for _ in range(2)]
    own = sorted(set(temporary.iterdir()) - {outside})
    assert [0o700, 0o700] == [stat.S_IMODE(folder.stat().st_mode) for folder in own]
    assert all((folder / "library" / "socket").exists() for folder in own)
    for child in children:
        if number:
            os.kill(child.process.pid, number)
        child.stop()
    assert ([outside], [outside / "kept"]) == (list(temporary.iterdir()), list(outside.iterdir()))


KILLED_JUDGE = """
from dataclasses import replace
from qualify.run.process import child
child.BOOT = "import time; time.sleep(60)"
host = child.Child(1 << 30, replace(child.worker(), folder=True))
note(host.process.pid)
ready()
sleep()
"""


def test_folders_of_hosts_whose_judge_was_killed_go(start: Start, temporary: Path) -> None:
    """The next end of any judge of this user removes them, and leaves those of hosts whose judge lives."""
    killed, living = start(KILLED_JUDGE), start("ready()\nsleep()", folder=True)
    assert 2 == len(list(temporary.iterdir()))
    killed.stop()
    assert living.folder is not None
    assert [living.folder.path] == list(temporary.iterdir())


def test_compiled_kernels_outlive_a_host(start: Start, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that keep them among the temporary files find them where they were; who named a place keeps it.

    The recorded environment of a host has no variable that the user did not set.
    """
    inductor = pytest.importorskip("torch._inductor.runtime.cache_dir_utils")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", "/own")
    variables = start("ready()\nsleep()", folder=True).program.variables
    assert inductor.default_cache_dir() == variables["TORCHINDUCTOR_CACHE_DIR"]
    assert {*usual_caches(temporary)} - {"CUTE_DSL_CACHE_DIR"} == {name for name in variables if "CACHE" in name}
    assert {*without_usual_caches({**os.environ, **variables})} == {*os.environ, "TMPDIR", "TMP", "TEMP"}


def test_a_host_starts_without_room_for_temporary_files(
    start: Start, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It then shares the usual place, as whoever started it does; where there is none, judges end as usual, too."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "gone"))
    assert {} == start("ready()\nsleep()", folder=True).program.variables
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    assert {} == start("ready()\nsleep()", folder=True).program.variables
    start("ready()\nsleep()").stop()


def test_a_limit_of_file_sizes_is_named() -> None:
    """Memory that two processes share counts as a file: no machine is full where ``ulimit -f`` refuses it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    memory = os.memfd_create("memory")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError) as refused:
            os.ftruncate(memory, 2 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        os.close(memory)
    told = not_started(refused.value)
    assert "Raise the limit of file sizes: ulimit -f unlimited" in told
    assert "run out of" not in told
