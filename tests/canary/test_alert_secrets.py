"""The service tells its targets, and their secrets stay with it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import receivers
from alert_examples import KEY
from cli_process import call, write_card
from service_process import wait_for

TELLS = """
import os

def attend(call):
    raise RuntimeError(" ".join(f"{name}={value}" for name, value in os.environ.items()))
"""


def test_kernels_do_not_see_the_secrets_of_alerts(sqlite_place, monkeypatch):
    """A kernel that tells its environment gets its words stored and sent, without the key; the list names no secret."""
    place = sqlite_place
    monkeypatch.setenv("HOOK_KEY", KEY)
    monkeypatch.setenv("MARK", "seen-by-the-kernel")
    (place.cards / "tells.py").write_text(TELLS)
    write_card(place.cards, "tells", "tells")
    with receivers.receiving() as receiver:
        receiver.answers = [(410, {}, b"")]
        target = f'{{target: oncall, kind: webhook, url: "{receiver.url}", secret_env: HOOK_KEY, allow_private: true}}'
        place.canary("tells", "tells", alerts=f"[{target}]")
        service = place.start("a")
        place.ask("tells")
        wait_for(lambda: "given up" in str(service), "the end of the alert", 60, service)
        assert 0 == service.stop()
    listed = call("canary", "list", "--cards", place.cards, "--db", place.address, cwd=place.folder)
    assert "unsent  t-tells to oncall (hold): HTTP 410" in listed.out
    with closing(sqlite3.connect(place.address)) as connection:
        stored = "\n".join(connection.iterdump())
    sent = b"".join(got.body for got in receiver.received).decode()
    assert "seen-by-the-kernel" in stored
    for text in (stored, sent, str(service), listed.out):
        assert KEY not in text
