"""The answer of ``qualify check``: for each phase the kernel to take and why, whether it is correct, what to do next.

::

    Judged ── lines ── kernels of each line ── the best of them
                │            right: passed every check on every shape of the line
                └ phase, mask and layout of the cache
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qualify.cards.config.keys import ConfigNote
from qualify.cards.config.writing import findings_data
from qualify.facts.outcome import Refused, evidence_of
from qualify.facts.run import Conclusion, Judgement, Record
from qualify.judge.judged import Judged
from qualify.plan.host import lacks_gpu
from qualify.report.figures import counted, duration, ratio
from qualify.text import clipped, one_line

NAMES = {"prefill": "prefill", "chunked": "chunked prefill", "varlen": "ragged batch", "decode": "decode"}
"""what a line of the answer calls a phase"""
NARROWEST = 40
"""least width in columns to which lines are wrapped, also where the terminal is narrower"""
LAUNCHED = 44
"""characters of a launched kernel's name; --json has all"""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelResult:
    """One kernel on all shapes of a line."""

    kernel: str
    passed: int
    """shapes on which it passed every check"""
    failed: tuple[str, ...]
    """why it is not correct, with the case; empty where it is"""
    refused: tuple[str, ...]
    """why it does not serve some shape of the line"""
    launched: tuple[str, ...]
    """attention kernels that really ran"""
    latency_us: float | None
    """geometric mean over the shapes that it passed; None where nothing was timed"""

    @property
    def right(self) -> bool:
        """Whether it served something and nothing that it served was wrong."""
        return self.passed > 0 and not self.failed


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseLine:
    """One phase under one mask, with a contiguous or a paged cache."""

    phase: str
    mask: str
    layout: str
    """packed or paged"""
    shapes: int
    kernels: tuple[KernelResult, ...]
    """the best first: correct ones, by how many shapes they serve, then by time"""

    @property
    def best(self) -> KernelResult | None:
        """The kernel to take; None where none is correct."""
        return self.kernels[0] if self.kernels and self.kernels[0].right else None

    @property
    def why(self) -> str:
        """Why that kernel, or why none."""
        right = [each for each in self.kernels if each.right]
        if not right:
            return self._why_none()
        best, others = right[0], [each for each in right[1:] if each.passed == right[0].passed]
        if not others:
            return f"the only one that serves {'it' if self.shapes == 1 else 'all of its shapes'}"
        if best.latency_us is None or others[0].latency_us is None:
            return f"one of {len(others) + 1} that are correct; nothing was timed"
        slower = ratio(others[0].latency_us / best.latency_us)
        return f"fastest of {len(others) + 1} that are correct; {others[0].kernel} takes {slower} as long"

    def _why_none(self) -> str:
        wrong = next((each for each in self.kernels if each.failed), None)
        if wrong:
            return f"{wrong.kernel} is not correct: {wrong.failed[0]}"
        reasons = Counter(each.refused[0] for each in self.kernels if each.refused)
        return reasons.most_common(1)[0][0] if reasons else "nothing ran"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckAnswer:
    """What a check found."""

    judged: Judged
    origin: str
    """which model it was, with its commit"""
    described: tuple[str, ...]
    """its attention in words, one for each kind of layer"""
    lines: tuple[PhaseLine, ...]
    unused: Mapping[str, str]
    """kernels that ran nothing, each with the reason"""
    demonstration: bool
    """whether a CPU stood in for the GPU"""
    untested: tuple[str, ...] = ()
    """the parts of the model that no case tests, in words"""
    findings: tuple[ConfigNote, ...] = ()
    """what its config.json says that a reader should know"""
    todo: tuple[str, ...] = ()
    """what to do next, commands that can be pasted"""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """the engine, its backend, and what stands for it; empty without --engine"""
    report: str = ""
    """path of the page"""


def lines_of(records: Sequence[Record], conclusion: Conclusion) -> tuple[PhaseLine, ...]:
    """The lines of the answer, one for each phase, mask and layout, in the plan's order."""
    verdicts = {each.case_id: each for each in conclusion.judgements}
    found: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        case = record.case
        found.setdefault((case.phase, case.mask, case.workload.layout), []).append(record)
    return tuple(
        PhaseLine(
            phase=phase,
            mask=mask,
            layout=layout,
            shapes=len({record.case.cell for record in its}),
            kernels=_kernels(its, verdicts),
        )
        for (phase, mask, layout), its in found.items()
    )


