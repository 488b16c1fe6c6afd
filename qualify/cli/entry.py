"""The list of commands, and what becomes of an error that ends one."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from qualify import __version__
from qualify.cli import access, baseline, canary, db, hold, traffic, waiver
from qualify.cli.check import check
from qualify.cli.cliffs import cliffs
from qualify.cli.diff import bisect, diff
from qualify.cli.duel import duel
from qualify.cli.earlier import no_part_left
from qualify.cli.examples import epilog
from qualify.cli.fleet import collect, coverage, fleet
from qualify.cli.gate import gate
from qualify.cli.here import doctor, kernels
from qualify.cli.ingest import ingest
from qualify.cli.init import init
from qualify.cli.interrupts import Interrupts
from qualify.cli.model import model
from qualify.cli.node import node
from qualify.cli.outputs import JsonOrFile
from qualify.cli.profile import profile
from qualify.cli.report import report
from qualify.cli.repro import repro
from qualify.cli.run import plan, run
from qualify.cli.schema import show_schema
from qualify.cli.selftest import selftest
from qualify.cli.shared import fail, is_service, refuse_empty
from qualify.cli.signoff import signoff
from qualify.cli.terminal import emit, open_streams, say
from qualify.cli.times import best, history
from qualify.cli.verify import verify
from qualify.cli.web import web
from qualify.errors import INTERRUPTED, InfrastructureError, QualifyError, UsageError
from qualify.run.process.parent import keep_to_itself

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("check", check),
    ("init", init),
    ("run", run),
    ("plan", plan),
    ("gate", gate),
    ("verify", verify),
    ("report", report),
    ("diff", diff),
    ("bisect", bisect),
    ("repro", repro),
    ("profile", profile),
    ("model", model),
    ("cliffs", cliffs),
    ("duel", duel),
    ("history", history),
    ("best", best),
    ("kernels", kernels),
    ("doctor", doctor),
    ("selftest", selftest),
    ("node", node),
    ("ingest", ingest),
    ("collect", collect),
    ("fleet", fleet),
    ("coverage", coverage),
    ("schema", show_schema),
    ("signoff", signoff),
    ("web", web),
)
"""in the order of the help"""
GROUPS: tuple[tuple[str, typer.Typer], ...] = (
    ("db", db.app),
    ("waiver", waiver.app),
    ("baseline", baseline.app),
    ("traffic", traffic.app),
    ("canary", canary.app),
    ("hold", hold.app),
    ("access", access.app),
)
FIRST = "\b\nFirst steps:\n  qualify doctor\n  qualify check Qwen/Qwen3-8B\n  qualify init"
"""below the help of the program"""
EXTRAS = {
    "run": ("torch", "numpy", "scipy"),
    "service": ("apscheduler", "fastapi", "httpx2", "jwt", "prometheus_client", "starlette", "uvicorn"),
}
"""modules by the extra that brings them; where another module is missing, the command itself says what to install"""


def main() -> None:
    """Run the command line: every known error becomes its message and its exit code."""
    open_streams()
    keep_to_itself()  # kernels run in processes of this user
    try:
        with Interrupts() as interrupts, no_part_left(sys.argv[1:]):
            refuse_empty(sys.argv[1:], {name for name, _ in GROUPS})
            code = _parser("".join(sys.argv[1:2]))(standalone_mode=False, prog_name="qualify")
            if code == INTERRUPTED:  # so newer versions of typer answer to Ctrl-C
                raise KeyboardInterrupt
    except QualifyError as error:
        fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _end_interrupted(interrupts)
    except BrokenPipeError:
        # Whoever read the help has gone; there is nobody left to tell.
        os._exit(0)
    except _usage_errors() as error:
        _refuse_command_line(error)
    except Exception as error:
        if interrupts.came:  # pydantic, for one, makes an error of its own of a KeyboardInterrupt
            _end_interrupted(interrupts)
        _refuse_missing(error)
        _refuse_stdout(error)
        if os.environ.get("QUALIFY_TRACEBACK"):
            raise
        text = f"{type(error).__name__}: {error}"
        fail(f"internal error: {text}. Please report it, with the traceback that QUALIFY_TRACEBACK=1 shows.", 4)
    if interrupts.came:
        _end_interrupted(interrupts)
    sys.exit(code if isinstance(code, int) else 0)


def _parser(named: str = "") -> typer.Typer:
    """The command line with all its commands, or with only the named one: typer takes a millisecond for each.

    Args:
        named: the first word of a command line; where it names no command, all are there.
    """
    parser = typer.Typer(
        name="qualify",
        help="Proves which attention kernel serves each production shape, that it computes the right thing, "
        "and how fast.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=FIRST,
    )
    parser.callback(invoke_without_command=True)(_root)
    known = {name for name, _ in (*COMMANDS, *GROUPS)}
    wanted = known & {named} or known
    for name, command in COMMANDS:
        if name in wanted:
            parser.command(name, cls=JsonOrFile if command is gate else None, epilog=epilog(name))(command)
    for name, group in GROUPS:
        if name in wanted:
            parser.add_typer(group, name=name)
            for info in group.registered_commands:
                info.epilog = epilog(f"{name} {info.name}")
    return parser


def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        emit(f"qualify {__version__}")
        raise typer.Exit


def _usage_errors() -> Any:
    """The base of the parser's own errors; typer brings its own copy of click since 0.24, and used click before."""
    return next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _end_interrupted(interrupts: Interrupts) -> NoReturn:
    """End as Ctrl-C ends every command. SIGTERM is how a service ends, also while it starts."""
    if interrupts.came == signal.SIGTERM and is_service(sys.argv[1:]):
        sys.exit()
    fail("interrupted", INTERRUPTED)


def _refuse_command_line(error: Any) -> NoReturn:
    """What the parser says, and the command that helps; a command without its subcommand gets its help."""
    if (text := error.format_message()).startswith("Usage:"):
        say(text.rstrip("."))
        sys.exit(UsageError.exit_code)
    from qualify.cli.mistyped import refusal

    subcommands = (f"{name} {info.name}" for name, group in GROUPS for info in group.registered_commands)
    fail(refusal(error, sys.argv[1:], [*(name for name, _ in COMMANDS), *subcommands]), UsageError.exit_code)


def _refuse_stdout(error: Exception) -> None:
    """End as every command does where stdout cannot take the help, which the parser prints by itself."""
    if isinstance(error, OSError) and error.filename is None:
        try:
            emit("")
        except InfrastructureError as unwritable:
            fail(str(unwritable), unwritable.exit_code)


def _refuse_missing(error: Exception) -> None:
    """End with what to install where a command needs a module of an extra that is not installed."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    for extra, modules in EXTRAS.items():
        if name in modules:
            text = f"this command needs {name}, which is not installed: pip install 'attn-qualify[{extra}]'"
            fail(text, InfrastructureError.exit_code)
