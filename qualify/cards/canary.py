"""The canary card: which matrix, on what trigger, for how long at most, and who is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from qualify.cards.problems import Problem, meant
from qualify.cards.source import Source
from qualify.cards.words import Card, Flag, Name, Some, Text, Where, refuse
from qualify.facts.canary import AlertKind
from qualify.facts.case import Level
from qualify.facts.devices import DeviceKind

SPAN = r"^[1-9][0-9]{0,5}[smhd]$"
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, MONTHS),
    ("day of week", 0, 6, DAYS),
)
PART = re.compile(r"(?:(?P<all>\*)|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[0-9]{1,4}))?")


def _cron(value: str) -> str:
    """A crontab expression whose fields exist, that means the same to everybody, and that comes true at all."""
    fields = value.split()
    if len(fields) != len(FIELDS):
        raise ValueError('must be five fields: minute hour day month weekday, for example "0 3 * * *" (UTC)')
    chosen = [_values(text, *field) for text, field in zip(fields, FIELDS, strict=True)]
    if fields[2] != "*" and fields[4] != "*":
        raise ValueError(
            "must not narrow both day of month and day of week, which programs combine differently; write two canaries"
        )
    if not any(day <= LENGTHS[month - 1] for month in chosen[3] for day in chosen[2]):
        raise ValueError("must come true on some day; no such month has that day")
    return " ".join(fields).lower()


def _values(text: str, name: str, low: int, high: int, words: tuple[str, ...]) -> set[int]:
    """What a field of a crontab expression selects."""
    found: set[int] = set()
    for part in text.lower().split(","):
        match = PART.fullmatch(part)
        if match is None:
            raise ValueError(f"must hold numbers, ranges 1-5, steps */5 and commas; the {name} {text!r} does not")
        first = low if match["all"] else _value(match["first"], name, low, high, words)
        single = first if not (match["all"] or match["step"]) else high
        last = _value(match["last"], name, low, high, words) if match["last"] else single
        step = int(match["step"] or 1)
        if last < first or not 1 <= step <= max(1, last - first):
            raise ValueError(f"must hold ranges that rise and steps that fit; the {name} {text!r} does not")
        found |= set(range(first, last + 1, step))
    return found


def _value(text: str, name: str, low: int, high: int, words: tuple[str, ...]) -> int:
    if text in words:
        return words.index(text) + low
    if name == "day of week":
        raise ValueError(f"must name days as {', '.join(words)}: numbers mean different days to different programs")
    if not (text.isascii() and text.isdecimal()) or not low <= int(text) <= high:
        raise ValueError(f"must have a value of {name} from {low} to {high}, not {text!r}")
    return int(text)


Span = Annotated[str, Field(pattern=SPAN)]
"""a number with s, m, h or d"""
Cron = Annotated[str, Field(max_length=200), AfterValidator(_cron)]
Variable = Annotated[str, Field(pattern=VARIABLE, max_length=200)]


def seconds(span: str) -> int:
    """The length of a span of the card."""
    return int(span[:-1]) * SECONDS[span[-1]]


class OnStackChange(Card):
    """Fire when driver, CUDA, PyTorch, an attention library, firmware, image or dispatch environment changed."""

    settle: Span = "10m"
    """how long the new stack must stay as it is before it fires: an upgrade in progress fires once"""


class AlertTarget(Card):
    """Somebody who is told. Secrets stand in files or environment variables, never here."""

    target: Name
    """its name in the list of alerts"""
    kind: Literal["webhook", "slack", "alertmanager"]
    """webhook: signed as Standard Webhooks say; slack: an incoming webhook; alertmanager: its API v2"""
    url: Text | None = None
    """where to; or url_file or url_env where the address itself is a secret"""
    url_file: Text | None = None
    """file that holds the address"""
    url_env: Variable | None = None
    """environment variable that holds the address"""
    secret_file: Text | None = None
    """file that holds the key of the signature, or the token of Alertmanager"""
    secret_env: Variable | None = None
    """environment variable that holds it"""
    events: Some[AlertKind] = ("promote", "hold", "roll back", "refused", "failed")
    """which ends of a fire are told"""
    allow_private: Flag = False
    """true: the host may be a loopback or private address"""

    @model_validator(mode="after")
    def _fits(self) -> AlertTarget:
        problems: list[tuple[Where, str]] = []
        places = [name for name in ("url", "url_file", "url_env") if getattr(self, name)]
        if len(places) != 1:
            found = f"it has {' and '.join(places)}" if places else "it has none"
            problems.append(((), f"needs one of url, url_file and url_env; {found}"))
        if self.url and not re.match(r"https?://[^/\s]", self.url):
            problems.append((("url",), f"must begin with https:// or http://, but is {self.url}"))
        if self.secret_file and self.secret_env:
            problems.append((("secret_env",), "stands beside secret_file; keep one of them"))
        if self.kind == "webhook" and not (self.secret_file or self.secret_env):
            problems.append(((), "needs secret_file or secret_env: a webhook is signed"))
        refuse(problems)
        return self


class CanaryCard(Card):
    """When a matrix runs by itself, and what becomes of its verdict."""

    canary: Name
    """name of the canary; the file is called like it"""
    matrix: Text
    """name of a matrix, or path of one relative to this file"""
    cron: Cron | None = None
    """times in UTC: minute hour day month weekday"""
    stack_change: OnStackChange | None = None
    """fire when the stack changed and settled"""
    level: Level = "full"
    """smoke or full"""
    device: Literal["auto", DeviceKind] = "auto"
    """where it runs"""
    select: Text | None = None
    """only cases whose id matches this glob"""
    kernel: Text | None = None
    """only kernels whose name matches this glob"""
    timeout: Span = "6h"
    """a fire that takes longer is killed"""
    slower: Annotated[float, Field(strict=True, gt=0, le=10, allow_inf_nan=False)] = 0.1
    """share by which a time must have grown against the baseline to advise hold"""
    alerts: tuple[AlertTarget, ...] = ()
    """who is told"""

    @model_validator(mode="after")
    def _fits(self) -> CanaryCard:
        first: dict[str, int] = {}
        problems: list[tuple[Where, str]] = []
        for index, alert in enumerate(self.alerts):
            if alert.target in first:
                earlier = first[alert.target]
                problems.append((("alerts", index, "target"), f"names {alert.target} again, after alerts[{earlier}]"))
            first.setdefault(alert.target, index)
        refuse(problems)
        return self

    def matrix_beside(self, path: Path) -> str:
        """The matrix as a run takes it: its name, or its path from the folder of the card's file."""
        return str(path.parent / self.matrix) if is_path(self.matrix) else self.matrix


def is_path(matrix: str) -> bool:
    """Whether a matrix is given by the path of its file."""
    return "/" in matrix or matrix.endswith((".yaml", ".yml"))


def matrix_problems(card: CanaryCard, source: Source, known: list[str]) -> list[Problem]:
    """What is wrong with the matrix that a canary names, with its place."""
    place = source.place(("matrix",))
    if is_path(card.matrix):
        path = Path(card.matrix_beside(source.path))
        missing = f"matrix: no such file {path}; the path counts from the canary's own folder"
        return [] if path.is_file() else [(place, missing)]
    if card.matrix in known:
        return []
    return [(place, f"matrix: unknown matrix {card.matrix}{meant(card.matrix, known)}. There are: {', '.join(known)}")]
