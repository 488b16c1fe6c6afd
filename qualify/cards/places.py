"""Where something stands in a file: the way to it, and its line and column."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NoReturn

from qualify.cards.words import Where
from qualify.errors import CardError, Place

LIMIT_DEPTH = 32
"""levels of mappings and lists inside each other"""

Spot = tuple[int, int]
"""line and column, from 1"""


def fail(path: Path, message: str, spot: Spot = (0, 0)) -> NoReturn:
    """Raise CardError with one problem."""
    raise CardError([(Place(path=str(path), line=spot[0], column=spot[1]), message)])


def dotted(where: Where) -> str:
    """A way in the notation of messages, for example ``phases.decode.page_size[1]``."""
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if re.fullmatch(r"[\w.*-]{1,60}", part) else json.dumps(part[:60])
            text += f".{word}" if text else word
    return text
