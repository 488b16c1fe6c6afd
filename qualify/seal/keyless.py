"""Keyless signing: a Sigstore instance certifies, for one signature, who an OIDC token says that the signer is.

The private key is made for one signature and forgotten. The signature carries Sigstore's bundle: the certificate, and
the transparency log's proof of when it was used. ``sigstore`` makes and checks both. The client trust configuration
says which instance is asked and believed: the public one, or that of a file.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import Key, Signature, Signer, SigstoreKey, SigstoreSigner

from qualify.errors import InfrastructureError, SigningFailed, UsageError
from qualify.seal.reasons import reason

if TYPE_CHECKING:
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken

TRUST_CONFIG = "QUALIFY_SIGSTORE_TRUST_CONFIG"
WHERE_TOKENS_ARE = (
    "no OIDC token was found. A CI job has one where it may ask for it: on GitHub `permissions: id-token: write`, on "
    "GitLab `id_tokens: SIGSTORE_ID_TOKEN: aud: sigstore`. Elsewhere name a file with a token: sigstore:FILE"
)


class CertifiedIdentity(SigstoreKey):
    """An identity and its issuer, checked against the instance that the trust configuration names."""

    def verify_signature(self, signature: Signature, data: bytes) -> None:
        """Raises UnverifiedSignatureError where the bundle does not prove that this identity signed the data."""
        from sigstore.models import Bundle
        from sigstore.verify import Verifier
        from sigstore.verify.policy import Identity

        wanted = Identity(identity=self.keyval["identity"], issuer=self.keyval["issuer"])
        root = trust_config().trusted_root
        if "bundle" not in signature.unrecognized_fields:
            raise UnverifiedSignatureError("the signature has no Sigstore bundle")
        try:
            bundle = Bundle.from_json(json.dumps(signature.unrecognized_fields["bundle"]))
            Verifier(trusted_root=root).verify_artifact(data, bundle, wanted)
        except Exception as error:  # what sigstore raises of a bundle that somebody made
            raise UnverifiedSignatureError(reason(error)) from error


class KeylessSigner(Signer):
    """Signs as the identity of an OIDC token: that of a file, or of the CI job.

    Each signature asks for the token anew, because a token lives for minutes and a run for hours.
    """

    def __init__(self, identity: Key, file: Path | None) -> None:
        self._identity = identity
        self._file = file

    @property
    def public_key(self) -> Key:
        """The identity."""
        return self._identity

    @classmethod
    def from_priv_key_uri(cls, priv_key_uri: str, public_key: Key, secrets_handler: Any = None) -> Signer:
        """Not used: the caller has the file already."""
        raise NotImplementedError

    def sign(self, payload: bytes) -> Signature:
        """The signature of some bytes with its bundle. sigstore raises errors of many classes."""
        from sigstore.sign import SigningContext

        token = _token(self._file)
        with SigningContext.from_trust_config(trust_config()).signer(token) as signer:
            bundle = signer.sign_artifact(payload)
        data = json.loads(bundle.to_json())
        return Signature(self._identity.keyid, bundle.signature.hex(), {"bundle": data})


def certified_identity(identity: str, issuer: str) -> CertifiedIdentity:
    """The key that stands for an identity.

    Raises:
        UsageError: the trust configuration is none.
        InfrastructureError: the library is not installed.
    """
    check_sigstore()
    if os.environ.get(TRUST_CONFIG):
        trust_config()
    _, key = SigstoreSigner.import_(identity, issuer)
    return CertifiedIdentity(key.keyid, key.keytype, key.scheme, key.keyval)


def check_sigstore() -> None:
    """Raises InfrastructureError where the library of keyless signing is not installed."""
    try:
        import sigstore.models
        import sigstore.sign  # noqa: F401
    except ImportError as error:
        raise InfrastructureError(
            f"a keyless identity needs sigstore, which is not here ({error.name}): "
            "pip install 'securesystemslib[sigstore]'"
        ) from error


def trust_config() -> ClientTrustConfig:
    """Which Sigstore instance is asked and believed.

    Raises:
        UsageError: the file is no client trust configuration.
        SigningFailed: that of the public instance cannot be fetched.
    """
    return _trust_config(os.environ.get(TRUST_CONFIG, ""))


@lru_cache(maxsize=1)
def _trust_config(file: str) -> ClientTrustConfig:
    from sigstore.models import ClientTrustConfig

    if file:
        try:
            found = ClientTrustConfig.from_json(Path(file).read_text())
            _ = found.trusted_root, found.signing_config
        except Exception as error:  # sigstore raises errors of its parsers, too
            raise UsageError(
                f"{TRUST_CONFIG}={file}: it is no client trust configuration of Sigstore ({reason(error)}). "
                "Whoever runs your Sigstore instance has this JSON file, with the trusted root and the signing config."
            ) from error
        return found
    try:
        return ClientTrustConfig.production()
    except Exception as error:  # of TUF, of the network and of files
        raise SigningFailed(
            f"the trusted root of the public Sigstore instance cannot be fetched ({reason(error)}). Without a network, "
            f"or with a Sigstore instance of your own, name its client trust configuration: {TRUST_CONFIG}=FILE"
        ) from error


def _token(file: Path | None) -> IdentityToken:
    """The token of a file, or of the CI job that this process runs in. Raises ValueError where there is none."""
    from sigstore.oidc import IdentityToken, detect_credential

    raw = file.read_text().strip() if file else detect_credential()
    if not raw:
        raise ValueError(WHERE_TOKENS_ARE)
    return IdentityToken(raw)
