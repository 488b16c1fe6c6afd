"""An alert reaches its target over real HTTP, and every kind of bad target is said in words without its secrets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import receivers
from alert_examples import BODY, KEY, make_alert, make_target

from qualify.canary.alerts.delivery import tell
from qualify.canary.alerts.undelivered import Undelivered

SECRET_PATH = "/services/T0/B0/very-secret"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of webhooks, in the environment."""
    monkeypatch.setenv("HOOK_KEY", KEY)


@pytest.fixture
def receiver():
    """A server that takes everything."""
    with receivers.receiving() as receiver:
        yield receiver


def deliver(target, alert=None, folder=Path(), deadline_s=60.0):
    """One attempt."""
    asyncio.run(tell(alert or make_alert(), target, folder, deadline_s=deadline_s))


def refused(target, **options) -> Undelivered:
    """The error of one attempt."""
    with pytest.raises(Undelivered) as caught:
        deliver(target, **options)
    return caught.value


def test_webhook_is_signed(receiver):
    """The receiver can compute the signature of id, timestamp and the very bytes of the body."""
    deliver(make_target(receiver.url))
    (got,) = receiver.received
    content = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    mac = hmac.new(base64.b64decode(KEY.removeprefix("whsec_")), content, hashlib.sha256).digest()
    assert f"v1,{base64.b64encode(mac).decode()}" == got.headers["webhook-signature"]
    assert "msg_0123456789abcdef01234567" == got.headers["webhook-id"]
    assert abs(time.time() - int(got.headers["webhook-timestamp"])) < 300
    body = json.loads(got.body)
    assert ("qualify.canary.hold", BODY) == (body["type"], body["data"])
    assert KEY not in str(got)


def test_rotated_key_signs_twice(receiver, tmp_path):
    """While a key is being rotated, both sign; the file is read beside the card, at every attempt."""
    other = "whsec_" + base64.b64encode(bytes(32)).decode()
    (tmp_path / "key").write_text(f"{KEY} {other}\n")
    target = make_target(receiver.url, secret_env=None, secret_file="key")
    deliver(target, folder=tmp_path)
    assert 2 == len(receiver.received[0].headers["webhook-signature"].split())
    (tmp_path / "key").write_text(KEY)
    deliver(target, folder=tmp_path)
    assert 1 == len(receiver.received[1].headers["webhook-signature"].split())


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "environment variable HOOK_KEY is empty or not set"),
        ("whsec_short", "no webhook key"),
        ("hunter2hunter2hunter2hunter2hunter2", "no webhook key"),
        ("whsec_" + "A" * 400, "no webhook key"),
        ("whsec_\n\nx", "more than one printable line"),
    ],
)
def test_unusable_key(receiver, monkeypatch, key, why):
    """A key that is none is said, without it, and nothing is sent."""
    monkeypatch.setenv("HOOK_KEY", key)
    error = refused(make_target(receiver.url))
    assert why in str(error)
    assert [] == receiver.received
    assert not key or key not in str(error)


def test_missing_secret_file(receiver, tmp_path):
    """A file that is not there is named."""
    error = refused(make_target(receiver.url, secret_env=None, secret_file="gone"), folder=tmp_path)
    assert "secret_file: file gone cannot be read: No such file or directory" == str(error)


def test_slack_shows_hostile_names_as_text(receiver):
    """No mention, link, emoji or formatting comes from a kernel's name; limits of Slack are kept."""
    body = BODY | {"reasons": [*BODY["reasons"], *(f"{'<&>' * 300} {number}" for number in range(40))]}
    deliver(make_target(receiver.url, "slack"), make_alert(body=body))
    data = json.loads(receiver.received[0].body)
    texts = [block["text"] for block in data["blocks"]]
    assert "header" == data["blocks"][0]["type"]
    assert all(text["type"] == "plain_text" and text["emoji"] is False for text in texts)
    shown = "\n".join([data["text"], *(text["text"] for text in texts)])
    assert "<" not in shown
    assert ">" not in shown
    assert "&lt;!channel&gt;" in shown
    assert "nightly: Hold" in data["text"]
    assert "torch: 2.11.0 → 2.13.0" in shown
    assert len(texts[0]["text"]) <= 150
    assert max(len(text["text"]) for text in texts) <= 3000
    assert "\ud800" not in shown


def test_slack_must_say_ok(receiver):
    """A page that says 200 but is not Slack did not take the alert."""
    receiver.answers = [(200, {}, b"<html>Please log in</html>")]
    assert "not Slack's" in str(refused(make_target(receiver.url, "slack")))
    receiver.answers = [(400, {}, b"invalid_blocks")]
    assert "HTTP 400 (invalid_blocks)" == str(refused(make_target(receiver.url, "slack")))


