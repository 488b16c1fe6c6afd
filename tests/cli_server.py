"""A Python that has imported qualify, and read the shipped cards, forks a process for each command.

Importing it again would cost half a second, reading the cards a tenth, and importing torch more than one.

Run by cli_process.py with the path of a socket. Who connects sends the command and its three standard streams, and is
told the process id and then, as ``waitpid`` says it, how it ended.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import typer

from qualify.assets import digest_cache
from qualify.cards.load import load_kernels, load_matrix
from qualify.cli import entry, main
from qualify.fleet.writers import claimed
from qualify.judge.beside import beside_baseline
from qualify.judge.judged import judge
from qualify.judge.timed import with_performance
from qualify.run.process.parent import die_with
from qualify.store.store import Store

LATER = (
    "alembic.context",
    "anyio._backends._asyncio",
    "httpcore2",
    "psycopg",
    "pydantic.v1",
    "qualify.canary.overview",
    "qualify.canary.service",
    "qualify.cards.config.finding",
    "qualify.cards.config.reading",
    "qualify.cli.progress",
    "qualify.fleet.collect",
    "qualify.fleet.drive",
    "qualify.fleet.inventory",
    "qualify.fleet.lane",
    "qualify.fleet.local",
    "qualify.fleet.node",
    "qualify.fleet.profile",
    "qualify.fleet.repro",
    "qualify.fleet.taker",
    "qualify.judge.against",
    "qualify.judge.baselines",
    "qualify.judge.bisection",
    "qualify.judge.edits",
    "qualify.judge.exchange",
    "qualify.judge.gathered",
    "qualify.plan.starting",
    "qualify.report.answer",
    "qualify.report.baselines",
    "qualify.report.bisection",
    "qualify.report.contract",
    "qualify.report.files",
    "qualify.report.formats.github",
    "qualify.report.formats.in_toto",
    "qualify.report.formats.json",
    "qualify.report.formats.junit",
    "qualify.report.formats.markdown",
    "qualify.report.formats.sarif",
    "qualify.report.formats.text",
    "qualify.report.page",
    "qualify.report.verdict_json",
    "qualify.report.verdict_text",
    "qualify.run.machine.health",
    "qualify.run.measure.kernel_names",
    "qualify.store.migrations.versions",
    "qualify.store.schema",
    "qualify.web.access",
    "qualify.web.server",
    "securesystemslib.dsse",
    "sqlalchemy.dialects.postgresql.psycopg",
)
"""what commands import when they need it; not huggingface_hub, which reads the environment while it is imported"""
WITH_SCIPY = ("qualify.canary.child", "qualify.judge.history")
"""the same of those that judge times; judges and hosts, which are forked from here, too, do without scipy"""
WITH_TORCH = (
    "qualify.fleet.doctor",
    "qualify.run.adapters.tiled_torch",
    "qualify.run.execute",
    "qualify.run.host.pool",
    "qualify.run.host.remote",
    "qualify.run.host.serve",
    "qualify.run.measure.ceilings",
    "qualify.run.repro.trial",
    "torch._subclasses.schema_check_mode",
    "torch.profiler._cupti_monitor",
)
"""the same of those few that look at the stack of this machine, and of the judges and hosts that commands fork"""
ALONE = (
    *("access", "baseline", "bisect", "db", "gate", "history", "hold", "init", "kernels", "model", "plan", "report"),
    *("schema", "signoff", "traffic", "verify", "waiver"),
)
"""commands that start nothing, but for a few cases of some; whatever those start is not forked"""
MESSAGES = ("facts.codec", "run.process.messages", "run.host.messages")
"""what writes messages, and the modules of those between a command, its judge and its hosts"""
UNFLUSHED = 120
"""Python's exit code where nobody takes the output"""
LONGEST = 1 << 20
"""bytes of a command with its environment"""
MADV_COLLAPSE, LARGE = 25, 2 << 20
"""Linux's name for it, and the bytes of a large page"""


