"""What every output format of the gate is: a module of this package with a function ``render``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from qualify.facts.artifact import Artifact
from qualify.judge.judged import Judged
from qualify.seal.keys import SigningKey
from qualify.text import Document


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputOptions:
    """What formats need beside the verdict. Each format reads only what it uses."""

    now: datetime
    """the current time, aware UTC"""
    workspace: Path | None = None
    """the checkout; formats give paths of files relative to it. None = paths stay as they are"""
    subjects: Sequence[Artifact] = ()
    """the artifacts that the statement is about"""
    key: SigningKey | None = None
    """key that signs the statement; None = it is not signed"""

    def from_workspace(self, path: str) -> str:
        """The path relative to the checkout where the file lies in it, else the path as it is."""
        if self.workspace is None:
            return path
        try:
            return Path(path).resolve().relative_to(self.workspace.resolve()).as_posix()
        except ValueError:
            return path


class Format(Protocol):
    """One output format."""

    def __call__(self, judged: Judged, options: OutputOptions) -> Document:
        """The document, whole or in pieces, without a line break at its end.

        Raises:
            NoVerdict: the format cannot say anything true about this verdict.
        """
