"""Which keys sign, which are believed, and what is said of those that are none."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from sealing import KeyPair, new_pair
from securesystemslib.dsse import Envelope

from qualify.errors import InfrastructureError, SigningFailed, UsageError
from qualify.seal.keys import PUBLIC_KEY, SIGNING_KEY, needed_signing_key, public_keys, signing_key
from qualify.seal.sealed import signed

STATEMENT = {"_type": "x", "subject": []}
OPENSSL = "openssl genpkey -algorithm ed25519 -out {0}.key && openssl pkey -in {0}.key -pubout -out {0}.pem"
ECDSA = (
    "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {0}.key && "
    "openssl pkey -in {0}.key -pubout -out {0}.pem"
)


@pytest.fixture
def pair(tmp_path: Path) -> KeyPair:
    """A pair of keys."""
    return new_pair(tmp_path)


def verified(envelope: dict[str, object], public: Path) -> bool:
    """Whether the library itself accepts an envelope with a public key."""
    keys = [key.key for key in public_keys([public])]
    return bool(Envelope.from_dict(json.loads(json.dumps(envelope))).verify(keys, 1))


@pytest.mark.parametrize("make", [OPENSSL, ECDSA], ids=["ed25519", "ecdsa"])
def test_keys_that_openssl_makes_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: str) -> None:
    """The commands of the documents give a pair that signs and verifies."""
    subprocess.run(make.format("k"), shell=True, cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setenv(SIGNING_KEY, str(tmp_path / "k.key"))
    assert verified(signed(STATEMENT, needed_signing_key()), tmp_path / "k.pem")


def test_a_command_signs(pair: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a key service's own program writes to stdout is the signature of what it read from stdin."""
    program = tmp_path / "sign.py"
    program.write_text(
        "import sys\n"
        "from cryptography.hazmat.primitives.serialization import load_pem_private_key as load\n"
        "key = load(open(sys.argv[1], 'rb').read(), None)\n"
        "sys.stdout.buffer.write(key.sign(sys.stdin.buffer.read()))\n"
    )
    monkeypatch.setenv(SIGNING_KEY, "command:" + shlex.join([sys.executable, str(program), str(pair.private)]))
    with pytest.raises(UsageError, match=PUBLIC_KEY):
        signing_key()
    monkeypatch.setenv(PUBLIC_KEY, str(pair.public))
    assert verified(signed(STATEMENT, needed_signing_key()), pair.public)
    monkeypatch.setenv(PUBLIC_KEY, str(new_pair(tmp_path, "other").public))
    with pytest.raises(SigningFailed, match=r"gives a signature that .*other.pem does not accept"):
        signed(STATEMENT, needed_signing_key())
    monkeypatch.setenv(SIGNING_KEY, "command:" + shlex.join([sys.executable, "-c", "raise SystemExit('no such key')"]))
    with pytest.raises(SigningFailed, match=r"gives no signature .*no such key.*Run the program by hand"):
        signed(STATEMENT, needed_signing_key())
    for wrong, message in (("command:", "names no program"), ("command:'x", "is no command line")):
        monkeypatch.setenv(SIGNING_KEY, wrong)
        with pytest.raises(UsageError, match=message):
            signing_key()


