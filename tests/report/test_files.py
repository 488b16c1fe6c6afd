"""Writing a report."""

from __future__ import annotations

import json
import os
import resource
import stat
from pathlib import Path
from typing import Any

import pytest

from qualify.errors import InfrastructureError
from qualify.report.files import write_report
from qualify.report.replacing import replace_text


def test_write_report_makes_both_files_and_nothing_else(facts: Any, tmp_path: Path) -> None:
    """The page and its twin lie in the folder, readable by all, without a temporary file beside them."""
    page = write_report(tmp_path / "out" / "run", facts.run, facts.records, facts.conclusion)

    assert tmp_path / "out" / "run" / "report.html" == page
    assert ["report.html", "report.json"] == sorted(path.name for path in page.parent.iterdir())
    assert 0o644 == stat.S_IMODE(page.stat().st_mode)
    assert "qualify.report/1" == json.loads((page.parent / "report.json").read_text(encoding="utf-8"))["schema"]


def test_a_report_replaces_the_former_one(facts: Any, tmp_path: Path) -> None:
    """The same run written twice gives the same bytes."""
    first = write_report(tmp_path, facts.run, facts.records, facts.conclusion).read_bytes()
    second = write_report(tmp_path, facts.run, facts.records, facts.conclusion).read_bytes()

    assert first == second


def test_a_place_that_cannot_be_written_is_named(facts: Any, tmp_path: Path) -> None:
    """The error gives the path, the reason of the system, and what to type next."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way", encoding="utf-8")

    with pytest.raises(InfrastructureError) as caught:
        write_report(blocked, facts.run, facts.records, facts.conclusion)

    assert (
        f"the report cannot be written to {blocked}: File exists. The evidence of run 20261120T234500Z-1f3a9c is "
        "stored. Free the place or choose another folder: qualify report 20261120T234500Z-1f3a9c --out other"
    ) == str(caught.value)


def test_what_killed_processes_left_goes_after_a_day(tmp_path: Path) -> None:
    """A younger one may still be written, and other files are none of them."""
    old, young = tmp_path / ".a[b].json.0123abcd", tmp_path / ".a[b].json.89abcdef"
    others = [tmp_path / name for name in (".a[b].json.backup", ".c.json.0123abcd", "a[b].json.0123abcd")]
    for path in (old, young, *others):
        path.touch()
    for path in (old, *others):
        os.utime(path, (0, 0))
    replace_text(tmp_path / "a[b].json", "text")
    assert sorted([tmp_path / "a[b].json", young, *others]) == sorted(tmp_path.iterdir())


def test_a_failed_write_leaves_the_former_file(tmp_path: Path) -> None:
    """Where there is no room for the new text, the old file stays whole, and no temporary file is left."""
    path = tmp_path / "report.html"
    replace_text(path, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            replace_text(path, "new" * (1 << 16))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert "old" == path.read_text(encoding="utf-8")
    assert [path] == list(tmp_path.iterdir())
