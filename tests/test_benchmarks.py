"""The command lines of the benchmarks: what they do not know, they refuse before they measure."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "common")


def main_of(script: str, word: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit code of a benchmark with one word on its command line."""
    monkeypatch.setattr("sys.argv", [script, word])
    monkeypatch.syspath_prepend(FOLDER)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")
    return ended.value.code


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_unknown_word_is_refused(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped option ends a benchmark with exit code 2 and its name."""
    assert main_of(script, "--unknown", monkeypatch) == 2
    assert "unrecognized arguments: --unknown\n" in capsys.readouterr().err


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_printed_and_nothing_is_measured(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--help`` prints what the benchmark measures, and its options."""
    assert main_of(script, "--help", monkeypatch) == 0
    told = capsys.readouterr().out
    assert told.startswith("usage:")
    assert "--" in told.partition("--help")[2]
