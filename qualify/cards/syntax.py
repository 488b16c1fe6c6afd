"""A user's Python files as text and as a tree: nothing of them runs, and what cannot be read is left to its import."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

from qualify.files import open_regular


def source_of(file: Path) -> bytes:
    """What a file holds; empty where it cannot be read."""
    try:
        with open_regular(file) as opened:
            return opened.read()
    except OSError:
        return b""


def parsed(source: bytes) -> ast.Module:
    """The tree of a Python source; an empty one where it is none, or nested too deeply."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of escapes like "\d" again when it imports the file
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module(body=[], type_ignores=[])
