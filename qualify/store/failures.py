"""Database errors in words: what happened, where, the likely cause, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError, StatementError

from qualify.errors import StoreError
from qualify.store.holder import holder_of

_UNREACHABLE = "unreachable"
_REFUSED = "refused"
_SERVER_SAID = re.compile(r"FATAL: |fe_sendauth: ")
"""a server that answers a new connection with its reason to refuse it, or that asks for a password"""
_READ_ONLY = "25006"
_LACKS_RIGHT = "42501"
_OF_SETTINGS = (_READ_ONLY, "57014", "55P03", "25P03", "25P04")
"""errors that a setting can cause; a connection keeps the settings with which it began"""
UTF8_ADVICE = "Give qualify a database of its own that holds every letter: createdb -E UTF8 -T template0 NAME."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Explanation:
    """What the database's error codes mean to a person."""

    codes: tuple[str, ...]
    """first characters of SQLite's error name or of the SQLSTATE"""
    happened: str
    advice: str
    """likely cause and next step"""
    passing: bool = False
    """whether it may pass by itself"""


_EXPLANATIONS = (
    _Explanation(
        codes=("SQLITE_FULL", "53100"),
        happened="the disk is full",
        advice="What was committed before is intact. Free space, then type the command again; a run goes on with "
        "--resume.",
        passing=True,
    ),
    _Explanation(
        codes=("SQLITE_BUSY", "SQLITE_LOCKED"),
        happened="the database stayed locked by another process",
        advice="A program that holds a write transaction open probably hangs, or was stopped (Ctrl-Z, kill -STOP): "
        "find it (fuser FILE), and let it go on (kill -CONT) or end it.",
        passing=True,
    ),
    _Explanation(
        codes=("55P03",),
        happened="the database stayed locked by another session",
        advice="Its transaction is probably long, as of an upgrade or VACUUM FULL, or somebody forgot it. Find it in "
        "psql (SELECT pid, usename, xact_start, state, query FROM pg_stat_activity ORDER BY xact_start), and let it "
        "end, or end it: SELECT pg_terminate_backend(PID).",
        passing=True,
    ),
    _Explanation(
        codes=("SQLITE_READONLY",),
        happened="the database cannot be written",
        advice="The file, its folder or its disk is probably read-only (SQLite also writes files beside the "
        "database): check the permissions and the mount, or give another place with --db.",
    ),
    _Explanation(
        codes=(_READ_ONLY,),
        happened="the database server takes no writes now",
        advice="It is probably a standby since a failover, or in maintenance: ask who runs it, or give the URL of the "
        "primary server (target_session_attrs=read-write finds it among several hosts).",
        passing=True,
    ),
    _Explanation(
        codes=("57014", "25P04"),
        happened="the database server cancelled a statement, or ended a transaction, that took long",
        advice="The server probably does too much at once, or its statement_timeout or transaction_timeout is too "
        "short for qualify: ask who runs it.",
        passing=True,
    ),
    _Explanation(
        codes=("25P03",),
        happened="the database server ended a transaction that stood still",
        advice="This process was probably stopped for a while (Ctrl-Z, or a machine that was paused): try again.",
        passing=True,
    ),
    _Explanation(
        codes=("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH"),
        happened="the file cannot be opened",
        advice="The folder is probably missing, or you may not write in it: check it with ls -ld, or give another "
        "place with --db.",
    ),
    _Explanation(
        codes=("SQLITE_NOTADB",),
        happened="the file is not an SQLite database",
        advice="It is probably another file, or its beginning was overwritten: give another place with --db, or "
        "restore the file from a backup.",
    ),
    _Explanation(
        codes=("SQLITE_CORRUPT",),
        happened="the database is damaged",
        advice="A disk fault or another program probably wrote into the file: save it with "
        "'sqlite3 FILE .recover', or restore it from a backup.",
    ),
    _Explanation(
        codes=("XX001", "XX002"),
        happened="the database is damaged",
        advice="A disk of the server probably has a fault: ask who runs it to look into its log, and to restore the "
        "database from a backup.",
    ),
    _Explanation(
        codes=("SQLITE_IOERR", "58030"),
        happened="the disk reported an error",
        advice="The disk is probably failing, full or unmounted: look into the kernel's log (dmesg).",
        passing=True,
    ),
    _Explanation(
        codes=("SQLITE_CONSTRAINT_CHECK", "SQLITE_CONSTRAINT_NOTNULL", "23514", "23502"),
        happened="the schema does not allow a value of this record",
        advice="This is a fault in qualify or in an adapter: please report it with this message. Nothing was stored.",
    ),
    _Explanation(
        codes=("SQLITE_CONSTRAINT", "23"),
        happened="the record contradicts what is stored",
        advice="It was probably stored before: evidence is only added, never replaced. Nothing was stored.",
    ),
    _Explanation(
        codes=(_UNREACHABLE, "08", "57P"),
        happened="the database server cannot be reached",
        advice="The server is probably down, or host or port are wrong: try the same URL with psql.",
        passing=True,
    ),
    _Explanation(
        codes=(_REFUSED,),
        happened="the database server refused the connection",
        advice="It runs, and its own words say why. Correct the user, the password or the database's name in the URL; "
        "or have whoever runs it create the database, grant CONNECT, or allow more connections. psql with the same URL "
        "shows whether it helped.",
        passing=True,
    ),
    _Explanation(
        codes=("53",),
        happened="the database server has too little memory or another resource",
        advice="It probably does too much at once: look into its log.",
        passing=True,
    ),
    _Explanation(
        codes=("40001", "40P01"),
        happened="another transaction of the database was in the way",
        advice="Nothing was stored. Try again.",
        passing=True,
    ),
    _Explanation(
        codes=("28",),
        happened="the database server refused the user",
        advice="User name or password are probably wrong: check the URL.",
    ),
    _Explanation(
        codes=(_LACKS_RIGHT,),
        happened="the database user lacks a right",
        advice="Have the owner of the database grant it (GRANT SELECT ON ALL TABLES IN SCHEMA public TO USER is enough "
        "to read), or give the URL of the user who made the store. A new store needs GRANT CREATE ON SCHEMA public.",
    ),
    _Explanation(
        codes=("3F000",),
        happened="the database user has no schema to make tables in",
        advice="The search_path of the user or of the database probably names a schema that is gone: correct it, or "
        "create the schema.",
    ),
    _Explanation(
        codes=("22P05", "22021"),
        happened="the database cannot hold a letter of this text",
        advice=f"Nothing was stored. {UTF8_ADVICE}",
    ),
    _Explanation(
        codes=("3D000",),
        happened="the server has no database of that name",
        advice="Create it (createdb NAME), or correct the name in the URL.",
    ),
    _Explanation(
        codes=("SQLITE_ERROR", "42P01", "42703"),
        happened="the database does not have the expected tables",
        advice="Another program probably changed the schema: restore it from a backup, or give another place "
        "with --db.",
    ),
)
_BUSY = next(known for known in _EXPLANATIONS if "SQLITE_BUSY" in known.codes)
_DAMAGED = next(known for known in _EXPLANATIONS if "SQLITE_CORRUPT" in known.codes)
_UNKNOWN = _Explanation(
    codes=(),
    happened="the database reported an error",
    advice="If the message does not tell the cause, try the same place with sqlite3 or psql.",
)


