"""Environments: other interpreters in which every kernel of a matrix runs a second time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from qualify.cards.waivers import beside
from qualify.cards.words import Card, Text, content_hash
from qualify.errors import UsageError
from qualify.facts.environment import ENVIRONMENT, in_environment, is_environment_name

if TYPE_CHECKING:
    from qualify.cards.load import LoadedKernel

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
    """path of its Python, for example /opt/next/bin/python; a relative one counts from the matrix's own folder"""


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


def in_environments(kernels: Mapping[str, LoadedKernel], environments: Iterable[str]) -> dict[str, LoadedKernel]:
    """The kernels, and after them a copy of each for every environment; what is there already stays as it is."""
    own = {name: kernel for name, kernel in kernels.items() if not kernel.card.environment}
    made = dict(kernels)
    for environment in environments:
        for name, kernel in own.items():
            called = in_environment(name, environment)
            if called not in made:
                made[called] = _copy(kernel, called)
    return made


def _copy(kernel: LoadedKernel, called: str) -> LoadedKernel:
    """The kernel under the name that it has in an environment; its cases share no evidence with the kernel's own."""
    card = kernel.card.model_copy(update={"kernel": called})
    return replace(kernel, card=card, content_hash=content_hash(card))
