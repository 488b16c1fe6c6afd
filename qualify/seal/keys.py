"""Keys: a runner signs with one, a gate believes some.

All cryptography is that of securesystemslib. A private key is a file, a key service that securesystemslib knows, a
command, or an identity of an OIDC token. A public key is a PEM file; that of an identity is a JSON file.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualify.errors import SigningFailed, UsageError

if TYPE_CHECKING:
    from securesystemslib.signer import Key, Signature, Signer

SIGNING_KEY = "QUALIFY_SIGNING_KEY"
PUBLIC_KEY = "QUALIFY_SIGNING_PUBLIC_KEY"
COMMAND = "command"
KEYLESS = "sigstore"
SERVICES = ("awskms", "gcpkms", "azurekms", "hv", "hsm", COMMAND, KEYLESS)
"""what may stand before the colon in QUALIFY_SIGNING_KEY; anything else is a file"""
IDENTITY = {"identity", "issuer"}
"""the keys of a JSON file that stands for an identity"""
SUFFIXES = (".pem", ".pub", ".json")
"""files of a folder that are keys"""
COMMAND_TIMEOUT_S = 60.0
NO_IDENTITY = (
    "A CI job has an OIDC token where it may ask for one: on GitHub, `permissions: id-token: write`. "
    "Elsewhere sign with a key file."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicKey:
    """A key that signatures are checked with."""

    id: str
    """sha256 of the key, as securesystemslib computes it"""
    shown: str
    """the file that it is from, or what stands for one"""
    text: str
    """PEM, or JSON of an identity"""
    key: Key


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningKey:
    """What signs, and its public key."""

    public: PublicKey
    signer: Signer

    def sign(self, content: bytes) -> Signature:
        """The signature of some bytes, checked with the public key. Raises SigningFailed where there is none."""
        try:
            signature = self.signer.sign(content)
            signature.keyid, signature.signature = self.public.id, in_hex(signature.signature)
            self.public.key.verify_signature(signature, content)
        except Exception as error:  # every key service raises errors of its own
            raise SigningFailed(
                f"{SIGNING_KEY}: the key {self.public.id[:12]} gives no signature that its public key accepts "
                f"({_one_line(error)}). Check that the key service answers and that both keys are one pair."
            ) from error
        return signature


def signing_key() -> SigningKey | None:
    """The key that QUALIFY_SIGNING_KEY names; None where it names none.

    Raises:
        UsageError: it names no key that can be used, or the library is not installed.
    """
    named = os.environ.get(SIGNING_KEY, "")
    if not named:
        return None
    check_installed(SIGNING_KEY)
    scheme, _, rest = named.partition(":")
    if scheme not in SERVICES:
        return _from_file(Path(named))
    public = _public_key_named(scheme)
    signer = _command(rest, public) if scheme == COMMAND else _from_service(named, public)
    return SigningKey(public=public, signer=signer)


def in_hex(signature: str) -> str:
    """A signature as envelopes take it: Sigstore's are in base64."""
    try:
        return bytes.fromhex(signature).hex()
    except ValueError:
        return base64.b64decode(signature, validate=True).hex()


def needed_signing_key() -> SigningKey:
    """The same key, where a command needs one. Raises UsageError where QUALIFY_SIGNING_KEY names none."""
    found = signing_key()
    if found is None:
        raise UsageError(f"{SIGNING_KEY} names no key. Give the path of a private key in PEM: {SIGNING_KEY}=FILE")
    return found


def check_installed(wanted_by: str) -> None:
    """Raises UsageError where the library that signs and checks signatures is not installed."""
    try:
        import cryptography  # noqa: F401
        import securesystemslib.dsse  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"{wanted_by} needs securesystemslib, which is not here ({error.name}): pip install 'attn-qualify[sign]'"
        ) from error


def _from_file(path: Path) -> SigningKey:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    try:
        signer = CryptoSigner(load_pem_private_key(path.read_bytes(), None))
    except OSError as error:
        raise UsageError(f"{SIGNING_KEY}={path}: the key cannot be read ({error.strerror or error})") from error
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{SIGNING_KEY}={path}: it is no private key without a passphrase in PEM ({_one_line(error)}). "
            "Make one: openssl genpkey -algorithm ed25519 -out FILE"
        ) from error
    return with_public(signer, str(path))


def with_public(signer: Signer, shown: str) -> SigningKey:
    """A signer together with the public key that it gives; ``shown`` tells people where the key is from."""
    key = signer.public_key
    return SigningKey(public=_public(key, _pem(key), shown), signer=signer)


def _public_key_named(scheme: str) -> PublicKey:
    """The public key of a key that does not show its own."""
    named = os.environ.get(PUBLIC_KEY, "")
    if not named:
        what = 'a JSON file {"identity": …, "issuer": …}' if scheme == KEYLESS else "the PEM file of its public key"
        raise UsageError(f"{SIGNING_KEY}={scheme}:… needs {PUBLIC_KEY}: {what}")
    return _read_public(Path(named))


