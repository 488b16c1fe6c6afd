"""The entries of third parties' cards: whether their modules are here, and where one stands that names nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

from qualify.cards.kernel import CALL
from qualify.cards.load import LoadedKernel
from qualify.cards.source import read
from qualify.errors import CardError, Place
from qualify.facts.outcome import Crashed
from qualify.facts.run import Record
from qualify.plan.sites import ThisSite


def with_entry(record: Record, kernels: Mapping[str, LoadedKernel]) -> Record:
    """The record, with the place of the card's ``entry`` where that names no module, or no function of it."""
    outcome, kernel = record.outcome, kernels.get(record.case.kernel)
    if not isinstance(outcome, Crashed) or kernel is None:
        return record
    return replace(record, outcome=replace(outcome, error=outcome.error + entry_words(outcome.error, kernel)))


def entry_words(error: str, kernel: LoadedKernel) -> str:
    """Where the card's ``entry`` stands, as the end of an error that says that the entry is wrong; else empty."""
    if not _names_nothing(error, kernel):
        return ""
    absent = f"No module named {_module_of(kernel)!r}" in error
    return f" (entry at {entry_place(kernel)}){_beside_card(kernel) if absent else ''}"


def entry_place(kernel: LoadedKernel) -> Place:
    """File, line and column of the card's ``entry``; the file alone where it cannot be read any more."""
    try:
        return read(kernel.path).place(("entry",))
    except CardError:
        return Place(path=str(kernel.path))


def _names_nothing(error: str, kernel: LoadedKernel) -> bool:
    """Whether an error says that the entry itself is wrong, and not what its module imports or does."""
    entry = kernel.card.entry or ""
    if kernel.card.adapter != CALL:
        return False
    parts = entry.partition(":")[0].split(".")
    modules = (".".join(parts[: count + 1]) for count in range(len(parts)))
    absent = [f"ModuleNotFoundError: No module named {module!r}" for module in modules]
    return any(words in error for words in (f"ImportError: {entry}", *absent))


def entry_refusals(kernel: LoadedKernel, folders: tuple[Path, ...]) -> list[str]:
    """Why a third party's function is not on this machine, as far as that is known without importing anything.

    Args:
        folders: the --cards folders.
    """
    card = kernel.card
    top = _module_of(kernel)
    if card.adapter != CALL or ThisSite().module(top, [str(folder.resolve()) for folder in folders]):
        return []
    place = f"({entry_place(kernel)}: entry: {card.entry})"
    return [f"no module {top} is installed, or lies in a --cards folder {place}{_beside_card(kernel)}"]


def _beside_card(kernel: LoadedKernel) -> str:
    """What to do, as the end of a sentence, where a module that is not found lies beside its card; else empty.

    Modules are looked for in the folders of --cards. A card may lie in a subfolder of one, and its module may not.
    """
    own = kernel.path.parent
    if PathFinder.find_spec(_module_of(kernel), [str(own.resolve())]) is None:
        return ""
    return f". It lies in {own}, where only cards are looked for: move it to {own.parent}"


def _module_of(kernel: LoadedKernel) -> str:
    """The outermost package or module of the entry."""
    return str(kernel.card.entry).partition(":")[0].partition(".")[0]
