"""One fire at a time on a card, whichever service of the store owes it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from fire_examples import ORDER

from qualify.canary import card_lease
from qualify.canary.card_lease import CardLease
from qualify.store import Store


def test_a_fire_of_another_service_waits(empty_sqlite: str) -> None:
    """It says for whom; it begins when the first one has ended. The list of services does not show the lease."""
    said: list[str] = []
    begun = threading.Event()
    with Store.open(empty_sqlite) as store, Store.open(empty_sqlite) as other:

        def wait() -> None:
            with CardLease(other.canaries, replace(ORDER, lease="h100"), said.append):
                begun.set()

        second = threading.Thread(target=wait)
        with CardLease(store.canaries, ORDER, said.append):
            second.start()
            assert not begun.wait(1.5)
        assert begun.wait(10)
        second.join()
        assert [] == store.canaries.leases()
    assert 1 == len(said)
    assert said[0].startswith("waits for card:n cpu, which a fire of canary on n, pid ")


def test_a_card_whose_fire_was_killed_is_free_again(empty_sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody renews the lease, so it runs out."""
    monkeypatch.setattr(card_lease, "CARD_S", 1.0)
    with Store.open(empty_sqlite) as store:
        killed = store.canaries.acquire("card:n cpu", "canary on n, pid 1", card_lease.CARD_S)
        assert killed is not None
        began = time.monotonic()
        with CardLease(store.canaries, ORDER, lambda _: None):
            assert time.monotonic() - began > 0.5