def obey(asked: dict[str, Any], streams: list[int]) -> NoReturn:
    """The command in this process, with its own folder, environment and streams, and session if it is to have one."""
    if asked["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts tests in the background ignores it
    forking().surround(asked["env"])
    os.chdir(asked["cwd"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    script = asked["script"]
    sys.argv = [script or "qualify", *asked["arguments"]]
    sys.path[:0] = [str(Path(script).parent)] if script else []
    if asked["forks"] and (script or not {*asked["arguments"][:1]} & {*ALONE}):
        forking().fork_from_here()
    os._exit(ended(partial(runpy.run_path, script, run_name="__main__") if script else main))


@cache
def forking() -> Any:
    """The module beside this one, which is not on the path of a command."""
    spec = importlib.util.spec_from_file_location("forking", Path(__file__).with_name("forking.py"))
    assert spec is not None, "a file with this suffix has a loader"
    assert spec.loader is not None, "a file with this suffix has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ended(command: Callable[[], object]) -> int:
    """The exit code of a command, after whatever Python does at its end.

    But for one thing: it would take apart what the server has imported, object by object, which takes longer than most
    commands.
    """
    code: object = 0
    try:
        command()
    except SystemExit as left:
        code = left.code or 0
    except BaseException:  # noqa: BLE001 - as Python does
        sys.excepthook(*sys.exc_info())
        code = 1
    try:
        if not isinstance(code, int):
            print(code, file=sys.stderr)
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return UNFLUSHED
    return code if isinstance(code, int) else 1


def serve_at(address: str) -> None:
    """Serve at a path for a socket."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        serve(listening)


def serve(listening: socket.socket) -> None:
    """Commands side by side; who asked for one hears its process id at once, and how it ended when it has.

    One whose asker has gone is killed.
    """
    running: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listening:
                    asking, _ = listening.accept()
                    child = begin(asking, listening)
                    running.add(child)
                    selector.register(os.pidfd_open(child), selectors.EVENT_READ, (child, asking))
                    selector.register(asking, selectors.EVENT_READ, (child, asking))
                    continue
                child, asking = key.data
                if child not in running:  # it ended at the same moment
                    continue
                selector.unregister(key.fileobj)
                if key.fileobj is asking:
                    os.kill(child, signal.SIGKILL)
                    continue
                os.close(key.fd)
                running.remove(child)
                status = os.waitpid(child, 0)[1]
                with suppress(KeyError):
                    selector.unregister(asking)
                with asking, suppress(OSError):
                    asking.sendall(f"{status}\n".encode())
                    asking.shutdown(socket.SHUT_RDWR)  # commands that began meanwhile have this socket, too


def begin(asking: socket.socket, listening: socket.socket) -> int:
    """The process id of the command that is asked for."""
    text, streams, _, _ = socket.recv_fds(asking, LONGEST, 3)
    while text and not text.endswith(b"\n"):
        text += asking.recv(LONGEST)
    server = os.getpid()
    child = os.fork()
    if child == 0:
        listening.close()
        asking.close()
        asked = json.loads(text)
        if "owner" in asked:
            forking().be_nursery(socket.socket(fileno=streams[0]), asked["owner"], server)
        die_with(server)
        obey(asked, streams)
    for stream in streams:
        os.close(stream)
    asking.sendall(f"{child}\n".encode())
    return child


def warm() -> None:
    """What every command would do again after it was forked, and what every judge would measure again.

    A judge of a run measures what this machine reaches, which takes a third of a second. Torch wants to be told of a
    process's end a hundred times, which concerns this one only: each time it would touch memory that all share.
    """
    for final in list(weakref.finalize._registry):
        final.atexit = False
    load_kernels()
    load_matrix("smoke")
    remember_files()
    compile_statements()
    importlib.import_module("qualify.run.measure.kernel_names").identify("no kernel is called so")
    pages = importlib.import_module("qualify.report.page")._environment()
    for name in pages.list_templates(extensions=["html"]):
        pages.get_template(name)
    command = typer.main.get_command(entry._parser())
    entry._parser = lambda _="": command
    for parameter in parameters_of(command):
        parameter.get_runtime_param()
    codec, outer, inner = (importlib.import_module(f"qualify.{name}") for name in MESSAGES)
    for kind in (*vars(outer).values(), *inner.ANSWERS.values()):
        if is_dataclass(kind) and kind.__module__ in {outer.__name__, inner.__name__}:
            codec._adapter(kind)
    ceilings = importlib.import_module("qualify.run.measure.ceilings")
    device = importlib.import_module("qualify.run.machine.device")
    reached = {"cpu": ceilings.measure_ceilings(device.processor_of("cpu"))}
    measure = ceilings.measure_ceilings
    ceilings.measure_ceilings = lambda processor: reached.get(processor.kind) or measure(processor)


def parameters_of(command: Any) -> Iterator[Any]:
    """Those of a command and of the commands below it: typer asks pydantic about each when it is first used."""
    yield from command.params
    for below in getattr(command, "commands", {}).values():
        yield from parameters_of(below)


def leave_unmapped(names: Iterable[str]) -> None:
    """Import these modules; no judge or host that is forked from here says that it has mapped their libraries."""
    stack, serving = (importlib.import_module(f"qualify.run.{name}") for name in ("machine.stack", "host.serve"))
    mapped = stack.mapped_binaries
    before = {*mapped()}
    for name in names:
        importlib.import_module(name)
    theirs = {*mapped()} - before
    stack.mapped_binaries = serving.mapped_binaries = lambda: [path for path in mapped() if path not in theirs]


def remember_files() -> None:
    """What the distributions of this environment say, which files they have, and the digests: no test changes those.

    A command that reads every file again would read gigabytes. Of other files each command reads its few for itself:
    what is remembered on disk is of every environment that ever was, and takes longer to read.
    """
    software, stack, code = (
        importlib.import_module(f"qualify.{name}")
        for name in ("run.machine.software", "run.machine.stack", "plan.code")
    )
    remember_metadata()
    installed = list(software._installed(software.DISTRIBUTIONS))
    files = [software.files_of(record, root) for _, _, record, root in installed]
    paths = {path for one in files for path, _ in one.values()}
    look, digest = software.digests_of, software.digest_of
    known = look(sorted({*paths, *map(str, stack.mapped_binaries())}), digest_cache())
    whole = {record: digest(record, {}) for _, _, record, _ in installed}

    def digests_of(paths: Iterable[str], cache: Path | None) -> dict[str, str]:
        asked = list(paths)
        there = {path: known[path] for path in asked if path in known}
        return there | look([path for path in asked if path not in there], None)

    software.digests_of = code.digests_of = digests_of
    software.digest_of = lambda record, other: whole[record] if record in whole and not other else digest(record, other)


def remember_metadata() -> None:
    """What pip wrote about the distributions of this environment: each command, judge and host reads that of all."""
    kind = metadata.PathDistribution
    here = [one for one in metadata.distributions() if isinstance(one, kind)]
    records = {one._path: one.read_text("RECORD") for one in here}
    read = kind.read_text

    def read_text(one: metadata.PathDistribution, name: Any) -> str | None:
        return records[one._path] if name == "RECORD" and one._path in records else read(one, name)

    kind.read_text = read_text
    for name in ("entry_points", "metadata"):
        setattr(kind, name, remembered(getattr(kind, name), here))


def remembered(told: Any, known: Iterable[metadata.PathDistribution]) -> property:
    """This property, with the answers of those objects remembered by where they lie."""
    answers = {one._path: told.fget(one) for one in known}
    return property(lambda one: answers[one._path] if one._path in answers else told.fget(one))


def collapse() -> None:
    """Have the memory of this process in large pages: a fork copies a table with a line for each page."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, access, _, _, inode, *_ = line.split()
        first, end = (int(number, 16) for number in where.split("-"))
        first, end = -(-first // LARGE) * LARGE, end // LARGE * LARGE
        if access == "rw-p" and inode == "0" and first < end:
            madvise(first, end - first, MADV_COLLAPSE)


def compile_statements() -> None:
    """Those of a store that a run is written into and read from."""
    sys.path.insert(0, str(Path(__file__).parent))
    before = {*sys.modules}
    stored, builders = map(importlib.import_module, ("stored_runs", "builders"))
    with tempfile.TemporaryDirectory() as folder, Store.open(f"{folder}/evidence.db") as store:
        matrix = Path(folder, "serving.yaml")
        matrix.write_text(stored.MATRIX)
        run = stored.store_run(store, matrix, state="running")
        with claimed(store, run.id) as beat:
            beat.check()
            store.set_stack(run.id, stored.make_stack(), builders.CEILINGS)
            store.finish(run.id, "completed", stored.NOW)
        judged = judge(store, store.resolve("latest"), load_kernels(), now=stored.NOW)
        with_performance(store, beside_baseline(store, judged), now=stored.NOW, max_age=None)
    for name in {*sys.modules} - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == Path(__file__).parent:
            del sys.modules[name]
    del sys.path[0]


if __name__ == "__main__":
    die_with(os.getppid())
    gc.disable()
    for name in LATER:
        importlib.import_module(name)
    assert not {"torch", "scipy", "huggingface_hub"} & {*sys.modules}, "what every command imports does without them"
    for name in WITH_TORCH:
        if importlib.util.find_spec(name):  # another release of torch may lack a module of its own
            importlib.import_module(name)
    leave_unmapped(WITH_SCIPY)
    forking().telling()
    warm()
    gc.freeze()
    gc.enable()
    collapse()
    serve_at(sys.argv[1])
