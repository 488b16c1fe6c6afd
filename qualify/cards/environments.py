"""Environments: other interpreters in which every kernel of a matrix runs a second time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from qualify.cards.words import Card, Text
from qualify.errors import UsageError
from qualify.facts.environment import ENVIRONMENT, is_environment_name
from qualify.files import beside

ALLOWED = "letters, digits, -, _ and ., at most 40, the first a letter or a digit"
FORM = "--environment NAME=PYTHON takes a name and the path of an interpreter, for example next=/opt/next/bin/python"


def _environment_name(text: str) -> str:
    if not is_environment_name(text):
        raise ValueError(f"must be a name of {ALLOWED}")
    return text


EnvironmentName = Annotated[str, AfterValidator(_environment_name), Field(json_schema_extra={"pattern": ENVIRONMENT})]


class EnvironmentEntry(Card):
    """Another interpreter in which the matrix's kernels run too."""

    python: Text
    """path of its Python, for example /opt/next/bin/python or ~/next/bin/python; a relative one counts from the folder
    of the matrix"""


def interpreters_of(entries: Mapping[str, EnvironmentEntry], matrix: Path) -> dict[str, str]:
    """The interpreter of each environment of a matrix, by name."""
    return {name: _absolute(str(beside(matrix, entry.python))) for name, entry in entries.items()}


def parse_environments(texts: Iterable[str]) -> dict[str, str]:
    """What ``--environment`` says, as interpreters by name. Raises UsageError for a wrong or repeated name."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, python = text.partition("=")
        if not equals or not python:
            raise UsageError(f"--environment {text}: has no interpreter. {FORM}.")
        if not is_environment_name(name):
            raise UsageError(f"--environment {text}: the name {name!r} must be of {ALLOWED}. {FORM}.")
        if name in found:
            raise UsageError(f"--environment {text}: {name} is given twice; give each environment one name.")
        found[name] = _absolute(os.path.expanduser(python))  # noqa: PTH111 - Path would follow no rule for ~ in words
    return found


def _absolute(path: str) -> str:
    """The path from the root on. The python of a virtual environment is a link that must not be followed."""
    return os.path.abspath(path)  # noqa: PTH100 - Path.resolve follows links
