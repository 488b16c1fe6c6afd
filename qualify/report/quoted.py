"""What a text has between backticks is code in a page, whichever text it is: a note, a detail or a comment.

Messages are one text for a terminal and for pages. A terminal shows the backticks.
"""

from __future__ import annotations

import re

_LITERAL = "script|style|pre|code|textarea|title|option|svg"
"""elements whose text stays as it is"""
_FOUND = re.compile(
    rf"<({_LITERAL})\b[^>]*>.*?</\1>"
    rf"|(?:<(?!(?:{_LITERAL})\b)[^>]*>[^<`]*)+"
    r"|(?<![\w`])`(?!\s)((?:[^`<\n]|<wbr>)+)(?<!\s)`(?![\w`])",
    re.DOTALL,
)


def with_code(markup: str) -> str:
    """The HTML of a page, or a part of one, where what its texts have between backticks is code.

    Every text is escaped before, so that a ``<`` begins markup of the page's own, and markup stays as it is.
    """
    return _FOUND.sub(lambda found: f"<code>{found[2]}</code>" if found[2] else found[0], markup)
