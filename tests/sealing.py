"""Real keys, and stored runs sealed by them as a runner seals what it has measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from securesystemslib.signer import CryptoSigner

from qualify.seal.keys import PublicKey, SigningKey, public_keys, with_public
from qualify.seal.parts import parts_of
from qualify.seal.sealed import make_seal
from qualify.store.store import Store


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """A private key and its public one, in files."""

    private: Path
    public: Path
    signing: SigningKey

    @property
    def trusted(self) -> list[PublicKey]:
        """The public key as a gate reads it."""
        return public_keys([self.public])


def new_pair(folder: Path, name: str = "runner", *, ecdsa: bool = False) -> KeyPair:
    """A new pair of keys in a folder of its own."""
    signer = CryptoSigner.generate_ecdsa() if ecdsa else CryptoSigner.generate_ed25519()
    home = folder / name
    home.mkdir()
    private, public = home / f"{name}.key", home / f"{name}.pem"
    private.write_bytes(signer.private_bytes)
    signing = with_public(signer, str(private))
    public.write_text(signing.public.text)
    return KeyPair(private=private, public=public, signing=signing)


def seal_run(store: Store, run_id: str, key: SigningKey | None = None) -> None:
    """Seals a run as it is stored; without a key with a new one."""
    found = store.evidence(run_id)
    parts = parts_of(found.lines)
    key = key or with_public(CryptoSigner.generate_ed25519(), "a new key")
    store.set_seal(run_id, make_seal(run_id, found.run.state, found.sha256, parts, key))
