"""Pages are rendered once for each state of what they show, and kept, compressed."""

from __future__ import annotations

import gzip
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock

LEVEL = 5
"""level of the compression: it compresses a page of 20 MB in 0.3 s"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A page as it is sent."""

    content: bytes
    """compressed by gzip"""
    tag: str
    """its ETag: equal for the same page, however often it was rendered"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    state: Hashable
    made_at: float
    """seconds of the monotonic clock, before it was made"""
    page: Packed


class Rendered:
    """Keeps pages until they need the room of others; safe for several threads.

    Args:
        most_bytes: of all compressed pages in memory together.
        at_once: pages that are made at the same time; others wait.
        fresh_s: seconds after which a page is made again, although its state is the same.
    """

    def __init__(self, *, most_bytes: int, at_once: int, fresh_s: float = math.inf) -> None:
        self._most_bytes = most_bytes
        self._fresh_s = fresh_s
        self._pages: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()
        self._free = BoundedSemaphore(at_once)
        self._making: dict[Hashable, tuple[Lock, int]] = {}
        """by page: the lock that the maker of the page holds, and how many threads hold it or wait for it"""

    def get(self, key: Hashable, state: Callable[[], Hashable | None], make: Callable[[], Packed]) -> Packed:
        """The page; made where it is not here in its present state.

        Args:
            key: which page it is; one state of it is kept.
            state: gives the present state of what the page shows. None = nobody knows it: then the page is made, and
                the state is asked for again after that.
        """
        if found := self._found(key, state()):
            return found
        with self._alone(key), self._free:
            if found := self._found(key, state()):  # somebody made it meanwhile
                return found
            before, began = state(), time.monotonic()
            page = make()
            after = state()
            if after is not None and before in (None, after):
                self._keep(key, _Kept(state=after, made_at=began, page=page))
            return page

    @contextmanager
    def _alone(self, key: Hashable) -> Iterator[None]:
        """Let one thread at a time make a page; others wait here, and do not keep other pages from being made."""
        with self._lock:
            lock, count = self._making.get(key, (Lock(), 0))
            self._making[key] = lock, count + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, count = self._making.pop(key)
                if count > 1:
                    self._making[key] = lock, count - 1

    def _found(self, key: Hashable, state: Hashable | None) -> Packed | None:
        with self._lock:
            found = self._pages.get(key)
            if found is None or found.state != state or time.monotonic() - found.made_at >= self._fresh_s:
                return None
            self._pages.move_to_end(key)
            return found.page

    def _keep(self, key: Hashable, kept: _Kept) -> None:
        with self._lock:
            old = self._pages.pop(key, None)
            self._bytes += len(kept.page.content) - (len(old.page.content) if old else 0)
            self._pages[key] = kept
            while self._bytes > self._most_bytes and len(self._pages) > 1:
                self._bytes -= len(self._pages.popitem(last=False)[1].page.content)


def pack(text: str) -> Packed:
    """A page, compressed."""
    content = text.encode("utf-8", "backslashreplace")
    # Weak: the same page is sent compressed or not.
    tag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Packed(content=gzip.compress(content, LEVEL, mtime=0), tag=tag)