class DamagedError(ValueError):
    """A row holds a value that qualify never writes and the schema does not allow."""


class UnknownWordError(Exception):
    """A row has a word that this program does not know; the schema allows any word there."""


def store_error(where: str, happened: str, advice: str, detail: str = "", *, passing: bool = False) -> StoreError:
    """Makes a StoreError in the form that all of them have; ``detail`` is the driver's message."""
    told = f"{happened} ({detail})" if detail else happened
    return StoreError(f"evidence store {where}: {told}. {advice}", happened, passing=passing)


@contextmanager
def understood() -> Iterator[None]:
    """Raises DamagedError in place of an error while rows are turned into facts: stored text may hold anything."""
    try:
        yield
    except (DamagedError, SQLAlchemyError, UnicodeDecodeError):
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        detail = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise DamagedError(f"the rows contradict each other, or a value is impossible: {detail}") from error


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turns every database error inside into a StoreError that names ``where``."""
    try:
        yield
    except UnknownWordError as error:
        advice = "A newer qualify probably wrote it: read the run with that version."
        raise store_error(where, "it holds a run that this program cannot read", advice, str(error)) from error
    except DamagedError as error:
        raise store_error(where, _DAMAGED.happened, _DAMAGED.advice, str(error)) from error
    except (SQLAlchemyError, OverflowError, UnicodeDecodeError) as error:
        explanation = _explanation(_code(error))
        cause = error.orig if isinstance(error, StatementError) and error.orig else error
        detail = " ".join(str(cause).split())
        holder = holder_of(Path(where)) if explanation is _BUSY else None
        advice = holder.advice if holder else explanation.advice
        raise store_error(where, explanation.happened, advice, detail, passing=explanation.passing) from error


def is_read_only(error: Exception) -> bool:
    """Whether the server refused a write because the transaction may only read."""
    return _code(error) == _READ_ONLY


def lacks_right(error: Exception) -> bool:
    """Whether the server refused something that this user may not do."""
    return _code(error) == _LACKS_RIGHT


def may_be_a_setting(error: Exception) -> bool:
    """Whether a new connection, or another server, may do what this one refused."""
    return _code(error) in _OF_SETTINGS


def made_read_only(where: str, whose: str, error: DBAPIError) -> StoreError:
    """The error of a database that somebody made read-only; ``whose`` setting says so."""
    advice = (
        f"default_transaction_read_only {whose} is on, so waiting does not help: reset it, or give a user or a URL "
        "that may write."
    )
    return store_error(where, "the database is read-only by a setting", advice, " ".join(str(error.orig).split()))


def _code(error: Exception) -> str:
    """SQLite's error name, or the SQLSTATE; empty where the error has neither."""
    if not isinstance(error, DBAPIError):
        return ""
    code = getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None)
    if code:
        return str(code)
    if not isinstance(error, OperationalError | InterfaceError):
        return ""
    # psycopg gives no SQLSTATE where no server answered, and none where it answered that it takes no connection.
    return _REFUSED if _SERVER_SAID.search(str(error.orig)) else _UNREACHABLE


def _explanation(code: str) -> _Explanation:
    return next((known for known in _EXPLANATIONS if code.startswith(known.codes)), _UNKNOWN)
