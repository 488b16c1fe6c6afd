"""Wall time of ``qualify --help``, which is also the cost of every mistyped command."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from common import command_line, machine, show, small


def main() -> None:
    """Measure the median of some processes, after one that warms the disk cache."""
    command_line(__doc__).parse_args()
    samples = []
    for _ in range(3 if small() else 21):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "qualify", "--help"], check=True, stdout=subprocess.DEVNULL)
        samples.append(time.perf_counter() - began)
    machine()
    show("qualify --help, median", 1e3 * median(samples[1:]), "ms")


if __name__ == "__main__":
    main()
