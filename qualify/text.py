"""Text from outside: what it hides is shown, and it stays on one line of ours, also where a CI server reads the log."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

LINE_BREAKS = re.compile(r"[\r\n\t\v\f\x1c-\x1e\x85\u2028\u2029]+")

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""controls but tab and line feed, marks that turn the direction of text, characters of no width, halves of others"""

CREDENTIALS = re.compile(r"(?<=://)([^/?#:@]*):(?!\s|\*{3}@).*@")
"""the user and the password of a URL, up to the last @; a space after the colon means that a message goes on, not a
password. Where the password is hidden already, the message goes on after it, perhaps with another URL"""
MISTYPED = re.compile(r"(?<![^\s/(=])([^\s/:@(=]+):[^\s/@][^\s@]*@")
"""the same where no // stands before it"""
SECRET_PARAMETER = re.compile(r"(?<=[?&])((?i:[^=&\s]*(?:pass|pwd|secret|token)[^=&\s]*))=[^&\s]*")
"""a parameter of a URL that nobody else shall read"""


Document = str | Iterator[str]
"""a whole text, or the pieces of a long one; each piece is read once"""


def pieces_of(document: Document) -> Iterable[str]:
    """The pieces of a document; a whole text is one."""
    return (document,) if isinstance(document, str) else document


def unsaid(_: str) -> None:
    """Takes a line of a log that nobody wants to read, and drops it."""


def visible(text: str) -> str:
    """The text; characters that a terminal or browser obeys instead of showing them are written out."""
    if text.isascii() and text.isprintable():  # nearly every text, and five times faster than to search it
        return text
    return HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def without_password(text: str) -> str:
    """The text as messages may repeat it: the URLs in it without their passwords."""
    return SECRET_PARAMETER.sub(r"\1=***", MISTYPED.sub(r"\1:***@", CREDENTIALS.sub(r"\1:***@", text)))


def first_line(error: BaseException) -> str:
    """The first line of what an error says; the name of its class where it says nothing, as a bare MemoryError does."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def clipped(text: str, length: int) -> str:
    """The text, cut to ``length`` characters with an ellipsis where it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def shell_word(text: str) -> str:
    """The text as one word of a shell, on one line: what hides is written as bash reads it, in ``$'...'``."""
    if not HIDDEN.search(text) and not LINE_BREAKS.search(text):
        return shlex.quote(text)
    return "$'" + "".join(map(_in_dollar_quotes, text)) + "'"


def shell_line(words: Iterable[str]) -> str:
    """The words as a command that somebody can paste into a shell."""
    return " ".join(map(shell_word, words))


def _in_dollar_quotes(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if not HIDDEN.match(character) and not LINE_BREAKS.match(character):
        return character
    errors = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"  # a byte, or half a character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", errors))


def one_line(text: str) -> str:
    """The text, visible and on one line: a kernel's name or message must not look like a line of ours.

    It must not look like a command to GitHub's runner, either. The runner obeys ``::`` at the start of a line, also
    after spaces, and ``##[`` anywhere in a line.
    """
    line = visible(LINE_BREAKS.sub(" ", text)).replace("##[", "## [")
    return f"'{line}" if line.lstrip().startswith("::") else line
