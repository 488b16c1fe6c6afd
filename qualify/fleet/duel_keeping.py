"""What a duel has timed stays: in the store, or else in a file that any store imports. It may be an hour of a GPU.

The file is there before the store is asked, and goes once that has the duel: a store that hangs may hold a process up
until somebody kills it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from qualify.errors import InfrastructureError, LeaseLost, SigningFailed, StoreError
from qualify.facts.duel import Duel
from qualify.facts.seal import Seal
from qualify.facts.typed import Typed
from qualify.fleet.local import undisturbed
from qualify.fleet.patience import Patience
from qualify.seal.duel_form import seal_duel
from qualify.seal.keys import SigningKey
from qualify.store import transfer
from qualify.store.archive import Attached, DuelArchive
from qualify.store.store import Store


def keep_duel(
    store: Store,
    duel: Duel,
    key: SigningKey | None,
    patience: Patience,
    typed: Typed,
    *,
    add: Callable[[Seal | None], object] | None = None,
    folder: Path = Path(),
) -> None:
    """Seal and store a duel; where the store does not take it, write it to a file.

    Args:
        key: what seals it; None = it gets no seal.
        typed: says where the store is, for the command that adds the file to it.
        add: adds it to the store with its seal; None = as a duel that somebody asked for.
        folder: the best place for the file; another one is the folder for temporary files.

    Raises:
        StoreError: it is not stored; the message says where its times are.
        KeyboardInterrupt: the same, because Ctrl-C came while the store was not ready.
        LeaseLost: ``add`` raised it; the duel is nowhere.
        SigningFailed: it is stored, without a seal.
    """
    seal, unsealed, file = None, None, DuelFile(duel, folder)
    try:
        try:
            seal = seal_duel(duel, key) if key else None
        except SigningFailed as error:
            unsealed = SigningFailed(f"{duel.id} is stored without a seal. {error}")
        file.write(seal)
        patience.keep(lambda: add(seal) if add else store.add_duel(duel, seal))
    except LeaseLost:
        file.remove()
        raise
    except StoreError as refused:
        told = f"evidence store {store.where}: {refused.happened}. {file.told(seal, typed)}"
        raise StoreError(told, refused.happened) from refused
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(file.told(seal, typed)) from interrupt
    file.remove()
    if unsealed:
        raise unsealed


def file_name(duel_id: str) -> str:
    """How the file is called in which a duel waits for its store."""
    return f"{duel_id}.jsonl.gz"


class DuelFile:
    """The file of a duel, until a store has it."""

    def __init__(self, duel: Duel, folder: Path) -> None:
        """It is not there yet."""
        self._duel, self._folder = duel, folder
        self._path: Path | None = None

    def write(self, seal: Seal | None) -> Path | None:
        """Write it where it can be written, once; None where it cannot."""
        beside = Attached(duels=(DuelArchive(duel=self._duel, seal=seal),))
        with undisturbed():
            for folder in () if self._path else self._folders():
                path = folder / file_name(self._duel.id)
                with suppress(InfrastructureError):
                    transfer.write(None, path, beside)
                    self._path = path.absolute()
                    break
        return self._path

    def remove(self) -> None:
        """The duel is stored, or somebody else fights it: the file has gone."""
        if self._path:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def told(self, seal: Seal | None, typed: Typed) -> str:
        """Where all times of the duel are, in words."""
        if not (path := self.write(seal)):
            return (
                "The duel is not stored, and no file can be written here or in the temporary folder. What is printed "
                "is all that is left of it; with --json that has all its times."
            )
        add = f"Once the store can be written: {typed.command('db', 'import', str(path))}"
        return f"The duel is not stored, and need not run again: all its times are in {path}. {add}"

    def _folders(self) -> Iterator[Path]:
        """Where it may be, the best place first."""
        yield self._folder
        with suppress(FileNotFoundError):  # no folder takes temporary files
            temporary = Path(tempfile.gettempdir())
            yield temporary
