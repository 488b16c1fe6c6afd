"""Who may do what on a real server, and what people do there: sign, revoke, comment, release holds."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jwt
import pytest
import yaml
from cli_process import call
from cryptography.hazmat.primitives.asymmetric import rsa
from sealing import seal_run
from web_examples import HOSTILE, Served, fill, serving

from qualify.cards.access import AccessCard, Jwt, load_access
from qualify.cards.tokens import make_token
from qualify.errors import CardError
from qualify.facts.people import AuditEntry
from qualify.store import Store
from qualify.web.access import COOKIE, MOST_SESSIONS, Access, AccessRefused
from qualify.web.jwt import InvalidJwt, JwtVerifier
from qualify.web.limits import WRITES
from qualify.web.site import LINES

CASE = "toy.tp1/prefill/b1.q8.k8/fp32/causal/tiled-torch"
JWT_HEADER = "X-Id-Token"
ISSUER, AUDIENCE = "https://login.example.com", "qualify"


@dataclass(frozen=True)
class Guarded:
    """A server with a login, its tokens by name, and the key of the provider."""

    served: Served
    tokens: dict[str, str]
    key: rsa.RSAPrivateKey
    access: Path

    def headers(self, name: str) -> dict[str, str]:
        """What a program sends that has the token."""
        return {"Authorization": f"Bearer {self.tokens[name]}"}

    def jwt(self, **changes: object) -> dict[str, str]:
        """What a proxy sends."""
        return {JWT_HEADER: token(self.key, **changes)}

    def audit(self) -> list[dict]:
        """The log, the newest line first."""
        return self.served.get("/audit.json", **self.headers("jane")).data["audit"]


def token(key: object, algorithm: str = "RS256", kid: str = "k1", **changes: object) -> str:
    """A token of the provider."""
    usual = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 60, "email": "ann", "groups": ["release"]}
    claims = {name: value for name, value in (usual | changes).items() if value is not None}
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid})


def write_keys(folder: Path) -> rsa.RSAPrivateKey:
    """A key of the provider, whose public part lies in the folder."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    (folder / "keys.json").write_text(json.dumps({"keys": [{**public, "kid": "k1", "alg": "RS256", "use": "sig"}]}))
    return key


@pytest.fixture(scope="module")
def provider(tmp_path_factory) -> tuple[rsa.RSAPrivateKey, Jwt, Path]:
    """A key of a provider, what an access file says of it, and where that file would lie."""
    folder = tmp_path_factory.mktemp("provider")
    card = Jwt(issuer=ISSUER, audience=AUDIENCE, jwks="keys.json")
    return write_keys(folder), card, folder / "access.yaml"


def entry(name: str, *rights: str, expires: str = "2099-01-01") -> tuple[str, dict]:
    """A token and its entry."""
    token, number, hashed = make_token()
    return token, {"id": number, "name": name, "hash": hashed, "rights": list(rights), "expires": expires}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def guarded(request, tmp_path_factory) -> Iterator[Guarded]:
    """A server with tokens and a provider, on both databases."""
    folder = tmp_path_factory.mktemp("guarded")
    address = str(folder / "e.db") if request.param == "sqlite" else request.getfixturevalue("module_postgres")
    with Store.open(address) as store:
        runs = fill(store, folder)
        seal_run(store, runs[0])
    key = write_keys(folder)
    made = {
        "jane": entry("jane", "read", "comment", "sign"),
        "reader": entry("reader", "read"),
        "joe": entry("joe", "read", "sign"),
        "kim": entry("kim", "read", "sign"),
        "old": entry("old", "read", expires="2020-01-01"),
    }
    card = {
        "access": "site",
        "tokens": [it for _, it in made.values()],
        "jwt": {
            "issuer": ISSUER,
            "audience": AUDIENCE,
            "jwks": "keys.json",
            "header": JWT_HEADER,
            "rights": {"*": ["read"], "release": ["read", "comment", "sign"]},
        },
        "signers": [
            {"name": "jane", "roles": ["release", "kernel"]},
            {"name": "ann", "roles": ["release"]},
            {"name": "kim", "roles": ["release"]},
        ],
    }
    access = folder / "access.yaml"
    access.write_text(json.dumps(card))
    with serving(address, folder, "--access", access) as url:
        yield Guarded(Served(url, address, runs), {name: it for name, (it, _) in made.items()}, key, access)


def test_nobody_reads_without_a_login(guarded):
    """Where the access file names a login, loopback is no exception; health is."""
    served = guarded.served
    page, twin = served.get("/runs"), served.get("/runs.json")
    assert (401, 401, 401, 401) == (
        page.status,
        twin.status,
        served.get("/metrics").status,
        served.get("/audit").status,
    )
    assert "Log in" in page.text
    assert page.headers["www-authenticate"].startswith("Bearer")
    assert "needs a login" in twin.data["error"]
    assert 200 == served.get("/healthz").status == served.get("/login").status


