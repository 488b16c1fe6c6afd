"""A host's own folder for temporary files, which goes when the host goes; what libraries compile stays where it was."""

from __future__ import annotations

import fcntl
import getpass
import os
import secrets
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

VARIABLES = ("TMPDIR", "TMP", "TEMP")
"""by which programs are told where temporary files belong"""


class Folder:
    """A host's folder for temporary files. It is removed with all that is in it.

    Its lock is free as soon as the process that made it has ended, however that ended: then :func:`remove_left` removes
    it. The path is short, because that of a socket has room for 107 characters.
    """

    def __init__(self, undo: ExitStack) -> None:
        """Make it; where the machine has no room for it, the host shares the usual place.

        Args:
            undo: removes it, if the process cannot be started.
        """
        self.path: Path | None = None
        self.lock = -1
        undo.callback(self.remove)
        with suppress(OSError):
            made = Path(tempfile.mkdtemp(prefix="qualify-h-"))
            self.path = made
            self.lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # a file system without locks: then it stays if this process is killed
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # It is looked for under this name only, thus never before it is locked.
                self.path = made.rename(made.with_name(_place() + made.name.rpartition("-")[2]))

    def variables(self) -> dict[str, str]:
        """Environment variables that lead a host there, and its libraries' compiled kernels to where they were."""
        if self.path is None:
            return {}
        caches = {name: value for name, value in usual_caches(self.path.parent).items() if name not in os.environ}
        return {**dict.fromkeys(VARIABLES, str(self.path)), **caches}

    def remove(self) -> None:
        """Remove it; all processes that wrote there have ended."""
        if self.path is not None:
            remove_folder(self.path)
            self.path = None
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def remove_left() -> None:
    """Remove the folders of this user's hosts whose judges were killed."""
    found: list[Path] = []
    with suppress(OSError):  # there is no place for temporary files
        found += Path(tempfile.gettempdir()).glob(f"{_place()}*")
    for path in found:
        with suppress(OSError):
            lock = _opened(path)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_folder(path)
            finally:
                os.close(lock)


def usual_caches(place: Path) -> dict[str, str]:
    """Where libraries keep compiled kernels below the place for temporary files, by the variable that says so.

    Libraries that keep them elsewhere, as Triton and FlashInfer below the user's home, are not among them.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as in many containers; the others refuse to work there
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(place / f"torchinductor_uid_{os.getuid()}"),
            "CUTE_DSL_CACHE_DIR": str(place / "cutlass_python_cache"),
        }
    shown = "".join("_" if letter in '\\/:*?"<>|' else letter for letter in user)
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(place / f"torchinductor_{shown}"),
        "CUTE_DSL_CACHE_DIR": str(place / user / "cutlass_python_cache"),
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": str(place / user / "flash_attention_cute_dsl_cache"),
        "QUACK_CACHE_DIR": str(place / user / "quack_cache"),
    }


def without_usual_caches(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a host without those that :meth:`Folder.variables` added for its libraries' caches."""
    usual = usual_caches(Path(variables.get(VARIABLES[0], "/")).parent)
    return {name: value for name, value in variables.items() if usual.get(name) != value}


def _place() -> str:
    """How the folders' names begin on this machine: some shared file systems lock for one machine alone."""
    return f"qualify-h{zlib.crc32(os.uname().nodename.encode()) & 0xFFFF:04x}-"


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it, or what took its place; also what its owner may not enter as it is.

    A kernel may have nested folders in it without end. What cannot be removed stays, and nothing is raised.
    """
    with suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        path.chmod(0o700)
        top = _opened(path)
        try:
            _empty(top)
        finally:
            os.close(top)
        path.rmdir()


def _empty(top: int) -> None:
    """Remove what is in a folder.

    Folders in its folders are moved up, one level after another: a kernel may nest them deeper than a path can be long,
    or than Python calls itself.
    """
    mark, numbers = secrets.token_hex(8), count()
    kept: set[str] = set()
    """folders that cannot be removed"""
    while folders := _folders_alone(top) - kept:
        for name in folders:
            try:
                inner = _opened(name, top)
                try:
                    for deeper in _folders_alone(inner):
                        os.rename(deeper, f"{mark}-{next(numbers)}", src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
            except OSError:
                kept.add(name)


def _folders_alone(place: int) -> set[str]:
    """The folders in a folder, open to their owner, once all else in it is removed."""
    found = set()
    with os.scandir(place) as entries:
        listed = list(entries)
    for entry in listed:
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                found.add(entry.name)
                os.chmod(entry.name, 0o700, dir_fd=place)
            else:
                os.unlink(entry.name, dir_fd=place)
    return found


def _opened(path: Path | str, place: int | None = None) -> int:
    """Descriptor of a folder, and of none to which a link leads."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
