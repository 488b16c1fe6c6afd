"""The verdict as GitHub annotations: at most ten, the worst first, on the line that asked for the case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qualify.judge.judged import Judged
from qualify.report.differences import change_text
from qualify.report.formats.interface import OutputOptions
from qualify.report.slower import headline
from qualify.report.troubles import troubles
from qualify.report.verdict_text import SHOWN, slower_lines, to_text, verdict_line, waiver_note
from qualify.report.weaker import headline as weaker_headline
from qualify.report.weaker import weaker_lines
from qualify.text import one_line

MOST = 10
"""GitHub shows no more of one kind for a step"""
Level = Literal["error", "warning", "notice"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """One annotation."""

    level: Level
    path: str
    line: int
    """0 = the whole file"""
    title: str
    message: str

    def command(self) -> str:
        """The line that GitHub's runner reads."""
        place = [("file", self.path), *([("line", str(self.line))] if self.line else [])] if self.path else []
        properties = ",".join(f"{name}={_property(value)}" for name, value in (*place, ("title", self.title)))
        return f"::{self.level} {properties}::{_data(self.message)}"


def _data(text: str) -> str:
    """The lines of a message as one line of the log; no other character can end it."""
    return "%0A".join(one_line(line).replace("%", "%25") for line in text.split("\n"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render(judged: Judged, options: OutputOptions) -> str:
    """The annotations, then the text for the log."""
    commands = [annotation.command() for annotation in worst_annotations(judged, options)]
    return "\n".join([*commands, to_text(judged, options.now)])


def problem(message: str) -> str:
    """The annotation where there is no verdict: what a command that ended with an error says."""
    return Annotation(level="error", path="", line=0, title="qualify gate", message=message).command()


def worst_annotations(judged: Judged, options: OutputOptions) -> list[Annotation]:
    """At most ten, the worst first."""
    return list(_all(judged, options))[:MOST]


def _all(judged: Judged, options: OutputOptions) -> Iterator[Annotation]:
    matrix = options.from_workspace(judged.run.matrix_path)
    lines = {record.case.id: record.case.line for record in judged.records}
    verdict = judged.conclusion.verdict
    level: Level = "notice" if verdict == "PASS" else "error" if verdict == "FAIL" else "warning"
    yield Annotation(
        level=level, path=matrix, line=0, title=f"qualify {judged.run.matrix}", message=verdict_line(judged)
    )
    found = troubles(judged)
    for trouble in (item for item in found if item.verdict == "FAIL"):
        more = f"\nand {len(trouble.more)} more like this" if trouble.more else ""
        reasons = "\n".join((trouble.reason, *trouble.expired))
        yield Annotation(
            level="error", path=matrix, line=trouble.line, title=f"FAIL {trouble.first}", message=f"{reasons}{more}"
        )
    for use in judged.conclusion.waivers:
        if note := waiver_note(use, options.now, partial=judged.run.narrowed):
            waiver = use.waiver
            yield Annotation(
                level="error" if use.state == "expired" else "warning",
                path=options.from_workspace(waiver.path),
                line=waiver.line,
                title=f"waiver {waiver.id}: {use.state}",
                message=note,
            )
    for topic, change in judged.against.forbidden if judged.against else ():
        yield Annotation(
            level="error",
            path=matrix,
            line=lines.get(change.id, 0),
            title=f"changed {topic}: {change.id}",
            message=change_text(topic, change),
        )
    if judged.weaker:
        yield Annotation(
            level="error" if judged.weaker.forbidden else "warning",
            path=matrix,
            line=0,
            title=f"less is asked than in baseline {judged.weaker.run}",
            message="\n".join((weaker_headline(judged.weaker), *weaker_lines(judged.weaker)[:SHOWN])),
        )
    if judged.slower:
        worst = judged.slower.cases[0]
        yield Annotation(
            level="warning",
            path=matrix,
            line=lines.get(worst.id, 0),
            title=f"slower: {worst.id}",
            message="\n".join((headline(judged.slower), *slower_lines(judged.slower))),
        )
    for trouble in (item for item in found if item.verdict != "FAIL"):
        more = f"\nand {len(trouble.more)} more like this" if trouble.more else ""
        yield Annotation(
            level="warning",
            path=matrix,
            line=trouble.line,
            title=f"{trouble.verdict} {trouble.first}",
            message=f"{trouble.reason}{more}",
        )