@pytest.mark.parametrize("header", ["X-Forwarded-User", "X-Forwarded-For", "X-Remote-User", "X-Email"])
def test_plain_headers_prove_nobody(guarded, header):
    """A name in a header is no login, whoever sends it."""
    assert 401 == guarded.served.get("/runs", **{header: "jane"}).status


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-FORWARDED-PORT", "Via"])
def test_what_a_proxy_forwards_is_nobody_at_this_machine(header):
    """The person of `local` is none whose request any proxy marked, whichever of its headers it sends."""
    card = AccessCard.model_validate({"access": "site", "local": {"name": "jane"}})
    access = Access(card, None, loopback=True)
    assert "jane" == access.caller({}, {}, "127.0.0.1").person.name
    found = access.caller({header: "x"}, {}, "127.0.0.1")
    assert ({"read"}, False) == (found.rights, found.person.name == "jane")


def test_a_login_whose_lines_were_lost_is_refused(tmp_path):
    """The site would let everybody in as if there were no login."""
    path = tmp_path / "site.yaml"
    path.write_text("access: site\njwt:\nlocal: {name: jane}\n")
    with pytest.raises(CardError, match=r"site\.yaml:2:1: jwt: is empty; give it a value, or remove the key"):
        load_access(path)


def test_tokens_have_rights(guarded):
    """Reading and signing are rights of their own; an expired or mistyped token is none."""
    served, reader = guarded.served, guarded.headers("reader")
    assert 200 == served.get("/runs.json", **reader).status
    signed = served.post(f"/runs/{served.runs[0]}/signoffs", {"role": "release", "reason": "x"}, **reader)
    assert (403, True) == (signed.status, "does not have the right 'sign'" in signed.data["error"])
    assert 403 == served.post("/comments", {"run": served.runs[0], "text": "x"}, **reader).status
    assert 403 == served.get("/audit.json", **reader).status
    assert "expired" in served.get("/runs.json", **guarded.headers("old")).data["error"]
    wrong = guarded.tokens["jane"][:-1] + ("0" if guarded.tokens["jane"][-1] != "0" else "1")
    assert 401 == served.get("/runs.json", Authorization=f"Bearer {wrong}").status
    refused = [line for line in guarded.audit() if line["allowed"].startswith("✗")]
    assert {"reader", "old", "nobody known"} <= {line["who"] for line in refused}
    assert guarded.tokens["jane"] not in json.dumps(guarded.audit())
    assert guarded.tokens["jane"].rpartition("_")[2] not in guarded.access.read_text()


def test_sign_and_revoke(guarded, tmp_path):
    """A sign-off over the sealed digest shows in report, gate and statement; its end does too."""
    served, run = guarded.served, guarded.served.runs[0]
    jane = guarded.headers("jane")
    digest = dict(served.get(f"/runs/{run}/decision.json", **jane).data["run"])["Digest of the evidence"]
    sealed = call("verify", run, "--db", served.address, "--json", cwd=tmp_path)
    assert 0 == sealed.code
    asked = {"role": "release", "reason": HOSTILE, "sha256": digest}
    done = served.post(f"/runs/{run}/signoffs", asked, **jane)
    assert (201, "valid", "jane", "PASS", True) == (
        done.status,
        *(done.data[key] for key in ("state", "by", "verdict", "sealed")),
    )
    assert digest == done.data["sha256"]
    again = served.post(f"/runs/{run}/signoffs", asked, **jane)
    assert (409, True) == (again.status, "already" in again.data["error"])
    page = served.get(f"/runs/{run}", **jane).unbroken
    assert "in force" in page
    assert "&lt;script&gt;alert(1)" in page
    assert HOSTILE not in page
    text = call("gate", "--run", run, "--db", served.address, cwd=tmp_path).out
    assert "signed: in force: jane as release" in text
    data = json.loads(call("gate", "--run", run, "--format", "json", "--db", served.address, cwd=tmp_path).out)
    assert [("valid", "jane")] == [(it["state"], it["by"]) for it in data["signoffs"]]
    number = done.data["id"]
    ended = served.post(f"/signoffs/{number}/revoke", {"reason": "the wrong artifact"}, **jane)
    assert (201, "revoked") == (ended.status, ended.data["state"])
    assert "the wrong artifact" in served.get(f"/runs/{run}", **jane).text
    assert 409 == served.post(f"/signoffs/{number}/revoke", {"reason": "x"}, **jane).status
    assert 404 == served.post("/signoffs/999/revoke", {"reason": "x"}, **jane).status
    assert ["revoke", "sign"] == [it["action"] for it in guarded.audit() if it["allowed"].startswith("✓")][:2]


