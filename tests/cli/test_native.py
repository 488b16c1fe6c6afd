"""A command line that feels at home in a shell: -h, examples, completion, colour on a terminal and nowhere else."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_process import ROOT, Begun, call, command, environment

from qualify.cli.counter import counter
from qualify.cli.duel import Lines
from qualify.cli.entry import _parser
from qualify.cli.examples import EXAMPLES
from qualify.cli.terminal import painted
from qualify.facts.typed import Typed
from qualify.fleet.doctor import Concern, Examination
from qualify.fleet.duel import DuelProgress
from qualify.fleet.readiness import grouped, to_lines, verdict_on

ESC = "\x1b["


@cache
def commands() -> dict[str, Any]:
    """Every command by its words."""

    def of(group: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for name, each in group.commands.items():
            if hasattr(each, "commands"):
                yield from of(each, (*words, name))
            else:
                yield " ".join((*words, name)), each

    return dict(of(typer.main.get_command(_parser()), ()))


def test_every_command_has_examples_and_no_other_has() -> None:
    """A new command comes with a line that can be pasted, in qualify/cli/examples.py."""
    assert sorted(commands()) == sorted(EXAMPLES)


def test_the_list_of_commands_has_whole_sentences() -> None:
    """On a terminal of 80 columns: none is cut off with dots."""
    for words in ((), *{(name.split()[0],) for name in commands() if " " in name}):
        group = typer.main.get_command(_parser())
        context = group.make_context("qualify", [], resilient_parsing=True)
        for word in words:
            group = group.commands[word]  # type: ignore[attr-defined]
            context = group.make_context(word, [], parent=context, resilient_parsing=True)
        listed = group.get_help(context).partition("Commands:")[2]
        assert [] == [line for line in listed.splitlines() if line.endswith("...")], words


@cache
def program_context() -> Any:
    """What the commands inherit."""
    return typer.main.get_command(_parser()).make_context("qualify", [], resilient_parsing=True)


PROGRESS = {
    "check": {"-q", "-v"}, "run": {"-q", "-v"}, "duel": {"-q", "-v"}, "selftest": {"-q", "-v"}, "ingest": {"-q", "-v"},
    "plan": {"-q", "-v"}, "repro": {"-q", "-v"}, "node": {"-q", "-v"}, "fleet": {"-q", "-v"}, "collect": {"-q"},
}  # fmt: skip
"""what of -q and -v a command takes, because it writes a log while it works"""


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_takes_what_all_of_its_kind_take(name: str) -> None:
    """-h, examples, --json, and -q and -v where it shows progress; each with a help text."""
    known = commands()[name]
    program = program_context()
    context = known.make_context(name, [], parent=program, resilient_parsing=True)
    options = {each: option for option in known.params for each in option.opts if option.param_type_name == "option"}
    assert ["-h", "--help"] == context.help_option_names
    assert "Examples:\n" in known.get_help(context)
    assert PROGRESS.get(name, set()) == {"-q", "-v"} & set(options)
    assert "--json" in options or name == "web"
    assert [] == [each for each, option in options.items() if not option.help]


def test_quiet_leaves_the_result(tmp_path: Path) -> None:
    """Of a plan nothing goes to stderr; the ids are those of the plan that tells."""
    plans = [call("plan", "smoke", "--select", "decode", *more, cwd=tmp_path) for more in ((), ("-q",))]
    assert [True, False] == [bool(ended.err) for ended in plans]
    assert plans[0].out == plans[1].out


def test_a_verbose_plan_says_what_each_kernel_gets(tmp_path: Path) -> None:
    """On stderr: its cases, and the reasons of its refusals; the ids on stdout stay the same."""
    words = ("plan", "smoke", "--kernel", "torch-sdpa-*", "--select", "decode")
    usual, verbose = (call(*words, *more, cwd=tmp_path) for more in ((), ("-v",)))
    assert usual.out == verbose.out
    told = [line for line in verbose.err.splitlines() if line not in usual.err.splitlines()]
    assert ["torch-sdpa-cudnn", "torch-sdpa-efficient", "torch-sdpa-flash"] == [line.split(":")[0] for line in told][:3]
    refused = usual.out.count("/torch-sdpa-efficient  refused: ")
    assert told[1].startswith(
        f"torch-sdpa-efficient: 0 cases, {refused} refused: layout=paged (torch-sdpa-efficient claims packed); "
    )
    both = call(*words, "-q", "-v", cwd=tmp_path)
    assert (2, True) == (both.code, "--quiet and --verbose: give one of them" in both.err)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("web", "--port", "abc"), "'--port': must be a whole number, but is \"abc\". Try: qualify web --help"),
        (("web", "--port", "99999"), "'--port': must be at most 65535, but is \"99999\". Try: qualify web --help"),
        (("gate", "mine.yaml"), "(mine.yaml); perhaps you meant --matrix mine.yaml or --run mine.yaml. Try: qualify"),
        (("run", "smoke", "/usr"), "(/usr); perhaps you meant --cards /usr. Try: qualify run --help"),
        (("gate", "--db", ""), "--db is empty: the variable that it comes from is probably not set"),
        (("doctor", "x"), "(x). Try: qualify doctor --help"),
        (("node", "smok"), "no matrix is called 'smok'; perhaps you meant smoke"),
        (("canary", "serve", "--db"), "Option '--db' requires an argument. Try: qualify canary serve --help"),
        (("run", "smoke", "--device", "gpu"), "--device gpu: must be one of auto, cpu, cuda, cuda:all, cpu:N"),
        (("canary", "serv"), "No such command 'serv'. Did you mean 'serve'? Try: qualify canary --help"),
        (("plan", "smoke", "--sel"), "Try: qualify plan --help"),
        (("canary", "list", "--lease", " "), "--lease is empty: the variable that it comes from is probably not set"),
        (("canary", "health", "--node=\t"), "--node is empty: the variable that it comes from is probably not set"),
        (("history", " "), "an argument is empty: the variable that it comes from is probably not set"),
        (("run", ""), "an argument is empty: the variable that it comes from is probably not set. Try: qualify run"),
        (("plan", "smoke", "--kernel", ""), "--kernel is empty: the variable that it comes from is probably not set"),
        (("baseline", "accept", "latest", "--reason", ""), "not set. Try: qualify baseline accept --help"),
        (("plan", "smoke", "--select="), "--select is empty: the variable that it comes from is probably not set"),
        (("plan", "smoke", "--select", " "), "--select is empty: the variable that it comes from is probably not set"),
        (("plan", "smoke", "--select", ","), "--select is empty: the variable that it comes from is probably not set"),
        (("run", "smoke", "--select", "a", "--select", "\t"), "--select is empty: the variable that it comes from is"),
        (("check", "qwen3-0.6b", "--engine", "vlm"), "'sglang'; perhaps you meant vllm. Try: qualify check --help"),
        (("model", "https://huggingface.co/Qwen/Qwen3-8B"), "A model of the hub is hf://Qwen/Qwen3-8B@COMMIT"),
        (("model", "qwen3-8b"), "qwen3-8b: is a model card and no config.json. A matrix takes it by this name"),
        (
            ("model", "qwen3-9b"),
            "qwen3-9b: no such file or folder, and no model card; perhaps you meant qwen3-8b. Give",
        ),
        (("model", "./my-model"), "qualify: my-model: no such file; check the path, which counts from the working"),
        (("model", "Qwen/Qwen3-8B@main"), "A model of the hub is hf://Qwen/Qwen3-8B@COMMIT, with the 40 hex digits"),
        (("model", "Qwen/Qwen3-8B"), "A model of the hub is hf://Qwen/Qwen3-8B@COMMIT, with the 40 hex digits"),
        (("schema",), "Missing argument 'KIND'. Choose from: kernel, matrix, model, waivers, traffic, canary, access"),
        (("duel", "--null", "a", "b", "smoke"), "qualify duel takes A [MATRIX], not: a b smoke"),
        (("duel", "a"), "qualify duel takes A B [MATRIX], not: a"),
        (("duel", "a", "b", "--margin", "1e999"), "--margin inf: give a share in percent, from 0.01 to below 100"),
        (("duel", "a", "b", "--margin", "nan"), "--margin nan: give a share in percent"),
        (("duel", "a", "b", "--margin", "-1"), "--margin -1: give a share in percent"),
        (("duel", "a", "b", "--margin", "0"), "--margin 0: give a share in percent"),
        (("duel", "a", "b", "--plant", "nan"), "--plant nan: give a share in percent, 0 to 100, for example 2"),
        (("duel", "a", "b", "--plant", "-2"), "--plant -2: give a share in percent"),
        (("duel", "a", "b", "--plant", "1e9"), "--plant 1e+09: give a share in percent"),
        (("duel", "a", "b", "--most-pairs", "3"), "--most-pairs 3: a verdict needs 5 pairs (--pairs), so give at"),
        (
            ("cliffs", "tiled-torch", "--seqlen", "99999999999999999999"),
            "'--seqlen': must be at most 2147483647, but is",
        ),
        (("cliffs", "tiled-torch", "--page-size", "9999999999"), "'--page-size': must be at most 2147483647, but is"),
        (("traffic", "import", "l", "--out", "o", "--batch", "99999999999"), "'--batch': must be at most 2147483647,"),
        (
            ("traffic", "import", "l", "--out", "o", "--page-size", "9999999999"),
            "'--page-size': must be at most 2147483",
        ),
        (("history", "x", "--last", "9" * 20), "'--last': must be at most 2147483647, but is"),
        (("db", "deletions", "--limit", "9" * 20), "'--limit': must be at most 2147483647, but is"),
        (("db", "prune", "--keep-days", "1000000"), "'--keep-days': must be at most 36500, but is \"1000000\"."),
        (("db", "prune", "--keep-days", "9", "--keep-last", "9" * 20), "'--keep-last': must be at most 2147483647,"),
        (("selftest", "--runs", "9" * 20), "'--runs': must be at most 2147483647, but is"),
        (("cliffs", "tiled-torch", "--limit", "9" * 20), "'--limit': must be at most 2147483647, but is"),
        (("hold", "release", "9" * 20, "--reason", "x"), "'HOLD': must be at most 2147483647, but is"),
        (("signoff", "x", "--revoke", "9" * 20), "'--revoke': must be at most 2147483647, but is"),
        (("schema", "matrx"), "'gate'; perhaps you meant matrix. Try: qualify schema --help"),
    ],
)
def test_a_mistyped_command_line_names_the_value_and_the_help(
    words: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    """Whichever way the parser refuses it, the command that is printed is the one that was meant."""
    ended = call(*words, cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    assert expected in ended.err


INTERRUPTED_AT = """\
import os, signal, sys
wanted = [{module!r}]


