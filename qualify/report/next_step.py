"""One thing to do next: words, and a command that can be pasted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NextStep:
    """One thing to do next."""

    words: str
    command: str = ""
    """a line for a shell; empty where no command does it"""

    @property
    def line(self) -> str:
        """Words and command on one line."""
        return f"{self.words}: {self.command}" if self.command else self.words