def test_who_may_sign_what(guarded):
    """A signer in that role, a run that qualified, evidence that the person saw: all three."""
    served, (passed, failed, undecided) = guarded.served, guarded.served.runs

    def sign(run: str, who: str, **asked: str):
        return served.post(f"/runs/{run}/signoffs", {"role": "release", "reason": "x", **asked}, **guarded.headers(who))

    assert (403, True) == ((it := sign(passed, "joe")).status, "'joe' may not sign" in it.data["error"])
    assert (403, True) == ((it := sign(passed, "jane", role="boss")).status, "not as 'boss'" in it.data["error"])
    assert (409, True) == ((it := sign(failed, "jane")).status, "it is not qualified" in it.data["error"])
    assert (409, True) == ((it := sign(undecided, "jane")).status, "interrupted" in it.data["error"])
    other = sign(passed, "jane", role="kernel", sha256="0" * 64)
    assert (409, True) == (other.status, "it was changed" in other.data["error"])
    assert 404 == sign("nope", "jane").status
    assert 400 == sign(passed, "jane", reason="").status


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exp": 1}, "expired"),
        ({"iss": "https://evil.example.com"}, "issuer"),
        ({"aud": "other"}, "Audience"),
        ({"exp": None}, "exp"),
        ({"email": ""}, "no claim 'email'"),
        ({"email_verified": False}, "'email' is not verified"),
        ({"email_verified": "false"}, "'email' is not verified"),
        ({"email": "a" * 201}, "more than 200 characters"),
        ({"email": "ann\n2026 jane"}, "a character that no name has, U+000A"),
        ({"email": "ann\u200b"}, "a character that no name has, U+200B"),
        ({"kid": "k2"}, "no key 'k2'"),
        ({"algorithm": "HS256", "key": "s" * 64}, "algorithm 'HS256'"),
        ({"algorithm": "none", "key": ""}, "algorithm 'none'"),
        ({"algorithm": "RS512"}, "algorithm 'RS512'"),
        ({"key": "another"}, "ignature"),
        ({"groups": ["x" * 20_000]}, "more than 16,384 characters"),
    ],
)
def test_a_jwt_is_verified(provider, changes, words):
    """Signature, key, algorithm, issuer, audience and time, each alone, refuse a token."""
    key, card, path = provider
    another = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    given = {"key": key, **changes}
    signing = {"another": another, "": None}.get(given["key"], given["key"]) if isinstance(given["key"], str) else key
    verifier = JwtVerifier(card, path)
    assert ("ann", ("release",)) == verifier.verify(token(key)) == verifier.verify(token(key, email_verified=True))
    with pytest.raises(InvalidJwt, match=re.escape(words)):
        verifier.verify(token(**{**given, "key": signing}))


@contextmanager
def keys_at_an_address(file: Path, asked: list[str]) -> Iterator[str]:
    """The address at which a provider gives the keys of a file."""

    class Provider(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            content = file.read_bytes()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/keys"
        server.shutdown()


def test_keys_of_an_address(provider):
    """The provider's keys are fetched from its address; an unknown key asks again at most once a minute."""
    (key, card, path), asked = provider, []
    with keys_at_an_address(path.parent / "keys.json", asked) as place:
        verifier = JwtVerifier(card.model_copy(update={"jwks": place}), path)
        assert "ann" == verifier.verify(token(key))[0]
        for _ in range(3):
            with pytest.raises(InvalidJwt, match="no key 'k9'"):
                verifier.verify(token(key, kid="k9"))
    assert ["/keys"] == asked


@pytest.mark.parametrize("left", ["another", "none"])
def test_a_key_that_the_provider_withdrew_ends(tmp_path, monkeypatch, left):
    """Its keys are fetched anew from time to time. While it does not answer, those that it gave last count."""
    key, asked = write_keys(tmp_path), []
    card = Jwt(issuer=ISSUER, audience=AUDIENCE, jwks="keys.json")
    monkeypatch.setattr("qualify.web.jwt.FRESH_S", 0.0)
    monkeypatch.setattr("qualify.web.jwt.AGAIN_S", 0.0)
    with keys_at_an_address(tmp_path / "keys.json", asked) as place:
        verifier = JwtVerifier(card.model_copy(update={"jwks": place}), tmp_path / "access.yaml")
        assert "ann" == verifier.verify(token(key))[0]
    assert "ann" == verifier.verify(token(key))[0], "the provider is away"
    keys = json.loads((tmp_path / "keys.json").read_text())["keys"]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [{**keys[0], "kid": "k2"}] if left == "another" else []}))
    with keys_at_an_address(tmp_path / "keys.json", asked) as place:
        verifier._place = place
        with pytest.raises(InvalidJwt, match="no key 'k1'"):
            verifier.verify(token(key))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("algorithms: [HS256]", "algorithms"),
        ("algorithms: [none]", "algorithms"),
        ("jwks: http://login.example.com/keys", "must be an https:// address"),
    ],
)
def test_a_weak_provider_is_refused(tmp_path, line, words):
    """No shared secret, no unsigned token, no keys that anybody could replace on the way."""
    usual = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": "keys.json"}
    name, _, value = line.partition(": ")
    card = {"access": "site", "jwt": {**usual, name: yaml.safe_load(value)}}
    (tmp_path / "access.yaml").write_text(json.dumps(card))
    ended = call("access", "check", tmp_path / "access.yaml", cwd=tmp_path)
    assert (2, True) == (ended.code, words in ended.err)