def press(event, given):
    if event == "import" and given[0] in wanted:
        wanted.clear()
        os.kill(0, signal.SIGINT)


sys.addaudithook(press)
sys.argv = ["qualify", "doctor"]
from qualify.cli import main
main()
"""


@pytest.mark.parametrize("module", ["qualify.cli.check", "qualify.fleet.doctor", "numpy", "numpy.exceptions"])
def test_ctrl_c_is_one_line_at_any_moment(module: str, tmp_path: Path) -> None:
    """While Python imports the program, and inside a command that has no words of its own for it.

    The C code of torch imports numpy, and drops what that raises: the command went on to its end, or had half a numpy.
    """
    program = [sys.executable, "-c", INTERRUPTED_AT.format(module=module)]
    ended = subprocess.run(
        program, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False, start_new_session=True
    )
    assert (130, "", "qualify: interrupted\n") == (ended.returncode, ended.stdout, ended.stderr)


SHELLS = """\
import signal
from qualify.cli import main
signal.signal(signal.SIGINT, signal.{answer})
main()
"""


@pytest.mark.parametrize("answer", ["default_int_handler", "SIG_IGN"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_every_command_as_ctrl_c_does(number: int, answer: str, tmp_path: Path) -> None:
    """Slurm and Kubernetes send SIGTERM; so do people to a job in the background of a shell, which ignores Ctrl-C.

    A terminal that closes sends SIGHUP.
    """
    assert (130, "qualify: interrupted\n") == signalled(tmp_path, "hold", "list", number=number, answer=answer)


WRAPPED = """\
import enum, signal, sys
from typing import Literal