def test_a_key_service_without_its_library_is_refused(pair: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the extra that brings it; none of them is installed for the tests."""
    monkeypatch.setenv(PUBLIC_KEY, str(pair.public))
    monkeypatch.setenv(SIGNING_KEY, "hv:runner/1")
    with pytest.raises(InfrastructureError, match=r"hv:… needs a library .*'securesystemslib\[vault\]'"):
        signing_key()


def test_without_a_key_nothing_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key is none; what needs one says how to name it."""
    monkeypatch.delenv(SIGNING_KEY, raising=False)
    assert signing_key() is None
    with pytest.raises(UsageError, match="QUALIFY_SIGNING_KEY names no key"):
        needed_signing_key()


def test_what_is_no_private_key_is_refused(pair: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message names the file and the next command."""
    locked = tmp_path / "locked.key"
    command = f"openssl genpkey -algorithm ed25519 -aes256 -pass pass:x -out {locked}"
    subprocess.run(command, shell=True, check=True, capture_output=True)
    for path, message in (
        (tmp_path / "none.key", "cannot be read .No such file"),
        (pair.public, "no private key .* openssl genpkey"),
        (locked, "without a passphrase"),
    ):
        monkeypatch.setenv(SIGNING_KEY, str(path))
        with pytest.raises(UsageError, match=message) as caught:
            signing_key()
        assert str(path) in str(caught.value)


def test_what_is_no_public_key_is_refused(pair: KeyPair, tmp_path: Path) -> None:
    """A private key in the place of a public one is told apart, because it must not lie there."""
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text.pem").write_text("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    (tmp_path / "half.json").write_text('{"identity": "x"}')
    (tmp_path / "bytes.pem").write_bytes(bytes(range(256)))
    for path, message in (
        (pair.private, "this is a private key"),
        (tmp_path / "empty", "the folder holds no key"),
        (tmp_path / "text.pem", "no public key in PEM"),
        (tmp_path / "half.json", "an identity is"),
        (tmp_path / "bytes.pem", "no public key in PEM"),
        (tmp_path / "none.pem", "cannot be read"),
        (tmp_path / ("x" * 5000), "cannot be read"),
        (tmp_path / "pipe", "it is a pipe, and only a regular file is read"),
        (Path("/dev/zero"), "it is a device, and only a regular file is read"),
    ):
        with pytest.raises(UsageError, match=message):
            public_keys([path])


def test_a_folder_of_keys(pair: KeyPair, tmp_path: Path) -> None:
    """Every file of a known ending is one; others, as a README, are none."""
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "a.pem").write_text(pair.public.read_text())
    (folder / "b.pub").write_text(new_pair(tmp_path, "other", ecdsa=True).public.read_text())
    (folder / "ci.json").write_text('{"identity": "https://github.com/o/r/.github/workflows/w.yml@m", "issuer": "i"}')
    (folder / "README").write_text("keys of runners\n")
    found = public_keys([folder])
    assert ["a.pem", "b.pub", "ci.json"] == [Path(key.shown).name for key in found]
    assert 3 == len({key.id for key in found})
    assert pair.signing.public.id == found[0].id


def test_keyless_without_an_identity_or_its_library_is_refused(
    pair: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is signed or read; a key of the other kind is refused, too."""
    identity = tmp_path / "ci.json"
    identity.write_text('{"identity": "me@example.com", "issuer": "https://accounts.example.com"}')
    monkeypatch.setenv(SIGNING_KEY, "sigstore:")
    with pytest.raises(UsageError, match=f"needs {PUBLIC_KEY}: a JSON file"):
        signing_key()
    for named, public, what in (("sigstore:", pair.public, "an identity in JSON"), ("hsm:", identity, "a public key")):
        monkeypatch.setenv(SIGNING_KEY, named)
        monkeypatch.setenv(PUBLIC_KEY, str(public))
        with pytest.raises(UsageError, match=f"needs {what}"):
            signing_key()
    monkeypatch.setitem(sys.modules, "sigstore", None)
    with pytest.raises(InfrastructureError, match=r"needs sigstore, .*pip install 'securesystemslib.sigstore.'"):
        public_keys([identity])


def test_a_key_that_does_not_sign_ends_a_command_before_it_measures(
    pair: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key signs on trial: what cannot be sealed would be measured for nothing."""
    monkeypatch.setenv(SIGNING_KEY, "command:false")
    monkeypatch.setenv(PUBLIC_KEY, str(pair.public))
    with pytest.raises(SigningFailed, match="false ended with 1"):
        signing_key()


def test_without_the_library_the_message_says_what_to_install(pair: KeyPair, tmp_path: Path) -> None:
    """A run with a key and without securesystemslib ends before anything runs."""
    program = (
        "import sys; sys.modules['securesystemslib'] = None\n"
        "from qualify.cli import main; sys.argv = ['qualify', 'verify', 'x', '--signed-by', sys.argv[1]]; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(pair.public)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (4, "") == (ended.returncode, ended.stdout)
    assert "pip install 'attn-qualify[sign]'" in ended.stderr
