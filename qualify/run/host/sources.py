"""Imports a third party's code from its source, and from no bytecode of an earlier import.

Python takes ``__pycache__`` for up to date where the size of the source and its time in whole seconds are as they were.
An edit of one character within a second keeps both, and so do archives and images that give all files one time. The
kernel of yesterday would run, and its results would count for the source of today.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Any

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""folders of what was installed; there bytecode is kept, because a library has thousands of files"""


class FromSource(SourceFileLoader):
    """Compiles a source each time, and keeps no bytecode of it."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Nothing is known of the source that bytecode could be compared with."""
        raise OSError(f"{path}: no bytecode of it counts")


LOADERS: tuple[tuple[Any, list[str]], ...] = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (FromSource, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)
"""as Python's own, but for sources"""


def import_from_source(folders: tuple[str, ...]) -> None:
    """Put the folders at the end of the import path. What stands in them and below is imported from its source."""

    def own(path: str) -> bool:
        inside = any(path == folder or path.startswith(f"{folder}{os.sep}") for folder in folders)
        return inside and INSTALLED.isdisjoint(Path(path).parts)

    def finder(path: str) -> FileFinder:
        if not own(path) or not Path(path).is_dir():
            raise ImportError(f"{path} is left to the other finders")
        return FileFinder(path, *LOADERS)

    sys.path_hooks.insert(0, finder)
    for path in filter(own, [*sys.path_importer_cache]):
        del sys.path_importer_cache[path]
    sys.path += folders
