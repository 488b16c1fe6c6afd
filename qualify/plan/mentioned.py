"""Data files that the sources of a function name, such as a table of tile sizes: they are a part of its code."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from qualify.cards.syntax import parsed, source_of

_WORD = re.compile(r"[\w.-]+")
"""matches what may be the name of a file, in a time that grows with the text only: a source may hold a whole binary"""


def mentioned(names: Collection[str], sources: Iterable[str]) -> set[str]:
    """Those of the file names that a text in one of the Python sources names; comments and docstrings do not count.

    Args:
        names: file names without their folders.
        sources: paths. One that cannot be read or parsed names nothing.
    """
    found: set[str] = set()
    for path in sources if names else ():
        source = source_of(Path(path))
        # To parse takes long, and most sources name none.
        if not {*names}.isdisjoint(_WORD.findall(source.decode(errors="replace"))):
            found |= {*names} & _in_texts(parsed(source))
    return found


def _in_texts(tree: ast.Module) -> set[str]:
    """File names in the texts that a program computes with."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in alone)
    return {name for text in texts if isinstance(text, str) for name in _WORD.findall(text)}