from pydantic import TypeAdapter
from qualify.cli import entry

until = [int(sys.argv.pop())]


class Kind(enum.Enum):
    A = "a"

    def __repr__(self):
        until[0] -= 1
        if until[0] == 0:
            signal.raise_signal(signal.SIGTERM)
        return "A"


def doctor() -> None:
    TypeAdapter(Literal[Kind.A])


entry.COMMANDS = (("doctor", doctor),)
sys.argv.append("doctor")
entry.main()
"""


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupt_that_a_library_makes_an_error_of_is_an_interrupt(at: int) -> None:
    """Pydantic turns one that comes while it builds a validator into a SchemaError: no internal error to report.

    Args:
        at: how often pydantic has asked for a name before the signal comes; it asks three times.
    """
    program = [sys.executable, "-c", WRAPPED, str(at)]
    ended = subprocess.run(program, env=environment(), capture_output=True, text=True, check=False)
    assert (130, "qualify: interrupted\n") == (ended.returncode, ended.stderr)


BURST = """\
import signal
from qualify.cli import interrupts


def interrupted(number):
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        return True
    return False


signal.signal(signal.SIGHUP, signal.SIG_IGN)
interrupts.BURST_S = 600.0
with interrupts.Interrupts():
    found = [interrupted(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM)]
    interrupts.BURST_S = 0.0
    print([*found, interrupted(signal.SIGINT)])
