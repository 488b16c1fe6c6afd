"""An SQLite file that the first write makes, so that a command that fails earlier leaves no empty store behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection

from qualify.files import exists, is_folder
from qualify.store.address import DEFAULT_PATH, MEMORY, check_place
from qualify.store.changes import Changes
from qualify.store.database import Database
from qualify.store.schema import begin_new, prepare


class LateDatabase(Database):
    """A store that reads as an empty one until somebody, here or in another process, writes into it."""

    def __init__(self, url: URL, *, busy_timeout_s: float) -> None:
        super().__init__(url, busy_timeout_s=busy_timeout_s)
        self._path = Path(str(url.database))
        self._nothing = Database(URL.create("sqlite", database=MEMORY), busy_timeout_s=busy_timeout_s)
        self.changes = Changes(self.engine, guest=True)  # no mark: a look would make the file
        self._made = False

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the store; before its first write an empty one."""
        if self._made or exists(self._path):
            self._make()
            with super().reading() as connection:
                yield connection
            return
        with self._nothing.writing() as connection:
            begin_new(connection)
            yield connection

    @contextmanager
    def writing(self, *, in_file: bool = False) -> Iterator[Connection]:
        """A transaction that commits at its end, or leaves nothing behind but an empty store."""
        self._make()
        with super().writing(in_file=in_file) as connection:
            yield connection

    def close(self) -> None:
        """Closes every connection."""
        self._nothing.close()
        super().close()

    def _make(self) -> None:
        """Makes the store. Where another process has made it meanwhile, brings it to this program's schema."""
        if self._made:
            return
        check_place(self.url, create=True)
        database = Database(self.url, busy_timeout_s=self.busy_timeout_s)
        try:
            prepare(database, create=True, migrate=True)
        finally:
            database.close()
        self._made = True


def can_wait(url: URL) -> bool:
    """Whether the address means an SQLite file that is not there yet, and that this user can make."""
    path = Path(str(url.database))
    parent = path.parent
    if path == DEFAULT_PATH and not exists(parent):
        parent = Path()
    return (
        url.get_backend_name() == "sqlite"
        and not os.path.lexists(path)
        and is_folder(parent)
        and os.access(parent, os.W_OK | os.X_OK, effective_ids=True)
    )
