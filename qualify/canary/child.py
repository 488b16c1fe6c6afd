"""The child process of a fire: runs the matrix, judges it, compares it with the baseline, and says what it found.

Its order comes on stdin, its messages (:mod:`qualify.canary.messages`) go to stdout; what libraries print goes to
stderr. The database's address comes in ``QUALIFY_DB``, so that no list of processes shows a password.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from qualify.canary.card_lease import CardLease
from qualify.canary.deck import is_away
from qualify.canary.duels import settle
from qualify.canary.fleets import cover
from qualify.canary.leash import Leash
from qualify.canary.messages import ClusterOrder, Failed, FleetSeen, FromChild, Order, RunBegun, Seen, encode
from qualify.canary.results import typed_words
from qualify.canary.seeing import judge_run, seen_of
from qualify.cards.canary import is_path
from qualify.errors import INFRASTRUCTURE, INTERRUPTED, InfrastructureError, QualifyError, UsageError
from qualify.facts import codec
from qualify.fleet.filing import Progress
from qualify.fleet.local import execute, new_run
from qualify.fleet.request import Asked, make_request
from qualify.judge.judged import Judged
from qualify.judge.timed import with_performance
from qualify.report.beside import beside_of
from qualify.report.files import write_report
from qualify.run.process.parent import die_with
from qualify.store.store import Store


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
            messages.send(_on_fleet(order, order.fleet, store) if order.fleet else obey(order, store, messages))
    except QualifyError as error:
        failed = failure_of(error, order)
        messages.send(failed)
        return failed.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def follow(parent: int) -> None:
    """Die with the parent, leave Ctrl-C to it, and store what was measured when it asks to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    die_with(parent)


def obey(order: Order, store: Store, messages: Messages) -> Seen:
    """Run, judge, compare, duel where it is needed, report."""
    with CardLease(store.canaries, order, _say):
        run_id = _go_on(order, store, messages) or _begin(order, store, messages)
        judged = judge_run(order, store, run_id)
        duel = settle(order, store, judged)
    judged = with_performance(store, judged, now=store.canaries.now(), max_age=None)
    report(order, judged)
    return seen_of(judged, order.slower, duel)


def report(order: Order, judged: Judged) -> None:
    """Write the report of the run. Where its place is full, the log says so, and the verdict stands."""
    try:
        write_report(Path(order.out) / judged.run.id, judged.run, judged.records, judged.conclusion, beside_of(judged))
    except InfrastructureError as error:
        _say(str(error))


def failure_of(error: QualifyError, order: Order) -> Failed:
    """What the parent hears of an error. A folder with cards that is away may come back, so it may try again."""
    matrix = [Path(order.matrix).parent] if is_path(order.matrix) else []
    away = any(map(is_away, (*map(Path, order.cards), *matrix)))
    code = INFRASTRUCTURE if away and isinstance(error, UsageError) else error.exit_code
    return Failed(message=str(error), exit_code=code)


def _on_fleet(order: Order, fleet: ClusterOrder, store: Store) -> FleetSeen:
    """Cover every card of the fleet."""
    typed = typed_words(map(Path, order.cards), os.environ["QUALIFY_DB"])
    return cover(order, fleet, store, typed, _say)


def _say(text: str) -> None:
    """A line for the log of the service."""
    print(text, file=sys.stderr, flush=True)


def _show(step: Progress) -> None:
    """Only what the store refuses: nobody looks on."""
    if step.told:
        _say(step.told)


def _go_on(order: Order, store: Store, messages: Messages) -> str | None:
    """Finish the run of an earlier attempt; None where there is none, or a card or the stack changed since."""
    if order.resume is None:
        return None
    try:
        begun = store.run(order.resume)
        request = make_request(_asked(order), begun)
        messages.send(RunBegun(run=begun.id))
        execute(request, store, begun, _show, resume=True)
    except UsageError:
        return None
    return begun.id


def _begin(order: Order, store: Store, messages: Messages) -> str:
    """Make a new run."""
    request = make_request(_asked(order))
    run = new_run(request)
    messages.send(RunBegun(run=run.id))
    execute(request, store, run, _show)
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


if __name__ == "__main__":
    sys.exit(main())
