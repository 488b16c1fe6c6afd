"""Keys: a runner signs with one, a gate believes some.

All cryptography is that of securesystemslib and sigstore. A private key is a file, a key service that securesystemslib
knows, a command, or an identity of an OIDC token. A public key is a PEM file; that of an identity is a JSON file.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualify.errors import InfrastructureError, QualifyError, SigningFailed, UsageError
from qualify.files import is_folder, open_regular
from qualify.seal.reasons import reason
from qualify.text import shell_word

if TYPE_CHECKING:
    from securesystemslib.signer import Key, Signature, Signer

SIGNING_KEY = "QUALIFY_SIGNING_KEY"
PUBLIC_KEY = "QUALIFY_SIGNING_PUBLIC_KEY"
PIN_FILE = "QUALIFY_SIGNING_PIN_FILE"
MODULE = "PYKCS11LIB"
"""the variable by which securesystemslib finds the PKCS#11 module of a token"""
COMMAND = "command"
KEYLESS = "sigstore"
HSM = "hsm"
SERVICES = ("awskms", "gcpkms", "azurekms", "hv", HSM, COMMAND, KEYLESS)
"""what may stand before the colon in QUALIFY_SIGNING_KEY; anything else is a file"""
IDENTITY = {"identity", "issuer"}
"""the keys of a JSON file that stands for an identity"""
SUFFIXES = (".pem", ".pub", ".json")
"""files of a folder that are keys"""
COMMAND_TIMEOUT_S = 60.0
TRIAL = b"qualify asks whether this key signs"
HINTS = {
    "": "",
    "awskms": "Check the key id, AWS_DEFAULT_REGION, the credentials, and that they may use kms:Sign.",
    "gcpkms": "Check the resource name of the key version, and that this account may sign with it.",
    "azurekms": "Check the name of the vault and of the key, and that this account may sign with it.",
    "hv": "Check VAULT_ADDR, VAULT_TOKEN, the name of the transit key and its version.",
    HSM: f"Check the key id, the label, and the PIN in {PIN_FILE}: pkcs11-tool --module ${MODULE} --list-objects. "
    "Do not try on: a few wrong PINs lock a token.",
    COMMAND: "Run the program by hand: bytes on stdin, the raw signature on stdout.",
    KEYLESS: "Check the identity, and that Fulcio and Rekor of the Sigstore instance answer.",
}
"""what to look at where a key gives no signature, by what stands before the colon"""


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
    service: str = ""
    """one of SERVICES; empty = a file"""

    def sign(self, content: bytes) -> Signature:
        """The signature of some bytes, checked with the public key. Raises SigningFailed where there is none."""
        what = f"{SIGNING_KEY}={self.service}:…" if self.service else SIGNING_KEY
        try:
            signature = self.signer.sign(content)
        except QualifyError:
            raise
        except Exception as error:  # every key service raises errors of its own
            raise SigningFailed(
                f"{what} gives no signature ({reason(error)}). {HINTS[self.service]}".strip()
            ) from error
        signature.keyid = self.public.id
        try:
            self.public.key.verify_signature(signature, content)
        except QualifyError:
            raise
        except Exception as error:  # a service may give bytes that no library reads
            raise SigningFailed(
                f"{what} gives a signature that {self.public.shown} does not accept ({reason(error)}). "
                f"{PUBLIC_KEY} must name the public key of the same pair, or the identity that signs."
            ) from error
        return signature


def signing_key() -> SigningKey | None:
    """The key that QUALIFY_SIGNING_KEY names, after it has signed on trial; None where it names none.

    Raises:
        UsageError: it names no key that can be used.
        InfrastructureError: the library is not installed.
        SigningFailed: it does not sign, so that nobody measures for hours what cannot be sealed.
    """
    found = _named_key()
    if found is not None:
        found.sign(TRIAL)
    return found


def _named_key() -> SigningKey | None:
    named = os.environ.get(SIGNING_KEY, "")
    if not named:
        return None
    check_installed(SIGNING_KEY)
    scheme, _, rest = named.partition(":")
    if scheme not in SERVICES:
        return _from_file(Path(named))
    public = _public_key_named(scheme)
    signer = _command(rest, public) if scheme == COMMAND else _from_service(named, public)
    return SigningKey(public=public, signer=signer, service=scheme)


def needed_signing_key() -> SigningKey:
    """The same key, where a command needs one. Raises UsageError where QUALIFY_SIGNING_KEY names none."""
    found = _named_key()
    if found is None:
        raise UsageError(f"{SIGNING_KEY} names no key. Give the path of a private key in PEM: {SIGNING_KEY}=FILE")
    return found


def check_installed(wanted_by: str) -> None:
    """Raises InfrastructureError where the library that signs and checks signatures is not installed."""
    try:
        import cryptography  # noqa: F401
        import securesystemslib.dsse  # noqa: F401
    except ImportError as error:
        raise InfrastructureError(
            f"{wanted_by} needs securesystemslib, which is not here ({error.name}): pip install 'attn-qualify[sign]'"
        ) from error


def _from_file(path: Path) -> SigningKey:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    try:
        signer = CryptoSigner(load_pem_private_key(path.read_bytes(), None))
    except OSError as error:
        known = ", ".join(f"{name}:" for name in SERVICES)
        raise UsageError(
            f"{SIGNING_KEY}={path}: the key cannot be read ({error.strerror or error}). It is a file, or begins with "
            f"one of {known}"
        ) from error
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{SIGNING_KEY}={path}: it is no private key without a passphrase in PEM ({reason(error)}). "
            "Make one: openssl genpkey -algorithm ed25519 -out FILE"
        ) from error
    return with_public(signer, str(path))


