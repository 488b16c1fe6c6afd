"""The waivers file: failures that somebody answers for, each with a reason, a link and an end."""

from __future__ import annotations

import re
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from qualify.cards.incident import Failure
from qualify.cards.problems import validate
from qualify.cards.source import parse, read
from qualify.cards.words import Card, Name, Some, Text, Where, refuse
from qualify.errors import CardError
from qualify.facts.waiver import Waiver

LONGEST_DAYS = 90
DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
LINK = r"^(https?://\S+|[\w.-]+/[\w.-]+#[0-9]+)$"
SPECIFIER = re.compile(r"[<>=!~]")


def _day(value: object) -> object:
    """A day as text; the YAML 1.2 core schema has no dates."""
    if not isinstance(value, str) or not re.fullmatch(DAY, value):
        raise ValueError("must be a day like 2026-12-31")
    try:
        return date.fromisoformat(value)
    except ValueError as error:
        raise ValueError(f"must be a day that exists ({error})") from error


def _condition(value: str) -> str:
    if SPECIFIER.match(value):
        try:
            SpecifierSet(value)
        except InvalidSpecifier as error:
            raise ValueError("must be a glob like 2.11.*, or a version specifier like >=2.11,<2.12") from error
    return value


def _link(value: str) -> str:
    if not re.fullmatch(LINK, value):
        raise ValueError("must be a URL like https://…, or owner/repository#number")
    return value


Day = Annotated[date, BeforeValidator(_day, json_schema_input_type=str), Field(json_schema_extra={"pattern": DAY})]
Condition = Annotated[Text, AfterValidator(_condition)]


class WaiverCard(Card):
    """One accepted failure. The cases still run."""

    id: Name
    """its name in verdicts"""
    select: Text
    """glob over case ids: model/phase/shape/dtype/mask/kernel"""
    checks: Some[Failure]
    """checks, or outcomes (crash, hang, refusal, substitution), whose failure is accepted"""
    owner: Text
    """who answers for it"""
    reason: Text
    """why it is acceptable for now"""
    link: Annotated[Text, AfterValidator(_link), Field(json_schema_extra={"pattern": LINK})]
    """where it is tracked: a URL, or owner/repository#number"""
    created: Day
    """first day on which it holds, UTC"""
    expires: Day
    """last day on which it holds, UTC; at most 90 days after created"""
    stack: dict[Text, Condition] = Field(default_factory=dict)
    """only where device, or components by name, match a glob or a version specifier"""

    @model_validator(mode="after")
    def _fits(self) -> WaiverCard:
        problems: list[tuple[Where, str]] = []
        days = (self.expires - self.created).days
        if days < 0:
            problems.append((("expires",), f"is {self.expires}, before created = {self.created}"))
        if days > LONGEST_DAYS:
            last = self.created + timedelta(days=LONGEST_DAYS)
            message = f"is {self.expires}, {days} days after created; at most {LONGEST_DAYS} are allowed, until {last}"
            problems.append((("expires",), message))
        refuse(problems)
        return self


class WaiversCard(Card):
    """A file of waivers; a matrix names it with its key waivers."""

    waivers: tuple[WaiverCard, ...]
    """accepted failures; may be empty"""

    @model_validator(mode="after")
    def _fits(self) -> WaiversCard:
        first: dict[str, int] = {}
        problems: list[tuple[Where, str]] = []
        for index, waiver in enumerate(self.waivers):
            if waiver.id in first:
                where: Where = ("waivers", index, "id")
                problems.append((where, f"names {waiver.id} again, after waivers[{first[waiver.id]}]; rename one"))
            first.setdefault(waiver.id, index)
        refuse(problems)
        return self


def load_waivers(path: Path) -> tuple[Waiver, ...]:
    """The waivers of a file, in its order. Raises CardError with every problem of it."""
    source = read(path)
    card = validate(source, WaiversCard)
    return tuple(
        Waiver(
            **waiver.model_dump(exclude={"stack"}),
            stack=dict(waiver.stack),
            path=str(path),
            line=source.place(("waivers", index)).line,
        )
        for index, waiver in enumerate(card.waivers)
    )


def beside(matrix: Path, name: str) -> Path:
    """A file that a matrix names with its keys waivers or traffic: relative to the matrix's own folder."""
    return matrix.parent / name


def holds_waivers(path: Path) -> bool:
    """Whether a file is one of waivers, and no matrix: it has no key matrix. Decided without judging the rest."""
    try:
        data: Any = parse(path, read(path).text).data
    except CardError:
        return False  # so that loading it as a matrix says what is wrong
    return isinstance(data, dict) and "matrix" not in data and "waivers" in data