def unused_of(records: Sequence[Record]) -> dict[str, str]:
    """The kernels whose every case was refused, each with its most frequent reason."""
    ran = {record.case.kernel for record in records if not isinstance(record.outcome, Refused)}
    reasons: dict[str, Counter[str]] = {}
    for record in records:
        if isinstance(record.outcome, Refused) and record.case.kernel not in ran:
            reasons.setdefault(record.case.kernel, Counter()).update(record.outcome.reasons[:1])
    return {kernel: found.most_common(1)[0][0] for kernel, found in reasons.items()}


def _kernels(records: Sequence[Record], verdicts: Mapping[str, Judgement]) -> tuple[KernelResult, ...]:
    own: dict[str, list[Record]] = {}
    for record in records:
        own.setdefault(record.case.kernel, []).append(record)
    served = [_served(kernel, its, verdicts) for kernel, its in own.items()]
    return tuple(sorted(served, key=lambda it: (not it.right, -it.passed, it.latency_us or math.inf)))


def _served(kernel: str, records: Sequence[Record], verdicts: Mapping[str, Judgement]) -> KernelResult:
    ran = [record for record in records if not isinstance(record.outcome, Refused)]
    right = [record for record in ran if verdicts[record.case.id].verdict in {"PASS", "WAIVED"}]
    seen = [evidence for record in ran if (evidence := evidence_of(record.outcome))]
    times = [it.timing.latency_us for record in right if (it := evidence_of(record.outcome)) and it.timing]
    return KernelResult(
        kernel=kernel,
        passed=len(right),
        failed=tuple(_failure(verdicts[record.case.id]) for record in ran if record not in right),
        refused=tuple(record.outcome.reasons[0] for record in records if isinstance(record.outcome, Refused)),
        launched=tuple(dict.fromkeys(name for evidence in seen for name in evidence.witness.attention_names)),
        latency_us=math.exp(sum(map(math.log, times)) / len(times)) if times else None,
    )


def _failure(judgement: Judgement) -> str:
    return f"{judgement.case_id}: {judgement.reasons[0] if judgement.reasons else judgement.verdict}"


def to_lines(answer: CheckAnswer, columns: int | None = None) -> list[str]:
    """The answer for a person: about ten lines.

    Args:
        columns: width of the terminal; where the table is wider, each phase gets several lines. None = no terminal.
    """
    lines = [f"model: {answer.origin}: {'; '.join(answer.described)}"]
    if answer.engine:
        lines.append(f"engine: {_engine_words(answer.engine)}")
    lines += _table([_row(lines) for lines in _alike(answer.lines)], columns)
    lines.append(_right_line(answer))
    if answer.untested:
        lines.append(f"not tested: {'; '.join(answer.untested)}")
    if answer.unused:
        lines.append(f"not used: {_unused_words(answer.unused)}")
    lines += [f"do: {text}" for text in answer.todo]
    return [one_line(line).rstrip() for line in lines]


def _table(rows: Sequence[tuple[str, str, str, str, str]], columns: int | None) -> list[str]:
    """One line for each row. Where the terminal is too narrow, a row becomes a title with indented lines below it."""
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join([*map(str.ljust, row[:4], widths), row[4]]).rstrip() for row in rows]
    if columns is None or max(map(len, lines)) <= columns:
        return lines
    return [line for row in rows for line in _stacked(row, columns)]


