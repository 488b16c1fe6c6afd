"""Checks the prose of the documents: ``python docs/prose.py`` names each bad sentence.

A sentence may have at most ``LONGEST`` words, and none of ``PHRASES``, which readers had to read twice. A paragraph may
have at most ``LARGEST`` words, because people skip long ones. Tables, code, quotations and generated parts are not
checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 36
"""most words of a sentence; the aim is 25"""
LARGEST = 130
"""most words of a paragraph or a list item"""
PHRASES = {
    r"\bof which\b": "say which one, in a sentence of its own",
    r"\bwhat (?:\w+ )?(?:is|are|was|were|need be) asked\b": "say what is checked",
    r"\bis asked of\b": "say who checks what",
    r"\banswers? for, until a day\b": "an accepted failure has an owner and an expiry date",
    r"\bbut for (?:what|where|those|that)\b": "say except, or use two sentences",
    r"\bSo does what\b": "say which one",
    r"\bfor a third sceptic\b": "say what the checks look for",
    r"\bby which\b": "use two sentences",
    r"\bno frame around it\b": "say what is missing",
}
GENERATED = re.compile(r"<!-- generated:.*?<!-- end -->", re.DOTALL)
FENCE = re.compile(r"^[ ]*(?:<!-- file: \S+ -->\n)?```.*?^[ ]*```$", re.MULTILINE | re.DOTALL)
BREAK = re.compile(r"^\s*(?:[-*>|#]|\d+\. |    |$|<!--|\||!)")
END = re.compile(r"(?<=[.!?])[\"')*]*\s+|(?<=[:;])[\"')*]*\s+(?=[\"'(*`\[]*[A-Z0-9`\[])")
"""matches the end of a sentence. After a full stop any letter may follow, because some sentences begin with a name in
small letters."""
WORD = re.compile(r"[\w'’-]+")


def pages() -> list[Path]:
    """All pages that are checked."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and list items of a Markdown text, each as one line."""
    text = FENCE.sub("\n", GENERATED.sub("\n", text))
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        starts = bool(BREAK.match(line))
        if starts and lines:
            yield " ".join(lines)
            lines = []
        if line.strip() and not re.match(r"\s*(?:\||#|<!--|>|    )", line):
            lines.append(line.strip())


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, without code and without the targets of links."""
    plain = re.sub(r"`[^`]*`", "X", re.sub(r"\]\([^)]*\)", "]", paragraph))
    return END.split(plain)


def wrong(text: str) -> Iterator[str]:
    """What is wrong with a paragraph."""
    for sentence in sentences(text):
        count = len(WORD.findall(sentence))
        if count > LONGEST:
            yield f"{count} words, at most {LONGEST}: {sentence[:100]}…"
    words = sum(len(WORD.findall(sentence)) for sentence in sentences(text))
    if words > LARGEST:
        yield f"a paragraph of {words} words, at most {LARGEST}: {text[:100]}…"
    for phrase, advice in PHRASES.items():
        if found := re.search(phrase, re.sub(r"`[^`]*`", "X", text)):
            yield f"“{found[0]}”: {advice}"


def main() -> int:
    """Print every bad sentence; returns the exit code, 1 where there is one."""
    bad = [
        f"{path.relative_to(ROOT)}: {what}"
        for path in pages()
        for paragraph in paragraphs(path.read_text())
        for what in wrong(paragraph)
    ]
    print("\n".join(bad), file=sys.stderr, end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
