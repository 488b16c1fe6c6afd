"""The code that a kernel's evidence was made by, file by file, and what of it has changed since."""

from __future__ import annotations

from collections.abc import Mapping

Code = Mapping[str, str]
"""sha256 by the name of a file, or of a distribution with its version; names hold no path of the machine"""
NAMED = 3
"""files that a sentence names"""


def code_change(before: Code | None, now: Code | None) -> str:
    """Why evidence made by one code says nothing about another; empty where they are the same.

    Args:
        before: the code that made the evidence; None where it was not noted.
        now: the code on this machine; None where the kernel is not here.
    """
    if before is None:
        return "an older qualify made the evidence, and did not note the code of the kernel"
    if now is None:
        return "its code is not on this machine"
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if not names:
        return ""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"its code changed since: {', '.join(names[:NAMED])}{more}"
