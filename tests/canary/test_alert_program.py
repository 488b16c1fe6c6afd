"""A program as the target of an alert: real processes, no shell, and only what the service allows."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from alert_examples import BODY, make_alert
from cli_process import Begun, alive
from service_process import wait_for

from qualify.canary.alerts.program import run
from qualify.canary.alerts.undelivered import Undelivered
from qualify.cards.canary import AlertTarget


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Writes down its arguments, its input and its environment."""
    path = tmp_path / "cordon"
    write(path, f'for argument; do echo "$argument"; done > {tmp_path}/arguments; cat > {tmp_path}/input; '
                f"env > {tmp_path}/environment")  # fmt: skip
    return path


def write(path: Path, script: str) -> None:
    """A program."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def tell(path: Path, *arguments: str, allowed: bool = True, deadline_s: float = 60.0, **body: str) -> None:
    """One attempt."""
    target = AlertTarget(target="cordon", kind="command", command=(str(path), *arguments))
    alert = make_alert(body={**BODY, **body})
    asyncio.run(run(alert, target, [str(path)] if allowed else ["/bin/other"], deadline_s))


def refused(*words: object, **more: object) -> Undelivered:
    """Why it was not delivered."""
    with pytest.raises(Undelivered) as found:
        tell(*words, **more)
    return found.value


def test_arguments_are_filled_in_and_no_shell_reads_them(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's hostile name stays one argument; the alert comes on stdin; no secret of the service is passed on."""
    monkeypatch.setenv("HOOK_KEY", "hunter2")
    hostile = "gpu-1; touch /tmp/x $(id) {canary}"
    tell(program, "cordon", "{node}", "qualify={advice}", node=hostile)
    assert ["cordon", hostile, "qualify=hold"] == (tmp_path / "arguments").read_text().splitlines()
    assert hostile == json.loads((tmp_path / "input").read_text())["node"]
    given = (tmp_path / "environment").read_text()
    assert "hunter2" not in given
    assert f"PATH={os.environ['PATH']}" in given


def test_no_room_for_temporary_files_keeps_no_program_from_running(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose disk is full, too, must be cordoned."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    tell(program, "{node}", node="gpu-1")
    assert "gpu-1" == json.loads((tmp_path / "input").read_text())["node"]


def test_only_what_the_service_allows_runs(program: Path, tmp_path: Path) -> None:
    """The card alone cannot start a program; it is given up at once, and says what to do."""
    error = refused(program, "{node}", allowed=False)
    assert error.final
    assert f"qualify canary serve --allow-program {program}" in str(error)
    assert not (tmp_path / "arguments").exists()


@pytest.mark.parametrize("name", ["--all", "-n", ""])
def test_a_node_that_would_be_an_option_is_refused(name: str, program: Path, tmp_path: Path) -> None:
    """`cordon --all` is not what anybody meant."""
    assert refused(program, "cordon", "{node}", node=name).final
    assert not (tmp_path / "arguments").exists()


def test_what_fails_is_tried_again(program: Path) -> None:
    """With its code and last words; a program that is not there, too."""
    write(program, "echo no such node >&2; exit 3")
    error = refused(program)
    assert (False, f"program {program} ended with 3: no such node") == (error.final, str(error))
    program.unlink()
    assert "cannot be started: No such file or directory" in str(refused(program))


def test_what_hangs_is_killed_with_its_children(program: Path, tmp_path: Path) -> None:
    """At the deadline."""
    write(program, f"sleep 60 & echo $! > {tmp_path}/child; sleep 60")
    assert "did not end within 1 s" in str(refused(program, deadline_s=1.0))
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not alive(child), "end of its child", 20)


AS_NOBODY = """\
import asyncio, os, sys
sys.path.insert(0, {here!r})
from alert_examples import make_alert
from qualify.canary.alerts.program import run
from qualify.canary.alerts.undelivered import Undelivered
from qualify.cards.canary import AlertTarget

target = AlertTarget(target="cordon", kind="command", command=tuple(sys.argv[1:]))
alert = make_alert()
os.setgid(65534)
os.setuid(65534)
try:
    asyncio.run(run(alert, target, [sys.argv[1]], 0.5))
except Undelivered as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root makes another sudo")
def test_what_hangs_as_another_user_is_told(tmp_path: Path) -> None:
    """A program like sudo, which the service cannot kill: the attempt ends all the same, and says why it goes on."""
    script = tmp_path / "as_nobody.py"
    script.write_text(AS_NOBODY.format(here=str(Path(__file__).parent)))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # pytest's folder is closed to others
        Path(folder).chmod(0o777)
        sudo, told = shutil.copy(str(shutil.which("setpriv")), f"{folder}/sudo"), Path(folder) / "told"
        Path(sudo).chmod(0o4755)
        words = (sudo, "--reuid", "0", "/bin/sh", "-c", f"echo $$ > {told}; exec sleep 60")
        with Begun(*words, cwd=tmp_path, script=script, stdout=subprocess.PIPE, text=True) as begun:
            said, _ = begun.communicate(timeout=30)
        os.kill(int(told.read_text()), signal.SIGKILL)
    assert (
        f"program {sudo} did not end within 0.5 s; it runs as another user, so it cannot be ended and goes on" in said
    )
