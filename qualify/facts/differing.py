"""What differs between two stacks, in values and in words: never two hashes side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qualify.facts.comparison import StackChange
from qualify.facts.stack import KNOWN_TO_BOTH, Component, ComponentKind, Stack

NAMED = 6
"""differences that a sentence names"""
ABSENT = "absent"
UNSET = "unset"
WEIGHTIEST = (
    *("device", "driver", "runtime", "environment", "distribution", "code"),
    *("firmware", "setting", "system", "binary"),
)
"""kinds of components; a sentence names the first of these first"""


def stack_changes(before: Stack | None, after: Stack | None) -> Iterator[StackChange]:
    """Device, components and dispatch environment that differ; nothing where a stack is unknown."""
    if before is None or after is None:
        return
    for name, one, other in (
        ("device", before.device.name, after.device.name),
        ("compute capability", before.device.compute_capability, after.device.compute_capability),
        ("units", str(before.device.units), str(after.device.units)),
        ("memory bytes", str(before.device.memory_bytes), str(after.device.memory_bytes)),
        ("cache bytes", str(before.device.cache_bytes), str(after.device.cache_bytes)),
    ):
        if one != other:
            yield StackChange(component=name, kind="device", before=one or None, after=other or None)
    old, new = shown(before), shown(after)
    for key in dict.fromkeys((*old, *new)):
        looked_at = key[0] not in KNOWN_TO_BOTH or (key in old and key in new)
        if looked_at and old.get(key) != new.get(key):
            yield StackChange(component=key[1], kind=key[0], before=old.get(key), after=new.get(key))
    for name in sorted({*before.environment, *after.environment}):
        one_value, other_value = before.environment.get(name), after.environment.get(name)
        if one_value != other_value:
            yield StackChange(component=name, kind="environment", before=one_value, after=other_value)


def stack_words(before: Stack | None, after: Stack | None) -> str:
    """What differs in one sentence: package, driver, device or variable, with its value then and now."""
    if before is None or after is None:
        return "one of the stacks is unknown"
    return changes_words(tuple(stack_changes(before, after)))


def changes_words(changes: Sequence[StackChange], named: int = NAMED) -> str:
    """The sentence for given changes; files that a process maps count only where nothing else differs."""
    files = [change for change in changes if change.kind == "binary"]
    replaced = [change for change in files if change.before and change.after]
    told = [change for change in changes if change.kind != "binary"] or replaced or files
    told.sort(key=lambda change: WEIGHTIEST.index(change.kind))
    more = f", and {len(told) - named} more" if len(told) > named else ""
    return ", ".join(map(change_words, told[:named])) + more if told else "nothing that is compared"


def change_words(change: StackChange) -> str:
    """One difference, for example ``torch 2.11.0 → 2.13.0``; the digests only where the versions are the same."""
    missing = UNSET if change.kind == "environment" else ABSENT
    before, after = (side or missing for side in (change.before, change.after))
    if before.partition(" ")[0] != after.partition(" ")[0]:
        before, after = before.partition(" sha256:")[0], after.partition(" sha256:")[0]
    return f"{change.component} {before} → {after}"


def shown(stack: Stack) -> dict[tuple[ComponentKind, str], str]:
    """Version and digest by kind and name; files of one name in several places are one entry."""
    found: dict[tuple[ComponentKind, str], list[str]] = {}
    for part in stack.components:
        found.setdefault((part.kind, part.name), []).append(_identity(part))
    return {key: ", ".join(sorted(texts)) for key, texts in found.items()}


def _identity(part: Component) -> str:
    digest = f"sha256:{part.digest[:12]}" if part.digest else ""
    return " ".join(filter(None, (part.version, digest))) or "present"
