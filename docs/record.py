"""Records the first ten minutes: ``python docs/record.py`` writes docs/pictures/first-ten-minutes.svg.

::

    commit ── git clone ── bash in a terminal ── the README's first commands ── what the terminal shows ── SVG

The commands are those of the README before its first heading, without ``LEFT_OUT``. ``make run`` installs qualify and
its libraries, as on a new machine. With ``--installed``, the libraries of this Python are used instead.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "first-ten-minutes.svg"
TITLE = "The first ten minutes, on a machine without a GPU"
LEFT_OUT = {"make test": "takes a quarter of an hour"}
ROWS, COLUMNS = 50, 120
ENDED = re.compile(r"\x1e(\d+)\x1e$")
"""matches the prompt of the recorded shell, which holds the exit code of the command before"""
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>TITLE</title>
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, Consolas, Menlo, monospace; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}</defs>
<rect fill="#191919" width="{width}" height="{height}" rx="8"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""
"""template of rich's pictures of terminals, without the font that rich's own template loads from a server"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """A command and its output."""

    command: str
    output: str
    """output on the terminal, with codes of colours"""
    code: int
    took_s: float


def commands(readme: str) -> list[str]:
    """The recorded commands, from the beginning of the README, in order."""
    beginning = readme.partition("\n## ")[0]
    typed = re.findall(r"^\$ (.+)$", beginning, re.MULTILINE)
    return [line for line in typed if line not in LEFT_OUT]


def play(lines: Sequence[str], folder: Path) -> list[Played]:
    """Type lines into one bash in a new terminal, each after the one before has ended."""
    own, other = pty.openpty()
    env = os.environ | {"PS1": "\\[\x1e$?\x1e\\]", "PS2": "", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    env |= {"VIRTUAL_ENV_DISABLE_PROMPT": "1", "HOME": str(folder.parent)}
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "PROMPT_COMMAND", "NO_COLOR"):
        env.pop(name, None)
    termios.tcsetwinsize(other, (ROWS, COLUMNS))
    modes = termios.tcgetattr(other)
    modes[3] &= ~termios.ECHO  # no echo, because the picture adds the commands itself
    termios.tcsetattr(other, termios.TCSANOW, modes)
    bash = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
    with subprocess.Popen(bash, cwd=folder, env=env, stdin=other, stdout=other, stderr=other, start_new_session=True):
        os.close(other)
        until_prompt(own)
        played = [one(own, line) for line in lines]
        os.write(own, b"exit\n")
    os.close(own)
    return played


def one(terminal: int, line: str) -> Played:
    """Type one line and wait until it has ended."""
    began = time.monotonic()
    os.write(terminal, f"{line}\n".encode())
    raw, code = until_prompt(terminal)
    return Played(command=line, output=settled(raw), code=code, took_s=time.monotonic() - began)


def until_prompt(terminal: int) -> tuple[str, int]:
    """(output until the next prompt, exit code in that prompt)."""
    said = b""
    while True:
        said += os.read(terminal, 65536)
        text = said.decode(errors="replace")
        if found := ENDED.search(text):
            return text[: found.start()], int(found[1])


def settled(raw: str) -> str:
    """The output as it remains on the screen, without overwritten lines and cursor codes, but with codes of colours."""
    lines = [""]
    for part in re.split(r"(\r?\n|\r|\x1b\[[0-9;?]*[A-Za-z])", raw):
        if part.endswith("\n"):
            lines.append("")
        elif part == "\r" or re.fullmatch(r"\x1b\[2?K", part):
            lines[-1] = ""
        elif found := re.fullmatch(r"\x1b\[(\d*)A", part):
            del lines[len(lines) - int(found[1] or 1) :]
            lines = lines or [""]
        elif part.endswith("m") or not part.startswith("\x1b"):
            lines[-1] += part
    return "\n".join(lines)


def picture(played: Sequence[Played], title: str) -> str:
    """The recording as SVG; after each command it shows its time and how it ended."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    for each in played:
        took = f"  # {each.took_s:.0f} s" if each.took_s >= 1 else ""
        ended = f"  # exit {each.code}" if each.code else ""
        console.print(Text(f"$ {each.command}", style="bold") + Text(took + ended, style="dim"))
        console.print(Text.from_ansi(f"{each.output.strip(chr(10))}\n" if each.output.strip() else ""))
    code_format = FORMAT.replace("TITLE", escape(title))
    return console.export_svg(theme=DIMMED_MONOKAI, code_format=code_format, unique_id="first")


def fresh_clone(folder: Path) -> Path:
    """A clone of the commit that is checked out here."""
    clone = folder / "qualify"
    git = shutil.which("git") or "git"
    subprocess.run([git, "clone", "--quiet", str(ROOT), str(clone)], check=True)
    return clone


def take_libraries(clone: Path) -> None:
    """Make the clone's .venv from the libraries of this Python, so that ``make run`` installs nothing."""
    home = clone / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    site = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    folders = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "installed.pth").write_text("\n".join([str(clone), *folders]))
    script = f"#!{home}/bin/python\nimport sys\nfrom qualify.cli import main\nsys.exit(main())\n"
    (home / "bin" / "qualify").write_text(script)
    (home / "bin" / "qualify").chmod(0o755)
    (home / ".installed-run").touch()


def main() -> None:
    """Clone, record, and write the picture; stop at a command that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--installed", action="store_true", help="Install nothing: take the libraries of this Python.")
    installed = parser.parse_args().installed
    with tempfile.TemporaryDirectory() as folder:
        clone = fresh_clone(Path(folder))
        if installed:
            take_libraries(clone)
        played = play(commands((clone / "README.md").read_text()), clone)
        text = picture(played, TITLE).replace(folder, "~")
    if failed := [each for each in played if each.code]:
        raise SystemExit(f"{failed[0].command} ended with {failed[0].code}:\n{failed[0].output}")
    PICTURE.write_text(text)
    print(f"wrote {PICTURE.relative_to(ROOT)}, {len(text):,} bytes")


if __name__ == "__main__":
    main()
