"""The duel of a fire: whether one is needed, the two environments that take turns, and what the advice hears of it.

A run has one duel at most, whose id is made of the run's. An attempt that was killed in the middle of a duel left
nothing of it; one that was killed after it left a whole duel, which the next attempt finds: in the store, or in a file
beside the reports where the store did not take it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from qualify.canary.messages import DuelOrder, DuelSeen, Order
from qualify.canary.results import typed_words
from qualify.cards.load import load_matrix
from qualify.errors import LeaseLost, NoVerdict, QualifyError, StoreError, UsageError
from qualify.facts.duel import Duel, DuelCell
from qualify.facts.seal import Seal
from qualify.facts.stack import Stack
from qualify.files import is_file
from qualify.fleet.duel import Duelling, DuelProgress, DuelRequest
from qualify.fleet.duel_keeping import file_name, keep_duel
from qualify.fleet.patience import Patience
from qualify.fleet.sides import HERE_WORD, DuelAsked, make_duel
from qualify.fleet.stored_stacks import at_stored_stacks
from qualify.judge.duels import check_duel
from qualify.judge.judged import Judged
from qualify.judge.suspects import look_slower
from qualify.seal.keys import SigningKey, signing_key
from qualify.statistics.installed import check_installed
from qualify.store.store import Store

BASELINE = "baseline"
"""the word of the card for the stack of the accepted baseline"""
NAMED = 3
"""cells that a reason names"""


def settle(order: Order, store: Store, judged: Judged) -> DuelSeen | None:
    """What a duel says of the run; None where the card asks for none, or the run gives no reason for one.

    Raises:
        LeaseLost: another leader has the fire now; nothing was written.
        StoreError: the duel cannot be stored.
    """
    if order.duel is None:
        return None
    suspects = look_slower(store, judged)
    if order.duel.when == "slower" and not suspects:
        return None
    duel_id = f"duel-{judged.run.id}"
    try:
        duel = (
            store.canaries.duel(duel_id)
            or left_over(order, store, duel_id)
            or _fight(order, order.duel, store, judged, duel_id)
        )
    except StoreError:
        raise
    except QualifyError as error:
        return DuelSeen(suspects=suspects, why_not=str(error))
    if why := check_duel(duel).why_not:
        return DuelSeen(suspects=suspects, why_not=f"{duel_id} does not count: {why}")
    return seen_of_duel(duel, suspects)


def _fight(order: Order, plan: DuelOrder, store: Store, judged: Judged, duel_id: str) -> Duel:
    """Fight the duel, and store it under the lease of the fire."""
    check_installed("the duel of a canary")
    request, key = make_request(order, plan, store, judged), signing_key()
    _say(f"{duel_id} against {request.a} begins: {len(request.tasks)} cells")
    duelling = Duelling(request, _show)
    found = replace(duelling.fight(), id=duel_id)
    if duelling.interrupted:
        raise KeyboardInterrupt
    if duelling.broken:
        raise duelling.broken
    keep(order, store, found, key, Patience(_say))
    return store.canaries.duel(duel_id) or found


def keep(order: Order, store: Store, found: Duel, key: SigningKey | None, patience: Patience) -> None:
    """Store a duel under the lease of the fire, or leave it in a file for the next attempt.

    Raises:
        LeaseLost: another leader has the fire now; the duel is nowhere.
        StoreError: it is in the file, and in no store.
        KeyboardInterrupt: the same.
        SigningFailed: it is stored, without a seal.
    """

    def add(seal: Seal | None) -> None:
        lease = store.canaries.lease(order.lease)
        if lease is None or lease.epoch != order.epoch:
            raise LeaseLost(f"lease {order.lease}: its epoch {order.epoch} is over. The duel was not written.")
        store.canaries.file_duel(lease, found, seal)

    folder, typed = Path(order.out), typed_words(map(Path, order.cards), os.environ["QUALIFY_DB"])
    with suppress(OSError):  # then the file goes elsewhere
        folder.mkdir(parents=True, exist_ok=True)
    keep_duel(store, found, key, patience, typed, add=add, folder=folder)


def left_over(order: Order, store: Store, duel_id: str) -> Duel | None:
    """The duel that an earlier attempt left in a file, stored now; None where it left none that can be read."""
    file = Path(order.out) / file_name(duel_id)
    if not is_file(file):
        return None
    try:
        Patience(_say).keep(lambda: store.import_run(file))
    except UsageError as error:
        _say(f"{error} The duel is fought again.")
        return None
    _say(f"{duel_id}: an earlier attempt left it in {file}, and it is stored now")
    with suppress(OSError):
        file.unlink()
    return store.canaries.duel(duel_id)


def make_request(order: Order, plan: DuelOrder, store: Store, judged: Judged) -> DuelRequest:
    """The duel of the older environment (A) with this interpreter (B), on the cells that the fire selects.

    Raises:
        UsageError: the older environment is not there.
        NothingSelected: the two have no cell in common.
        DeviceError: this machine can run none of them.
    """
    cards = tuple(map(Path, order.cards))
    environments = load_matrix(order.matrix, cards).environments
    asked = DuelAsked(
        a=plan.against,
        b=HERE_WORD,
        matrix=order.matrix,
        select=order.select or "",
        device=order.device,
        cards=cards,
        environments=dict(environments),
        pairs=plan.pairs,
        deadline_s=float(plan.deadline_s),
    )
    if plan.against == BASELINE:
        asked = at_stored_stacks(replace(asked, a=_stack_of_baseline(judged).fingerprint), store)
    elif plan.against not in environments:
        known = ", ".join(environments) or "none"
        raise UsageError(
            f"duel: against {plan.against}: {judged.run.matrix} has no such environment; it has {known}. Name it under "
            "`environments` of the matrix"
        )
    if asked.a == HERE_WORD:
        raise UsageError(
            "the libraries of the baseline are the ones installed here, so both sides would be equal. A duel cannot "
            "compare drivers, firmware or settings of one card"
        )
    return _only(make_duel(asked), order.kernel)


def _stack_of_baseline(judged: Judged) -> Stack:
    before = judged.against.comparison.before.stack if judged.against else None
    if before is None:
        raise NoVerdict(
            "side A of the duel needs the stack of an accepted baseline, and there is none: accept one, or name an "
            "environment"
        )
    return before


def _only(request: DuelRequest, kernel: str | None) -> DuelRequest:
    """The duel of only those kernels that the card selects. Such a duel is narrowed, so no budget counts it."""
    if kernel is None:
        return request
    tasks = tuple(task for task in request.tasks if fnmatchcase(task.b.kernel, kernel))
    if not tasks:
        raise UsageError(f"no cell of the duel has a kernel that matches {kernel}")
    return replace(request, tasks=tasks, select=" ".join(filter(None, [request.select, f"kernel={kernel}"])))


def _show(step: DuelProgress) -> None:
    """A line of the log for each pair of processes."""
    if step.timed == step.round_total:
        _say(f"duel: pair {step.pair}, {step.decided} of {step.total} cells decided")


def _say(text: str) -> None:
    """A line for the log of the service."""
    print(text, file=sys.stderr, flush=True)


def seen_of_duel(duel: Duel, suspects: tuple[str, ...]) -> DuelSeen:
    """What the advice needs of a duel."""
    slower = sorted((cell for cell in duel.cells if cell.verdict == "SLOWER"), key=lambda cell: -_change(cell))
    undecided = [cell for cell in duel.cells if cell.verdict in ("AMBIGUOUS", "INCONCLUSIVE")]
    return DuelSeen(
        id=duel.id,
        against=duel.a,
        cells=len(duel.cells),
        suspects=suspects,
        slower=_named([f"{told(cell)}, confirmed by {duel.id}" for cell in slower]),
        undecided=_named([f"{told(cell)}: {cell.verdict}, {cell.reason}" for cell in undecided]),
        acquitted=tuple(cell.b for cell in duel.cells if cell.verdict in ("SAME", "FASTER")),
    )


def told(cell: DuelCell) -> str:
    """A cell in words: ``flash-attn-3 decode b1.q1.k8192 (llama-3.1-8b.tp1, bf16, causal): +4.1 % [+3.2, +5.0]``."""
    model, phase, shape, dtype, mask, kernel = cell.name.split("/")
    ratio = cell.ratio
    change = f": {100 * ratio.change:+z.1f} % [{100 * ratio.low:+z.1f}, {100 * ratio.high:+z.1f}]" if ratio else ""
    return f"{kernel} {phase} {shape} ({model}, {dtype}, {mask}){change}"


def _change(cell: DuelCell) -> float:
    return cell.ratio.change if cell.ratio else 0.0


def _named(words: Iterable[str]) -> tuple[str, ...]:
    """The first ones, and how many more there are."""
    every = list(words)
    return tuple(every if len(every) <= NAMED else [*every[:NAMED], f"and {len(every) - NAMED} more cells"])