def with_public(signer: Signer, shown: str) -> SigningKey:
    """A signer together with the public key that it gives; ``shown`` tells people where the key is from."""
    key = signer.public_key
    return SigningKey(public=_public(key, _pem(key), shown), signer=signer)


def _public_key_named(scheme: str) -> PublicKey:
    """The public key for a private key that does not give its own."""
    named = os.environ.get(PUBLIC_KEY, "")
    if not named:
        what = 'a JSON file {"identity": …, "issuer": …}' if scheme == KEYLESS else "the PEM file of its public key"
        raise UsageError(f"{SIGNING_KEY}={scheme}:… needs {PUBLIC_KEY}: {what}")
    found = _read_public(Path(named))
    if found.text.startswith("{") != (scheme == KEYLESS):
        what = "an identity in JSON" if scheme == KEYLESS else "a public key in PEM"
        raise UsageError(f"{PUBLIC_KEY}={named}: {SIGNING_KEY}={scheme}:… needs {what}, and this is none")
    return found


def _from_service(uri: str, public: PublicKey) -> Signer:
    from securesystemslib.exceptions import UnsupportedLibraryError
    from securesystemslib.signer import Signer

    scheme = uri.partition(":")[0]
    if scheme == KEYLESS:
        from qualify.seal.keyless import KeylessSigner

        file = uri.partition(":")[2]
        return KeylessSigner(public.key, Path(file) if file else None)
    secrets = _pin if scheme == HSM else None
    if scheme == HSM:
        _check_token()
    # It logs what it raises: once is enough.
    logging.getLogger("securesystemslib").setLevel(logging.CRITICAL)
    try:
        return Signer.from_priv_key_uri(uri, public.key, secrets)
    except UnsupportedLibraryError as error:
        extra = "vault" if scheme == "hv" else scheme
        raise InfrastructureError(
            f"{SIGNING_KEY}={scheme}:… needs a library that is not here ({error}): "
            f"pip install 'securesystemslib[{extra}]'"
        ) from error
    except KeyError as error:  # of the table of what a service can do
        raise UsageError(
            f"{SIGNING_KEY}={scheme}:… signs with no key of the kind {error}, which is that of {public.shown}. "
            "Make one that it knows: ECDSA on P-256."
        ) from error
    except Exception as error:  # every key service raises errors of its own
        raise UsageError(
            f"{SIGNING_KEY}={scheme}:… names no key to sign with ({reason(error)}). {HINTS[scheme]}"
        ) from error


def _check_token() -> None:
    """Raises UsageError where no variable names the file of the token's module, or the PIN cannot be read."""
    if not Path(os.environ.get(MODULE, "")).is_file():
        raise UsageError(
            f"{SIGNING_KEY}={HSM}:… needs {MODULE}: the path of the token's PKCS#11 module, for example "
            "/usr/lib/softhsm/libsofthsm2.so"
        )
    _pin("pin")


def _pin(_: str) -> str:
    """The PIN of the token, as securesystemslib asks for it."""
    named = os.environ.get(PIN_FILE, "")
    if not named:
        raise UsageError(f"{SIGNING_KEY}={HSM}:… needs {PIN_FILE}: a file with the PIN of the token, and nothing else")
    try:
        return Path(named).read_text().strip()
    except OSError as error:
        raise UsageError(f"{PIN_FILE}={named}: the PIN cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{PIN_FILE}={named}: the PIN cannot be read (it holds bytes that are no text)") from error


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
        files = _key_files(place) if is_folder(place) else [place]
        if not files:
            raise UsageError(f"{place}: the folder holds no key (a file that ends with {', '.join(SUFFIXES)})")
        found += [_read_public(path) for path in files]
    return found


def _key_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    except OSError as error:
        raise UsageError(f"{folder}: the keys cannot be read ({error.strerror or error})") from error


def _read_public(path: Path) -> PublicKey:
    try:
        with open_regular(path) as file:
            text = file.read().decode(errors="replace")  # bytes that are no text are no key
    except OSError as error:
        raise UsageError(f"{path}: the key cannot be read ({error.strerror or error})") from error
    return public_key(text, str(path))


def public_key(text: str, shown: str) -> PublicKey:
    """A public key out of the text of its file. Raises UsageError where it is none."""
    from securesystemslib.signer import SSlibKey

    if text.lstrip().startswith("{"):
        return _identity(text, shown)
    if "PRIVATE KEY" in text:
        raise UsageError(
            f"{shown}: this is a private key, which only the runner may have. Give its public key: "
            f"openssl pkey -in {shell_word(shown)} -pubout"
        )
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = SSlibKey.from_crypto(load_pem_public_key(text.encode()))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{shown}: it is no public key in PEM ({reason(error)}). Make it from the private one: "
            "openssl pkey -in KEY -pubout -out FILE"
        ) from error
    return _public(key, _pem(key), shown)


def _identity(text: str, shown: str) -> PublicKey:
    """Who an OIDC provider says that the signer is."""
    from qualify.seal.keyless import certified_identity

    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{shown}: it is no JSON ({error})") from error
    if set(data) != IDENTITY or not all(isinstance(value, str) for value in data.values()):
        raise UsageError(f'{shown}: an identity is {{"identity": TEXT, "issuer": URL}}, and nothing else')
    key = certified_identity(data["identity"], data["issuer"])
    return _public(key, json.dumps(data, sort_keys=True), shown)


def _public(key: Key, text: str, shown: str) -> PublicKey:
    return PublicKey(id=key.keyid, shown=shown, text=text, key=key)


def _pem(key: Any) -> str:
    """The key in PEM, in whichever form securesystemslib keeps it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    encoded: bytes = key._crypto_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return encoded.decode()