"""


def test_a_command_that_ignores_its_terminal_goes_on() -> None:
    """As with nohup. Signals that come in one burst are one: timeout sends two, and a shell that ends, too.

    It has a process of its own: whatever answers a signal in this one would be part of the test.
    """
    program = [sys.executable, "-c", BURST]
    ended = subprocess.run(program, env=environment(), capture_output=True, text=True, check=False)
    assert (0, "[False, True, False, True]\n") == (ended.returncode, ended.stdout), ended.stderr


@pytest.mark.parametrize(
    ("number", "ending"),
    [
        (signal.SIGTERM, (0, "")),
        (signal.SIGINT, (130, "qualify: interrupted\n")),
        (signal.SIGHUP, (130, "qualify: interrupted\n")),
    ],
)
@pytest.mark.parametrize("words", [("web", "--port", "0"), ("canary", "serve")], ids=" ".join)
def test_a_service_that_is_stopped_while_it_starts_has_not_failed(
    words: tuple[str, ...], number: int, ending: tuple[int, str], tmp_path: Path
) -> None:
    """As later: systemd would show a unit as failed that somebody stops while its database does not answer."""
    assert ending == signalled(tmp_path, *words, number=number)


def signalled(
    folder: Path, *words: str, number: int = signal.SIGTERM, answer: str = "default_int_handler"
) -> tuple[int, str]:
    """How a command ends that gets a signal while it waits for its database, and its stderr.

    Args:
        answer: what its shell has it do at Ctrl-C.
    """
    script = folder / "in_a_shell.py"
    script.write_text(SHELLS.format(answer=answer))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        db = f"postgresql://somebody@127.0.0.1:{silent.getsockname()[1]}/evidence"
        with Begun(*words, "--db", db, cwd=folder, script=script, stderr=subprocess.PIPE, text=True) as running:
            asking, _ = silent.accept()
            with asking:
                running.send_signal(number)
                _, err = running.communicate(timeout=60)
    return running.returncode, err


def test_verbose_tells_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    """A selftest and a duel tell each step with -v, none with -q, and one at times otherwise."""
    told = {}
    for talk in ("quiet", "usual", "verbose"):
        with counter("selftest", talk) as progress:
            progress(1, 2, "lse-log2")
        lines = Lines(talk, least_pairs=5, deadline_s=None)
        for timed in (1, 2):
            lines(duel_step(timed))
        told[talk] = capsys.readouterr().err.splitlines()
    steps = [f"0/3 cells decided; pair 1: {timed}/4  a/b" for timed in (1, 2)]
    assert {"quiet": [], "usual": steps[:1], "verbose": ["selftest: 1 of 2: lse-log2", *steps]} == told


def duel_step(timed: int, *, pair: int = 1, elapsed_s: float = 1.0) -> DuelProgress:
    """A duel of three cells, four calls in this pair of processes."""
    return DuelProgress(decided=0, total=3, pair=pair, timed=timed, round_total=4, cell="a/b", elapsed_s=elapsed_s)


TOO_SHORT = (
    "qualify: 5 pairs of processes will take about {needed} s, so the deadline of 60 s will leave cells undecided. "
    "Give it --deadline {minutes}m or more, or fewer cells with --select"
)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        pytest.param([(1, 1, 4.0), (4, 1, 20.0), (4, 2, 35.0)], [(100, 2)], id="at the end of the first pair"),
        pytest.param([(1, 1, 12.0), (2, 1, 31.0), (3, 1, 49.0)], [(345, 6)], id="when half of the time is over"),
        pytest.param([(1, 1, 11.0), (4, 1, 12.0), (4, 2, 40.0), (4, 3, 59.0)], [], id="never where they have room"),
    ],
)
def test_a_deadline_that_is_too_short_is_told_early(
    steps: list[tuple[int, int, float]], told: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, as soon as it can be known, and not when the time is lost."""
    lines = Lines("usual", least_pairs=5, deadline_s=60.0)
    for timed, pair, elapsed_s in steps:
        lines(duel_step(timed, pair=pair, elapsed_s=elapsed_s))
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("qualify:")]
    assert [TOO_SHORT.format(needed=needed, minutes=minutes) for needed, minutes in told] == warnings


