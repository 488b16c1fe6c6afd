"""Many globs over the ids of many cases: each id is compared only with the globs that its kernel leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import translate

_OPEN = re.compile(r"[*?\[\]]")


class Globs:
    """Globs by the kernel that stands at their end; those that leave it open are compared with every id."""

    def __init__(self, globs: Iterable[str]) -> None:
        self._open: list[tuple[int, Callable[[str], object]]] = []
        self._of_kernel: dict[str, list[tuple[int, Callable[[str], object]]]] = {}
        for number, glob in enumerate(globs):
            kernel = glob.rpartition("/")[2]
            place = self._open if "/" not in glob or _OPEN.search(kernel) else self._of_kernel.setdefault(kernel, [])
            place.append((number, re.compile(translate(glob)).match))

    def matching(self, case_id: str) -> list[int]:
        """The numbers of the globs that match an id."""
        own = self._of_kernel.get(case_id.rpartition("/")[2], ())
        return [number for some in (self._open, own) for number, match in some if match(case_id)]
