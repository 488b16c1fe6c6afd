"""Tells a file of another kind from a wrong one: a matrix where waivers are expected has no six mistakes, but one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True, kw_only=True, slots=True)
class FileKind:
    """A kind of file that qualify reads."""

    marks: tuple[str, ...]
    """keys that such a file has; the first one gives its name"""
    words: str
    """what it is called, with its article"""
    taken_by: str
    """where such a file belongs, as a sentence without its full stop"""


KINDS = (
    FileKind(marks=("canary", "matrix"), words="a canary", taken_by="It belongs in the folder canaries of --cards DIR"),
    FileKind(
        marks=("matrix", "kernels"), words="a matrix", taken_by="`qualify plan`, `run` and `gate --matrix` take it"
    ),
    FileKind(marks=("kernel", "generation", "adapter"), words="a kernel card", taken_by="--cards takes its folder"),
    FileKind(marks=("model", "layers", "groups"), words="a model card", taken_by="`qualify check` takes it"),
    FileKind(marks=("traffic", "source", "buckets"), words="a file of traffic", taken_by="A matrix names it: traffic"),
    FileKind(marks=("waivers",), words="a file of waivers", taken_by="--waivers takes it, or a matrix names it"),
    FileKind(marks=("access",), words="an access file", taken_by="`qualify access check` takes it"),
)
"""A canary has the key of a matrix, and a matrix may have those of waivers and traffic: the first that fits counts."""


def mistaken(data: Mapping[str, Any], expected: type[BaseModel]) -> tuple[str, str] | None:
    """The key that shows that a file is of another kind than the expected one, and what it is; None where it is not."""
    name = next(iter(expected.model_fields))
    found = next((kind for kind in KINDS if _is(data, kind)), None)
    if found is None or name == found.marks[0]:
        return None
    wanted = next((kind.words.partition(" ")[2] for kind in KINDS if kind.marks[0] == name), name)
    return found.marks[0], f"is {found.words}, and no {wanted}. {found.taken_by}"


def _is(data: Mapping[str, Any], kind: FileKind) -> bool:
    """Whether it has the marks of a kind; a kind of one mark has no other key."""
    marks = set(kind.marks)
    return marks <= set(data) if marks - {kind.marks[0]} else marks == set(data)
