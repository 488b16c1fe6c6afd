"""The verdict as Markdown, for the summary of a CI job: at most one MiB, whatever the run holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from qualify.judge.judged import Judged
from qualify.report.differences import change_text, stack_change_text, told_topics
from qualify.report.figures import counted
from qualify.report.formats.interface import OutputOptions
from qualify.report.next_step import NextStep
from qualify.report.next_steps import next_steps
from qualify.report.performance import budget_sentence, cell_sentence
from qualify.report.performance import headline as time_headline
from qualify.report.signoffs import signoff_lines
from qualify.report.since import earlier
from qualify.report.slower import headline, sentence
from qualify.report.troubles import Trouble, troubles
from qualify.report.verdict_text import (
    DEMONSTRATION,
    environment_lines,
    notes,
    since_lines,
    stack_line,
    verdict_line,
)
from qualify.report.views import WORDS
from qualify.report.weaker import headline as weaker_headline
from qualify.report.weaker import weaker_table
from qualify.text import clipped, one_line

LIMIT_BYTES = 1_000_000
"""GitHub refuses a summary of more than 1 MiB"""
LONGEST = 600
"""most characters of one cell"""
ACTIVE = re.compile(r"[^\w\s.,/()%=+-]|_|(?<=\b)www(?=\.)", re.ASCII)
"""everything that Markdown, HTML or GitHub could read as markup, link or mention"""


def escaped(text: str) -> str:
    """The text as Markdown shows it, on one line: no markup, no link, no mention, no HTML."""
    short = clipped(one_line(text), LONGEST)
    return ACTIVE.sub(lambda found: "".join(f"&#{ord(letter)};" for letter in found[0]), short)


def code(text: str) -> str:
    """The text in a fixed-width face."""
    return f"<code>{escaped(text)}</code>"


def render(judged: Judged, options: OutputOptions) -> str:
    """The summary: verdict, next steps, changes, failures and waivers, with as many rows as fit."""
    found = troubles(judged)
    glyph, word = WORDS[judged.conclusion.shown]
    if judged.conclusion.demonstration:
        word = f"{DEMONSTRATION}, {WORDS[judged.conclusion.verdict][1]}"
    lines = [
        f"## {glyph} {escaped(judged.run.matrix)}: {word}, exit {judged.conclusion.exit_code}",
        "",
        escaped(verdict_line(judged)),
        "",
        escaped(stack_line(judged, options.now)),
        "",
        *(
            f"{escaped(line)}\n"
            for line in (*environment_lines(judged), *since_lines(judged), *signoff_lines(judged.signoffs))
        ),
        *(f"{number}. {_step(step)}" for number, step in enumerate(next_steps(judged, found), 1)),
        "",
        *(f"- {escaped(note)}" for note in notes(judged, options.now)[:50]),
        "",
    ]
    rest = [
        *_time(judged),
        *_weaker(judged),
        *_against(judged),
        *_slower(judged),
        *_failures(found),
        *_waivers(judged),
    ]
    return _limited(lines, rest, judged.typed.command("report", judged.run.id))


def _step(step: NextStep) -> str:
    return f"{escaped(step.words)}: {code(step.command)}" if step.command else escaped(step.words)


def _limited(lines: Sequence[str], rest: Iterable[str], whole: str) -> str:
    """The lines, and as many of the rest as the limit allows.

    Args:
        whole: command that shows everything; it is named where lines are left out.
    """
    kept = list(lines)
    size = sum(len(line.encode()) + 1 for line in kept)
    left_out = 0
    for line in rest:
        size += len(line.encode()) + 1
        if size > LIMIT_BYTES or left_out:
            left_out += 1
        else:
            kept.append(line)
    if left_out:
        kept += ["", f"{counted(left_out, 'more line does', 'more lines do')} not fit here. Everything: {code(whole)}"]
    return "\n".join(kept)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield from (f"### {title}", "", f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}")
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield ""


def _failures(found: Sequence[Trouble]) -> Iterator[str]:
    rows = [
        [item.verdict, code(item.first), "; ".join(map(escaped, (item.reason, *item.waivers))), str(len(item.more))]
        for item in found
    ]
    yield from _table("What failed, or was not decided", ("verdict", "first", "why", "more like it"), rows)


def _against(judged: Judged) -> Iterator[str]:
    if judged.against is None:
        return
    comparison = judged.against.comparison
    yield f"### Against {escaped(earlier(comparison.before, judged.against.baseline))}"
    yield ""
    yield from (f"- {escaped(line)}" for line in (*told_topics(comparison), *comparison.caveats))
    yield ""
    stack = [[escaped(stack_change_text(change))] for change in comparison.stack]
    yield from _table("Stack", ("what changed",), stack)
    rows = [[topic, code(change.id), escaped(change_text(topic, change))] for topic, change in judged.against.forbidden]
    yield from _table("Changes that the matrix forbids", ("what", "case", "change"), rows)


def _time(judged: Judged) -> Iterator[str]:
    """What time says, and the cells of each budget that does not hold or is undecided."""
    found = judged.performance
    if found is None:
        return
    yield f"**Time:** {escaped(time_headline(found))}"
    yield ""
    rows = [
        [use.verdict, escaped(budget_sentence(use)), escaped(cell)]
        for use in found.budgets
        if use.verdict != "PASS"
        for cell in [*map(cell_sentence, use.cells)] or ["–"]
    ]
    yield from _table("Budgets of time that do not hold, or are undecided", ("verdict", "budget", "cell"), rows)


def _weaker(judged: Judged) -> Iterator[str]:
    if judged.weaker is None:
        return
    yield f"**Weaker:** {escaped(weaker_headline(judged.weaker))}"
    yield ""
    table = weaker_table(judged.weaker.changes)
    rows = [[escaped(cell.text) for cell in table.cells(row)] for row in table.rows]
    yield from _table("Weaker requirements", [column.title for column in table.columns], rows)


def _slower(judged: Judged) -> Iterator[str]:
    if judged.slower is None:
        return
    yield f"**Slower:** {escaped(headline(judged.slower))}"
    yield ""
    rows = [[code(change.id), escaped(sentence(change))] for change in judged.slower.cases]
    yield from _table("Cases that became slower", ("case", "times"), rows)


def _waivers(judged: Judged) -> Iterator[str]:
    rows = [
        [
            use.state,
            code(use.waiver.place),
            escaped(use.waiver.id),
            escaped(use.waiver.owner),
            str(use.waiver.expires),
            escaped(use.waiver.reason),
            str(len(use.waived)),
        ]
        for use in judged.conclusion.waivers
    ]
    heads = ("state", "written in", "waiver", "owner", "until", "reason", "waives")
    yield from _table("Waivers", heads, rows)
