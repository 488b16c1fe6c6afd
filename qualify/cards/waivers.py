"""The waivers file: accepted failures, each with an owner, a reason, a link and an expiry date."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from qualify.cards.incident import Failure
from qualify.cards.places import dotted
from qualify.cards.policy import LONGEST_DAYS, WaiverPolicy
from qualify.cards.problems import Problem, in_order, refuse_doubtful, shown, validate
from qualify.cards.source import Source, parse, read
from qualify.cards.words import Card, Name, Some, Text, Where, refuse
from qualify.errors import CardError, Place
from qualify.facts.waiver import Waiver, bare_stars

DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
LINK = r"^(https?://\S+|[\w.-]+/[\w.-]+#[0-9]+)$"
ANY_WAIVER = WaiverPolicy()
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
    """who is responsible for it"""
    reason: Text
    """why it is acceptable for now"""
    link: Annotated[Text, AfterValidator(_link), Field(json_schema_extra={"pattern": LINK})]
    """where it is tracked: a URL, or owner/repository#number"""
    created: Day
    """first day on which it holds, UTC"""
    expires: Day
    """last day on which it holds, UTC; at most 90 days after created"""
    stack: dict[Text, Condition] = Field(default_factory=dict)
    """the waiver holds only where device, or components by name, match a glob or a version specifier"""

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


def load_waivers(path: Path, policy: WaiverPolicy = ANY_WAIVER) -> tuple[Waiver, ...]:
    """The waivers of a file, in its order. Raises CardError with every problem, also where a waiver breaks the policy.

    Args:
        policy: the waiver policy of the matrix that they are for.
    """
    source = read(path)
    card = validate(source, WaiversCard)
    refuse_doubtful(source)
    if problems := _beyond(card, source, policy):
        raise CardError(in_order(problems))
    return tuple(
        Waiver(
            **waiver.model_dump(exclude={"stack"}),
            stack=dict(waiver.stack),
            path=str(path),
            line=source.place(("waivers", index)).line,
            select_at=_spot(source.place(("waivers", index, "select"))),
        )
        for index, waiver in enumerate(card.waivers)
    )


def _spot(place: Place) -> tuple[int, int]:
    return place.line, place.column


def _beyond(card: WaiversCard, source: Source, policy: WaiverPolicy) -> list[Problem]:
    """What the policy of the matrix does not allow, each with its place; :func:`refuse_broad` limits the cases."""
    found: list[tuple[Where, str]] = []
    for index, waiver in enumerate(card.waivers):
        found += ((("waivers", index, key), message) for key, message in _misuse(waiver, policy))
        if policy.max_waivers is not None and index >= policy.max_waivers:
            message = f"is waiver {index + 1} of the file; {_allows('max_waivers', policy.max_waivers)}"
            found.append((("waivers", index), message))
    return [(source.place(where), f"{dotted(source.nearest(where))}: {message}") for where, message in found]


def _misuse(waiver: WaiverCard, policy: WaiverPolicy) -> Iterator[tuple[str, str]]:
    """Keys of one waiver that break the policy, each with a message."""
    if policy.owners and not any(fnmatchcase(waiver.owner, glob) for glob in policy.owners):
        allowed = f"policy.waivers.owners of the matrix allows {', '.join(policy.owners)}"
        yield "owner", f"is {shown(waiver.owner)}, who may not waive; {allowed}"
    days = (waiver.expires - waiver.created).days
    if policy.max_days is not None and days > policy.max_days:
        last = waiver.created + timedelta(days=policy.max_days)
        limit = f"{_allows('max_days', policy.max_days)}, until {last}"
        yield "expires", f"is {waiver.expires}, {days} days after created; {limit}"
    if policy.stars == "forbid" and (parts := bare_stars(waiver.select)):
        left_open = f"leaves the {' and the '.join(parts)} open; name it, because policy.waivers.stars is forbid"
        yield "select", f"is {shown(waiver.select)}, which {left_open}"


def _allows(key: str, limit: int) -> str:
    return f"policy.waivers.{key} of the matrix allows {limit}"


def refuse_broad(waivers: Sequence[Waiver], policy: WaiverPolicy, ids: Sequence[str]) -> None:
    """Refuse waivers that cover more cases than the policy allows. Raises CardError with the place of each.

    Args:
        ids: the ids of all cases of the matrix.
    """
    if policy.max_cases is None:
        return
    problems: list[Problem] = []
    for waiver in waivers:
        count = sum(fnmatchcase(name, waiver.select) for name in ids)
        if count > policy.max_cases:
            message = f"select of waiver {waiver.id}: {shown(waiver.select)} covers {count} of {len(ids)} cases"
            problems.append((waiver.select_place, f"{message}; {_allows('max_cases', policy.max_cases)}"))
    if problems:
        raise CardError(in_order(problems))


def holds_waivers(path: Path) -> bool:
    """Whether a file is a waivers file: it has the key waivers, and no key matrix, or it is empty.

    Nothing else in it is judged.
    """
    try:
        data: Any = parse(path, read(path).text).data
    except CardError:
        return False  # so that loading it as a matrix says what is wrong
    return data is None or (isinstance(data, dict) and "matrix" not in data and "waivers" in data)
