"""The recording of the first ten minutes: its commands are those of the README, and the recorder works."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import record

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "first-ten-minutes.svg"


def lines_of(svg: str) -> list[str]:
    """The lines of text in a recording, from the top."""
    lines: dict[float, str] = {}
    for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        height = float(element.get("y") or 0)
        lines[height] = lines.get(height, "") + "".join(element.itertext())
    return [lines[height].replace("\xa0", " ").rstrip() for height in sorted(lines)]


def test_its_commands_are_those_of_the_readme() -> None:
    """In their order, without those that take too long for it."""
    shown = [line.removeprefix("$ ").partition("  #")[0] for line in lines_of(PICTURE.read_text()) if line[:2] == "$ "]
    assert ["make run", ". .venv/bin/activate", "qualify doctor", "qualify check qwen3-0.6b"] == shown
    assert shown == record.commands((ROOT / "README.md").read_text())


def test_it_shows_the_answer_and_asks_no_server() -> None:
    """The verdicts of this version, no failure; the file is small, and loads nothing."""
    text = "\n".join(lines_of(PICTURE.read_text()))
    for said in ("every case passed", "verdict: ready", "passed every check", "report: out/"):
        assert said in text
    assert not re.search(r"# exit|Traceback|error", text)
    assert not re.search(r"""(?:href|src)=|url\((?!#)|@import""", PICTURE.read_text())
    assert PICTURE.stat().st_size <= 60_000


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_it_is_shown(page: str) -> None:
    """Where somebody begins."""
    assert "pictures/first-ten-minutes.svg" in (ROOT / page).read_text()


def test_a_terminal_is_played(tmp_path: Path) -> None:
    """One shell in a real terminal: variables stay, codes are told, colours and long lines survive."""
    played = record.play(
        ["x=a; test -t 1 && echo tty", 'printf "\\033[31m$x\\033[0m\\n"; (exit 3)', "seq -s ' ' 1 60"], tmp_path
    )
    assert [("tty\n", 0), ("\x1b[31ma\x1b[0m\n", 3)] == [(each.output, each.code) for each in played[:2]]
    shown = lines_of(record.picture(played, "A & B"))
    assert ["$ x=a; test -t 1 && echo tty", "tty"] == [line.partition("  #")[0] for line in shown[:2]]
    assert any("# exit 3" in line for line in shown)
    assert "60" == " ".join(shown).split()[-1]


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("10%\r20%\r\n", "20%\n"),
        ("\x1b[?25lbar 1\r\x1b[2Kbar 2\r\x1b[2K\x1b[?25hdone\r\n", "done\n"),
        ("said\r\nbar\r\n\x1b[1A\x1b[2Kend\r\n", "said\nend\n"),
    ],
)
def test_what_was_overwritten_is_gone(raw: str, left: str) -> None:
    """A progress bar is not in the recording, the lines around it are."""
    assert left == record.settled(raw)