def test_a_name_of_two_lines_is_one_line_of_the_check(tmp_path):
    """Its second line must not look like a signer."""
    card = {"access": "site", "signers": [{"name": "jane\nsigner: boss as release", "roles": ["release"]}]}
    (tmp_path / "access.yaml").write_text(json.dumps(card))
    ended = call("access", "check", tmp_path / "access.yaml", cwd=tmp_path)
    assert (0, "signer: jane signer: boss as release as release\n") == (ended.code, ended.out)


def test_guessing_is_slowed_down(tmp_path):
    """Who gives ten wrong tokens waits; a browser's session begins with a token and ends by logging out."""
    address = str(tmp_path / "e.db")
    Store.open(address).close()
    good, it = entry("jane", "read")
    (tmp_path / "access.yaml").write_text(json.dumps({"access": "site", "tokens": [it]}))
    with serving(address, tmp_path, "--access", tmp_path / "access.yaml") as url:
        served = Served(url, address, ())
        jar = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        same = {"Sec-Fetch-Site": "same-origin"}
        body = urllib.parse.urlencode({"token": good}).encode()
        assert 200 == jar.open(urllib.request.Request(f"{url}login", body, same)).status
        assert 200 == jar.open(f"{url}runs").status
        assert jar.open(urllib.request.Request(f"{url}logout", b"", same)).url.endswith("/login")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            jar.open(f"{url}runs")
        wrong = {"Authorization": "Bearer qfy_0000000000000000_" + "0" * 64}
        found = [served.get("/runs.json", **wrong).status for _ in range(12)]
        assert ({401, 429}, 429) == (set(found), found[-1])
        assert 429 == served.get("/runs.json", Authorization=f"Bearer {good}").status


def test_an_old_cookie_is_no_guess(tmp_path):
    """Browsers keep cookies over a restart of the site. Behind one proxy they keep nobody from logging in.

    Nor do wrong tokens keep out those who have logged in.
    """
    address = str(tmp_path / "e.db")
    Store.open(address).close()
    good, it = entry("jane", "read", "sign")
    (tmp_path / "access.yaml").write_text(json.dumps({"access": "site", "tokens": [it]}))
    with serving(address, tmp_path, "--access", tmp_path / "access.yaml") as url:
        served, same = Served(url, address, ()), {"Sec-Fetch-Site": "same-origin"}
        assert {401} == {served.get("/runs", Cookie=f"{COOKIE}={'a' * 43}").status for _ in range(12)}
        jar = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        body = urllib.parse.urlencode({"token": good}).encode()
        assert 200 == jar.open(urllib.request.Request(f"{url}login", body, same)).status
        wrong = {"Authorization": "Bearer qfy_0000000000000000_" + "0" * 64}
        assert 429 == [served.get("/runs.json", **wrong).status for _ in range(12)][-1]
        assert 429 == served.ask("/login", "POST", body, same).status
        assert 200 == jar.open(f"{url}runs").status
        assert b"session has ended" not in jar.open(f"{url}audit.json").read()


def test_logins_are_counted_and_end_nobody_elses(tmp_path):
    """Who logs in ever again waits like anybody who writes, and ends only sessions of the same token.

    So does who is refused ever again, because the log keeps each refusal for ever, and no line is long.
    """
    made = [entry("jane", "read"), entry("reader", "read")]
    card = AccessCard.model_validate({"access": "site", "tokens": [it for _, it in made]})
    access = Access(card, None, loopback=True)
    (mine, *_), (first, *others) = [
        [access.log_in(text, access.holder(text, "127.0.0.1")) for _ in range(count)]
        for (text, _), count in zip(made, (1, MOST_SESSIONS), strict=True)
    ]
    for session in (mine, others[0], others[-1]):
        assert access.caller({}, {COOKIE: session}, "127.0.0.1").rights
    with pytest.raises(AccessRefused):
        access.caller({}, {COOKIE: first}, "127.0.0.1")

    address = str(tmp_path / "e.db")
    Store.open(address).close()
    (tmp_path / "access.yaml").write_text(json.dumps({"access": "site", "tokens": [it for _, it in made]}))
    with serving(address, tmp_path, "--access", tmp_path / "access.yaml") as url:
        served = Served(url, address, ())
        body = urllib.parse.urlencode({"token": made[0][0], "back": "/healthz"}).encode()
        found = [served.ask("/login", "POST", body, {"Origin": url.rstrip("/")}) for _ in range(int(WRITES.burst) * 3)]
        assert {200, 429} == {it.status for it in found}
        assert all("asked too often" in it.text for it in found if it.status == 429)
        reader = {"Authorization": f"Bearer {made[1][0]}"}
        far = served.post("/comments", {"run": "x", "text": "x"}, **reader, Origin="https://" + "x" * 9000)
        assert (403, True) == (far.status, len(far.text) < 500)
        tried = {served.get("/audit.json", **reader).status for _ in range(int(WRITES.burst) * 3)}
        assert {403, 429} == tried
        assert 200 == served.get("/runs.json", **reader).status


