"""Addresses and secrets of targets, read at every attempt: a rotated secret needs no restart."""

from __future__ import annotations

import os
from pathlib import Path

from qualify.canary.alerts.undelivered import Undelivered
from qualify.cards.canary import AlertTarget
from qualify.files import open_regular

LONGEST = 65536
"""bytes of a secret's file"""


def address_of(target: AlertTarget, folder: Path) -> str:
    """The URL that the card gives or points to.

    Args:
        folder: of the card; relative paths count from it.
    """
    return target.url or _read("url", target.url_file, target.url_env, folder)


def secret_of(target: AlertTarget, folder: Path) -> str:
    """The key of a signature, or a token; empty where the card names none."""
    if not (target.secret_file or target.secret_env):
        return ""
    return _read("secret", target.secret_file, target.secret_env, folder)


def _read(what: str, file: str | None, variable: str | None, folder: Path) -> str:
    if variable:
        text, place = os.environ.get(variable, ""), f"environment variable {variable}"
    else:
        place = f"file {file}"
        try:
            with open_regular(folder / str(file)) as stream:
                text = stream.read(LONGEST).decode()
        except OSError as error:
            raise Undelivered(f"{what}_file: {place} cannot be read: {error.strerror or 'unknown error'}") from None
        except UnicodeDecodeError:
            raise Undelivered(f"{what}_file: {place} is not text") from None
    value = text.strip()
    if not value:
        raise Undelivered(f"{what}_{'env' if variable else 'file'}: {place} is empty or not set")
    if not value.isascii() or not value.isprintable():
        raise Undelivered(f"{what}_{'env' if variable else 'file'}: {place} holds more than one printable line")
    return value
