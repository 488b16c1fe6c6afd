"""The expected mask above the mask that was seen, around the first query that the census found wrong.

The census stores the first wrong query, the keys that this query must see, and one group of keys of which it sees too
many or too few. Where one wrong mask explains every row, the census stores its name, and both masks are drawn. Where
none does, only the first wrong query is drawn. Then the number of seen keys in the group is known, but not which they
are, so the group is outlined.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from qualify.facts.case import Workload
from qualify.facts.outcome import Finding, Value
from qualify.masks import EVERYWHERE, PATTERNS, UNBOUNDED, Mask
from qualify.report.columns import Column, Table
from qualify.report.drawings.svg import Drawing, picture, titled
from qualify.report.figures import text

KEYS, QUERIES = 28, 15
"""most keys and queries that are drawn"""
CELL, GAP, TOP, LEFT = 10, 46, 40, 52
"""size of a key, room between the masks, above and at the left of each, in units of the drawing"""
WIDTH = LEFT + CELL * KEYS + 10
"""also where fewer keys are drawn, because the labels need the room"""
NEAR = 4096
"""keys on each side of the query that are searched for a key that it sees wrongly"""
Sees = Callable[[int, int], bool]
"""(query, key): whether the query sees the key"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Miscount:
    """One number of the census."""

    what: str
    expected: str
    seen: str


COLUMNS: tuple[Column[Miscount], ...] = (
    Column(key="what", title="First wrong query", cell=lambda row: row.what),
    Column(key="expected", title="Expected", cell=lambda row: row.expected),
    Column(key="seen", title="Seen", cell=lambda row: row.seen),
)


def masks(workload: Workload, finding: Finding) -> Drawing | None:
    """Expected and seen mask of a failed census; None where the finding names no wrong query."""
    sequence, query = (finding.values.get(name) for name in ("sequence", "query"))
    if not isinstance(sequence, int) or not isinstance(query, int) or not 0 <= sequence < workload.batch:
        return None
    sizes = workload.seqlens_q[sequence], workload.seqlens_k[sequence]
    if not 0 <= query < sizes[0] or not sizes[1]:
        return None
    expected = _sees(workload, workload.mask, sequence)
    seen = _explained(workload, sequence, str(finding.values.get("looks_like") or ""))
    labelled = _labelled(finding.values.get("label"))
    queries = _around(query, QUERIES, sizes[0])
    differs = _differing(expected, seen, query) if seen else labelled
    keys = _around(_centre(query, sizes, differs), KEYS, sizes[1])
    upper = _panel("expected", expected, expected, None, query, queries, keys, TOP)
    top = TOP + CELL * len(queries) + GAP + TOP
    lower = _panel("seen", seen, expected, None if seen else labelled, query, queries, keys, top)
    height = top + CELL * len(queries) + 34
    label = f"mask expected and seen around query {query} of sequence {sequence}"
    return Drawing(
        title="The mask that was expected, and the mask that was seen",
        svg=picture(WIDTH, height, label, [*upper, *lower], "masks"),
        note=_note(finding, bool(seen), sequence, query),
        table=Table(caption="What the first wrong query sees", columns=COLUMNS, rows=_rows(finding)),
    )


def _sees(workload: Workload, mask: Mask, sequence: int, *, shift: int = 0, spans: bool = True) -> Sees:
    """Which keys the queries of a sequence see under a mask.

    Args:
        shift: by how many keys the mask is moved to the right.
        spans: whether tokens of one image see each other.
    """
    queries, keys = workload.seqlens_q[sequence], workload.seqlens_k[sequence]
    images = [(start, end) for number, start, end in workload.spans if number == sequence] if spans else []

    def sees(query: int, key: int) -> bool:
        position = query + keys - queries
        together = any(start <= position < end and start <= key < end for start, end in images)
        return together or bool(mask.visible(query + shift, key, queries, keys))

    return sees


def _explained(workload: Workload, sequence: int, name: str) -> Sees | None:
    """The wrong mask that the census names as the explanation of every row; None where it names none."""
    mask = workload.mask
    left, right = mask.window
    offset = workload.seqlens_k[sequence] - workload.seqlens_q[sequence]
    masks_by_name = {
        "no mask at all": replace(mask, causal=False, window=EVERYWHERE),
        "the window being ignored": replace(mask, window=(UNBOUNDED, right)),
        "a window of one key more on the left": replace(mask, window=(left + 1, right)),
        "a window of one key less on the left": replace(mask, window=(max(0, left - 1), right)),
    }
    if mask.pattern:
        masks_by_name[f"the {PATTERNS[mask.pattern].noun} being ignored"] = replace(mask, pattern="", size=0)
    shifts = {
        "a mask aligned to the top left corner": -offset,
        "a mask shifted by one key to the right": 1,
        "a mask shifted by one key to the left": -1,
    }
    if name == "the image spans being ignored":
        return _sees(workload, mask, sequence, spans=False)
    if name in shifts:
        return _sees(workload, mask, sequence, shift=shifts[name])
    return _sees(workload, masks_by_name[name], sequence) if name in masks_by_name else None


