"""Reading an SQLite file that its reader may not write: another user's, or one on a read-only mount.

SQLite writes even to read: it makes an index of the write-ahead log beside the file. A user who may not write there
reads in one of two ways. A file with an empty log is read as one that nobody changes (``immutable``). A file with a log
is read through the index that its writer made.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from qualify.facts.typed import Typed
from qualify.files import is_file
from qualify.store.failures import store_error

Mark = tuple[int, int, int]
"""size in bytes, time of the last change in ns, and inode: they change when the content does"""


def is_guest(path: Path) -> bool:
    """Whether this user may read the file, but may not write the file or its folder."""
    return is_file(path) and not (writable(path) and writable(path.parent))


def connect(path: Path) -> sqlite3.Connection:
    """A connection that writes nothing, not even beside the file. Raises StoreError where its log cannot be read."""
    mode = "mode=ro"
    if not _has_log(path):
        mode = "immutable=1"
    elif not companion(path, "-shm").exists():
        command = Typed(db=str(path)).command("db", "upgrade")
        advice = f"Ask who may write there to open it once, for example with: {command}"
        happened = "its last changes are in a write-ahead log, which you can read only with write permission"
        raise store_error(str(path), happened, advice)
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?{mode}", uri=True, check_same_thread=False)


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Raises StoreError where somebody wrote the file meanwhile, because SQLite does not notice it in this mode."""
    before = None if _has_log(path) else _mark(path)
    yield
    if before is not None and before != _mark(path):
        raise store_error(str(path), "it was written while it was read", "Somebody uses it: run the command again.")


def writable(path: Path) -> bool:
    """Whether this user may write the file, or into the folder."""
    return os.access(path, os.W_OK, effective_ids=True)


def _has_log(path: Path) -> bool:
    log = companion(path, "-wal")
    return log.exists() and log.stat().st_size > 0


def companion(path: Path, ending: str) -> Path:
    """A file that SQLite keeps beside a database: its log (``-wal``), or the index of that (``-shm``)."""
    return path.with_name(path.name + ending)


def _mark(path: Path) -> Mark:
    seen = path.stat()
    return seen.st_size, seen.st_mtime_ns, seen.st_ino
