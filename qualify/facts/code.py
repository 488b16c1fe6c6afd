"""The code that a kernel's evidence was made by, file by file, and what of it has changed since."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Code = Mapping[str, str]
"""sha256 by the name of a file, or of a distribution with its version; names hold no path of the machine"""
_DISTRIBUTION = re.compile(r"[\w.-]+ \d[^/\s]*")
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
    names = _differing(before, now)
    return f"its code changed since: {_listed(names)}" if names else ""


def own_change(before: Code | None, now: Code | None) -> str:
    """The files that differ and belong to no installed distribution, which the stack shows; empty for none.

    Nothing is said of code that was not noted.
    """
    names = [name for name in _differing(before or {}, now or {}) if not _DISTRIBUTION.fullmatch(name)]
    return _listed(names) if before is not None and now is not None else ""


def _differing(one: Code, other: Code) -> list[str]:
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
