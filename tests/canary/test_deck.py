"""Cards of a running service: read again when they change, and the last good one kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import write_matrix

from qualify.canary.deck import Deck
from qualify.errors import CardError, UsageError

CARD = 'canary: {0}\nmatrix: smoke\ncron: "{1}"\n'


def write(folder: Path, name: str = "mine", cron: str = "0 3 * * *", text: str | None = None) -> Path:
    """A card in the folder."""
    path = folder / f"{name}.yaml"
    path.write_text(text if text is not None else CARD.format(name, cron))
    return path


@pytest.fixture
def deck(tmp_path: Path) -> Deck:
    """One own canary and the shipped ones."""
    write(tmp_path)
    return Deck((tmp_path,))


def test_nothing_changed(deck: Deck) -> None:
    """An untouched folder is not read again."""
    assert not deck.refresh()
    assert {"mine", "nightly", "stack-change"} == set(deck.cards)


def test_an_edit_is_read(deck: Deck, tmp_path: Path) -> None:
    """So are a new card and a removed one."""
    write(tmp_path, cron="0 5 * * *")
    write(tmp_path, "second")
    assert deck.refresh()
    assert ("0 5 * * *", "") == (deck.crons["mine"], deck.crons["stack-change"])
    (tmp_path / "second.yaml").unlink()
    assert deck.refresh()
    assert "second" not in deck.cards


def test_cards_of_other_services_are_known(tmp_path: Path) -> None:
    """A service of some canaries, and a fire by hand, know what the others hold; what is wrong there is not theirs."""
    write(tmp_path)
    write(tmp_path, "other")
    deck = Deck((tmp_path,), ("mine",))
    write(tmp_path, "third")
    write(tmp_path, "bad", text="canary: bad\n")
    deck.refresh()
    assert {"mine"} == set(deck.cards)
    assert {"mine", "other", "third"} <= set(deck.known)
    assert "" == deck.trouble


def test_whoever_reads_the_cards_meanwhile_finds_them_whole(deck: Deck, tmp_path: Path) -> None:
    """Threads that watch stacks and tell of alerts go through the cards while the loop reads them again."""
    cards, troubles = deck.cards, deck.troubles
    reading, told = iter(cards), iter(troubles)
    write(tmp_path, "second")
    write(tmp_path, "bad", text="canary: bad\n")
    (tmp_path / "mine.yaml").unlink()
    assert deck.refresh()
    assert {"mine", "nightly", "stack-change"} == set(reading) == set(cards)
    assert [] == list(told)
    assert {"second", "nightly", "stack-change"} == set(deck.cards)
    assert {"bad"} == set(deck.troubles)


def test_a_broken_card_keeps_the_last_good_one(deck: Deck, tmp_path: Path) -> None:
    """What is wrong is said with its place; a repaired card is read again; other cards are read meanwhile."""
    good = deck.cards["mine"]
    path = write(tmp_path, text='canary: mine\nmatrix: smoke\ncron: "0 25 * * *"\n')
    write(tmp_path, "second")
    assert deck.refresh()
    assert good == deck.cards["mine"]
    assert "second" in deck.cards
    assert f"{path}:3:7: cron: must have a value of hour from 0 to 23, not '25'" in deck.trouble
    assert "the last good one stays in force" in deck.trouble
    assert not deck.refresh()
    write(tmp_path, text="")
    assert deck.refresh()
    assert good == deck.cards["mine"]
    write(tmp_path, cron="0 6 * * *")
    assert deck.refresh()
    assert ("0 6 * * *", "") == (deck.crons["mine"], deck.trouble)


def test_a_new_card_that_is_broken_is_not_served(deck: Deck, tmp_path: Path) -> None:
    """It is named, and gone with its file."""
    path = write(tmp_path, "bad", text="canary: bad\n")
    assert deck.refresh()
    assert "bad" not in deck.cards
    assert "it is not served" in deck.trouble
    path.unlink()
    assert deck.refresh()
    assert "" == deck.trouble


def test_a_card_that_came_before_its_matrix_is_served_when_that_is_there(deck: Deck, tmp_path: Path) -> None:
    """A deployment writes one file after the other: nobody need touch the card again."""
    write(tmp_path, "early", text="canary: early\nmatrix: ./matrices/own.yaml\n")
    assert deck.refresh()
    assert "no such file" in deck.trouble
    assert not deck.refresh()
    (tmp_path / "matrices").mkdir()
    write_matrix(tmp_path / "matrices" / "own.yaml", "tiled-torch")
    assert deck.refresh()
    assert ("", True) == (deck.trouble, "early" in deck.cards)
    assert not deck.refresh()


def test_two_cards_of_one_name_change_nothing(deck: Deck, tmp_path: Path) -> None:
    """The cards stay as they were until the conflict is gone."""
    before = dict(deck.cards)
    path = write(tmp_path, "nightly")
    assert deck.refresh()
    assert before == deck.cards
    assert "exists already" in deck.trouble
    path.unlink()
    assert deck.refresh()
    assert "" == deck.trouble


def test_a_folder_that_is_away_changes_nothing(deck: Deck, tmp_path: Path) -> None:
    """A mount that is missing for a while: the service goes on with the cards that it has, and says so."""
    before, aside = dict(deck.cards), tmp_path.with_name("aside")
    tmp_path.rename(aside)
    assert deck.refresh()
    assert before == deck.cards
    assert f"--cards {tmp_path}: no such folder" in deck.trouble
    assert deck.trouble.endswith("the last good cards stay in force, and fires wait for the folder")
    assert tmp_path == deck.away
    assert not deck.refresh()
    aside.rename(tmp_path)
    assert deck.refresh()
    assert (before, "", None) == (deck.cards, deck.trouble, deck.away)


def test_a_folder_whose_disk_is_not_mounted_changes_nothing(tmp_path: Path) -> None:
    """The empty folder of a mount point is no order to forget canaries, with their times; one without cards is fine."""
    folder, empty = tmp_path / "cards", tmp_path / "empty"
    for place in (folder, empty):
        place.mkdir()
    write(folder)
    deck = Deck((folder, empty))
    before = dict(deck.cards)
    (folder / "mine.yaml").rename(tmp_path / "mine.yaml")
    assert deck.refresh()
    assert before == deck.cards
    assert f"--cards {folder}: the folder is empty; its disk is probably not mounted" in deck.trouble
    assert folder == deck.away
    (tmp_path / "mine.yaml").rename(folder / "mine.yaml")
    assert deck.refresh()
    assert (before, "", None) == (deck.cards, deck.trouble, deck.away)


def test_an_edit_beside_a_conflict_is_read_after_it(deck: Deck, tmp_path: Path) -> None:
    """Nothing is read while two cards have one name, and nothing is forgotten."""
    conflict = write(tmp_path, "nightly")
    write(tmp_path, cron="0 5 * * *")
    assert deck.refresh()
    assert "0 3 * * *" == deck.crons["mine"]
    conflict.unlink()
    assert deck.refresh()
    assert ("0 5 * * *", "") == (deck.crons["mine"], deck.trouble)


def test_at_the_start_everything_must_be_right(tmp_path: Path) -> None:
    """A service does not begin on a card that it cannot read, nor with a name that no canary has."""
    write(tmp_path, text="canary: mine\n")
    with pytest.raises(CardError, match=r"mine\.yaml"):
        Deck((tmp_path,))
    write(tmp_path)
    assert {"mine"} == set(Deck((tmp_path,), ("m*",)).cards)
    with pytest.raises(
        UsageError,
        match=r"'mime'; perhaps you meant mine.* name its folder: --cards DIR;",
    ):
        Deck((tmp_path,), ("mime",))
