"""Wall time of ``qualify --help``: what every mistyped command costs."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from common import command_line, machine, show, small


def main() -> None:
    """Median of some processes, after one that warms the disk cache."""
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
