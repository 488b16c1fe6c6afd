"""Sides of a duel that are stacks of stored runs: which interpreter on this machine still has that stack."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

from qualify.errors import UsageError
from qualify.facts.stack import Stack
from qualify.fleet.sides import HERE_WORD, DuelAsked
from qualify.plan.interpreter import environment_change
from qualify.store.store import Store

FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")
SHOWN = 12
"""digits of a fingerprint that a message and a label show"""


def is_fingerprint(word: str) -> bool:
    """Whether a word is the beginning of a stack's fingerprint."""
    return FINGERPRINT.fullmatch(word) is not None


def at_stored_stacks(asked: DuelAsked, store: Store) -> DuelAsked:
    """The duel with an interpreter in place of each fingerprint.

    Raises:
        UsageError: no stored run has such a stack, or no interpreter on this machine has it any more.
    """
    environments = dict(asked.environments)
    words, labels = [], []
    for word in (asked.a, asked.b):
        if not is_fingerprint(word):
            words.append(word)
            labels.append(word)
            continue
        name = _interpreter_of(word, store, environments)
        words.append(name)
        labels.append(f"stack {word[:SHOWN]} ({name})")
    a, b = words
    return replace(asked, a=a, b=b, label_a=labels[0], label_b=labels[1], environments=environments)


def _interpreter_of(word: str, store: Store, environments: dict[str, str]) -> str:
    """The name of an interpreter that still has the stack; one from a stored run is added to the environments."""
    found = list(_stored(word, store))
    if not found:
        raise UsageError(f"no stored run in {store.where} has a stack whose fingerprint begins with {word}")
    if len({stack.fingerprint for _, stack in found}) > 1:
        raise UsageError(f"several stacks begin with {word}: type more of the fingerprint")
    stack = found[0][1]
    stored = {f"stack-{word[:8]}": python for python, _ in found if python}
    candidates: Mapping[str, str] = {HERE_WORD: sys.executable, **environments, **stored}
    changes = []
    for name, python in candidates.items():
        try:
            change = environment_change(stack, name, python)
        except UsageError as error:
            changes.append(str(error))
            continue
        if not change:
            if name != HERE_WORD:
                environments[name] = python
            return name
        changes.append(change)
    raise UsageError(
        f"the stack {word[:SHOWN]} is not installed here any more: {'; '.join(changes)}. Name an interpreter that has "
        "it: --environment NAME=PYTHON"
    )


def _stored(word: str, store: Store) -> Iterator[tuple[str, Stack]]:
    """The interpreters (empty = the default one) and stacks of stored runs with that fingerprint."""
    for run in store.runs(limit=None):
        if run.stack is not None and run.stack.fingerprint.startswith(word):
            yield "", run.stack
        for one in run.environments.values():
            if one.stack is not None and one.stack.fingerprint.startswith(word):
                yield one.python, one.stack
