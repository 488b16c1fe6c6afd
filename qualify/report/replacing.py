"""Writes files so that a reader never sees half of one.

It imports no module that renders pages, so that a gate that writes no page starts faster.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from qualify.files import replacing
from qualify.text import Document, pieces_of

READABLE = 0o644
"""mode of a written file, whatever the umask: everybody who may read the folder may read a report"""


def write_output(path: Path, text: Document) -> None:
    """Writes a file that a user named, whole or not at all; makes its folder where that is missing.

    A pipe or a device is opened and written to, because a file must not replace it. Where the path is a link, the file
    behind the link is replaced.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(pieces_of(text))
        return
    target = Path(os.path.realpath(path))
    if target.is_symlink():  # a loop; what Path.resolve does with one depends on the release of Python
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target.parent)) from None
    replace_text(target, text)


def remove_output(path: Path) -> None:
    """Removes the file of an earlier :func:`write_output`, so that nobody takes it for the new one.

    A file that cannot be removed stays. Then it cannot be replaced either, and :func:`write_output` says why.
    """
    with suppress(OSError):
        if path.is_file():
            path.resolve().unlink()


def replace_text(path: Path, text: Document) -> None:
    """Writes a file beside its place and renames it there, so that it is whole or absent.

    A lone surrogate, which UTF-8 cannot hold, is written as an escape.
    """
    with replacing(path) as file:
        os.fchmod(file.fileno(), READABLE)
        for piece in pieces_of(text):
            file.write(piece.encode(errors="backslashreplace"))
