"""Keys that qualify does not hold: a token that speaks PKCS#11, and a key of AWS KMS, each by its own library.

SoftHSM2 is the token (`apt-get install softhsm2`, `pip install 'securesystemslib[hsm]'`), moto stands for AWS
(`pip install boto3 moto flask flask-cors`). Where one is not installed its tests are skipped.
"""

from __future__ import annotations

import base64
import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sealing import new_pair
from securesystemslib.signer import HSMSigner

from qualify.errors import SigningFailed, UsageError
from qualify.seal.keys import MODULE, PIN_FILE, PUBLIC_KEY, SIGNING_KEY, public_keys, signing_key
from qualify.seal.parts import digest_of, parts_of
from qualify.seal.sealed import check_seal, make_seal

SOFTHSM = Path("/usr/lib/softhsm/libsofthsm2.so")
PIN = "4321"
LINES: list[dict[str, Any]] = [{"run": {"id": "r"}}]


def sealed_and_believed(public: Path) -> bool:
    """Whether the key that is named seals, and a reader with its public key believes the seal."""
    key = signing_key()
    assert key
    seal = make_seal("r", "completed", digest_of(LINES), parts_of(LINES), key)
    return check_seal(seal, LINES, "r", public_keys([public])).trusted


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A token of SoftHSM2 with an ECDSA key of id 2; the folder has its PIN and its public key."""
    if not SOFTHSM.is_file():
        pytest.skip("SoftHSM2 is not installed: apt-get install softhsm2")
    pkcs11 = pytest.importorskip("pkcs11", reason="pip install 'securesystemslib[hsm]'")
    folder = tmp_path_factory.mktemp("token")
    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder}/tokens\nlog.level = ERROR\n")
    (folder / "pin").write_text(f"{PIN}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
        patch.setenv(MODULE, str(SOFTHSM))
        made = ["softhsm2-util", "--init-token", "--free", "--label", "qualify", "--so-pin", "1234", "--pin", PIN]
        subprocess.run(made, check=True, capture_output=True)
        with pkcs11.lib(str(SOFTHSM)).get_token(token_label="qualify").open(rw=True, user_pin=PIN) as session:
            curve = {pkcs11.Attribute.EC_PARAMS: pkcs11.util.ec.encode_named_curve_parameters("secp256r1")}
            parameters = session.create_domain_parameters(pkcs11.KeyType.EC, curve, local=True)
            parameters.generate_keypair(store=True, id=b"\x02", label="runner")
        _, public = HSMSigner.import_(2, "qualify")
        (folder / "hsm.pem").write_text(public.keyval["public"])
        yield folder


@pytest.fixture
def named_token(token: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The token is what signs."""
    monkeypatch.setenv(SIGNING_KEY, "hsm:2?label=qualify")
    monkeypatch.setenv(PUBLIC_KEY, str(token / "hsm.pem"))
    monkeypatch.setenv(PIN_FILE, str(token / "pin"))
    return token


def test_a_token_seals(named_token: Path) -> None:
    """A key that never leaves its token seals, and its public key verifies."""
    assert sealed_and_believed(named_token / "hsm.pem")


