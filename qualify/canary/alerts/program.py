"""A program as the target of an alert, for example to cordon a node. Never a shell; only what the service allows."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from qualify.canary.alerts.undelivered import Undelivered
from qualify.cards.canary import PLACEHOLDERS, AlertTarget
from qualify.facts.canary import Alert
from qualify.text import one_line

DEADLINE_S = 40.0
"""seconds for a program; shorter than the claim on its alert, so that it never runs twice at the same time"""
GRACE_S = 5.0
"""seconds for a killed program to be gone"""
TOLD = 300
"""characters of what it printed that an error repeats"""
PASSED_ON = (
    *("PATH", "HOME", "LANG", "TZ", "SSL_CERT_FILE"),
    *("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"),
)
"""variables that a program gets: no secret of the service is among them"""
_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")


async def run(alert: Alert, target: AlertTarget, allowed: Collection[str], deadline_s: float = DEADLINE_S) -> None:
    """Runs the program with the alert's body as JSON on its stdin. Returns where it ends with 0; else Undelivered."""
    program = target.command[0]
    if program not in allowed:
        raise Undelivered(
            f"program {program} is not allowed: start the service with qualify canary serve --allow-program {program}",
            final=True,
        )
    command = [program, *(_filled(argument, alert) for argument in target.command[1:])]
    await asyncio.to_thread(_run, command, json.dumps(dict(alert.body)).encode(), deadline_s)


def _run(command: Sequence[str], body: bytes, deadline_s: float) -> None:
    """Run the program with files as stdin and stdout: a process that it leaves behind then blocks no pipe.

    What it is told is in memory, so that it runs also where a disk is full.
    """
    given = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    with os.fdopen(os.memfd_create("alert"), "w+b") as told, _place_for_words() as printed:
        told.write(body)
        told.seek(0)
        try:
            process = subprocess.Popen(
                command, stdin=told, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True, env=given
            )
        except OSError as error:
            raise Undelivered(f"program {command[0]} cannot be started: {error.strerror or error}") from None
        with suppress(subprocess.TimeoutExpired):
            process.wait(deadline_s)
        code, killed = process.returncode, _kill(process)
        if code is None:
            why = "" if killed else "; it runs as another user, so it cannot be ended and goes on"
            raise Undelivered(f"program {command[0]} did not end within {deadline_s:g} s{why}")
        if code:
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - TOLD))
            words = one_line(printed.read().decode(errors="replace").strip())
            raise Undelivered(f"program {command[0]} ended with {code}{f': {words}' if words else ''}")


def _place_for_words() -> IO[bytes]:
    """Where a program prints: a file, or nowhere if no disk has room for one."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return Path(os.devnull).open("r+b")


def _kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill a program and whatever it started; False where that is not allowed, as with a program that calls sudo."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    with suppress(subprocess.TimeoutExpired):  # a process that hangs in a driver ends when the driver lets it
        process.wait(GRACE_S)
    return True


def _filled(argument: str, alert: Alert) -> str:
    """The argument with its placeholders filled in; a value that begins with - would be taken for an option."""
    values = {"node": str(alert.body.get("node") or ""), "canary": alert.canary, "advice": alert.kind.replace(" ", "_")}
    for name in _PLACEHOLDER.findall(argument):
        if not values[name] or values[name].startswith("-"):
            raise Undelivered(f"{{{name}}} is {values[name]!r}, which cannot be an argument", final=True)
    return _PLACEHOLDER.sub(lambda found: values[found[1]], argument)