def _stacked(row: tuple[str, str, str, str, str], columns: int) -> list[str]:
    title, kernel, launched, time, why = row
    details = [", ".join(word for word in (kernel, time) if word), f"launched {launched}", why]
    if not launched:
        details = [f"{details[0]}: {why}"]
    wrapped = (
        textwrap.wrap(
            one_line(text),
            max(columns, NARROWEST),
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for text in details
    )
    return [title, *(line for lines in wrapped for line in lines)]


def _alike(lines: Sequence[PhaseLine]) -> list[list[PhaseLine]]:
    """Groups of lines with one phase, one layout and one chosen kernel, or with one reason why no kernel is correct."""
    found: dict[tuple[str, str, str], list[PhaseLine]] = {}
    for line in lines:
        chosen = line.best.kernel if line.best else f"none: {line.why}"
        found.setdefault((line.phase, line.layout, chosen), []).append(line)
    return list(found.values())


def _row(lines: Sequence[PhaseLine]) -> tuple[str, str, str, str, str]:
    """Phase with its masks, kernel, what it launched, and under each mask its time and why it was chosen."""
    first = lines[0]
    name = NAMES.get(first.phase, first.phase) + (", paged cache" if first.layout == "paged" else "")
    title = f"{name} ({', '.join(line.mask for line in lines)})"
    best = [line.best for line in lines if line.best]
    if not best:
        return title, "none", "", "", first.why
    launched = " + ".join(dict.fromkeys(name for each in best for name in each.launched))
    short = clipped(launched, LAUNCHED)
    times = [duration(each.latency_us) for each in best if each.latency_us is not None]
    return title, best[0].kernel, short, " / ".join(times), " / ".join(dict.fromkeys(line.why for line in lines))


def _right_line(answer: CheckAnswer) -> str:
    """Whether what ran was correct, and what was not."""
    judged = answer.judged
    counts = Counter(
        judgement.verdict
        for record, judgement in zip(judged.records, judged.conclusion.judgements, strict=True)
        if not isinstance(record.outcome, Refused)
    )
    ran = sum(counts.values())
    wrong = [each for line in answer.lines for each in line.kernels if each.failed]
    if not ran:
        return "not proven: no case ran"
    if not wrong:
        waived = f", {counted(counts['WAIVED'], 'is', 'are')} waived" if counts["WAIVED"] else ""
        return f"correct: {counts['PASS']:,} of {counted(ran, 'case')} passed every check{waived}"
    names = ", ".join(dict.fromkeys(each.kernel for each in wrong))
    failed = ran - counts["PASS"] - counts["WAIVED"]
    return f"NOT correct: {names}; {failed:,} of {counted(ran, 'case')} did not pass, first {wrong[0].failed[0]}"


def _unused_words(unused: Mapping[str, str]) -> str:
    """How many kernels need a GPU, and what keeps the others from running."""
    gpu = [kernel for kernel, reason in unused.items() if lacks_gpu([reason])]
    others = [f"{kernel}: {reason}" for kernel, reason in unused.items() if kernel not in gpu]
    parts = [f"{counted(len(gpu), 'kernel')} that need{'s' if len(gpu) == 1 else ''} a GPU"] if gpu else []
    parts += others[:2] + ([f"and {len(others) - 2} more" if others[2:] else ""] if others[2:] else [])
    return "; ".join(parts)


def _engine_words(engine: Mapping[str, Any]) -> str:
    """Which kernels stand for each checked backend, and how many other backends cannot be checked."""
    taken = [f"{name} is {', '.join(cards)}" for name, cards in engine["backends"].items()]
    if builds := engine["other_builds"]:
        come = "comes" if len(builds) == 1 else "come"
        taken.append(f"{', '.join(builds)} {come} from another package than the one that the engine uses")
    count = len(engine["refused"])
    others = [f"{counted(count, 'other backend')} cannot be checked here, --json says why"] if count else []
    return f"{engine['title']} ({engine['option']}): {'; '.join([*taken, *others])}"


def to_data(answer: CheckAnswer) -> dict[str, Any]:
    """The answer as JSON. ``qualify check --json`` prints it beside the fields of ``qualify run --json``."""
    return {
        "model": answer.origin,
        "demonstration": answer.demonstration,
        "engine": dict(answer.engine) or None,
        "phases": [
            {
                "phase": line.phase,
                "mask": line.mask,
                "layout": line.layout,
                "shapes": line.shapes,
                "kernel": line.best.kernel if line.best else None,
                "why": line.why,
                "kernels": [
                    {
                        "kernel": each.kernel,
                        "right": each.right,
                        "passed": each.passed,
                        "failed": list(each.failed),
                        "refused": list(each.refused),
                        "kernel_launched": list(each.launched),
                        "latency_us": each.latency_us,
                    }
                    for each in line.kernels
                ],
            }
            for line in answer.lines
        ],
        "unused": dict(answer.unused),
        "untested": list(answer.untested),
        "findings": findings_data(answer.findings),
        "do": list(answer.todo),
        "report": answer.report,
    }
