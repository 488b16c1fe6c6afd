"""The real ``qualify`` with short leases: started by test_writers.py, which cannot wait as long as users can."""

from __future__ import annotations

import sys

from qualify.cli.entry import main
from qualify.fleet import writers

if __name__ == "__main__":
    writers.LEASE_S, writers.BEAT_S = 1.5, 0.3
    sys.exit(main())
