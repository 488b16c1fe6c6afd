"""The dispatch table as text and as JSON that an engine's configuration can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from qualify.facts import codec
from qualify.facts.best import BestKernel, TimedKernel
from qualify.judge.judged import Judged, again
from qualify.report.ages import shown_age
from qualify.report.figures import counted
from qualify.text import one_line

OLD = timedelta(days=1)
"""`qualify gate --matrix` takes no older evidence, unless it is told otherwise"""


def caveats(judged: Judged, now: datetime) -> list[str]:
    """What the gate says of the evidence behind the table: it was edited, of other code or cards, or is old."""
    run, since = judged.run, judged.evidence_since
    told = list(judged.notes)
    if judged.contradiction and not judged.edited:
        told.append(f"run {run.id} contradicts itself: {judged.contradiction}")
    if not judged.future and now - since > OLD:
        make = judged.typed.command("run", run.matrix_path, *again(run, run.level, fresh=True))
        age = f"the evidence is {shown_age(now - since)} old: `qualify gate --matrix` takes none older than a day"
        told.append(f"{age}, unless it is told otherwise. Make it anew: {make}")
    return told


def to_text(judged: Judged, found: Sequence[BestKernel], now: datetime) -> str:
    """One line for each shape; below it the next kernel, where the two cannot be told apart. Notes stand at the end."""
    stack = judged.run.stack
    lines = [f"{judged.run.matrix} on {stack.device.variant if stack else 'an unknown device'}, run {judged.run.id}"]
    for shape in found:
        lines += _lines(shape)
    open_ = sum(shape.fastest is not None and not shape.decided for shape in found)
    if open_:
        apart = dict.fromkeys(why for shape in found for why in _apart(shape))
        why = "".join(["intervals of one run overlap", *(f", or {one}" for one in apart)])
        lines.append(f"{counted(open_, 'shape')} undecided: {why}; `qualify duel A B` decides")
    lines += [f"note: {caveat}" for caveat in caveats(judged, now)]
    return "\n".join(map(one_line, lines))


def why_partial(judged: Judged) -> str:
    """Why shapes of the matrix may be absent from the table, or without a kernel; empty where the run is whole."""
    run = judged.run
    if run.state != "completed":
        happened = f"is {'not finished' if run.state == 'running' else run.state}"
        todo = f"Finish it: {judged.typed.command('run', run.matrix_path, '--resume', run.id)}"
    elif run.narrowed:
        happened = "was narrowed by --select or --kernel"
        todo = f"For all of them: {judged.typed.command('run', run.matrix_path, *judged.again)}"
    else:
        return ""
    return f"run {run.id} {happened}, so this is not the whole matrix {run.matrix}. {todo}"


def _lines(shape: BestKernel) -> list[str]:
    if shape.fastest is None:
        return [f"{shape.shape}  no proven kernel was timed"]
    mark = "" if shape.decided else "  (undecided: the next one may be faster)"
    lines = [f"{shape.shape}  {_words(shape.fastest)}{mark}"]
    if shape.rival:
        lines.append(f"  next: {_words(shape.rival)}")
    return lines


def _apart(shape: BestKernel) -> Iterator[str]:
    """How differently the fastest kernel of a shape and its rival were timed."""
    best, rival = shape.fastest, shape.rival
    if best is None or rival is None:
        return
    if best.card != rival.card:
        yield "two cards timed them"
    if best.measured_by != rival.measured_by:
        yield "two runs timed them"
    if best.cold != rival.cold:
        yield "only one of them had a warm cache"


def _words(kernel: TimedKernel) -> str:
    return f"{kernel.kernel}  {kernel.us:.1f} µs [{kernel.low_us:.1f}, {kernel.high_us:.1f}]"


def to_data(judged: Judged, found: Sequence[BestKernel], now: datetime) -> dict[str, Any]:
    """For ``--json``: each shape with its keys, its kernel, and whether that is decided."""
    stack = judged.run.stack
    return {
        "matrix": judged.run.matrix,
        "run": judged.run.id,
        "verdict": judged.conclusion.verdict,
        "started_at": judged.began_at.isoformat(),
        "evidence_since": judged.evidence_since.isoformat(),
        "stale": judged.stale,
        "notes": caveats(judged, now),
        "device": stack.device.variant if stack else None,
        "stack": stack.fingerprint if stack else None,
        "shapes": [{**codec.to_data(shape), "decided": shape.decided} for shape in found],
    }
