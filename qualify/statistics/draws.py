"""Random draws that are the same with every numpy, so that an interval can be computed again years later.

numpy guarantees the raw stream of PCG64 for a seed, and not what its ``Generator`` makes of it. So the raw stream is
made into integers here, by Lemire's method (2019): the draw is the upper half of a 32-bit word times the bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WORD = 1 << 32


class Draws:
    """Whole numbers from one seed."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)
        self._left: NDArray[np.uint32] = np.empty(0, dtype=np.uint32)

    def below(self, bound: int, count: int) -> NDArray[np.uint16]:
        """So many draws, each of the numbers below the bound equally likely.

        Args:
            bound: 1 to 65,536.
        """
        if bound == 1:
            return np.zeros(count, dtype=np.uint16)
        found: NDArray[np.uint16] = np.empty(0, dtype=np.uint16)
        while len(found) < count:
            scaled = self._words(count - len(found)) * np.uint64(bound)
            drawn = (scaled >> np.uint64(32)).astype(np.uint16)
            # Words below this remainder would make some numbers likelier than others.
            fair = scaled.astype(np.uint32) >= np.uint32(WORD % bound)
            found = np.concatenate((found, drawn[fair]))
        return found

    def _words(self, count: int) -> NDArray[np.uint64]:
        """The next 32-bit words of the stream. A raw word gives its lower half first."""
        if (missing := count - len(self._left)) > 0:
            raw = np.asarray(self._bits.random_raw((missing + 1) // 2), dtype="<u8")
            self._left = np.concatenate((self._left, raw.view("<u4")))
        found, self._left = self._left[:count], self._left[count:]
        return found.astype(np.uint64)
