"""Text from outside on one line of ours, also where a CI server reads the log."""

from __future__ import annotations

import re

LINE_BREAKS = re.compile(r"[\r\n\t\v\f\x1c-\x1e\x85\u2028\u2029]+")


def one_line(text: str) -> str:
    """The text on one line: what a kernel's name or message holds must not look like a line of ours.

    Nor like a command to GitHub's runner, which obeys ``::`` at the start of a line, after spaces too, and ``##[``
    anywhere in it.
    """
    line = LINE_BREAKS.sub(" ", text).replace("##[", "## [")
    return f"'{line}" if line.lstrip().startswith("::") else line
