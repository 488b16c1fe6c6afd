"""What went wrong in a library, in one line."""

from __future__ import annotations

_LONGEST = 300


def reason(error: BaseException) -> str:
    """The class and text of an error, and the texts of its causes. At most 300 characters."""
    told = type(error).__name__
    link: BaseException | None = error
    while link is not None:
        text = " ".join(str(link).split())
        if text not in told:
            told = f"{told}: {text}"
        link = link.__cause__
    return told[:_LONGEST]