def _labelled(label: Value) -> Callable[[int], bool] | None:
    """A function that says whether a key is in the group that the census names; None where the label names none."""
    words = str(label or "")
    if found := re.fullmatch(r"keys? (\d+)(?: to (\d+))?", words):
        first, last = int(found[1]), int(found[2] or found[1])
        return lambda key: first <= key <= last
    if found := re.fullmatch(r"keys ≡ (\d+) \(mod ([1-9]\d*)\)", words):  # of runs before this version
        rest, every = int(found[1]), int(found[2])
        return lambda key: key % every == rest
    if found := re.fullmatch(r"keys (\d+(?:, \d+)*)(?: and (\d+)| and so on)", words):
        named = [*map(int, found[1].split(", ")), *([int(found[2])] if found[2] else [])]
        if found[2]:
            return lambda key: key in named
        first, every = named[0], named[1] - named[0] if len(named) > 1 else 0
        return (lambda key: key >= first and (key - first) % every == 0) if every > 0 else None
    return None


def _differing(expected: Sees, seen: Sees, query: int) -> Callable[[int], bool]:
    """A function that says whether the query sees a key wrongly: one too many, or one too few."""
    return lambda key: expected(query, key) != seen(query, key)


def _centre(query: int, sizes: tuple[int, int], wrong: Callable[[int], bool] | None) -> int:
    """The key that is drawn in the middle: among the wrongly seen keys, the nearest to the query's position."""
    position = query + sizes[1] - sizes[0]
    if wrong:
        near = range(max(0, position - NEAR), min(sizes[1], position + NEAR))
        return min(filter(wrong, near), key=lambda key: abs(key - position), default=position)
    return position


def _around(middle: int, count: int, size: int) -> range:
    first = max(0, min(middle - count // 2, size - count))
    return range(first, min(size, first + count))


def _panel(
    name: str,
    sees: Sees | None,
    expected: Sees,
    labelled: Callable[[int], bool] | None,
    query: int,
    queries: range,
    keys: range,
    top: int,
) -> list[str]:
    """One mask. Full squares are keys that a query sees.

    Outlined squares are keys that differ from the expected mask, or the group in which only the number of seen keys is
    known.
    """
    on, off, maybe = _squares(sees, expected, labelled, query, queries, keys)
    squares = f'<path class="off" d="{off}"/><path class="on" d="{on}"/><path class="maybe" d="{maybe}"/>'
    rows = f"rows: queries {queries.start:,} to {queries[-1]:,}"
    y = top + CELL * (query - queries.start)
    frame = f'class="row" x="{LEFT - 1}" y="{y - 1}" width="{CELL * len(keys) + 2}" height="{CELL + 2}"'
    return [
        f'<text class="strong" x="{LEFT}" y="{top - 26}">{name}</text>',
        f'<text x="{LEFT}" y="{top - 8}">key {keys.start:,}</text>',
        f'<text x="{LEFT + CELL * len(keys)}" y="{top - 8}" text-anchor="end">key {keys[-1]:,}</text>',
        f'<g transform="translate({LEFT} {top})">{squares}</g>',
        titled("rect", frame, f"query {query}, the first wrong one"),
        f'<text x="{LEFT - 6}" y="{y + 9}" text-anchor="end">{query:,}</text>',
        f'<text class="label" x="{LEFT}" y="{top + CELL * len(queries) + 18}">{rows}</text>',
    ]


def _squares(
    sees: Sees | None,
    expected: Sees,
    labelled: Callable[[int], bool] | None,
    query: int,
    queries: range,
    keys: range,
) -> tuple[str, str, str]:
    """Paths of the squares that are full, empty and outlined, from the upper left corner of the mask."""
    on, off, maybe = "", "", ""
    for down, row in enumerate(queries):
        for across, key in enumerate(keys):
            place = f"M{CELL * across + 1} {CELL * down + 1}h8v8h-8z"
            seen = sees is not None and sees(row, key)
            guess = sees is None and row == query and labelled is not None and labelled(key)
            on += place if seen else ""
            off += "" if seen or guess else place
            maybe += place if guess or (sees is not None and seen != expected(row, key)) else ""
    return on, off, maybe


def _note(finding: Finding, explained: bool, sequence: int, query: int) -> str:
    around = f"Around query {query:,} of sequence {sequence:,}, the first wrong one (framed)."
    where = f"{around} Filled: the query sees the key."
    if explained:
        return (
            f"{where} Outlined keys differ from the expected mask. Every row looks like {finding.values['looks_like']}."
        )
    return (
        f"{where} No simple mask explains all rows. Outlined: the group of keys of which the query sees a wrong number "
        f"({finding.values.get('label', 'unknown')})."
    )


def _rows(finding: Finding) -> tuple[Miscount, ...]:
    values = finding.values
    if "label" not in values:
        return (Miscount(what="LSE", expected=text(values.get("expected")), seen=text(values.get("lse"))),)
    bounds = f"{text(values.get('visible_first'))} to {text(values.get('visible_last'))}"
    return (
        Miscount(what="keys that it must see", expected=bounds, seen=str(values.get("looks_like") or "not explained")),
        Miscount(what=f"of {values['label']}", expected=text(values.get("expected")), seen=text(values.get("actual"))),
    )
