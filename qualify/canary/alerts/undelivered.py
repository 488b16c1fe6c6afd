"""Why an attempt did not succeed."""

from __future__ import annotations


class Undelivered(Exception):
    """The target did not take the alert. The message is stored and shown: it holds no secret and no full address."""

    def __init__(self, why: str, *, final: bool = False, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.final = final
        """whether every further attempt would fail as well"""
        self.after_s = after_s
        """shortest time to the next attempt that the target asked for"""
