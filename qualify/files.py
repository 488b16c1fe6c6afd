"""Files that a user names, read and replaced.

Only regular ones are opened, because a pipe can wait for ever and a device never ends.
"""

from __future__ import annotations

import errno
import glob
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TAKEN = "exists already, and is not what would be written; give another name, or remove it first"
"""what is said of a path where :func:`write_new` finds something else"""
LEFT_S = 86_400
"""an unfinished file that nobody has written to for so long is of a process that was killed"""
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class IrregularFileError(OSError):
    """The path is there, and is no regular file; ``strerror`` says so, ``kind`` what it is."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, and only a regular file is read", str(path))
        self.kind = kind


def kind_of(path: Path) -> str:
    """What the path is, for a message: ``a pipe``, ``a folder``, …; empty for a regular file and for none at all."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    return next((kind for holds, kind in KINDS if holds(mode)), "")


def exists(path: Path) -> bool:
    """Whether something is there. False for a name that no file can have, where pathlib raises an error."""
    return os.path.exists(path)  # noqa: PTH110


def is_folder(path: Path) -> bool:
    """Whether a folder is there."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: Path) -> bool:
    """Whether a regular file is there."""
    return os.path.isfile(path)  # noqa: PTH113


def why_unread(error: OSError) -> str:
    """Why a file that a user names cannot be read, with the likely cause or the next step."""
    closed = isinstance(error, PermissionError)
    step = "Ask its owner to let you read it." if closed else "The name is probably mistyped."
    return f"{error.strerror or error}. {step}"


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """A folder and all below it, each with the names of its folders and of what is no folder, both in order.

    As ``os.walk``, which before Python 3.12 calls itself for each level, so that a deep nest ends the command. Who
    takes names out of the first list leaves those folders out. Links are not followed. What cannot be listed is left
    out, as a folder whose path is too long.
    """
    waiting = [str(folder)]
    while waiting:
        place = waiting.pop()
        inner: list[str] = []
        others: list[str] = []
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    (inner if _is_folder(entry) else others).append(entry.name)
        except OSError:
            continue
        inner.sort()
        yield place, inner, sorted(others)
        below = (os.path.join(place, name) for name in reversed(inner))  # noqa: PTH118 - thousands of them
        waiting += [path for path in below if not os.path.islink(path)]  # noqa: PTH114


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or leads to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def open_regular(path: Path) -> BinaryIO:
    """The file, open to read bytes.

    Raises:
        IrregularFileError: it is a folder, pipe, socket or device, which is not opened.
        OSError: it is not there, or cannot be read.
        ValueError: the path holds a zero byte.
    """
    if kind := kind_of(path):
        raise IrregularFileError(path, kind)
    # It may have become a pipe meanwhile: nothing waits for a writer.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise IrregularFileError(path, "no regular file any more")
    return file


def _remove_left(path: Path) -> None:
    """Removes the unfinished files of a path that nobody has written to for a day."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}"):
        with suppress(OSError):
            if left.stat().st_mtime < time.time() - LEFT_S:
                left.unlink()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file beside the path, open to write bytes. It gets that name when the block ends, so it is whole or absent.

    Where several processes write one path, each writes a file of its own, and the last one stays. What a process that
    was killed has left of this path goes with the first write a day later.

    Raises:
        OSError: it cannot be written there.
    """
    _remove_left(path)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with unfinished.open("xb") as file:
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_new(path: Path, text: str) -> None:
    """Writes a file that is not there yet, whole or not at all: what a full disk has cut off would only be in the way.

    A file that holds the text or its beginning is what a command that was killed has left: it becomes whole.

    Raises:
        FileExistsError: something else has that name.
        OSError: it cannot be written.
    """
    try:
        stream = path.open("x", encoding="utf-8")
    except FileExistsError:
        if not is_begun(path, text):
            raise
        with replacing(path.resolve()) as file:
            file.write(text.encode())
        return
    try:
        with stream:
            stream.write(text)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def is_begun(path: Path, text: str) -> bool:
    """Whether the file holds the text or its beginning."""
    whole = text.encode()
    return is_file(path) and path.stat().st_size <= len(whole) and whole.startswith(path.read_bytes())


def beside(file: Path, name: str) -> Path:
    """The path of a file that another file names, relative to that other file's folder; ``~`` is the user's home.

    Steps up (``..``) are left out. They stay where the path without them would lead elsewhere, because a folder before
    one of them is a link.
    """
    whole = file.parent / os.path.expanduser(name)  # noqa: PTH111 - Path raises where a user has no home
    tidy = Path(os.path.normpath(whole))
    return tidy if os.path.realpath(tidy) == os.path.realpath(whole) else whole
