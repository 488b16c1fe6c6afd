"""The kinds of columns that tables are made of, and the metadata that holds all tables."""

from __future__ import annotations

from typing import Any, get_args

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Integer, MetaData

from qualify.store.types import Flag, Json, Real, SharedWords, Stored, UtcTime, Whole, Word, Words

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only where the type is exactly INTEGER.
KEY = BigInteger().with_variant(Integer(), "sqlite")


def key(name: str) -> Column[int]:
    """The number of a row, which the database gives."""
    return Column(name, KEY, primary_key=True, autoincrement=True)


def whole(name: str, **options: Any) -> Column[int]:
    """A whole number."""
    nullable = options.pop("nullable", False)
    return Column(name, Whole(name), nullable=nullable, **options)


def real(name: str, *, nullable: bool = False) -> Column[float]:
    """A number with a fraction."""
    return Column(name, Real(name), nullable=nullable)


def words(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[str]:
    """Text from outside."""
    return Column(name, Words(name), nullable=nullable, primary_key=primary_key)


def shared_words(name: str, *, nullable: bool = False) -> Column[str]:
    """Text from outside that many rows of a run repeat."""
    return Column(name, SharedWords(name), nullable=nullable)


def word(name: str, *, nullable: bool = False) -> Column[str]:
    """Text of qualify's own: a word of a closed list, digits, a digest. Every database takes it as it is."""
    return Column(name, Word(name), nullable=nullable)


def json(name: str, *, nullable: bool = False) -> Column[Any]:
    """A value as JSON."""
    return Column(name, Json(name), nullable=nullable)


def flag(name: str) -> Column[bool]:
    """True or false."""
    return Column(name, Flag(name), nullable=False)


def part_of(target: str, name: str, *, primary_key: bool = False, nullable: bool = False) -> Column[Any]:
    """A reference to a row of another table; ``target`` is TABLE.COLUMN."""
    return Column(name, ForeignKey(target), primary_key=primary_key, nullable=nullable)


def one_of(name: str, allowed: Any) -> CheckConstraint:
    """The column holds one of a Literal's values (or of a tuple's)."""
    values = ", ".join(f"'{value}'" for value in get_args(allowed) or allowed)
    return CheckConstraint(f'"{name}" IN ({values})', name=name, info={name: frozenset(get_args(allowed) or allowed)})


def check_when_read() -> None:
    """Make columns check their values also when a row is read: somebody may have changed the file since it was written.

    A reference shares the type object of the column that it refers to. It gets a copy, because it may be NULL where the
    other column may not.
    """
    columns = [column for table in metadata.tables.values() for column in table.columns]
    for column in columns:  # all before the next loop: a reference takes its type when it is first read
        if column.foreign_keys and isinstance(column.type, Stored):
            column.type = column.type.copy()
            column.type.name = column.name
    for table in metadata.tables.values():
        words_of = {name: allowed for part in table.constraints for name, allowed in part.info.items()}
        for column in table.columns:
            if isinstance(column.type, Stored | UtcTime):
                column.type.nullable = bool(column.nullable)
            if isinstance(column.type, Stored):
                column.type.words = words_of.get(column.name, frozenset())
