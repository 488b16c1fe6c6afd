"""No card makes the service talk to what only its machine can reach."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
import receivers
from alert_examples import KEY, make_alert, make_target

from qualify.canary.alerts.delivery import tell
from qualify.canary.alerts.guard import check, resolve
from qualify.canary.alerts.undelivered import Undelivered

NEVER = (
    *("169.254.169.254", "100.100.100.200", "168.63.129.16", "fe80::1", "fd00:ec2::254", "255.255.255.255"),
    *("0.0.0.0", "::", "224.0.0.1", "ff02::1"),
    *("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"),
)
PRIVATE = (
    *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.5.4", "192.168.1.1", "100.64.0.1"),
    *("::1", "fd12::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"),
)
PUBLIC = ("93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8")


def allowed(text: str, *, allow_private: bool) -> bool:
    """Whether an alert may go there."""
    try:
        check(text, text, allow_private=allow_private)
    except Undelivered:
        return False
    return True


@pytest.mark.parametrize("text", NEVER)
def test_metadata_is_never_reached(text):
    """Link-local and metadata addresses, in every spelling, whatever the card allows."""
    assert not allowed(text, allow_private=False)
    if text != "255.255.255.255":  # which routers keep private, and connects to nobody
        assert not allowed(text, allow_private=True)


@pytest.mark.parametrize("text", PRIVATE)
def test_private_needs_the_card(text):
    """Loopback and private addresses only where the card says so."""
    assert (False, True) == (allowed(text, allow_private=False), allowed(text, allow_private=True))


@pytest.mark.parametrize("text", PUBLIC)
def test_public_is_allowed(text):
    """What everybody can reach."""
    assert allowed(text, allow_private=False)


@pytest.mark.parametrize(
    "spelling", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]"]
)
def test_spellings_of_loopback(monkeypatch, spelling):
    """However the card spells it, nothing reaches the server."""
    monkeypatch.setenv("HOOK_KEY", KEY)
    with receivers.receiving() as receiver:
        url = receiver.url.replace("127.0.0.1", spelling)
        with pytest.raises(Undelivered, match=r"refused|host "):
            asyncio.run(tell(make_alert(), make_target(url, allow_private=False), Path(), deadline_s=3))
        assert [] == receiver.received


def test_one_bad_address_is_enough(monkeypatch):
    """A name with a public and a private address is refused: nobody knows which one would be connected to."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, 443)) for text in ("93.184.216.34", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(Undelivered, match=r"refused: hooks\.example\.com is 10\.0\.0\.1"):
        asyncio.run(resolve("hooks.example.com", 443, allow_private=False))


def test_name_is_resolved_once(monkeypatch):
    """The name may mean another address a moment later: the judged one is connected to, under the name's Host."""
    monkeypatch.setenv("HOOK_KEY", KEY)
    real, asked = socket.getaddrinfo, []

    def rebinding(host, *rest, **options):
        if host == "rebinding.example.com":
            asked.append(host)
            return real("127.0.0.1" if len(asked) == 1 else "169.254.169.254", *rest, **options)
        return real(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with receivers.receiving() as receiver:
        url = receiver.url.replace("127.0.0.1", "rebinding.example.com")
        asyncio.run(tell(make_alert(), make_target(url), Path(), deadline_s=5))
        assert ["rebinding.example.com"] == asked
        assert receiver.received[0].headers["host"].startswith("rebinding.example.com:")


def test_proxy_of_the_environment_is_not_used(monkeypatch):
    """A proxy would resolve the name again; the environment does not choose one."""
    monkeypatch.setenv("HOOK_KEY", KEY)
    with receivers.receiving() as proxy, receivers.receiving() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        asyncio.run(tell(make_alert(), make_target(receiver.url), Path(), deadline_s=5))
        assert (0, 1) == (len(proxy.received), len(receiver.received))


def test_unknown_host():
    """A name that nobody knows is said."""
    with pytest.raises(Undelivered, match=r"host nowhere\.invalid: "):
        asyncio.run(resolve("nowhere.invalid", 443, allow_private=False))
