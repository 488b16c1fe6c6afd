"""The parts of an answer to one of the five questions."""

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
    """One line below the headline: term, text and note, as ``prefill 2/2`` · ``FlashAttnFwdSm90`` · ``hopper``."""

    term: str
    text: str
    note: str = ""
    code: bool = False
    """whether the text is a name from a program, set in a fixed-width face"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A short answer with its evidence."""

    state: State
    headline: str
    """a few words"""
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    """how the answer was found, and what it does not say"""
    tables: tuple[AnyTable, ...] = ()
    links_title: str = ""
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One of the questions that a design review asks."""

    key: str
    text: str
    answer: Callable[[ModelView], Answer]
