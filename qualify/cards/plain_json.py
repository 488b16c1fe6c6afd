"""JSON to data: by Python's parser, with the likely cause where a text is not JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from qualify.cards.places import LIMIT_DEPTH, Spot, fail

_LONG = re.compile(r"\d{4301,}")
"""a whole number that Python does not read"""
_YAML = re.compile(r"(---|[\w-]+:|- )(\s|$)")
"""how a file of YAML begins"""


def parse_json(path: Path, text: str, constant: Callable[[str], float]) -> object:
    """The data of a JSON text. Raises CardError where the text is not JSON.

    Args:
        constant: the function that turns the words NaN and Infinity into numbers.
    """
    try:
        return json.loads(text, parse_constant=constant)
    except json.JSONDecodeError as error:
        comma = _last_comma(text, error)
        if comma is not None:
            told = "is not valid JSON: JSON has no comma before the end of a mapping or list; remove it"
            fail(path, told, _spot(text, comma))
        fail(path, f"is not valid JSON: {error.msg}{_hint(text, error)}", (error.lineno, error.colno))
    except ValueError as error:
        long = _LONG.search(text)
        if long is None:
            fail(path, f"is not valid JSON: {error}")
        told = f"holds a number of {len(long[0])} digits; nothing that a model has is so large"
        fail(path, told, _spot(text, long.start()))
    except RecursionError:
        fail(path, f"is nested deeper than {LIMIT_DEPTH} levels")


def _spot(text: str, at: int) -> Spot:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _last_comma(text: str, error: json.JSONDecodeError) -> int | None:
    """Where the comma is that a mapping or list ends with, if that is the error; Python 3.13 points at it itself."""
    if error.msg.startswith("Illegal trailing"):
        return error.pos
    before = text[: error.pos].rstrip()
    return len(before) - 1 if before.endswith(",") and text[error.pos :].lstrip()[:1] in {"}", "]"} else None


def _hint(text: str, error: json.JSONDecodeError) -> str:
    """The likely cause, as the end of a sentence."""
    start = text.lstrip()
    if not start:
        return ": the file is empty"
    if start.startswith("<"):
        return ": this is a web page, not the file; download the file itself"
    if start.startswith("version https://git-lfs"):
        return ": this is a pointer of Git LFS, not the file; get the file with git lfs pull"
    rest = text[error.pos :].lstrip()
    if rest.startswith(("//", "/*", "#")):
        return "; JSON has no comments"
    if rest.startswith("'"):
        return '; JSON quotes with " alone'
    if error.pos >= len(text.rstrip()):
        return ": the file ends too early"
    if error.msg.startswith("Unterminated string"):
        return "; its closing quote is missing, or the file was cut off"
    if error.msg == "Extra data":
        return "; the file holds more than one value, so keep one"
    is_yaml = _YAML.match(start) is not None
    if error.pos == len(text) - len(start) and (is_yaml or start[0].isalpha()):
        return f"; this looks like {'YAML' if is_yaml else 'plain text'}, and it must be JSON"
    return ""