def test_an_origin_that_is_no_address_is_foreign(guarded):
    """It is refused like any other, and breaks nothing."""
    for origin in ("http://[", "http://[::1", "null", "://", "x"):
        said = guarded.served.post(
            "/comments", {"run": guarded.served.runs[0], "text": "x"}, **guarded.headers("jane"), Origin=origin
        )
        assert (403, True) == (said.status, "Another site" in said.data["error"]), origin
        assert 403 == guarded.served.post("/login", {"token": "x"}, Origin=origin).status


@pytest.mark.parametrize("text", ["a\ud800", "a\0b"], ids=["half a character", "NUL"])
def test_what_no_database_keeps_is_refused(guarded, text):
    """Half a character and NUL are no text: the answer says so, and nothing is stored."""
    served, jane = guarded.served, guarded.headers("jane")
    run = served.runs[0]
    asked = [
        ("/comments", {"run": run, "text": text}),
        ("/comments", {"run": text, "text": "x"}),
        ("/comments", {"case": text, "text": "x"}),
        (f"/runs/{run}/signoffs", {"role": text, "reason": "x"}),
        ("/holds/1/acknowledge", {"reason": text}),
    ]
    for path, data in asked:
        said = served.post(path, data, **jane)
        assert (400, True) == (said.status, "a character that cannot be stored" in said.data["error"]), path


def test_the_account_says_who_one_is_and_logs_out(guarded):
    """After the login the same address has name, rights and roles, the log-out, and the audit log for a signer."""
    served, same = guarded.served, {"Sec-Fetch-Site": "same-origin"}
    for name, rights, roles, audit in (
        ("jane", "read, comment, sign", "release, kernel", True),
        ("reader", "read", "nobody", False),
    ):
        jar = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        body = urllib.parse.urlencode({"token": guarded.tokens[name]}).encode()
        assert 200 == jar.open(urllib.request.Request(f"{served.url}login", body, same)).status
        text = jar.open(f"{served.url}login").read().decode()
        for words in (name, rights, roles):
            assert f"<dd>{words}</dd>" in text
        assert audit == ('href="/audit"' in text)
        assert "<dd>a login with token " in text
        assert 'action="/logout"' in text
        assert 'name="token"' not in text
        out = jar.open(urllib.request.Request(f"{served.url}logout", b"", same)).read().decode()
        assert 'name="token"' in out
    by_proxy = served.get("/login", **guarded.jwt()).text
    assert "<dd>ann</dd>" in by_proxy
    assert 'action="/logout"' not in by_proxy
    assert 'name="token"' in served.get("/login", **guarded.headers("old")).text