def test_a_token_that_does_not_sign_is_refused_before_a_run(
    named_token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong PIN, id, label or module, or another public key: the message says which one to look at."""
    (tmp_path / "pin").write_text("9999")
    wrong = (
        (PIN_FILE, str(tmp_path / "pin"), r"gives no signature .PinIncorrect.*PIN in QUALIFY_SIGNING_PIN_FILE"),
        (SIGNING_KEY, "hsm:3?label=qualify", "gives no signature .*could not find ECDSA private key.*Check the key id"),
        (SIGNING_KEY, "hsm:2?label=other", "gives no signature .*No PKCS#11 token found for label other"),
        (PUBLIC_KEY, str(new_pair(tmp_path, ecdsa=True).public), "gives a signature that .*runner.pem does not accept"),
    )
    for name, value, message in wrong:
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(SigningFailed, match=message):
                signing_key()
    assert sealed_and_believed(named_token / "hsm.pem")


def test_what_leads_to_no_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a module or a PIN the message names the variable; both are needed before anything is asked."""
    monkeypatch.setenv(SIGNING_KEY, "hsm:2")
    monkeypatch.setenv(PUBLIC_KEY, str(new_pair(tmp_path, ecdsa=True).public))
    monkeypatch.setenv(MODULE, str(tmp_path / "none.so"))
    with pytest.raises(UsageError, match="needs PYKCS11LIB: the path of the token's PKCS#11 module"):
        signing_key()
    monkeypatch.setenv(MODULE, __file__)
    monkeypatch.delenv(PIN_FILE, raising=False)
    with pytest.raises(UsageError, match="needs QUALIFY_SIGNING_PIN_FILE: a file with the PIN"):
        signing_key()
    monkeypatch.setenv(PIN_FILE, str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"none: the PIN cannot be read .No such file"):
        signing_key()
    (tmp_path / "none").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"none: the PIN cannot be read .it holds bytes that are no text"):
        signing_key()


@pytest.fixture
def kms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An emulated AWS KMS on loopback with a key `alias/runner`; the folder has its public key."""
    if not all(importlib.util.find_spec(name) for name in ("boto3", "moto", "flask", "flask_cors")):
        pytest.skip("AWS KMS cannot be emulated: pip install boto3 moto flask flask-cors")
    import boto3
    from cryptography.hazmat.primitives.asymmetric import ec, utils
    from cryptography.hazmat.primitives.hashes import SHA256
    from moto.kms.utils import ECDSAPrivateKey
    from moto.server import ThreadedMotoServer

    def sign(key: Any, digest: bytes, _: str) -> bytes:
        """Signs a digest as AWS does: moto 5.2 ignores MessageType=DIGEST, and hashes the digest again."""
        signature: bytes = key.private_key.sign(digest, ec.ECDSA(utils.Prehashed(SHA256())))
        return signature

    monkeypatch.setattr(ECDSAPrivateKey, "sign", sign)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://{}:{}".format(*server.get_host_and_port()))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    client = boto3.client("kms")
    made = client.create_key(KeySpec="ECC_NIST_P256", KeyUsage="SIGN_VERIFY")["KeyMetadata"]["KeyId"]
    client.create_alias(AliasName="alias/runner", TargetKeyId=made)
    text = base64.encodebytes(client.get_public_key(KeyId=made)["PublicKey"]).decode()
    (tmp_path / "kms.pem").write_text(f"-----BEGIN PUBLIC KEY-----\n{text}-----END PUBLIC KEY-----\n")
    monkeypatch.setenv(SIGNING_KEY, "awskms:alias/runner")
    monkeypatch.setenv(PUBLIC_KEY, str(tmp_path / "kms.pem"))
    yield tmp_path
    server.stop()


def test_a_key_of_aws_seals_and_a_wrong_one_is_refused(
    kms: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The real client signs by the emulated service; what does not sign is one error, without a line of a log."""
    assert sealed_and_believed(kms / "kms.pem")
    wrong = (
        (SIGNING_KEY, "awskms:alias/none", "gives no signature .*alias/none is not found.*Check the key id"),
        ("AWS_ENDPOINT_URL_KMS", "http://127.0.0.1:1", "gives no signature .*Could not connect to the endpoint"),
    )
    capfd.readouterr()
    for name, value, message in wrong:
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(SigningFailed, match=message):
                signing_key()
    assert ("", "") == capfd.readouterr()
    monkeypatch.setenv(PUBLIC_KEY, str(new_pair(kms).public))
    with pytest.raises(UsageError, match=r"signs with no key of the kind 'ed25519'.*ECDSA on P-256"):
        signing_key()