def test_alertmanager_fires_one_problem_and_resolves_the_others(receiver, monkeypatch):
    """The labels of a problem stay the same, so that a pass ends it; the token is a bearer's."""
    monkeypatch.setenv("TOKEN", "abc123")
    base = receiver.url.removesuffix("/hook")
    target = make_target(base, "alertmanager", secret_env="TOKEN")
    deliver(target)
    deliver(target, make_alert(kind="promote"))
    held, passed = (json.loads(got.body) for got in receiver.received)
    assert ["/api/v2/alerts"] * 2 == [got.path for got in receiver.received]
    assert "Bearer abc123" == receiver.received[0].headers["authorization"]
    ends = {item["labels"]["advice"]: datetime.fromisoformat(item["endsAt"]) for item in held}
    assert ["hold"] == [advice for advice, end in ends.items() if end > datetime.now(UTC) + timedelta(days=29)]
    assert [item["labels"] for item in held] == [item["labels"] for item in passed]
    assert all(item["startsAt"] <= item["endsAt"] for item in [*held, *passed])
    assert "QualifyCanary" == held[0]["labels"]["alertname"]


@pytest.mark.parametrize("status", [400, 401, 404, 500, 503])
def test_failing_target(receiver, status):
    """Any other status than 2xx is tried again, not before the target asks for it."""
    receiver.answers = [(status, {"retry-after": "120"}, b"secret words")]
    error = refused(make_target(receiver.url))
    assert (f"HTTP {status}", False, 120.0) == (str(error), error.final, error.after_s)


def test_gone_target_is_final(receiver):
    """410 says that nobody listens any more."""
    receiver.answers = [(410, {}, b"")]
    assert refused(make_target(receiver.url)).final


def test_redirect_is_not_followed(receiver):
    """A target that sends elsewhere, with the signature or the token in the luggage, is not obeyed."""
    with receivers.receiving() as elsewhere:
        receiver.answers = [(307, {"location": elsewhere.url}, b"")]
        error = refused(make_target(receiver.url))
        assert [] == elsewhere.received
    assert "redirects, which is not followed" in str(error)


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        (receivers.stall, "no answer within 0.5 s"),
        (receivers.drip, "no answer within 0.5 s"),
        (receivers.flood, "HTTP 500"),
        (receivers.babble, "did not answer in HTTP"),
        (receivers.hang_up, "did not answer in HTTP"),
        (receivers.cut, "did not answer in HTTP"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_lying_target(behaviour, why):
    """Stalls and drips end at the deadline of the whole attempt; floods are not read; lies are no delivery."""
    with receivers.raw(behaviour) as url:
        error = refused(make_target(url), deadline_s=0.5)
    assert why in str(error)


def test_nobody_listens():
    """A closed port is said with the system's reason."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "host 127.0.0.1 cannot be connected to" in str(refused(make_target(f"http://127.0.0.1:{port}/x")))


def test_address_from_file_is_never_told(receiver, tmp_path):
    """A secret address does not appear in the error that is stored."""
    receiver.answers = [(404, {}, b"no_service")]
    (tmp_path / "slack").write_text(receiver.url.replace("/hook", SECRET_PATH) + "\n")
    error = refused(make_target(None, "slack", url_file="slack"), folder=tmp_path)
    assert "HTTP 404 (no_service)" == str(error)
    assert SECRET_PATH == receiver.received[0].path


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("ftp://example.com/x", "must begin with https://"),
        ("https://user:pw-hunter2@example.com/", "user name or password"),
        ("http://[::1", "not a URL"),
        ("nonsense", "must begin with https://"),
    ],
)
def test_bad_address(monkeypatch, address, why):
    """An address that is none is refused without repeating it."""
    monkeypatch.setenv("WHERE", address)
    error = refused(make_target(None, "slack", url_env="WHERE"))
    assert why in str(error)
    assert address not in str(error)


def test_certificate_is_checked_for_the_name(monkeypatch, tmp_path):
    """The connection goes to an address, and yet the certificate must be that of the name on the card."""
    right, wrong = receivers.certificate(tmp_path, "localhost"), receivers.certificate(tmp_path, "other.example.com")
    for pair, why in ((right, None), (wrong, "certificate is not valid")):
        monkeypatch.setenv("SSL_CERT_FILE", str(pair[0]))
        with receivers.receiving(tls=pair) as receiver:
            target = make_target(receiver.url.replace("127.0.0.1", "localhost"))
            if why is None:
                deliver(target)
                assert receiver.received[0].headers["host"].startswith("localhost:")
            else:
                assert why in str(refused(target))
                assert [] == receiver.received
    monkeypatch.delenv("SSL_CERT_FILE")
    with receivers.receiving(tls=right) as receiver:
        assert "certificate is not valid" in str(refused(make_target(receiver.url.replace("127.0.0.1", "localhost"))))


def test_plain_server_under_https(receiver):
    """A target without TLS under an https address is named as such."""
    assert "TLS" in str(refused(make_target(receiver.url.replace("http:", "https:"))))
