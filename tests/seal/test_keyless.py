"""Keyless signing with a Sigstore instance of one's own, and what a reader refuses.

Reading is tested by a seal that the Sigstore project's own test instance gave; `tests/keyless.py` records it anew.
Signing needs that instance: without it these tests are skipped.
"""

from __future__ import annotations

import base64
import copy
import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keyless
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from qualify.errors import SigningFailed, UsageError
from qualify.facts.seal import Seal
from qualify.seal.keyless import TRUST_CONFIG
from qualify.seal.keys import SIGNING_KEY, public_keys, signing_key
from qualify.seal.parts import digest_of, parts_of
from qualify.seal.sealed import SealCheck, check_seal, make_seal


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The recorded seal; its instance is believed."""
    data: dict[str, Any] = json.loads(keyless.RECORDED.read_text())
    believe(data["trust"], tmp_path, monkeypatch)
    return data


def believe(trust: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> None:
    """That instance is believed from now on."""
    file = folder / f"trust-{len(list(folder.iterdir()))}.json"
    file.write_text(json.dumps(trust))
    patch.setenv(TRUST_CONFIG, str(file))


def checked(
    data: dict[str, Any], folder: Path, *, lines: list[dict[str, Any]] = keyless.LINES, **other: str
) -> SealCheck:
    """The seal as a reader checks it who believes the recorded identity, or another one."""
    identity = folder / "identity.json"
    identity.write_text(json.dumps({**keyless.ME, **other}))
    seal = Seal(envelope=data["envelope"], parts=data["parts"])
    return check_seal(seal, lines, "r", public_keys([identity]))


def test_a_keyless_seal_is_believed_for_its_identity(recorded: dict[str, Any], tmp_path: Path) -> None:
    """Identity and issuer are those of the certificate, so the evidence counts."""
    found = checked(recorded, tmp_path)
    assert ("", True) == (found.why_not, found.trusted)


@pytest.mark.parametrize("other", [{"identity": "https://ci.example/other"}, {"issuer": "https://elsewhere.example"}])
def test_another_identity_or_issuer_is_refused(recorded: dict[str, Any], tmp_path: Path, other: dict[str, str]) -> None:
    """The message says who the seal claims to be by; a seal that claims to be of somebody else is found out."""
    found = checked(recorded, tmp_path, **other)
    assert not found.trusted
    assert f"(it says: {json.dumps(keyless.ME)}), not by one of the required keys" in found.why_not
    (wanted,) = public_keys([tmp_path / "identity.json"])
    recorded["envelope"]["signatures"][0]["keyid"] = wanted.id
    assert "the signature of its seal does not hold" in checked(recorded, tmp_path, **other).why_not


def test_edited_evidence_is_refused(recorded: dict[str, Any], tmp_path: Path) -> None:
    """The message names the case and the field."""
    lines = copy.deepcopy(keyless.LINES)
    lines[1]["outcome"]["latency_us"] = 1.5
    found = checked(recorded, tmp_path, lines=lines)
    assert "it is not what was sealed: c latency_us changed" == found.why_not


def bundle_of(data: dict[str, Any]) -> dict[str, Any]:
    """The Sigstore bundle of the signature."""
    found: dict[str, Any] = data["envelope"]["signatures"][0]["bundle"]
    return found


def without_bundle(data: dict[str, Any]) -> None:
    """Nothing but the bytes of the signature."""
    del data["envelope"]["signatures"][0]["bundle"]


def without_log(data: dict[str, Any]) -> None:
    """No proof of when the certificate was used."""
    bundle_of(data)["verificationMaterial"]["tlogEntries"] = []


def without_promise(data: dict[str, Any]) -> None:
    """No time that the log signed."""
    del bundle_of(data)["verificationMaterial"]["tlogEntries"][0]["inclusionPromise"]


def later(data: dict[str, Any]) -> None:
    """Logged an hour later: the certificate had expired by then."""
    entry = bundle_of(data)["verificationMaterial"]["tlogEntries"][0]
    entry["integratedTime"] = str(int(entry["integratedTime"]) + 3600)


def another_statement(data: dict[str, Any]) -> None:
    """The digest of other evidence under the old signature."""
    statement = json.loads(base64.b64decode(data["envelope"]["payload"]))
    statement["subject"][0]["digest"]["sha256"] = "0" * 64
    data["envelope"]["payload"] = base64.b64encode(json.dumps(statement, sort_keys=True).encode()).decode()


def nonsense(data: dict[str, Any]) -> None:
    """A bundle that is none."""
    data["envelope"]["signatures"][0]["bundle"] = {"mediaType": [1], "verificationMaterial": "x"}


@pytest.mark.parametrize(
    "spoil",
    [without_bundle, without_log, without_promise, later, another_statement, nonsense],
    ids=lambda it: it.__name__,
)
def test_a_seal_without_its_whole_proof_is_refused(
    recorded: dict[str, Any], tmp_path: Path, spoil: Callable[[dict[str, Any]], None]
) -> None:
    """Whatever is missing or changed in it."""
    spoil(recorded)
    found = checked(recorded, tmp_path)
    assert not found.trusted
    assert "the signature of its seal does not hold" in found.why_not


@pytest.mark.parametrize("part", ["tlogs", "ctlogs"])
def test_the_seal_of_another_instance_is_refused(
    recorded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Who is believed is what the reader's own trust configuration says."""
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    recorded["trust"]["trustedRoot"][part][0]["publicKey"]["rawBytes"] = base64.b64encode(der).decode()
    believe(recorded["trust"], tmp_path, monkeypatch)
    assert "the signature of its seal does not hold" in checked(recorded, tmp_path).why_not


