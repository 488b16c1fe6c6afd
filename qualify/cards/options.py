"""The options of a kernel card against what its adapter declares, so that a typo ends the command and not a run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from qualify.cards.kernel import CALL, KernelCard
from qualify.cards.problems import Problem, meant, sentence, shown
from qualify.cards.source import Source
from qualify.facts.adapters import ENTRY_POINTS, Option, options_of

TYPES = {bool: "bool_type", int: "int_type", float: "float_type", str: "string_type"}
"""by type, pydantic's error for a value of another type; problems.py has its words"""


def option_problems(card: KernelCard, source: Source) -> list[Problem]:
    """Every option that the card's adapter does not have, and every value that it does not allow, with its place."""
    declared = None if card.adapter == CALL else _declared(card.adapter)
    if declared is None:
        return []
    known = {option.name: option for option in declared}
    problems: list[Problem] = []
    for name, value in card.options.items():
        where = ("options", name)
        if name not in known:
            problems.append((source.key_place(where), f"options.{name}: {_unknown(card.adapter, name, known)}"))
        elif not known[name].allows(value):
            problems.append((source.place(where), f"options.{name}: {_wrong(known[name], value)}"))
    return problems


def _declared(adapter: str) -> tuple[Option, ...] | None:
    """The options that a shipped adapter declares, or one of another distribution; None where nothing declares them.

    An adapter of another distribution is imported for this. Where its import fails, the worker reports the error later,
    as the outcome of the kernel's cases.
    """
    shipped = options_of(adapter)
    if shipped is not None:
        return shipped
    for entry in metadata.entry_points(group=ENTRY_POINTS, name=adapter):
        try:
            declared = getattr(entry.load(), "declared_options", None)
        except Exception:  # noqa: BLE001 - whatever a third party's module raises while it is imported
            return None
        if isinstance(declared, tuple) and all(isinstance(option, Option) for option in declared):
            return declared
    return None


def _unknown(adapter: str, name: str, known: Mapping[str, Option]) -> str:
    if not known:
        return f"unknown option; the adapter {adapter} has none"
    return f"unknown option of the adapter {adapter}{meant(name, known)}. Allowed here: {', '.join(known)}"


def _wrong(option: Option, value: object) -> str:
    """The rule that a value breaks."""
    if option.choices:
        words = [str(choice) for choice in option.choices]
        hint = (
            "; write it without quotes" if value in words and not option.is_typed(value) else meant(str(value), words)
        )
        return f"must be one of {', '.join(words)}, but is {shown(value)}{hint}"
    if not option.is_typed(value):
        return sentence(TYPES[type(option.default)], {}, "", value)
    return sentence("greater_than_equal", {"ge": option.at_least}, "", value)
