"""Tells which files in a user's ``--cards`` folders are cards, and names every other file that looks like one."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from qualify import assets
from qualify.cards.plain_text import LIMIT_BYTES
from qualify.cards.problems import meant
from qualify.cards.source import parse, read
from qualify.errors import CardError
from qualify.files import open_regular

PLACES = (
    ("kernel", "kernels", ""),
    ("matrix", "matrices", ""),
    ("canary", "canaries", ""),
    ("model", "matrices", "models"),
)
"""for each kind of card: the key that makes a file one, the folder where qualify looks for it, and a folder inside"""
NAMED = ("waivers", "traffic")
"""files that a matrix names by their path"""
ENOUGH = 2
"""a file with so many keys of a card is meant as one; a mistyped key counts"""
_KEY = re.compile(r"""\s*["']?([\w.-]+)["']?\s*:(\s|$)""")
_IGNORED = re.compile(r"\s*(#|%|---\s*(#|$)|$)")
_INVISIBLE = re.compile("[\ufeff\x0c\u200b]")


def declares(path: Path, key: str) -> bool:
    """Whether a file in a user's folder is meant as such a card: it has the key at its top level.

    A file that cannot be read counts as every kind of card, so that loading it says why. Where a file has a syntax
    error, its lines decide: then a broken card is reported, and a foreign file is not.
    """
    found = keys_of(path)
    return found is None or key in found


def keys_of(path: Path) -> tuple[str, ...] | None:
    """The keys at the top level; None where the file is no text that can be read. A folder has none."""
    if path.is_dir():
        return ()
    try:
        with open_regular(path) as stream:
            content = stream.read(LIMIT_BYTES)
        return _keys(path.suffix, content.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError):
        return None


@lru_cache(maxsize=256)
def _keys(suffix: str, text: str) -> tuple[str, ...] | None:
    """Finds the keys by lines, which is quick; where they show no card, by the parser, which knows ``{matrix: x}``."""
    if "\0" in text:
        return None
    found = () if suffix == ".json" else _keys_of_lines(text)
    if any(key in found for key in (*(key for key, _, _ in PLACES), *NAMED)):
        return found
    try:
        data = parse(Path(f"card{suffix}"), _INVISIBLE.sub("", text)).data
    except CardError:
        return found or tuple(re.findall(r"""["']([\w.-]+)["']\s*:""", text))
    return tuple(map(str, data)) if isinstance(data, dict) else found


def _keys_of_lines(text: str) -> tuple[str, ...]:
    """The keys of the lines that begin where the first one does."""
    lines = [line for line in _INVISIBLE.sub("", text).splitlines() if not _IGNORED.match(line)]
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    top = (line for line in lines if len(line) - len(line.lstrip()) == indent)
    return tuple(found[1] for line in top if (found := _KEY.match(line)))


def strangers(cards: tuple[Path, ...]) -> list[str]:
    """The message for each file in the folders that looks like a card and is not read as one."""
    found = ((path, _why_left_out(path, cards)) for path in _candidates(cards))
    return [f"{path}{_where_mistyped(path, cards)} is left out: {why}" for path, why in found if why]


def almost_cards(kind: str, fields: Collection[str], cards: tuple[Path, ...]) -> list[Path]:
    """The files in the folders of that kind which lack only the key that would make them such a card.

    Args:
        kind: the key.
        fields: all keys of such a card.
    """
    _, folder, inside = next(place for place in PLACES if place[0] == kind)
    suffix = ".json" if inside else ".yaml"
    places = (place / inside for place in assets.extra(folder, cards))
    return [path for place in places for path in sorted(place.glob(f"*{suffix}")) if _almost(path, kind, fields)]


def _almost(path: Path, kind: str, fields: Collection[str]) -> bool:
    keys = keys_of(path) or ()
    if any(key in keys for key in (*(key for key, _, _ in PLACES), *NAMED)):
        return False
    return len(set(keys) & set(fields)) + any(meant(key, [kind]) for key in keys) >= ENOUGH


def _where_mistyped(path: Path, cards: tuple[Path, ...]) -> str:
    """Line and column of the key that was perhaps meant to make the file a card; empty where there is none."""
    homes, keys = _homes(path, cards), keys_of(path) or ()
    if path.suffix not in {".yaml", ".json"} or any(key in keys for key in homes):
        return ""
    key = next((key for key in keys if meant(key, homes)), "")
    try:
        place = read(path).key_place((key,)) if key else None
    except CardError:
        return ""
    return f":{place.line}:{place.column}" if place else ""


def _candidates(cards: tuple[Path, ...]) -> list[Path]:
    """Every visible file of YAML where cards are looked for, and of JSON where models are."""
    found: dict[Path, None] = {}
    for _, folder, inside in PLACES:
        for place in assets.extra(folder, cards):
            for path in sorted((place / inside).glob("*")):
                endings = {".json"} if inside else {".yaml", ".yml"}
                if path.suffix.lower() in endings and not path.name.startswith("."):
                    found[path] = None
    return list(found)


def _why_unreadable(path: Path) -> str:
    """Why the file gives no text: there is none behind the name, it may not be read, or it holds something else."""
    try:
        open_regular(path).close()
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    return "it cannot be read as text in UTF-8, so save it as that"


def _why_left_out(path: Path, cards: tuple[Path, ...]) -> str:
    """Why the file is not read as a card; empty where it is, or where it is named by its path."""
    keys = keys_of(path)
    homes = _homes(path, cards)
    if path.is_dir():
        return "it is a folder"
    if path.suffix not in {".yaml", ".json"}:
        return _why_misnamed(path, keys, homes)
    if keys is None:
        return _why_unreadable(path)
    if any(key in keys for key in NAMED):
        return ""
    if any(key in keys for key in homes):
        return ""
    near = next((hint for key in keys for hint in [meant(key, homes)] if hint), "")
    kind = next(((key, "/".join(filter(None, way))) for key, *way in PLACES if key in keys), None)
    if kind and not near:
        return f"it is a {kind[0]}, and its place is the folder {kind[1]}"
    has = f"the keys {', '.join(keys[:5])}" if keys else "no key"
    return f"a card in this folder has the key {' or '.join(homes)} at its top level, but this file has {has}{near}"


def _homes(path: Path, cards: tuple[Path, ...]) -> list[str]:
    """The keys of the cards that are looked for in the file's folder."""
    return [key for key, folder, inside in PLACES if path.parent in [p / inside for p in assets.extra(folder, cards)]]


def _why_misnamed(path: Path, keys: tuple[str, ...] | None, homes: list[str]) -> str:
    """How to call a card whose name ends otherwise; empty where it is no card, for example a CI server's file.

    Args:
        keys: at its top level; None where it cannot be read.
        homes: the keys of the cards that are looked for in its folder.
    """
    kinds = {*homes, *(key for key, _, inside in PLACES if not inside)}
    if keys is not None and not any(key in kinds or meant(key, homes) for key in keys):
        return ""
    ending = path.suffix.lower().replace(".yml", ".yaml")
    return f"the name of a card ends in {ending}, so call it {path.stem}{ending}"
