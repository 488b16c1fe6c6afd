"""What the parser of the command line says about a wrong one, as a message with the value and the next command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError


def refusal(error: Any, words: Sequence[str], commands: Sequence[str]) -> str:
    """The message.

    Args:
        error: what the parser raised; one of click's exceptions.
        words: the command line, without the program's name.
        commands: every command, as words with a space between them.
    """
    text = error.format_message().replace("Value error, ", "").rstrip(".")
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        value = str(cause.errors(include_url=False)[0]["input"])
        text = text if value in text else f"{text}: {value!r}"
    end = " " if text.endswith("?") else ". "
    return f"{text}{end}Try: {_helpful(error, words, commands)} --help"


def _helpful(error: Any, words: Sequence[str], commands: Sequence[str]) -> str:
    """The command whose help says more; the parser does not always name it."""
    if context := getattr(error, "ctx", None):
        return str(context.command_path)
    line = f"{' '.join(words)} "
    return " ".join(["qualify", *(name for name in commands if line.startswith(f"{name} "))])
