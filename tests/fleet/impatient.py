"""The real ``qualify`` with short leases and little patience: started by tests, which cannot wait as users can."""

from __future__ import annotations

import sys

from qualify.cli.entry import main
from qualify.fleet import patience, writers

if __name__ == "__main__":
    writers.LEASE_S, writers.BEAT_S = 1.5, 0.3
    patience.PATIENCE_S = 1.0
    sys.exit(main())
