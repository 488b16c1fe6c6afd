"""Creates the adapter that a card names: a built-in one, one of another distribution, or a third party's function."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from qualify.facts.adapters import ADAPTERS, ENTRY_POINTS, options_of
from qualify.run.adapters.interface import Adapter, AttentionCall, Prepared


class EntryAdapter:
    """Calls a third party's function with the canonical layout, unconverted (``adapter: call``)."""

    def __init__(self, entry: str, options: dict[str, Any]) -> None:
        _refuse_other_parameters(entry, options)
        self.bind = partial(bind_entry, entry=entry, folder=_folder(entry), options=options)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the function to the call; there is nothing to convert."""
        return self.bind(call)


def bind_entry(call: AttentionCall, *, entry: str, folder: str, options: dict[str, Any]) -> Prepared:
    """Bind a third party's function to a call and its options.

    Args:
        entry: ``package.module:function``.
        folder: folder that contains the package, appended to ``sys.path``; empty if the module has no file.
        options: keyword arguments of the function.

    Raises:
        ImportError: the module cannot be imported, or has no such function.
    """
    if folder and folder not in sys.path:
        sys.path.append(folder)
    return Prepared(launch=partial(load_entry(entry), call, **options), result=as_pair)


def _refuse_other_parameters(entry: str, options: dict[str, Any]) -> None:
    """Refuse a function that cannot be called as its kernel is. A wrapper counts with its own parameters.

    Raises:
        ImportError: it cannot, or cannot be loaded.
    """
    try:
        parameters = inspect.signature(load_entry(entry), follow_wrapped=False)
    except (TypeError, ValueError):
        return  # a function in C may not say what it takes
    try:
        parameters.bind(None, **options)
    except TypeError as error:
        given = f" and the options {', '.join(options)}" if options else ""
        raise ImportError(f"{entry} cannot be called with one AttentionCall{given}: {error}") from None


def as_pair(native: Any) -> Any:
    """(out, lse) of a function that returns (out, lse) or only out; then lse is None."""
    return tuple(native) if isinstance(native, tuple | list) else (native, None)


def _folder(entry: str) -> str:
    """The folder that contains the package of an imported entry; empty if its module has no file."""
    module_name = entry.partition(":")[0]
    text = getattr(sys.modules[module_name], "__file__", None)
    if text is None:
        return ""
    file = Path(text).resolve()
    return str(file.parents[module_name.count(".") + (file.stem == "__init__")])


class Loadable(Protocol):
    """The fields of a kernel card that say how to load the kernel."""

    @property
    def adapter(self) -> str:
        """Name of an adapter, or ``call`` for a third party's function."""
        ...

    @property
    def entry(self) -> str | None:
        """``package.module:function`` if the adapter is ``call``, else None."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Settings of the adapter, or keyword arguments of the third party's function."""
        ...


def create_adapter(card: Loadable) -> Adapter:
    """The adapter that a card names, with the card's options bound.

    Raises:
        ImportError: there is no adapter of that name, or the library or the third party's entry cannot be imported. The
            message names it.
        ValueError: the adapter does not have an option of the card, or does not allow its value.
    """
    options = dict(card.options)
    if card.adapter == "call":
        return EntryAdapter(str(card.entry), options)
    if options_of(card.adapter) is not None:
        module = importlib.import_module(f"qualify.run.adapters.{card.adapter}")
        adapter: Adapter = module.create(options)
        return adapter
    for entry in metadata.entry_points(group=ENTRY_POINTS, name=card.adapter):
        return _offered(entry, options)
    shipped = ", ".join(known.name for known in ADAPTERS)
    raise ImportError(
        f"no adapter named {card.adapter!r}: built in are {shipped}; other distributions offer theirs in the "
        f"entry-point group {ENTRY_POINTS}"
    )


def _offered(entry: metadata.EntryPoint, options: dict[str, Any]) -> Adapter:
    """The adapter of another distribution."""
    factory = entry.load()
    named = f"the entry point {entry.name} = {entry.value} of {ENTRY_POINTS}"
    if not callable(factory):
        kind = type(factory).__name__
        raise ImportError(f"{named} is {kind}, and must be a class or a function, called with a card's options")
    adapter: Adapter = factory(options)
    if not callable(getattr(adapter, "prepare", None)):
        raise ImportError(f"{named} returned {type(adapter).__name__}, which has no prepare(call), as an adapter has")
    return adapter


def load_entry(entry: str) -> Any:
    """The function behind ``package.module:function``.

    Raises:
        ImportError: the module cannot be imported, or has no such name, or the name is not a function.
    """
    module_name, _, path = entry.partition(":")
    target: Any = importlib.import_module(module_name)
    for name in path.split("."):
        if not hasattr(target, name):
            raise ImportError(f"{entry}: module {module_name} has no {path}")
        target = getattr(target, name)
    if not callable(target):
        raise ImportError(f"{entry} is {type(target).__name__}, not a function")
    return target