@pytest.mark.parametrize(
    ("back", "place"),
    [
        ("/runs?q=a&offset=0", "/runs?q=a&offset=0"),
        ("", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example/", "/"),
        ("https://evil.example/", "/"),
        ("/runs\r\nSet-Cookie: a=b", "/"),
        ("javascript:alert(1)", "/"),
    ],
)
def test_a_login_leads_back_to_the_page_that_was_asked_for(guarded, back, place):
    """And to no other site, whatever a form says."""
    asked = urllib.parse.urlencode({"token": guarded.tokens["reader"], "back": back})
    connection = http.client.HTTPConnection(guarded.served.url.split("/")[2], timeout=30)
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    connection.request("POST", "/login", asked, headers)
    answer = connection.getresponse()
    assert (303, place) == (answer.status, answer.getheader("location"))
    connection.close()


def test_the_login_of_a_page_knows_its_address(guarded):
    """A link from an alert is not lost: the form that stands in the place of the page holds its address."""
    served = guarded.served
    page = served.get("/cases/a%2Fb%3Fc?q=%22%3E&d=1", Accept="text/html")
    assert 401 == page.status
    assert '<input type="hidden" name="back" value="/cases/a%2Fb%3Fc?q=%22%3E&amp;d=1">' in page.text
    assert 'name="back"' not in served.get("/login").text


def test_a_failed_login_still_leads_back(guarded):
    """Whoever mistypes a token, or whose session ended before a form was sent, comes back to the page of the form."""
    served, form = guarded.served, "application/x-www-form-urlencoded"
    page = f"/runs/{served.runs[0]}/decision"
    same = {"Content-Type": form, "Sec-Fetch-Site": "same-origin", "Accept": "text/html"}
    field = f'<input type="hidden" name="back" value="{page}">'
    wrong = served.ask("/login", "POST", urllib.parse.urlencode({"token": "wrong", "back": page}).encode(), same)
    assert (401, True, False) == (wrong.status, field in wrong.text, "not stored" in wrong.text)
    from_page = {**same, "Referer": served.url.rstrip("/") + page}
    late = served.ask(f"/runs/{served.runs[0]}/signoffs", "POST", b"role=release&reason=good", from_page)
    assert (401, True) == (late.status, field in late.text)
    assert "What was sent is not stored: log in, and send it again." in late.text
    other = served.ask("/comments", "POST", b"text=good", {**same, "Referer": f"https://evil.example{page}"})
    assert (401, False) == (other.status, 'name="back"' in other.text)
    refused = served.ask("/holds/99/release", "POST", b"reason=good", {**from_page, **guarded.headers("jane")})
    assert (404, True) == (refused.status, f'<a href="{page}">' in refused.text)


def test_a_jwt_gives_the_rights_of_its_groups(guarded):
    """Everybody with a valid token reads; who is in the group signs, from a page of the site only."""
    served, run = guarded.served, guarded.served.runs[0]
    assert 200 == served.get("/runs.json", **guarded.jwt(groups=[])).status
    assert 403 == served.get("/audit.json", **guarded.jwt(groups=["*"])).status
    asked = {"role": "release", "reason": "read it"}
    assert 403 == served.post(f"/runs/{run}/signoffs", asked, **guarded.jwt()).status
    same = {"Sec-Fetch-Site": "same-origin"}
    signed = served.post(f"/runs/{run}/signoffs", asked, **guarded.jwt(), **same)
    assert 201 == signed.status
    ended = served.post(f"/signoffs/{signed.data['id']}/revoke", {"reason": "x"}, **guarded.jwt(), **same)
    assert (201, "revoked") == (ended.status, ended.data["state"])


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example.com"},
        {"Origin": "null"},
        {},
    ],
)
def test_foreign_pages_write_nothing(guarded, headers):
    """A browser that proves by itself who asks is believed only on a page of the site."""
    asked = {"run": guarded.served.runs[0], "text": "forged"}
    reply = guarded.served.post("/comments", asked, **guarded.jwt(), **headers)
    assert (403, True) == (reply.status, "Another site's page" in reply.data["error"])
    said = guarded.served.get(f"/runs/{guarded.served.runs[0]}/decision.json", **guarded.headers("jane")).data
    assert "forged" not in json.dumps(said)


def test_comments_and_holds(guarded):
    """Comments on a run and on a case are text; a hold is acknowledged, then released, with author and reason."""
    served, jane = guarded.served, guarded.headers("jane")
    assert 201 == served.post("/comments", {"run": served.runs[1], "text": HOSTILE}, **jane).status
    assert 201 == served.post("/comments", {"case": CASE, "text": "flaky on Mondays"}, **jane).status
    page = served.get(f"/runs/{served.runs[1]}/decision", **jane).unbroken
    assert (True, False) == ("&lt;script&gt;alert(1)" in page, HOSTILE in page)
    assert "flaky on Mondays" in served.get(f"/cases/{CASE}", **jane).text
    assert 404 == served.post("/comments", {"case": "no/such", "text": "x"}, **jane).status
    assert 400 == served.post("/comments", {"text": "about nothing"}, **jane).status
    assert 201 == served.post("/holds/1/acknowledge", {"reason": "known"}, **jane).status
    assert "! acknowledged" in served.get("/holds", **jane).text
    assert 201 == served.post("/holds/1/release", {"reason": "a false alarm"}, **jane).status
    (row,) = served.get("/holds.json", **jane).data["holds"]
    assert ("✓ released", True) == (row["state"], "jane" in row["ended"] and "a false alarm" in row["ended"])
    assert 409 == served.post("/holds/1/release", {"reason": "x"}, **jane).status
    assert 404 == served.post("/holds/77/release", {"reason": "x"}, **jane).status


def test_a_typed_text_keeps_its_lines(guarded):
    """A browser ends the lines of a form with CRLF, although the form counts each end as one character."""
    served, jane, kind = guarded.served, guarded.headers("jane"), {"Content-Type": "application/x-www-form-urlencoded"}
    typed = "\n".join(["first", *["x" * 9] * 399, "last"])
    form = urllib.parse.urlencode({"run": served.runs[0], "text": typed.replace("\n", "\r\n")})
    assert 200 == served.ask("/comments", "POST", form.encode(), {**jane, **kind, "Accept": "text/html"}).status
    comment = served.get(f"/runs/{served.runs[0]}/decision.json", **jane).data["comments"][-1]
    assert typed == comment["text"]
    assert "\\r" not in served.get(f"/runs/{served.runs[0]}/decision", **jane).text
    assert 201 == served.post("/comments", {"run": served.runs[0], "text": "a\rb"}, **jane).status
    assert "a\nb" == served.get(f"/runs/{served.runs[0]}/decision.json", **jane).data["comments"][-1]["text"]