def test_what_is_no_trust_configuration_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable and the file."""
    identity = tmp_path / "me.json"
    identity.write_text(json.dumps(keyless.ME))
    for file in (identity, tmp_path / "none.json"):
        monkeypatch.setenv(TRUST_CONFIG, str(file))
        with pytest.raises(UsageError, match=f"{TRUST_CONFIG}={file}: it is no client trust configuration"):
            public_keys([identity])


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """This process is a CI job that signs by an instance on loopback; gives the address of its issuer of tokens."""
    if not (keyless.FOLDER and shutil.which("node")):
        pytest.skip("no node, or QUALIFY_TEST_SIGSTORE names no folder where `npm install @sigstore/mock` was done")
    with keyless.instance(tmp_path / "trust.json") as url:
        keyless.as_a_job(monkeypatch, url, tmp_path / "trust.json", tmp_path / "me.json")
        yield f"{url}/token"


def test_a_job_seals_by_its_token(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the token of the job, and by one in a file."""
    for named in ("sigstore:", f"sigstore:{tmp_path}/token"):
        with urllib.request.urlopen(f"{job}?audience=sigstore") as answer:
            (tmp_path / "token").write_text(json.load(answer)["value"])
        monkeypatch.setenv(SIGNING_KEY, named)
        seal = keyless.new_seal()
        assert checked({"envelope": seal.envelope, "parts": seal.parts}, tmp_path).trusted


def test_each_signature_asks_for_a_token(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is longer than a token lives: the token of the end is another one than that of the beginning."""
    key = signing_key()
    assert key
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{job}?life=-60")
    with pytest.raises(SigningFailed, match=r"gives no signature .*Signature has expired"):
        make_seal("r", "completed", digest_of(keyless.LINES), parts_of(keyless.LINES), key)
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", job)
    seal = make_seal("r", "completed", digest_of(keyless.LINES), parts_of(keyless.LINES), key)
    assert checked({"envelope": seal.envelope, "parts": seal.parts}, tmp_path).trusted


def test_a_job_that_cannot_sign_is_refused_before_a_run(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another identity than the one that is named, no token, a CA that does not answer."""
    dead = tmp_path / "dead.json"
    dead.write_text((tmp_path / "trust.json").read_text().replace(job.removesuffix("/token"), "http://127.0.0.1:1"))
    wrong = (
        (
            "ACTIONS_ID_TOKEN_REQUEST_URL",
            f"{job}?sub=https://ci.example/x",
            "does not accept .*actual SANs: .*example/x",
        ),
        ("ACTIONS_ID_TOKEN_REQUEST_URL", "http://127.0.0.1:1", "gives no signature .IdentityError: GitHub"),
        ("GITHUB_ACTIONS", "", "no OIDC token was found.*id-token: write"),
        (TRUST_CONFIG, str(dead), "gives no signature .*Connection refused"),
        (SIGNING_KEY, f"sigstore:{tmp_path}/none", "gives no signature .*No such file"),
    )
    for name, value, message in wrong:
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(SigningFailed, match=message):
                signing_key()
