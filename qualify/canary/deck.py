"""The canary cards of a running service: read again when a file changes, the last good one kept when that fails."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from qualify import assets
from qualify.cards.load import LoadedCanary, load_canaries, load_canary
from qualify.cards.named import canary_paths, matrix_names, unknown_canary
from qualify.errors import CardError, UsageError
from qualify.files import is_folder

Signature = dict[str, tuple[int, int, int]]
EVERYTHING = "*"
"""in place of a name: what keeps every card from being read"""


class Deck:
    """The cards that the service was told to serve.

    A wrong card is a CardError when the deck is made. Later its last good version stays in force.
    """

    def __init__(self, extra: tuple[Path, ...], chosen: tuple[str, ...] = ()) -> None:
        self.extra = extra
        self.chosen = chosen
        self._signature = self._sign()
        self.known: dict[str, LoadedCanary] = load_canaries(extra)
        """also the cards that it does not serve: what they hold speaks against a node, too"""
        self.cards = self._served()
        self.troubles: dict[str, str] = {}
        """by name, what is wrong with a card whose last good version is kept"""
        if chosen and not self.cards:
            raise unknown_canary(chosen[0], self.known)

    @property
    def trouble(self) -> str:
        """Everything that is wrong, on one line; empty where nothing is."""
        return " | ".join(self.troubles.values())

    @property
    def away(self) -> Path | None:
        """A folder with cards that is not there now: its matrices and kernels cannot be read."""
        return next((folder for folder in self.extra if not is_folder(folder)), self._emptied())

    @property
    def crons(self) -> Mapping[str, str]:
        """The times of each canary; empty text for one without."""
        return {name: loaded.card.cron or "" for name, loaded in self.cards.items()}

    def refresh(self) -> bool:
        """Read the changed cards. Returns whether any card differs from before, or what is wrong with one.

        Other threads read the cards meanwhile: they find all as before, or all as they are now.
        """
        before = self.cards, self.troubles
        try:
            if (folder := self._emptied()) is not None:
                raise UsageError(f"--cards {folder}: the folder is empty; its disk is probably not mounted")
            signature = self._sign()
            if signature == self._signature and not self.troubles:
                return False
            self.known, self.troubles = self._read_again(signature)
            self._signature = signature
        except (CardError, UsageError, OSError) as error:  # two cards of one name, or a folder that is away
            waits = ", and fires wait for the folder" if self.away else ""
            told = f"{_one_line(error)}; the last good cards stay in force{waits}"
            self.troubles = {**self.troubles, EVERYTHING: told}
        self.cards = self._served()
        return before != (self.cards, self.troubles)

    def _emptied(self) -> Path | None:
        """A folder that had canaries and holds nothing at all now, as a mount point whose disk is not mounted."""
        empty = (root for root in self.extra if is_folder(root) and is_away(root))
        return next((it for it in empty if any(card.path.is_relative_to(it) for card in self.known.values())), None)

    def _read_again(self, signature: Signature) -> tuple[dict[str, LoadedCanary], dict[str, str]]:
        """The cards and what is wrong with them, with the changed files read again.

        So are those with which something was wrong: it may have been another file, like a matrix that was not there.
        """
        changed = {path for path in {*signature, *self._signature} if signature.get(path) != self._signature.get(path)}
        paths = dict(canary_paths(self.extra))
        matrices = matrix_names(self.extra)
        # A file that was emptied is a broken card; one that is gone was removed.
        paths |= {name: loaded.path for name, loaded in self.known.items() if loaded.path.is_file()}
        cards = {name: loaded for name, loaded in self.known.items() if name in paths}
        troubles = {name: text for name, text in self.troubles.items() if name in paths}
        for name, path in paths.items():
            if str(path) not in changed and name in cards and name not in troubles:
                continue
            try:
                cards[name] = load_canary(path, matrices)
                troubles.pop(name, None)
            except CardError as error:
                kept = "; the last good one stays in force" if name in cards else "; it is not served"
                if self._serves(name):
                    troubles[name] = f"{_one_line(error)}{kept}"
        return cards, troubles

    def _served(self) -> dict[str, LoadedCanary]:
        return {name: loaded for name, loaded in self.known.items() if self._serves(name)}

    def _serves(self, name: str) -> bool:
        return not self.chosen or any(fnmatchcase(name, glob) for glob in self.chosen)

    def _sign(self) -> Signature:
        """Identity, time of change and size of every file that may be a card."""
        found: Signature = {}
        for folder in (assets.shipped("canaries"), *assets.extra("canaries", self.extra)):
            for path in folder.glob("*.yaml"):
                try:
                    state = path.stat()
                except OSError:  # it went away in between
                    continue
                found[str(path)] = (state.st_ino, state.st_mtime_ns, state.st_size)
        return found


def is_away(folder: Path) -> bool:
    """Whether a folder is not there, cannot be read, or holds nothing at all."""
    try:
        return not any(folder.iterdir())
    except OSError:
        return True


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
