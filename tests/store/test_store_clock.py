"""How far this machine's clock is from the store's."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import store_examples as examples
from cli_process import call
from clocks import turn_back

from qualify.facts.clock import skew_note
from qualify.store.store import Store


def test_one_clock_is_no_skew(empty_store: str) -> None:
    """Both databases of this test are on this machine."""
    with Store.open(empty_store) as store:
        assert abs(store.clock_skew_s()) < 5


def test_the_clock_of_a_server_that_is_behind(empty_postgres: str) -> None:
    """A server whose clock is 40 s behind: this machine is ahead of it."""
    turn_back(empty_postgres, "40 seconds")
    with Store.open(empty_postgres) as store:
        skew_s = store.clock_skew_s()
    assert 35 < skew_s < 45
    told = (
        "in run r was 40 s ahead of the store's clock, or was set by as much meanwhile, so the evidence may seem 40 s "
        "younger than it is"
    )
    assert told in skew_note("r", 40.4)


def test_prune_counts_days_by_the_clock_of_the_store(empty_postgres: str, tmp_path: Path) -> None:
    """A machine whose clock is 100 days ahead removes no run that ended a day ago, and one that is old."""
    turn_back(empty_postgres, "100 days")
    with Store.open(empty_postgres) as store:
        began = [store.canaries.now() - timedelta(days=days) for days in (1, 91)]
        for number, moment in enumerate(began):
            store.begin(examples.run(number, started_at=moment))
    done = call("db", "prune", "--db", empty_postgres, "--keep-days", "90", "--yes", "--json", cwd=tmp_path)
    assert (0, [examples.run(1).id]) == (done.code, done.data["removed"])


@pytest.mark.parametrize("skew_s", [None, 0.0, 5.0, -5.0])
def test_a_few_seconds_are_not_told(skew_s: float | None) -> None:
    """Nor what nobody measured."""
    assert "" == skew_note("r", skew_s)
