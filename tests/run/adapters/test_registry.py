"""An entry is looked at when it is loaded: whether it can be called with one AttentionCall and the card's options."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_card

from qualify.facts.adapters import ENTRY_POINTS
from qualify.run.adapters.registry import EntryAdapter, as_pair, create_adapter

KERNELS = """\
import functools


def plain(call): ...
def with_tile(call, *, tile=64): ...
def anything(*given, **named): ...
def tensors(q, k, v): ...
def nothing(): ...
def by_name(*, call): ...


class Callable:
    def __call__(self, call): ...


def adapted(function):
    @functools.wraps(function)
    def takes_the_call(call):
        return function(call.q, call.k, call.v)

    return takes_the_call


wrapped = adapted(tensors)
instance = Callable()
builtin = id
untold = dict.fromkeys
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EntryAdapter]:
    """Loads a function of the module above, with a card's options."""
    (tmp_path / "entries_of_all_kinds.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name, **options: EntryAdapter(f"entries_of_all_kinds:{name}", options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain", {}),
        ("with_tile", {"tile": 32}),
        ("anything", {"tile": 32}),
        ("wrapped", {}),
        ("instance", {}),
        ("builtin", {}),
        ("untold", {}),
    ],
)
def test_what_takes_one_call_is_loaded(load: Callable[..., EntryAdapter], name: str, options: dict[str, Any]) -> None:
    """A wrapper counts with its own parameters; what tells no parameters is not judged."""
    assert functools.partial is type(load(name, **options).bind)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("tensors", {}, "one AttentionCall: missing a required argument: 'k'"),
        ("nothing", {}, "one AttentionCall: too many positional arguments"),
        ("by_name", {}, "one AttentionCall: too many positional arguments"),
        ("plain", {"tile": 32}, "one AttentionCall and the options tile: got an unexpected keyword argument 'tile'"),
    ],
)
def test_other_parameters_are_told_when_it_is_loaded(
    load: Callable[..., EntryAdapter], name: str, options: dict[str, Any], says: str
) -> None:
    """The message begins with the entry, so a run adds the place of it on the card."""
    with pytest.raises(ImportError) as caught:
        load(name, **options)
    assert f"entries_of_all_kinds:{name} cannot be called with {says}" == str(caught.value)


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_pair_may_be_a_tuple_or_a_list(kind: type[tuple[Any, ...] | list[Any]]) -> None:
    """Both hold out and LSE; a list is no single result without an LSE."""
    out, lse = torch.zeros(3, 2, 8), torch.zeros(2, 3)
    returned = as_pair(kind((out, lse)))
    assert (out, lse) == (returned[0], returned[1])
    assert isinstance(returned, tuple)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("Acme()", "is Acme, and must be a class or a function, called with a card's options"),
        ("Acme", "returned Acme, which has no prepare(call), as an adapter has"),
        ("print", "returned NoneType, which has no prepare(call), as an adapter has"),
    ],
)
def test_what_another_distribution_offers_is_told_where_it_makes_no_adapter(
    made: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the entry point: the author of the adapter wrote it there."""
    (tmp_path / "acme-1.0.dist-info").mkdir()
    (tmp_path / "acme-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    offered = f"[{ENTRY_POINTS}]\nacme = acme_offers:made\n"
    (tmp_path / "acme-1.0.dist-info" / "entry_points.txt").write_text(offered)
    text = f"class Acme:\n    def __init__(self, *options): ...\n\n\nmade = {made}\n"
    (tmp_path / "acme_offers.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_offers", raising=False)
    with pytest.raises(ImportError) as caught:
        create_adapter(make_card(adapter="acme", entry=..., shipped_by=["acme"]))
    assert f"the entry point acme = acme_offers:made of {ENTRY_POINTS} {told}" == str(caught.value)
