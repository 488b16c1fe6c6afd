"""The real ``qualify`` with short leases and little patience: started by tests, which cannot wait as users can."""

from __future__ import annotations

import sys
from functools import partial

from qualify.cli.entry import main
from qualify.fleet import patience, writers
from qualify.store import database
from qualify.store.store import Store


def be_impatient() -> None:
    """Wait for seconds where users wait for a minute."""
    writers.LEASE_S, writers.BEAT_S = 1.5, 0.3
    patience.PATIENCE_S = 1.0
    database.STOPPED_S = 5
    Store.open = partial(Store.open, busy_timeout_s=5.0)  # type: ignore[method-assign]


if __name__ == "__main__":
    be_impatient()
    sys.exit(main())