def test_only_one_module_writes_colours() -> None:
    """So that NO_COLOR holds for every command: the others write through it, or through rich, which heeds it too."""
    modules = (ROOT / "qualify").rglob("*.py")
    writers = [path.relative_to(ROOT).as_posix() for path in modules if re.search(r"\\x1b\[|\\033\[", path.read_text())]
    assert ["qualify/cli/terminal.py"] == writers


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_is_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser takes its options and values; nothing is run."""
    monkeypatch.chdir(tmp_path)
    for folder in ("canaries", "keys"):
        (tmp_path / folder).mkdir()
    words = shlex.split(line.partition(" > ")[0])[1:]
    known = commands()
    name = max((each for each in known if words[: each.count(" ") + 1] == each.split()), key=len)
    context = known[name].make_context(name, words[name.count(" ") + 1 :])
    assert line in EXAMPLES[name]
    assert {} == {key: value for key, value in context.params.items() if isinstance(value, Exception)}


def test_h_is_help_and_shows_the_examples(tmp_path: Path) -> None:
    """For the program, a command and a command of a group; the examples stand below, one a line."""
    assert call("-h", cwd=tmp_path).out == call("--help", cwd=tmp_path).out
    for name in ("plan", "db prune"):
        shown = call(*name.split(), "-h", cwd=tmp_path)
        assert (0, "") == (shown.code, shown.err)
        assert [f"    {line}" for line in EXAMPLES[name]] == shown.out.splitlines()[-len(EXAMPLES[name]) :]


def test_the_shell_completes_commands_options_and_names(tmp_path: Path) -> None:
    """As bash asks: the words so far, and which of them is being typed."""

    def completed(line: str) -> list[str]:
        asked = {"_QUALIFY_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        program = [sys.executable, "-c", "import sys; sys.argv[0] = 'qualify'; from qualify.cli import main; main()"]
        done = subprocess.run(
            program, env=environment(**asked), cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.stdout.split()

    assert ["doctor"] == completed("qualify do")
    assert ["smoke"] == completed("qualify run smo")
    assert ["qwen3-8b"] == completed("qualify check qwen3-8")
    assert ["--select"] == completed("qualify plan --sel")
    assert ["FLASH_ATTN", "FLASH_ATTN_MLA"] == completed("qualify check x --engine vllm --backend FLASH_A")


def on_terminal(*arguments: str, cwd: Path, **variables: str) -> str:
    """What a command writes to a terminal."""
    own, other = pty.openpty()
    env = environment(TERM="xterm", CUDA_VISIBLE_DEVICES="", **variables)
    with subprocess.Popen(command(*arguments), cwd=cwd, env=env, stdin=other, stdout=other, stderr=other) as child:
        os.close(other)
        said = b""
        while True:
            try:
                said += (part := os.read(own, 65536))
            except OSError:  # the terminal is closed with its last writer
                break
            if not part:
                break
        child.wait()
    os.close(own)
    return said.decode()


def test_colour_is_for_terminals_and_not_for_who_says_no(tmp_path: Path) -> None:
    """NO_COLOR, TERM=dumb, a pipe and --json stay plain; the words are the same."""
    arguments = ("run", "smoke", "--device", "cuda")
    coloured = on_terminal(*arguments, cwd=tmp_path)
    assert coloured.startswith(f"{ESC}31mqualify:{ESC}0m --device cuda: no NVIDIA GPU")
    plain = on_terminal(*arguments, cwd=tmp_path, NO_COLOR="1")
    assert ESC not in plain
    assert plain == coloured.replace(f"{ESC}31m", "").replace(f"{ESC}0m", "")
    assert plain.replace("\r\n", "\n") == call(*arguments, cwd=tmp_path, env=environment(CUDA_VISIBLE_DEVICES="")).err
    assert ESC not in on_terminal("schema", "canary", cwd=tmp_path)


def test_lines_are_coloured_by_how_they_begin() -> None:
    """Verdicts by what they mean; what stands within a line is left alone."""
    text = "smoke: not qualified (1 of 2)\nFAIL         a/b\ndo: repeat\nsaid FAIL\nPASSED"
    assert [
        f"{ESC}31msmoke: not qualified{ESC}0m (1 of 2)",
        f"{ESC}31mFAIL{ESC}0m         a/b",
        f"{ESC}1mdo:{ESC}0m repeat",
        "said FAIL",
        "PASSED",
    ] == painted(text).splitlines()


def test_a_terminal_without_utf8_gets_other_signs(capfd: pytest.CaptureFixture[str]) -> None:
    """People read words and signs that its encoding has; data for programs stays as it is, with escapes."""
    text = "35 µs, 1.5× as long, ≤ 3…"
    program = "import sys; from qualify.cli.terminal import emit; emit(sys.argv[1]); emit(sys.argv[1], plain=True)"
    env = environment(PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    subprocess.run([sys.executable, "-c", program, text], env=env, check=True)
    people, data = capfd.readouterr().out.splitlines()
    assert "35 us, 1.5x as long, <= 3..." == people
    assert r"35 \xb5s, 1.5\xd7 as long, \u2264 3\u2026" == data


def test_quiet_and_verbose_contradict_each_other(tmp_path: Path) -> None:
    """Exit 2, before anything is run."""
    ended = call("run", "smoke", "-q", "-v", cwd=tmp_path)
    assert (2, "qualify: --quiet and --verbose: give one of them\n") == (ended.code, ended.err)


def test_select_says_what_it_matched(tmp_path: Path) -> None:
    """Several values, one of them negated; the count and the parts go to the log, the ids to stdout."""
    ended = call("plan", "smoke", "--select", "decode", "--select", "!fp16", "--kernel", "tiled-torch", cwd=tmp_path)
    ids = ended.out.splitlines()
    assert 0 == ended.code
    assert ids
    assert all("/decode/" in line and "/fp16/" not in line for line in ids)
    told = ended.err.splitlines()[0]
    assert told.startswith(f"--select 'decode !fp16' matches {len(ids)} of ")
    assert "phase decode; " in told
    assert "dtype bf16; " in told
    mistyped = call("plan", "smoke", "--select", "decode !fp61", "--kernel", "tiled-torch", cwd=tmp_path)
    assert "cases (nothing has 'fp61'): " in mistyped.err.splitlines()[0]


def test_doctor_groups_kernels_and_ends_with_a_verdict(tmp_path: Path) -> None:
    """As text in the last lines, as JSON in fields of their own."""
    env = environment(CUDA_VISIBLE_DEVICES="")
    text, data = (call("doctor", *more, cwd=tmp_path, env=env) for more in ((), ("--json",)))
    assert text.out.splitlines()[-1].startswith("verdict: ready for a demonstration only: ")
    groups = data.data["kernels"]
    assert ["usable here", "need a GPU", "need another GPU", "not installed"] == list(groups)
    assert "tiled-torch" in groups["usable here"]
    assert "flash-attn-3" in groups["need a GPU"]
    assert f"verdict: {data.data['verdict']}" == text.out.splitlines()[-1]


def test_doctor_says_where_nothing_can_be_stored(tmp_path: Path) -> None:
    """A run would end with exit 4 there, and so does it; the command to try again has the place."""
    (tmp_path / "folder").mkdir()
    ended = call("doctor", "--db", "folder", cwd=tmp_path, env=environment(CUDA_VISIBLE_DEVICES=""))
    assert (4, "") == (ended.code, ended.err)
    told = "error        evidence store folder: it is a folder. Give a file, for example folder/evidence.db."
    assert told in ended.out.splitlines()
    verdict = "verdict: nothing should run here: 1 error above. Correct that first, then: qualify doctor --db folder"
    assert verdict == ended.out.splitlines()[-1]


def test_the_verdict_follows_the_worst_concern() -> None:
    """An error forbids a run, no usable kernel leaves nothing to run; empty groups are not printed."""
    broken = Examination(stack=None, concerns=(Concern(severity="error", detail="no torch"),))
    nothing = grouped([{"kernel": "a", "available": False, "reasons": ["not installed (pip install a)"]}])
    typed = Typed(environments=("old=a b/python",))
    again, listed = (f"qualify {command} --environment 'old=a b/python'" for command in ("doctor", "kernels"))
    told = f"nothing should run here: 1 error above. Correct that first, then: {again}"
    assert told == verdict_on(broken, nothing, typed)
    told = f"no kernel can run here. `{listed}` says why for each"
    assert told == verdict_on(Examination(stack=None, concerns=()), nothing, typed)
    other = grouped([{"kernel": "b", "available": False, "reasons": ["compute_capability=8.0 (b requires 9.0)"]}])
    assert ["need another GPU: b", "verdict: x"] == to_lines(other, "x")


def test_the_health_of_a_service_is_data_too(tmp_path: Path) -> None:
    """Exit 4 where nobody serves, with the reasons in one object."""
    call("db", "upgrade", cwd=tmp_path)
    ended = call("canary", "health", "--node", "here", "--json", cwd=tmp_path)
    assert (4, "", "qualify.health/1", False) == (ended.code, ended.err, ended.data["schema"], ended.data["healthy"])
    assert ended.data["ailments"]


def test_the_health_of_a_service_says_what_to_do(tmp_path: Path) -> None:
    """Where none ever ran there is no log to read: only the command that starts one."""
    call("db", "upgrade", cwd=tmp_path)
    ended = call("canary", "health", "--node", "here", cwd=tmp_path)
    assert (4, "") == (ended.code, ended.out)
    assert (
        "qualify: no canary service has run on here (lease canary); no service leads (lease canary). "
        "Start one: qualify canary serve --node here\n"
    ) == ended.err
