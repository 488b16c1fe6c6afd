"""What changed in the stack, as the run found it: the watcher saw an earlier moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qualify.canary.messages import Seen
from qualify.canary.upgrades import stack_of
from qualify.facts.canary import Fire
from qualify.facts.comparison import StackChange
from qualify.facts.differing import changes_words, shown, stack_changes
from qualify.facts.stack import Stack
from qualify.store.store import Store


def blamed(fire: Fire, seen: Seen, store: Store) -> Fire:
    """The fire, with the changes of the stack that its run ran on, and with the reason in words.

    The changes count from the baseline. Without a baseline they count from the canary's last run that passed on such a
    device. Without both, the components that the watcher named are shown with the versions that the run found. What no
    run can know, such as a file that the card watches, stays as the watcher saw it.
    """
    ran = stack_of(store, seen.run_id)
    if ran is None:
        return fire
    before = stack_of(store, seen.baseline) if seen.baseline else next(_passed(fire, seen, store), None)
    if before is None:
        changes = _as_run(fire.changes, ran)
    else:
        changes = (*stack_changes(before, ran), *_watched_only(fire.changes, before, ran))
    return replace(fire, changes=changes, reason=_reason(changes) if fire.trigger == "stack" else fire.reason)


def _passed(fire: Fire, seen: Seen, store: Store) -> Iterator[Stack]:
    """The stacks of the canary's earlier runs that passed on the device model, newest first."""
    for earlier in store.canaries.fires(fire.canary):
        if earlier.id != fire.id and earlier.verdict in ("PASS", "WAIVED") and earlier.variant == seen.variant:
            stack = stack_of(store, earlier.run_id)
            if stack:
                yield stack


def _watched_only(filed: tuple[StackChange, ...], *stacks: Stack) -> Iterator[StackChange]:
    """The changes of what neither run names: the watcher looks at more than a run does."""
    known = {key for stack in stacks for key in (*shown(stack), *(("environment", it) for it in stack.environment))}
    return (item for item in filed if item.kind != "device" and (item.kind, item.component) not in known)


def _as_run(filed: tuple[StackChange, ...], ran: Stack) -> tuple[StackChange, ...]:
    """The changes, each with the version that the run found; what a run cannot know stays as it was filed."""
    nothing = replace(ran, components=(), environment={})
    found = {(change.kind, change.component): change.after for change in stack_changes(nothing, ran)} | shown(ran)
    told_now = [replace(item, after=found.get((item.kind, item.component), item.after)) for item in filed]
    return tuple(item for item in told_now if item.before != item.after)


def _reason(changes: tuple[StackChange, ...]) -> str:
    if not changes:
        return "the stack changed, but was equal to the earlier one when the run began"
    return f"stack changed: {changes_words(changes)}"