def test_csv_computes_nothing(guarded):
    """A cell that a spreadsheet would compute begins with an apostrophe; the audit log is whole, not its first page."""
    jane = guarded.headers("jane")
    for start in "=+-@":
        assert (
            201
            == guarded.served.post("/comments", {"run": guarded.served.runs[2], "text": f"{start}1+1"}, **jane).status
        )
    with Store.open(guarded.served.address) as store:
        for _ in range(LINES):
            store.people.log(AuditEntry(who="j", how="x", address="", action="sign", subject="run", allowed=True))
    lines = guarded.served.get("/audit.csv", **jane).text.splitlines()
    assert 4 == sum(any(f"'{start}1+1" in line for start in "=+-@") for line in lines)


def test_bodies_are_bounded_and_understood(guarded):
    """A long body is refused before it is read; so is one that is neither form nor JSON, or asks for something else."""
    served, jane = guarded.served, guarded.headers("jane")
    assert 413 == served.post("/comments", {"run": served.runs[0], "text": "x" * 70_000}, **jane).status
    parts = urllib.parse.urlsplit(served.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
    connection.request("POST", "/comments", iter([b"x" * 40_000] * 2), jane, encode_chunked=True)
    assert 413 == connection.getresponse().status
    connection.close()
    long, kind = b"text=" + b"x" * 70_000, {"Content-Type": "application/x-www-form-urlencoded", "Accept": "text/html"}
    page = served.ask("/comments", "POST", long, {**jane, **kind})
    assert (413, True) == (page.status, "<h1>413: too large</h1>" in page.text), "a browser gets a page"
    assert "A request has at most 65,536 bytes." in page.text
    assert {413} == {served.ask(path, "GET", long, jane).status for path in ("/runs", "/runs.csv", "/healthz")}
    assert 415 == served.ask("/comments", "POST", b"<x/>", {**jane, "Content-Type": "text/xml"}).status
    for body in (b"{", b"[]", b'{"text": 1}', b'{"text": "x", "admin": true}', b"[" * 5000):
        assert 400 == served.ask("/comments", "POST", body, {**jane, "Content-Type": "application/json"}).status


def command_of(guarded: Guarded, tmp_path: Path, run: str):
    """`qualify signoff` on a run, with the access file."""
    db = ("--access", str(guarded.access), "--db", guarded.served.address)

    def signoff(*words: str):
        return call("signoff", run, *words, *db, cwd=tmp_path)

    return signoff


def token_file(guarded: Guarded, tmp_path: Path, name: str) -> str:
    """A file with somebody's token."""
    path = tmp_path / f"{name}.token"
    path.write_text(guarded.tokens[name] + "\n")
    return str(path)


def test_the_command_signs_with_a_token(guarded, tmp_path):
    """The token says who signs; the access file says who may; what it printed is what the site shows."""
    signoff = command_of(guarded, tmp_path, guarded.served.runs[0])
    jane = ("--token-file", token_file(guarded, tmp_path, "jane"))
    words = ("--role", "kernel", "--reason", "read")
    assert (
        2 == call("signoff", guarded.served.runs[0], *words, *jane, "--db", guarded.served.address, cwd=tmp_path).code
    )
    listed = signoff(*words, "--token-file", token_file(guarded, tmp_path, "joe"))
    assert (2, True) == (listed.code, "'joe' may not sign" in listed.err)
    reader = signoff(*words, "--token-file", token_file(guarded, tmp_path, "reader"))
    assert (2, True) == (reader.code, "does not have the right 'sign'" in reader.err)
    assert "expired on 2020-01-01" in signoff(*words, "--token-file", token_file(guarded, tmp_path, "old")).err
    other = signoff(*words, *jane, "--by", "ann")
    assert (2, True) == (other.code, "the token is that of 'jane'" in other.err)
    failed = call(
        "signoff",
        guarded.served.runs[1],
        *words,
        *jane,
        "--access",
        guarded.access,
        "--db",
        guarded.served.address,
        cwd=tmp_path,
    )
    assert (1, True) == (failed.code, "cannot be signed: it is not qualified" in failed.err)
    signed = signoff(*words, *jane, "--json").data
    assert ("valid", "jane", "kernel") == (signed["state"], signed["by"], signed["role"])
    assert signed["how"].startswith("token ")
    assert "in force: jane as kernel" in signoff("--list").out
    typed = signoff("--revoke", str(signed["id"]), "--by", "jane", "--reason", "late")
    assert (2, True) == (typed.code, "a typed name cannot revoke it" in typed.err)
    ended = signoff("--revoke", str(signed["id"]), "--reason", "late", *jane)
    assert (0, True) == (ended.code, "revoked by jane" in ended.out)


def test_a_typed_name_is_unproven(guarded, tmp_path):
    """It must be listed, stays marked in report, gate and list, counts nowhere, and a token may sign beside it."""
    run, address = guarded.served.runs[0], guarded.served.address
    signoff = command_of(guarded, tmp_path, run)
    words = ("--role", "release", "--reason", "read")
    nobody = signoff(*words, "--by", "joe")
    assert (2, True) == (nobody.code, "'joe' may not sign" in nobody.err)
    assert (2, True) == ((it := signoff(*words)).code, "nothing says who you are" in it.err)
    signed = signoff(*words, "--by", "jane", "--json").data
    assert ("unproven", True) == (signed["state"], signed["how"].startswith("command of "))
    assert "unproven: signed without a token" in call("gate", "--run", run, "--db", address, cwd=tmp_path).out
    page = guarded.served.get(f"/runs/{run}", **guarded.headers("jane")).unbroken
    assert "unproven: signed without a token" in page
    again = signoff(*words, "--by", "jane")
    assert (2, True) == (again.code, "already" in again.err)
    proven = signoff(*words, "--token-file", token_file(guarded, tmp_path, "jane"), "--json").data
    assert "valid" == proven["state"]
    for number in (signed["id"], proven["id"]):
        ended = signoff("--revoke", str(number), "--reason", "x", "--token-file", token_file(guarded, tmp_path, "jane"))
        assert 0 == ended.code, ended.err


def log_in_and_out(guarded: Guarded) -> None:
    """What the browser of jane does."""
    same = {"Origin": guarded.served.url.rstrip("/")}
    jar = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    body = urllib.parse.urlencode({"token": guarded.tokens["jane"]}).encode()
    for path, sent in (("login", body), ("logout", b"")):
        jar.open(urllib.request.Request(f"{guarded.served.url}{path}", sent, same)).close()


def test_the_log_has_every_action(guarded, tmp_path):
    """Whatever a person does or tries with a right leaves a line: on the site and on the command line."""
    served, run = guarded.served, guarded.served.runs[0]
    jane, tokens = guarded.headers("jane"), {name: token_file(guarded, tmp_path, name) for name in ("jane", "reader")}
    here = ("--access", guarded.access, "--db", served.address, "--reason", "why")
    (hold,) = served.get("/holds.json", **jane).data["holds"]

    def tell(*words: object, who: str = "jane", code: int = 0) -> None:
        done = call(*words, *here, "--token-file", tokens[who], cwd=tmp_path)
        assert code == done.code, done.err

    asked = {"role": "release", "reason": "x"}
    signed = served.post(f"/runs/{run}/signoffs", asked, Sec_Fetch_Site="same-origin", **guarded.jwt())
    number = signed.data["id"]
    tell("baseline", "accept", run, "--name", "next")
    tell("baseline", "accept", run, "--name", "later", who="reader", code=2)
    tell("signoff", run, "--role", "boss", code=2)
    tell("signoff", run, "--revoke", number)
    assert 201 == served.post("/comments", {"run": run, "text": "x"}, **jane).status
    tell("hold", "release", hold["id"], who="reader", code=2)
    assert (
        403 == served.post(f"/runs/{run}/signoffs", {"role": "release", "reason": "x"}, **guarded.headers("joe")).status
    )
    log_in_and_out(guarded)
    said = [(it["allowed"][0], it["who"], it["action"], it["subject"]) for it in guarded.audit()[:10]]
    expected = [
        ("✓", "jane", "logout", "logout"),
        ("✓", "jane", "login", "login"),
        ("✗", "joe", "sign", f"run {run}"),
        ("✗", "reader", "release", f"hold {hold['id']}"),
        ("✓", "jane", "comment", f"run {run}"),
        ("✓", "jane", "revoke", f"sign-off {number} of run {run}"),
        ("✗", "jane", "sign", f"run {run}"),
        ("✗", "reader", "accept", f"run {run} as a baseline"),
        ("✓", "jane", "accept", f"run {run} as the baseline of serving on Test CPU for next"),
        ("✓", "ann", "sign", f"run {run}"),
    ]
    assert expected == said
    assert "does not have the right 'sign'" in guarded.audit()[7]["detail"]


def test_nobody_is_asked_to_sign_twice(guarded):
    """The form offers the roles in which the person has not signed; with none left it says so."""
    served, run = guarded.served, guarded.served.runs[0]
    page = f"/runs/{run}/decision"
    kim = guarded.headers("kim")
    assert '<option value="release" selected>release</option>' in served.get(page, **kim).text
    done = served.post(f"/runs/{run}/signoffs", {"role": "release", "reason": "good"}, **kim)
    assert 201 == done.status, done.text
    text = served.get(page, **kim).text
    assert "You have signed this run as release; a sign-off is given once." in text
    assert (0, True) == (text.count(">Sign this evidence<"), f'action="/signoffs/{done.data["id"]}/revoke"' in text)
    ended = served.post(f"/signoffs/{done.data['id']}/revoke", {"reason": "test"}, **kim)
    assert 201 == ended.status
    assert ">Sign this evidence<" in served.get(page, **kim).text
