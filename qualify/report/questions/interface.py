"""What an answer to one of the five questions consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from qualify.report.columns import AnyTable
from qualify.report.views import ModelView

State = Literal["good", "bad", "open", "untested"]
"""good: proven as it should be; bad: evidence against it; open: evidence is missing; untested: not asked"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A place in the page that shows the evidence."""

    text: str
    anchor: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What a reader needs beside the headline: ``prefill 2/2`` · ``flash::FlashAttnFwdSm90`` · ``hopper``."""

    term: str
    text: str
    note: str = ""
    code: bool = False
    """whether the text is a name that a program gave"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A short answer and everything that it rests on."""

    state: State
    headline: str
    """a few words"""
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    """how it was found out, and what it does not say"""
    tables: tuple[AnyTable, ...] = ()
    links_title: str = ""
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One of the questions that a design review asks."""

    key: str
    text: str
    answer: Callable[[ModelView], Answer]
