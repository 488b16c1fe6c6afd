"""Text from outside: nothing of it is hidden, wherever it is shown."""

from __future__ import annotations

import io
import re
import resource
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from qualify.cli.terminal import emit, say
from qualify.report.formats.markdown import escaped
from qualify.report.page import _environment
from qualify.text import first_line, one_line, shell_line, visible

TRICKS = {
    "\u202e": "\\u202e",
    "\u2066": "\\u2066",
    "\u200f": "\\u200f",
    "\u200b": "\\u200b",
    "\ufeff": "\\ufeff",
    "\x1b": "\\x1b",
    "\x9b": "\\x9b",
    "\U000e0041": "\\U000e0041",
}
"""turns the direction, has no width, begins a command of the terminal, or is a tag: and how it is shown"""


@pytest.mark.parametrize("trick", TRICKS, ids=ascii)
def test_nothing_is_hidden(trick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the terminal, in the log, in lines, in Markdown and on pages the character is written out."""
    streams = {name: io.StringIO() for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    emit(f"PASS{trick}x")
    say(f"PASS{trick}x")
    shown = [stream.getvalue().rstrip() for stream in streams.values()]
    shown += [one_line(f"PASS{trick}x"), _environment().from_string("{{ it }}").render(it=f"PASS{trick}x")]
    assert [f"PASS{TRICKS[trick]}x"] * 4 == shown
    assert trick not in escaped(f"PASS{trick}x")
    assert "&#92;" in escaped(f"PASS{trick}x")


def test_a_log_whose_disk_was_full_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that runs for months loses the lines that had no room, and no later one."""
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (tmp_path / "log").open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        say("before")
        resource.setrlimit(resource.RLIMIT_FSIZE, (len("before\n"), room[1]))
        try:
            say("no room")
            say("x" * (2 * io.DEFAULT_BUFFER_SIZE))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, room)
        say("after")
        assert "before\nafter\n" == (tmp_path / "log").read_text()


def test_every_mark_of_direction_is_shown() -> None:
    """Those of Unicode's bidirectional algorithm, whichever version of it Python knows."""
    marks = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    found = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.bidirectional(chr(code)) in marks]
    assert 9 == len(found)
    assert visible("".join(found)).isascii()


def test_a_word_for_the_shell_is_one_line() -> None:
    """Bash reads it as it was, whatever it holds; a plain word is quoted as ever."""
    words = ["plain", "a b", "it's", "a\nQUALIFIED", "tab\t", "\x1b[31m'\\", "\u202e", "é", "\udcff"]
    line = shell_line(words)
    assert [] == re.findall(r"[\x00-\x1f\u2028-\u202e]", line)
    read = subprocess.check_output(["bash", "-c", f"printf '%s\\0' {line}".encode("utf-8", "surrogateescape")])
    assert words == read.decode("utf-8", "surrogateescape").split("\0")[:-1]
    assert "plain 'a b'" == shell_line(words[:2])
    assert r"$'\xed\xa0\x80'" == shell_line(["\ud800"]), "half a character, as JSON may hold one"


def test_what_people_write_stays() -> None:
    """Letters of every direction, combined ones, emoji, tabs and line feeds are no tricks."""
    text = "µs ≥ é שלום مرحبا 日本 ✅ ⚠️ a\tb\nc"
    assert text == visible(text)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("out of memory\nTried 1 GiB"), "out of memory"),
        (RuntimeError("\n  late  \n"), "late"),
        (MemoryError(), "MemoryError"),
        (RuntimeError(" \n"), "RuntimeError"),
    ],
)
def test_the_first_line_of_an_error_is_never_empty(error, told):
    """An error that says nothing, as Python's own MemoryError does, is told by its class."""
    assert told == first_line(error)
