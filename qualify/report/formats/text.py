"""The verdict for people: the verdict first, then what to do."""

from __future__ import annotations

from qualify.judge.judged import Judged
from qualify.report.formats.interface import OutputOptions
from qualify.report.verdict_text import to_text


def render(judged: Judged, options: OutputOptions) -> str:
    """The text of the terminal."""
    return to_text(judged, options.now)
