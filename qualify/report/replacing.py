"""Writes files so that a reader never sees half of one. It imports no page: a gate that writes none starts faster."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from qualify.text import Document, pieces_of

READABLE = 0o644
"""a temporary file is private; a report is for everybody who may read the folder"""


def write_output(path: Path, text: Document) -> None:
    """Writes a file that a user named, whole or not at all, and its folder where that is missing.

    A pipe or a device is written to: it must not be replaced by a file. Behind a link the linked file is.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(pieces_of(text))
        return
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target.parent)) from None
    replace_text(target, text)


def remove_output(path: Path) -> None:
    """Removes what :func:`write_output` wrote there before, so that nobody takes it for what is written next.

    A file that cannot be removed stays: then it cannot be replaced either, and writing it says why.
    """
    with suppress(OSError):
        if path.is_file():
            path.resolve().unlink()


def replace_text(path: Path, text: Document) -> None:
    """Writes a file beside its place and renames it there, so that it is whole or absent.

    Half a character, which UTF-8 cannot hold, is written out.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(pieces_of(text))
        temporary.chmod(READABLE)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
