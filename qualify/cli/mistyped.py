"""Turns the parser's error about a command line into a message with the value and the next command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from qualify.cards.problems import meant, sentence
from qualify.files import is_folder


def refusal(error: Any, words: Sequence[str], commands: Sequence[str]) -> str:
    """The message about a wrong command line.

    Args:
        error: what the parser raised; one of click's exceptions.
        words: the command line, without the program's name.
        commands: every command, as words with a space between them.
    """
    text = error.format_message().replace("Value error, ", "").replace("\n\t", " ").rstrip(".")
    if isinstance(cause := error.__cause__, ValidationError):
        text = _of_value(text, cause)
    helpful = _helpful(error, words, commands)
    if behind := _behind(error, words, commands):
        text, helpful = behind
    text += _named_by_option(text, error) or _near(text)
    end = " " if text.endswith("?") else ". "
    return f"{text}{end}Try: {helpful} --help"


def _behind(error: Any, words: Sequence[str], commands: Sequence[str]) -> tuple[str, str] | None:
    """The message and the command, where an option stands before the command that it is for; else None."""
    option, context = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    if not option or context is None or context.command_path.removeprefix("qualify ") in commands:
        return None
    group = context.command_path.split()
    rest = words[len(group) - 1 :]
    paths = (" ".join([*group, *rest[at : at + count]]) for at in range(len(rest)) for count in (1, 2))
    command = next((path for path in paths if path.removeprefix("qualify ") in commands), None)
    if command is None:
        return None
    told = f"{option} stands before the command, and options of a command come after it: {command} … {option}"
    return told, command


def _of_value(text: str, cause: ValidationError) -> str:
    """The message with what the value must be, in the words that wrong cards get, too."""
    first = cause.errors(include_url=False)[0]
    if first["type"] == "value_error":
        value = str(first["input"])
        return text if value in text or repr(value) in text else f"{text}: {value!r}"
    return text.replace(first["msg"], sentence(first["type"], first.get("ctx", {}), first["msg"], first["input"]))


def _named_by_option(text: str, error: Any) -> str:
    """What was probably meant, where a command takes a folder, a run or a matrix only by an option; else empty."""
    given = re.search(r"^Got unexpected extra argument.*\((\S+)\)$", text)
    if not given or not (context := getattr(error, "ctx", None)):
        return ""
    known = {name for option in context.command.params for name in option.opts}
    takes = ["--cards"] if "--cards" in known and is_folder(Path(given[1])) else ["--matrix", "--run"]
    named = [f"{option} {given[1]}" for option in takes if option in known]
    return f"; perhaps you meant {' or '.join(named)}" if named else ""


def _near(text: str) -> str:
    """What was probably meant, where a value must be one of a few words; else empty."""
    given = re.search(r"'([^']*)' is not one of (.*)$", text)
    return meant(given[1], re.findall(r"'([^']*)'", given[2])) if given else ""


def _helpful(error: Any, words: Sequence[str], commands: Sequence[str]) -> str:
    """The command whose help says more; the parser does not always name it."""
    if context := getattr(error, "ctx", None):
        return str(context.command_path)
    line = f"{' '.join(words)} "
    return " ".join(["qualify", *(name for name in commands if line.startswith(f"{name} "))])
