"""A file of another kind than the expected one is named as that, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qualify import assets
from qualify.cards.access import AccessCard
from qualify.cards.canary import CanaryCard
from qualify.cards.kernel import KernelCard
from qualify.cards.matrix import MatrixCard
from qualify.cards.mistaken import KINDS
from qualify.cards.model import ModelCard
from qualify.cards.problems import validate
from qualify.cards.source import read
from qualify.cards.traffic import TrafficCard
from qualify.cards.waivers import WaiversCard, load_waivers
from qualify.cards.words import Card
from qualify.errors import CardError

CARDS: tuple[type[Card], ...] = (
    CanaryCard, MatrixCard, KernelCard, ModelCard, TrafficCard, WaiversCard, AccessCard,
)  # fmt: skip
TRAFFIC = "traffic: t\nsource: hand\nbuckets: []\n"


def files(tmp_path: Path) -> dict[type[Card], Path]:
    """A file of each kind: a shipped one, where one is shipped."""
    for name, text in (("waivers", "waivers: []\n"), ("access", "access: a\n"), ("traffic", TRAFFIC)):
        (tmp_path / f"{name}.yaml").write_text(text)
    own = [tmp_path / f"{name}.yaml" for name in ("traffic", "waivers", "access")]
    shipped = [assets.shipped("canaries") / "nightly.yaml", assets.shipped("matrices") / "smoke.yaml"]
    kernel = assets.shipped("kernels") / "tiled-torch.yaml"
    model = min((assets.shipped("matrices") / "models").glob("*.json"))
    return dict(zip(CARDS, (*shipped, kernel, model, *own), strict=True))


@pytest.mark.parametrize("expected", CARDS)
@pytest.mark.parametrize("given", CARDS)
def test_a_file_of_another_kind_has_one_message(tmp_path: Path, expected: type[Card], given: type[Card]) -> None:
    """With its place, what it is, and where it belongs; a file of the expected kind is read as before."""
    path = files(tmp_path)[given]
    words = {kind.marks[0]: kind.words for kind in KINDS}
    if expected is given:
        try:
            validate(read(path), expected)
        except CardError as error:
            assert ", and no " not in str(error)
        return
    with pytest.raises(CardError) as caught:
        validate(read(path), expected)
    (line,) = str(caught.value).splitlines()
    key, wanted = (words[next(iter(kind.model_fields))] for kind in (given, expected))
    assert line.startswith(f"{path}:")
    assert f": is {key}, and no {wanted.partition(' ')[2]}. " in line


def test_each_kind_is_known_by_keys_that_it_needs() -> None:
    """A mark that a card may leave out would tell nothing."""
    needed = {
        next(iter(card.model_fields)): {n for n, it in card.model_fields.items() if it.is_required()} for card in CARDS
    }
    assert set(needed) == {kind.marks[0] for kind in KINDS}
    assert [] == [kind.words for kind in KINDS if not set(kind.marks) <= needed[kind.marks[0]]]


@pytest.mark.parametrize("changes", [{"kernels": None}, {"matrix": None}, {"models": None}, {"dtypez": ["bf16"]}])
def test_a_wrong_matrix_with_waivers_is_still_a_matrix(write: Any, matrix: Any, changes: dict[str, Any]) -> None:
    """It lacks or has a key, and names a file of waivers: that makes it no file of waivers."""
    data = {**matrix({"waivers": "w.yaml"}), **changes}
    path = write({key: value for key, value in data.items() if value is not None})
    with pytest.raises(CardError) as caught:
        validate(read(path), MatrixCard)
    assert ", and no " not in str(caught.value)


def test_a_matrix_in_place_of_waivers_with_waivers_of_its_own(write: Any, matrix: Any) -> None:
    """The key waivers is there, and it is a matrix all the same."""
    with pytest.raises(CardError, match=r"card.yaml:\d+:\d+: is a matrix, and no file of waivers\. `qualify plan`"):
        load_waivers(write(matrix({"waivers": "w.yaml"})))
