"""Where a database is: its address as users give it, and what of that may be shown."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from qualify.errors import QualifyError, StoreError, UsageError
from qualify.files import exists, is_folder, kind_of, open_regular
from qualify.store.failures import store_error
from qualify.store.guest import companion, writable
from qualify.text import CREDENTIALS, SECRET_PARAMETER

DEFAULT_PATH = Path(".qualify/evidence.db")
MEMORY = ":memory:"
"""what SQLite calls a database without a file, which ends with its connection"""
PASSWORD_FILE = "QUALIFY_DB_PASSWORD_FILE"  # noqa: S105 - the name of a variable
LONGEST_PASSWORD = 1 << 16
"""bytes of a password's file"""
ADDRESSES = "Use a path, sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME."

_MISTYPED = re.compile(
    r"(postgres|psql|mysql|mariadb|oracle|mssql|sqlite)[\w+]*:|(^|[/\\])[^/?#:@\\]*:[^@]*@|\bpass\w*\s*=", re.IGNORECASE
)
"""matches a mistyped address of a server: one slash, no slash, no colon, or libpq's words"""
_SECONDS = re.compile(r"\d{1,9}(\.\d*)?", re.ASCII)
_FIRST_WORD = re.compile(r"[\w+]*")


def parse(address: str) -> URL:
    """The URL of an address: a SQLAlchemy URL, or a plain path of an SQLite file.

    A server's URL without a password gets the one of the file that QUALIFY_DB_PASSWORD_FILE names.
    """
    if address == MEMORY:
        raise _in_memory(address)
    if "://" not in address:
        if _MISTYPED.search(address):  # as a path it would become the name of a file, with the password in it
            raise store_error(_withheld(address), "neither a path nor a database URL", ADDRESSES)
        return URL.create("sqlite", database=address)
    try:
        url = make_url(address)
    except (ArgumentError, ValueError) as error:
        raise store_error(_withheld(address), "not a database URL", ADDRESSES) from error
    if url.get_backend_name() == "sqlite":
        _check_sqlite(url, address)
    file = os.environ.get(PASSWORD_FILE)
    if file and url.get_backend_name() != "sqlite" and url.password is None:
        return url.set(password=_password(Path(file), shown(url)))
    return url


def files_of(address: str) -> set[str]:
    """The real paths of an SQLite file and of those that SQLite keeps beside it; none for a server.

    None either for an address that is refused: whoever opens it says why.
    """
    try:
        url = parse(address)
    except QualifyError:
        return set()
    if url.get_backend_name() != "sqlite":
        return set()
    return {os.path.realpath(str(url.database)) + beside for beside in ("", "-wal", "-shm", "-journal")}


def _check_sqlite(url: URL, address: str) -> None:
    """Refuses a URL of SQLite that names a server or no file, and parameters that qualify does not take."""
    if url.host or url.username or _MISTYPED.search(str(url.database)):
        raise store_error(
            _withheld(address), "an SQLite file has no user and no server", "Give a file: sqlite:///PATH."
        )
    if url.database in (None, "", MEMORY):
        raise _in_memory(address)
    for name, value in url.query.items():
        if name != "timeout" or not _SECONDS.fullmatch(str(value)):
            raise UsageError(
                f"evidence store {url.database}: the parameter {name}={value} is none that qualify takes. Leave it "
                f"out: --db {url.database}"
            )


def _in_memory(address: str) -> StoreError:
    return store_error(address, "an in-memory database keeps no evidence", "Give a file: sqlite:///PATH.")


def _password(path: Path, where: str) -> str:
    """The password: the first line of the file. Raises StoreError where the file cannot be read, or is empty."""
    try:
        with open_regular(path) as file:
            lines = file.read(LONGEST_PASSWORD).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        advice = "It must be readable to this user, and hold the password on its first line."
        raise store_error(where, f"{PASSWORD_FILE}={path} cannot be read ({reason})", advice) from error
    if not lines or not lines[0]:
        raise store_error(where, f"{PASSWORD_FILE}={path} is empty", "Write the password on its first line.")
    return lines[0]


def shown(url: URL) -> str:
    """The place as messages name it: the path of an SQLite file, or the URL without its password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    secret = [name for name in url.query if SECRET_PARAMETER.search(f"?{name}=")]
    return url.difference_update_query(secret).render_as_string(hide_password=True)


def _withheld(address: str) -> str:
    """The beginning of an address that cannot be read: nobody knows where in it the password stands."""
    return _FIRST_WORD.match(address)[0] + ":***"  # type: ignore[index]


def passwordless(text: str) -> str:
    """An address as a printed command can repeat it: without its password, which the user gives in another way."""
    bare = CREDENTIALS.sub(r"\1@", text)
    without = re.sub(rf"{SECRET_PARAMETER.pattern}&?", "", bare)
    return bare if without == bare else without.rstrip("?&")


def check_place(url: URL, *, create: bool) -> None:
    """Refuses an SQLite path whose folder is missing, or whose file is missing and may not be created, or not read."""
    if url.get_backend_name() != "sqlite":
        return
    path = Path(str(url.database))
    if create and path == DEFAULT_PATH:
        _make_folder(path.parent)
    if kind := kind_of(path):
        example = path / "evidence.db" if is_folder(path) else path.with_name("evidence.db")
        raise store_error(str(path), f"it is {kind}", f"Give a file, for example {example}.")
    if not create and not exists(path):
        raise store_error(str(path), "no such file", "Evidence comes from `qualify run`; or give --db.")
    if not is_folder(path.parent):
        advice = f"The path is probably mistyped; otherwise: mkdir -p {path.parent}"
        raise store_error(str(path), f"the folder {path.parent} does not exist", advice)
    for file in (path, companion(path, "-wal")):
        if exists(file) and not os.access(file, os.R_OK, effective_ids=True):
            advice = "Ask its owner to let you (ls -l shows who that is), or give another place with --db."
            raise store_error(str(path), f"you may not read {file}", advice)


def check_writable(address: str) -> None:
    """Refuses an SQLite path at which nobody could store anything, as far as its files tell. It makes nothing there.

    A server is not asked.
    """
    url = parse(address)
    if url.get_backend_name() != "sqlite":
        return
    path = Path(str(url.database))
    folder = path.parent
    if path == DEFAULT_PATH and not exists(folder):
        folder = folder.parent
    else:
        check_place(url, create=True)
    files = (path, companion(path, "-wal"), companion(path, "-shm"))
    for each in (folder, *filter(exists, files)):
        if not writable(each):
            advice = (
                "It, or its disk, is probably read-only: check it with ls -ld, or give another place with --db or "
                "QUALIFY_DB."
            )
            raise store_error(
                str(path), f"you may not write {'into ' if each == folder else ''}{each.absolute()}", advice
            )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        advice = "You may probably not write here: change the folder, or give another place with --db."
        raise StoreError(f"evidence store {folder}: the folder cannot be created ({error}). {advice}") from error