def _from_service(uri: str, public: PublicKey) -> Signer:
    from securesystemslib.exceptions import UnsupportedLibraryError
    from securesystemslib.signer import SIGNER_FOR_URI_SCHEME, Signer, SigstoreSigner

    SIGNER_FOR_URI_SCHEME.setdefault(KEYLESS, SigstoreSigner)
    scheme = uri.partition(":")[0]
    try:
        return Signer.from_priv_key_uri(uri, public.key)
    except UnsupportedLibraryError as error:
        extra = "vault" if scheme == "hv" else scheme
        raise UsageError(
            f"{SIGNING_KEY}={scheme}:… needs a library that is not here ({error}): "
            f"pip install 'securesystemslib[{extra}]'"
        ) from error
    except Exception as error:  # every key service raises errors of its own
        hint = NO_IDENTITY if scheme == KEYLESS else "Check the address, and what this machine may do there."
        raise UsageError(f"{SIGNING_KEY}={scheme}:… names no key to sign with ({_one_line(error)}). {hint}") from error


def _command(line: str, public: PublicKey) -> Signer:
    """A signer that asks a program: it reads the bytes on stdin and writes the signature to stdout."""
    from securesystemslib.signer import Signature, Signer

    try:
        arguments = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{SIGNING_KEY}={COMMAND}:… is no command line ({error})") from error
    if not arguments:
        raise UsageError(f"{SIGNING_KEY}={COMMAND}: names no program; give `command:PROGRAM ARGUMENTS`")

    class CommandSigner(Signer):
        """A program of the user's that signs."""

        @property
        def public_key(self) -> Key:
            return public.key

        @classmethod
        def from_priv_key_uri(cls, priv_key_uri: str, public_key: Key, secrets_handler: Any = None) -> Signer:
            raise NotImplementedError

        def sign(self, payload: bytes) -> Signature:
            done = subprocess.run(arguments, input=payload, capture_output=True, check=False, timeout=COMMAND_TIMEOUT_S)
            if done.returncode:
                told = done.stderr.decode(errors="replace").strip()[-200:]
                raise ValueError(f"{arguments[0]} ended with {done.returncode}: {told}")
            return Signature(public.id, done.stdout.hex())

    return CommandSigner()


def public_keys(places: Iterable[Path]) -> list[PublicKey]:
    """The public keys of files, and of all key files in folders.

    Raises:
        UsageError: a file is no public key, or a folder holds none.
    """
    check_installed("a public key")
    found = []
    for place in places:
        files = sorted(path for path in place.iterdir() if path.suffix in SUFFIXES) if place.is_dir() else [place]
        if not files:
            raise UsageError(f"{place}: the folder holds no key (a file that ends with {', '.join(SUFFIXES)})")
        found += [_read_public(path) for path in files]
    return found


def _read_public(path: Path) -> PublicKey:
    try:
        return public_key(path.read_text(), str(path))
    except OSError as error:
        raise UsageError(f"{path}: the key cannot be read ({error.strerror or error})") from error


def public_key(text: str, shown: str) -> PublicKey:
    """A public key out of the text of its file. Raises UsageError where it is none."""
    from securesystemslib.signer import SSlibKey

    if text.lstrip().startswith("{"):
        return _identity(text, shown)
    if "PRIVATE KEY" in text:
        raise UsageError(
            f"{shown}: this is a private key, which only the runner may have. Give its public key: "
            f"openssl pkey -in {shlex.quote(shown)} -pubout"
        )
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = SSlibKey.from_crypto(load_pem_public_key(text.encode()))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{shown}: it is no public key in PEM ({_one_line(error)}). Make it from the private one: "
            "openssl pkey -in KEY -pubout -out FILE"
        ) from error
    return _public(key, _pem(key), shown)


def _identity(text: str, shown: str) -> PublicKey:
    """Who an OIDC provider says that the signer is."""
    from securesystemslib.signer import SigstoreSigner

    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{shown}: it is no JSON ({error})") from error
    if set(data) != IDENTITY or not all(isinstance(value, str) for value in data.values()):
        raise UsageError(f'{shown}: an identity is {{"identity": TEXT, "issuer": URL}}, and nothing else')
    _, key = SigstoreSigner.import_(data["identity"], data["issuer"])
    return _public(key, json.dumps(data, sort_keys=True), shown)


def _public(key: Key, text: str, shown: str) -> PublicKey:
    return PublicKey(id=key.keyid, shown=shown, text=text, key=key)


def _pem(key: Any) -> str:
    """The key in PEM, whatever securesystemslib keeps of it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    encoded: bytes = key._crypto_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return encoded.decode()


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
