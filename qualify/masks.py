"""Masks: which keys a query sees, in plain arithmetic; the same code takes ints and tensors, and imports nothing heavy.

Query i of a sequence sits at key position ``p = i + seqlen_k - seqlen_q``, so every mask is aligned to the bottom
right corner. With ``seqlen_q = 3`` and ``seqlen_k = 5``::

    causal        window (1, 0)   window (1, 1)   full          chunked2      dilated3x2
    k 0 1 2 3 4   k 0 1 2 3 4     k 0 1 2 3 4     k 0 1 2 3 4   k 0 1 2 3 4   k 0 1 2 3 4
    q x x x . .   q . x x . .     q . x x x .     q x x x x x   q . . x . .   q x . x . .
      x x x x .     . . x x .       . . x x x       x x x x x     . . x x .     . x . x .
      x x x x x     . . . x x       . . . x x       x x x x x     . . . . x     . . x . x

A mask is an interval of keys around the query's position, and perhaps a pattern that hides some of them. To add a
kind of mask, add its word to ``MaskKind`` and ``PatternName``, and a :class:`Pattern` to ``PATTERNS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Literal

MaskKind = Literal["full", "causal", "window", "band", "chunked", "dilated"]
"""the families of masks; cards claim them in ``claims.masks``"""
PatternName = Literal["", "chunked", "dilated"]
"""the kinds that hide keys within the interval; empty = none"""
UNBOUNDED = -1
EVERYWHERE = (UNBOUNDED, UNBOUNDED)
"""a window that is open on both sides"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """A kind of mask that hides keys within the interval, by one number, its size."""

    sees: Callable[[Any, Any, Any], Any]
    """(position, key, size): whether the query at a position sees a key"""
    narrows: Callable[[Any, Any, Any, Any], tuple[Any, Any]]
    """(position, low, high, size): the first key seen within [low, high), and one past the last"""
    step: Callable[[int], int]
    """(size): distance from one visible key to the next, and from one query to the next of its phase. The queries of a
    phase see keys of the same residue; 1 = what a query sees is one range of keys"""
    parts: Callable[[int, int, int], Iterator[tuple[int, int]]]
    """(seqlen_q, seqlen_k, size): (queries, keys) of independent sequences, in which only the interval hides keys, with
    its sides divided by ``step``"""
    others: Callable[[int, int], tuple[int, int]]
    """(size, keys): two other sizes, under which queries over that many keys see other keys; size 0 = no pattern yet"""
    short: str
    """label of the usual mask of the kind, with ``{size}``: a causal mask, or a causal window of ``{window}`` keys"""
    noun: str
    """what hides the keys, for people"""
    words: str
    """the same with its size"""


def _chunks(seqlen_q: int, seqlen_k: int, size: int) -> Iterator[tuple[int, int]]:
    first = max(0, seqlen_k - seqlen_q)
    for begin in range(first // size * size, seqlen_k, size):
        yield min(begin + size, seqlen_k) - max(begin, first), min(size, seqlen_k - begin)


def _chunk_edges(position: Any, low: Any, high: Any, size: Any) -> tuple[Any, Any]:
    begin = position // size * size
    return _higher(low, begin), _lower(high, begin + size)


def _other_chunks(size: int, keys: int) -> tuple[int, int]:
    cut = (-(-size // 2) or -(-keys // 3)) | 1  # odd, so that it cuts tiles
    return cut, cut + 16


def _phases(seqlen_q: int, seqlen_k: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(min(size, seqlen_q)):
        keys = range((first + seqlen_k - seqlen_q) % size, seqlen_k, size)
        yield len(range(first, seqlen_q, size)), len(keys)


def _phase_edges(position: Any, low: Any, high: Any, size: Any) -> tuple[Any, Any]:
    return low + (position - low) % size, high - (high - 1 - position) % size


def _other_dilations(size: int, _: int) -> tuple[int, int]:
    first, second, *_others = (other for other in (2, 3, 5) if other != size)
    return first, second


PATTERNS: dict[PatternName, Pattern] = {
    "chunked": Pattern(
        sees=lambda position, key, size: key // size == position // size,
        narrows=_chunk_edges,
        step=lambda _: 1,
        parts=_chunks,
        others=_other_chunks,
        short="chunked{size}",
        noun="chunks",
        words="chunks of {size}",
    ),
    "dilated": Pattern(
        sees=lambda position, key, size: (key - position) % size == 0,
        narrows=_phase_edges,
        step=lambda size: size,
        parts=_phases,
        others=_other_dilations,
        short="dilated{window}x{size}",
        noun="dilation",
        words="dilation of {size}",
    ),
}
"""Chunks count from key 0 of the sequence, wherever its queries begin; a dilation counts from the query's position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mask:
    """Which keys each query of a sequence sees.

    ``causal`` and ``window`` stay apart as they were spelled: a window whose right side is 0 hides the same keys as a
    causal mask, and kernels take other paths for it.
    """

    causal: bool = False
    """whether keys after the query's position are hidden"""
    window: tuple[int, int] = (-1, -1)
    """(left, right) inclusive distances in keys from the query's position, -1 = unbounded"""
    pattern: PatternName = ""
    """what hides keys within the interval"""
    size: int = 0
    """the pattern's number, for example positions per chunk; 0 = no pattern"""

    def __post_init__(self) -> None:
        """Refuse an unknown pattern, and a pattern without a size or the reverse."""
        if self.pattern and self.pattern not in PATTERNS:
            raise ValueError(f"pattern={self.pattern!r} is none of {', '.join(PATTERNS)}")
        if bool(self.pattern) != (self.size > 0):
            raise ValueError(f"pattern={self.pattern!r} and size={self.size}: a pattern goes with a size of 1 or more")

    @property
    def kind(self) -> MaskKind:
        """The family of the mask, the word that cards use; a window that is open to later keys is a band."""
        if self.pattern:
            return self.pattern
        if not self.windowed:
            return "causal" if self.causal else "full"
        return "window" if self.causal or self.window[1] == 0 else "band"

    @property
    def windowed(self) -> bool:
        """Whether a side of the window is bounded."""
        return self.window != EVERYWHERE

    @property
    def chunk(self) -> int:
        """Positions per chunk; 0 where there are no chunks."""
        return self.size if self.pattern == "chunked" else 0

    @property
    def step(self) -> int:
        """Distance from one visible key to the next: a query sees ``range(low, high, step)`` of its key range."""
        return PATTERNS[self.pattern].step(self.size) if self.pattern else 1

    @property
    def label(self) -> str:
        """Short and typeable, as case ids have it, for example ``causal`` or ``window4096``; :func:`parse` reads it."""
        left, right = self.window
        seen = left + 1 if self.causal and left >= 0 and right in {UNBOUNDED, 0} else 0
        if seen:
            label = f"window{seen}"
        else:
            label = "causal" if self.causal else "full"
            label += f".window{left}.{right}".replace("-1", "all") if self.windowed else ""
        if not self.pattern:
            return label
        short = PATTERNS[self.pattern].short
        usual = bool(seen) if "{window}" in short else label == "causal"
        return short.format(window=seen, size=self.size) if usual else f"{label}.{self.pattern}{self.size}"

    @property
    def words(self) -> str:
        """For people, for example ``causal, window (4095, 0)``; empty where every query sees every key."""
        sides = ", ".join("∞" if side == UNBOUNDED else str(side) for side in self.window)
        parts = (
            "causal" if self.causal else "",
            f"window ({sides})" if self.windowed else "",
            PATTERNS[self.pattern].words.format(size=self.size) if self.pattern else "",
        )
        return ", ".join(filter(None, parts))

    def visible(self, i: Any, j: Any, seqlen_q: Any, seqlen_k: Any) -> Any:
        """Whether query ``i`` sees key ``j``; all are ints or integer tensors, which broadcast.

        Args:
            i: query index, from 0.
            j: key index, from 0.
            seqlen_q: queries of the sequence.
            seqlen_k: keys of the sequence.
        """
        seen, reached = (j >= 0) & (j < seqlen_k), reaches(self, i, j, seqlen_q, seqlen_k)
        return seen if reached is True else seen & reached

    def key_range(self, i: Any, seqlen_q: Any, seqlen_k: Any) -> tuple[Any, Any]:
        """First visible key and one past the last one of query ``i``, ints or tensors; equal where it sees none."""
        position = i + seqlen_k - seqlen_q
        left, right = self.window
        low, high = 0 * position, seqlen_k + 0 * position
        if left != UNBOUNDED:
            low = _higher(low, position - left)
        if self.causal:
            high = _lower(high, position + 1)
        if right != UNBOUNDED:
            high = _lower(high, position + right + 1)
        if self.pattern:
            low, high = PATTERNS[self.pattern].narrows(position, low, high, self.size)
        low = _lower(low, seqlen_k)
        return low, _higher(low, high)

    def tile_range(self, start: int, stop: int, seqlen_q: int, seqlen_k: int) -> tuple[int, int]:
        """First key and one past the last that any query of ``start`` to ``stop`` - 1 may see.

        From one query to the next of its phase, which is ``step`` later, both ends move to later keys or stay.
        """
        firsts, lasts = range(start, min(stop, start + self.step)), range(max(start, stop - self.step), stop)
        low = min(self.key_range(i, seqlen_q, seqlen_k)[0] for i in firsts)
        return low, max(low, *(self.key_range(i, seqlen_q, seqlen_k)[1] for i in lasts))

    def seen_keys(self, seqlen_q: int, seqlen_k: int) -> int:
        """Keys of one sequence that at least one of its queries sees: one range of them for each phase."""
        seen = 0
        for first in range(min(self.step, seqlen_q)):
            last = seqlen_q - 1 - (seqlen_q - 1 - first) % self.step
            low, _ = self.key_range(first, seqlen_q, seqlen_k)
            _, high = self.key_range(last, seqlen_q, seqlen_k)
            seen += len(range(low, high, self.step))
        return seen

    def pairs(self, seqlen_q: int, seqlen_k: int) -> int:
        """Visible (query, key) pairs of one sequence, in closed form for each part of a pattern."""
        if self.pattern:
            left, right = (side if side == UNBOUNDED else side // self.step for side in self.window)
            interval = Mask(causal=self.causal, window=(left, right))
            parts = PATTERNS[self.pattern].parts(seqlen_q, seqlen_k, self.size)
            return sum(interval.pairs(queries, keys) for queries, keys in parts)
        if not seqlen_q or not seqlen_k:
            return 0
        left, right = self.window
        offset = seqlen_k - seqlen_q
        bound = 0 if self.causal else UNBOUNDED
        if right != UNBOUNDED:
            bound = right if bound == UNBOUNDED else min(bound, right)
        stops = seqlen_q * seqlen_k if bound == UNBOUNDED else _clipped_sum(offset + bound + 1, seqlen_q, 0, seqlen_k)
        starts = 0 if left == UNBOUNDED else _clipped_sum(offset - left, seqlen_q, 0, seqlen_k)
        return stops - starts


_SHORT = ("full", "causal", "window{window}", *(pattern.short for pattern in PATTERNS.values()))
ASKABLE = "|".join(short.format(window="[1-9][0-9]{0,8}", size="[1-9][0-9]{0,8}") for short in _SHORT)
"""labels that a matrix may ask for, as a regular expression"""
EXAMPLES = tuple(short.format(window="4096", size="2" if "{window}" in short else "4096") for short in _SHORT)
"""such labels"""
_LABEL = re.compile(
    r"(?P<interval>causal|full|window(?P<window>\d+))(?:\.window(?P<left>all|\d+)\.(?P<right>all|\d+))?"
    rf"(?:\.(?P<pattern>{'|'.join(PATTERNS)})(?P<size>\d+))?"
)


def reaches(mask: Mask, i: Any, j: Any, seqlen_q: Any, seqlen_k: Any) -> Any:
    """Whether query ``i`` sees key ``j``, as :meth:`Mask.visible` says, of keys that the sequence has.

    Args:
        i, j: ints or tensors that broadcast.

    Returns:
        A bool or a bool tensor; True alone where every query sees every key, so that nothing is computed for it.
    """
    position = i + (seqlen_k - seqlen_q)
    left, right = mask.window
    seen = [j <= position] if mask.causal else []
    if left != UNBOUNDED:
        seen.append(j >= position - left)
    if right != UNBOUNDED:
        seen.append(j <= position + right)
    if mask.pattern:
        seen.append(PATTERNS[mask.pattern].sees(position, j, mask.size))
    return reduce(and_, seen) if seen else True


def parse(label: str) -> Mask:
    """The mask of a label.

    Raises:
        ValueError: the text is no label.
    """
    found = _LABEL.fullmatch(_spelled_out(label))
    if found is None:
        raise ValueError(f"{label!r} names no mask")
    window = EVERYWHERE
    if found["window"]:
        window = (int(found["window"]) - 1, 0)
    elif found["left"]:
        window = (_side(found["left"]), _side(found["right"]))
    causal = found["interval"] == "causal" or bool(found["window"])
    pattern: Any = found["pattern"] or ""
    return Mask(causal=causal, window=window, pattern=pattern, size=int(found["size"] or 0))


def _spelled_out(label: str) -> str:
    """A short label with its interval, as other masks of the kind have theirs."""
    for name, pattern in PATTERNS.items():
        found = re.fullmatch(pattern.short.format(window=r"(?P<window>\d+)", size=r"(?P<size>\d+)"), label)
        if found:
            interval = f"window{found['window']}" if "{window}" in pattern.short else "causal"
            return f"{interval}.{name}{found['size']}"
    return label


def _side(text: str) -> int:
    return UNBOUNDED if text == "all" else int(text)


def _higher(one: Any, other: Any) -> Any:
    """The larger of each two, ints or a tensor and ints or tensors."""
    return max(one, other) if isinstance(one, int) else one.clip(min=other)


def _lower(one: Any, other: Any) -> Any:
    """The smaller of each two, ints or a tensor and ints or tensors."""
    return min(one, other) if isinstance(one, int) else one.clip(max=other)


def _clipped_sum(first: int, count: int, low: int, high: int) -> int:
    """Sum over ``count`` consecutive ints from ``first`` of min(max(x, low), high)."""
    last = first + count - 1
    below = min(max(low - first, 0), count)
    above = min(max(last - high, 0), count - below)
    inside = count - below - above
    start = first + below
    return below * low + above * high + inside * start + inside * (inside - 1) // 2
