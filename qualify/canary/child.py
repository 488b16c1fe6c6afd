"""The child process of a fire: runs the matrix, judges it, compares it with the baseline, and says what it found.

Its order comes on stdin, its messages (:mod:`qualify.canary.messages`) go to stdout; what libraries print goes to
stderr. The database's address comes in ``QUALIFY_DB``, so that no list of processes shows a password.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from qualify.canary.leash import Leash
from qualify.canary.messages import Failed, FromChild, Order, RunBegun, Seen, encode
from qualify.cards.load import load_kernels
from qualify.errors import INTERRUPTED, NoVerdict, QualifyError, UsageError
from qualify.facts import codec
from qualify.facts.comparison import Bucket, Change, Comparison, Topic
from qualify.fleet.local import execute, new_run
from qualify.fleet.request import Asked, make_request
from qualify.judge.against import BASELINE, compare_with
from qualify.judge.beside import beside_baseline
from qualify.judge.judged import Judged, judge
from qualify.report.differences import change_text
from qualify.report.files import write_report
from qualify.report.waived import waived_words
from qualify.report.weaker import sentence
from qualify.run.process.parent import die_with
from qualify.store.store import Store
from qualify.text import one_line
from qualify.verdict.slower import factor

NAMED = 3
"""failures and changes that an alert names"""
LONGEST = 300
"""characters of each"""


class Messages:
    """Lines of JSON to the parent, on a descriptor that no library knows."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def send(self, message: FromChild) -> None:
        """One message, at once."""
        self._stream.write(encode(message))
        self._stream.flush()


def main() -> int:
    """Obeys the order on stdin; the argument is the parent's process id."""
    follow(int(sys.argv[1]))
    messages = Messages()
    order: Order = codec.from_data(Order, json.load(sys.stdin))
    try:
        with Store.open(os.environ["QUALIFY_DB"], create=False) as store:
            Leash(store.canaries, order).start()
            messages.send(obey(order, store, messages))
    except QualifyError as error:
        messages.send(Failed(message=str(error), exit_code=error.exit_code))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def follow(parent: int) -> None:
    """Die with the parent, leave Ctrl-C to it, and store what was measured when it asks to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    die_with(parent)


def obey(order: Order, store: Store, messages: Messages) -> Seen:
    """Run, judge, report, compare."""
    run_id = _go_on(order, store, messages) or _begin(order, store, messages)
    kernels, now = load_kernels(tuple(map(Path, order.cards))), datetime.now(UTC)
    judged = judge(store, run_id, kernels, now=now, part=True)
    # The canary's own verdict stays: what is asked less says nothing of the stack.
    judged = replace(judged, weaker=beside_baseline(store, judged).weaker)
    shown = (judged.run, judged.records, judged.conclusion, judged.selftest)
    write_report(Path(order.out) / run_id, *shown, weaker=judged.weaker)
    with suppress(NoVerdict):  # nobody accepted one, which the advice says
        judged = compare_with(store, judged, BASELINE, kernels, now=now)
    return seen_of(judged, order.slower)


def _go_on(order: Order, store: Store, messages: Messages) -> str | None:
    """Finish the run of an earlier attempt; None where there is none, or a card or the stack changed since."""
    if order.resume is None:
        return None
    try:
        begun = store.run(order.resume)
        request = make_request(_asked(order), begun)
        messages.send(RunBegun(run=begun.id))
        execute(request, store, begun, lambda _: None, resume=True)
    except UsageError:
        return None
    return begun.id


def _begin(order: Order, store: Store, messages: Messages) -> str:
    """Make a new run."""
    request = make_request(_asked(order))
    run = new_run(request)
    messages.send(RunBegun(run=run.id))
    execute(request, store, run, lambda _: None)
    return run.id


def _asked(order: Order) -> Asked:
    return Asked(
        matrix=order.matrix,
        cards=tuple(map(Path, order.cards)),
        select=order.select,
        kernel=order.kernel,
        level=order.level,
        device=order.device,
        anew=True,
    )


def seen_of(judged: Judged, slower: float) -> Seen:
    """What the advice needs of a verdict."""
    run = judged.run
    against = judged.against
    comparison = against.comparison if against else None
    return Seen(
        run_id=run.id,
        matrix=run.matrix,
        variant=run.stack.device.variant if run.stack else "",
        verdict=judged.conclusion.verdict,
        failing=_failing(judged),
        expired=_expired(judged),
        weaker=_weaker(judged),
        waived=_short(waived_words(judged.conclusion)),
        demonstration=judged.conclusion.demonstration,
        baseline=comparison.before.id if comparison else None,
        stack=comparison.stack if comparison else (),
        regressions=_counted(comparison, "regression", ("verdicts", "kernels", "numbers", "times")),
        suspicious=_counted(comparison, "suspicious", ("verdicts", "kernels", "numbers")),
        slower=sum(_grew(change) > slower for change in comparison.times) if comparison else 0,
        examples=_examples(comparison) if comparison else (),
    )


def _failing(judged: Judged) -> tuple[str, ...]:
    """The first failing cases and shapes with their first reason."""
    cells = [(cell.cell, cell.reasons) for cell in judged.conclusion.cells if cell.verdict == "FAIL"]
    cases = [(item.case_id, item.reasons) for item in judged.conclusion.judgements if item.verdict == "FAIL"]
    return tuple(_short(f"{name}: {reasons[0] if reasons else 'failed'}") for name, reasons in (cases or cells)[:NAMED])


def _expired(judged: Judged) -> tuple[str, ...]:
    """The waivers past their end, where nothing else fails."""
    if _failing(judged) or (judged.against and judged.against.forbidden):
        return ()
    return tuple(f"{use.waiver.place}: waiver {use.waiver.id} has expired" for use in judged.conclusion.expired)


def _weaker(judged: Judged) -> tuple[str, ...]:
    """The first points in which less is asked than the policy allows."""
    if judged.weaker is None or not judged.weaker.forbidden:
        return ()
    points = [less for less in judged.weaker.changes if less.kind != "level"]
    more = [f"and {len(points) - NAMED} more"] if len(points) > NAMED else []
    return (*(_short(sentence(less)) for less in points[:NAMED]), *more)


def _counted(comparison: Comparison | None, bucket: Bucket, topics: Iterable[Topic]) -> dict[Topic, int]:
    lists = dict(comparison.topics()) if comparison else {}
    return {topic: sum(change.bucket == bucket for change in lists.get(topic, ())) for topic in topics}


def _grew(change: Change) -> float:
    """Share by which a suspicious time grew; 0.0 for any other change."""
    if change.bucket not in ("suspicious", "regression"):
        return 0.0
    return factor(change) - 1


def _examples(comparison: Comparison) -> tuple[str, ...]:
    """The first changes that a reader must see."""
    worst = [
        (topic, change)
        for bucket in ("regression", "suspicious")
        for topic, changes in comparison.topics()
        for change in changes
        if change.bucket == bucket
    ]
    return tuple(_short(f"{change.id}: {topic}: {change_text(topic, change)}") for topic, change in worst[:NAMED])


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


if __name__ == "__main__":
    sys.exit(main())
