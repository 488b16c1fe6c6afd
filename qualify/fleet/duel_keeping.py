"""What a duel has timed stays: in the store, or else in a file that any store imports. It may be an hour of a GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from qualify.errors import InfrastructureError, SigningFailed, StoreError
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


def keep_duel(store: Store, duel: Duel, key: SigningKey | None, patience: Patience, typed: Typed) -> None:
    """Seal and store a duel; where the store does not take it, write it to a file.

    Args:
        key: what seals it; None = it gets no seal.
        typed: says where the store is, for the command that adds the file to it.

    Raises:
        StoreError: it is not stored; the message says where its times are.
        KeyboardInterrupt: the same, because Ctrl-C came while the store was not ready.
        SigningFailed: it is stored, without a seal.
    """
    seal, unsealed = None, None
    try:
        try:
            seal = seal_duel(duel, key) if key else None
        except SigningFailed as error:
            unsealed = SigningFailed(f"{duel.id} is stored without a seal. {error}")
        patience.keep(lambda: store.add_duel(duel, seal))
    except StoreError as refused:
        told = f"evidence store {store.where}: {refused.happened}. {_in_a_file(duel, seal, typed)}"
        raise StoreError(told, refused.happened) from refused
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(_in_a_file(duel, seal, typed)) from interrupt
    if unsealed:
        raise unsealed


def _in_a_file(duel: Duel, seal: Seal | None, typed: Typed) -> str:
    """Write a duel to the working folder, or else where temporary files are; in words, what became of it."""
    beside, name = Attached(duels=(DuelArchive(duel=duel, seal=seal),)), f"{duel.id}.jsonl.gz"
    with undisturbed():
        for folder in _folders():
            with suppress(InfrastructureError):
                transfer.write(None, folder / name, beside)
                file = str((folder / name).absolute())
                add = f"Once the store can be written: {typed.command('db', 'import', file)}"
                return f"The duel is not stored, and need not run again: all its times are in {file}. {add}"
    return (
        "The duel is not stored, and no file can be written here or in the temporary folder. What is printed is all "
        "that is left of it; with --json that has all its times."
    )


def _folders() -> Iterator[Path]:
    """Where a file may go, the best place first."""
    yield Path()
    with suppress(FileNotFoundError):  # no folder takes temporary files
        temporary = Path(tempfile.gettempdir())
        yield temporary
