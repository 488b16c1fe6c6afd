"""Reads the text of a card's file, or says why the file is no text."""

from __future__ import annotations

import difflib
from pathlib import Path

from qualify.cards.places import fail
from qualify.files import IrregularFileError, open_regular

LIMIT_BYTES = 1 << 20
LIMIT_LINE = 1 << 16
"""characters of one line; ruamel needs quadratic time for some longer ones"""


def text_of(path: Path) -> str:
    """The text of a card's file. Raises CardError where it is none."""
    content = _bytes(path)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        fail(path, "is UTF-16; save it as UTF-8")
    if b"\0" in content:
        fail(path, "is a binary file (it holds a zero byte); give a YAML or JSON text file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", errors="replace")
        spot = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        fail(path, f"is not UTF-8: byte 0x{content[error.start]:02x}; save it as UTF-8, or give a text file", spot)
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LIMIT_LINE:
            fail(path, f"has a line of {len(line)} characters, the limit is {LIMIT_LINE}; break it", (number, 1))
    return text


def _bytes(path: Path) -> bytes:
    try:
        with open_regular(path) as stream:
            content = stream.read(LIMIT_BYTES + 1)
    except IrregularFileError as error:
        fail(
            path, "is a folder; give a file" if path.is_dir() else f"is not a regular file ({error.kind}); give a file"
        )
    except FileNotFoundError:
        what = f"is a link to a file that is not there: {path.readlink()}" if path.is_symlink() else "no such file"
        fail(path, f"{what}{_near(path)}; check the path, which counts from the working directory")
    except PermissionError:
        fail(path, "no permission to read it; see its owner and mode with ls -l")
    except OSError as error:
        fail(path, f"cannot be read: {error.strerror}")
    except ValueError as error:  # a zero byte in the path
        fail(path, f"cannot be read: {error}")
    if len(content) > LIMIT_BYTES:
        fail(path, f"is larger than {LIMIT_BYTES} bytes; a card is not that large, so this is probably another file")
    return content


def _near(path: Path) -> str:
    """The file of nearly that name in the same folder, in any case of letters, as the end of a sentence."""
    try:
        names = {each.name.lower(): each.name for each in path.parent.iterdir() if each.name != path.name}
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name.lower(), list(names), n=1, cutoff=0.7)
    return f"; perhaps you meant {path.parent / names[near[0]]}" if near else ""
