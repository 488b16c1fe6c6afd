"""The verdict as GitHub annotations: at most ten, the worst first, on the line that asked for the case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal

from qualify.judge.judged import Judged
from qualify.report.differences import change_text
from qualify.report.formats.interface import OutputOptions
from qualify.report.performance import headline as performance_headline
from qualify.report.performance import performance_lines
from qualify.report.slower import headline
from qualify.report.troubles import Trouble, troubles
from qualify.report.verdict_text import SHOWN, slower_lines, to_text, verdict_line, waiver_note
from qualify.report.weaker import headline as weaker_headline
from qualify.report.weaker import weaker_lines
from qualify.text import one_line

MOST = 10
"""most annotations: GitHub shows no more of one kind for a step"""
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
    """A message as one line of the log, with line breaks and all other characters escaped that could end the line."""
    return "%0A".join(one_line(line).replace("%", "%25") for line in text.split("\n"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render(judged: Judged, options: OutputOptions) -> str:
    """The annotations, then the text for the log."""
    commands = [annotation.command() for annotation in worst_annotations(judged, options)]
    return "\n".join([*commands, to_text(judged, options.now)])


def problem(message: str) -> str:
    """The annotation for a command that ended with an error, so that there is no verdict."""
    return Annotation(level="error", path="", line=0, title="qualify gate", message=message).command()


def worst_annotations(judged: Judged, options: OutputOptions) -> list[Annotation]:
    """At most ten, the worst first."""
    matrix = options.from_workspace(judged.run.matrix_path)
    found = troubles(judged)
    everything = chain(
        [_verdict(judged, matrix)],
        _time(judged, matrix),
        (_trouble(item, matrix) for item in found if item.verdict == "FAIL"),
        _waivers(judged, options),
        _changes(judged, matrix),
        _weaker(judged, matrix),
        _slower(judged, matrix),
        (_trouble(item, matrix) for item in found if item.verdict != "FAIL"),
    )
    return list(islice(everything, MOST))


def _verdict(judged: Judged, matrix: str) -> Annotation:
    """The verdict itself, which comes first."""
    verdict = judged.conclusion.verdict
    level: Level = "notice" if verdict == "PASS" else "error" if verdict == "FAIL" else "warning"
    title = f"qualify {judged.run.matrix}"
    return Annotation(level=level, path=matrix, line=0, title=title, message=verdict_line(judged))


def _time(judged: Judged, matrix: str) -> Iterator[Annotation]:
    """Budgets of time that do not hold, or that nothing has judged yet."""
    found = judged.performance
    if found and found.verdict != "PASS":
        level: Level = "error" if found.verdict == "FAIL" else "warning"
        lines = (performance_headline(found), *performance_lines(found)[:SHOWN])
        title = "a budget of time is exceeded" if found.verdict == "FAIL" else "time is undecided"
        yield Annotation(level=level, path=matrix, line=0, title=title, message="\n".join(lines))


def _trouble(trouble: Trouble, matrix: str) -> Annotation:
    """Cases that failed or stayed open in the same way, on the matrix line that asked for the first of them."""
    level: Level = "error" if trouble.verdict == "FAIL" else "warning"
    more = [f"and {len(trouble.more)} more like this"] if trouble.more else []
    message = "\n".join((trouble.reason, *trouble.waivers, *more))
    title = f"{trouble.verdict} {trouble.first}"
    return Annotation(level=level, path=matrix, line=trouble.line, title=title, message=message)


def _waivers(judged: Judged, options: OutputOptions) -> Iterator[Annotation]:
    """Waivers that somebody must look at, each on its line of the waiver file."""
    for use in judged.conclusion.waivers:
        if note := waiver_note(use, options.now, partial=judged.partial):
            waiver = use.waiver
            yield Annotation(
                level="error" if use.state == "expired" else "warning",
                path=options.from_workspace(waiver.path),
                line=waiver.line,
                title=f"waiver {waiver.id}: {use.state}",
                message=note,
            )


def _changes(judged: Judged, matrix: str) -> Iterator[Annotation]:
    """Changes that the policy forbids."""
    for topic, change in judged.against.forbidden if judged.against else ():
        title, message = f"changed {topic}: {change.id}", change_text(topic, change)
        yield Annotation(level="error", path=matrix, line=_line(judged, change.id), title=title, message=message)


def _weaker(judged: Judged, matrix: str) -> Iterator[Annotation]:
    if judged.weaker:
        level: Level = "error" if judged.weaker.forbidden else "warning"
        title = f"weaker requirements than baseline {judged.weaker.run}"
        message = "\n".join((weaker_headline(judged.weaker), *weaker_lines(judged.weaker)[:SHOWN]))
        yield Annotation(level=level, path=matrix, line=0, title=title, message=message)


def _slower(judged: Judged, matrix: str) -> Iterator[Annotation]:
    if judged.slower:
        worst = judged.slower.cases[0]
        message = "\n".join((headline(judged.slower), *slower_lines(judged.slower)))
        title = f"slower: {worst.id}"
        yield Annotation(level="warning", path=matrix, line=_line(judged, worst.id), title=title, message=message)


def _line(judged: Judged, case_id: str) -> int:
    """The line of the matrix that asked for a case; 0 where nobody knows."""
    return next((record.case.line for record in judged.records if record.case.id == case_id), 0)
