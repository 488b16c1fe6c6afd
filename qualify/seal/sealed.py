"""Makes and checks seals. A seal is an in-toto statement about the canonical lines of a run, in a DSSE envelope.

The statement's subject is the run with the sha256 of its lines. The predicate says what the reader of a seal needs
without the evidence: form, state, counts, the digest of the parts, and the public key. That key only shows that the
envelope is whole. The reader's own keys say whom to believe.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from qualify import __version__
from qualify.errors import UsageError
from qualify.facts.seal import Seal
from qualify.seal.form import FORM
from qualify.seal.keys import PublicKey, SigningKey, check_installed, public_key
from qualify.seal.parts import Difference, FieldDigests, differences, digest_of, parts_from, parts_of
from qualify.seal.reasons import reason

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope

PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:attn-qualify:evidence-seal:v1"
NAMED = 5
"""differences that a sentence names"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SealCheck:
    """What a seal says about evidence."""

    signed_by: PublicKey | None
    """the key that signed; None where the signature is not valid, or nothing is signed"""
    trusted: bool
    """whether that key is one of the trusted ones"""
    at: str
    """when it was sealed; empty = unknown"""
    why_not: str
    """why the seal proves nothing about this evidence; empty where it does"""
    differences: tuple[Difference, ...] = ()
    """what differs from what was sealed"""


def signed(statement: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    """An in-toto statement in a DSSE envelope, as JSON data."""
    from securesystemslib.dsse import Envelope

    content = json.dumps(statement, sort_keys=True).encode()
    envelope = Envelope(content, PAYLOAD, {})
    signature = key.sign(envelope.pae())
    envelope.signatures[signature.keyid] = signature
    data: dict[str, Any] = envelope.to_dict()
    return data


def make_seal(run_id: str, state: str, sha256: str, parts: FieldDigests, key: SigningKey) -> Seal:
    """The seal of lines with that digest and those parts."""
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": f"run {run_id}", "digest": {"sha256": sha256}}],
        "predicateType": PREDICATE,
        "predicate": {
            "form": FORM,
            "run": run_id,
            "state": state,
            "cases": len(parts.cases),
            "outcomes": len(parts.outcomes),
            "parts": {"sha256": parts.sha256},
            "sealed_at": datetime.now(UTC).isoformat(),
            "public_key": key.public.text,
            "qualify_version": __version__,
        },
    }
    return Seal(envelope=signed(statement, key), parts=parts.text())


def check_seal(
    seal: Seal | None,
    lines: Iterable[Mapping[str, Any]],
    run_id: str,
    trusted: Sequence[PublicKey] = (),
    *,
    what: str = "run",
    sha256: str = "",
) -> SealCheck:
    """Whether evidence is what was sealed, and by one of the trusted keys.

    Args:
        lines: the lines of the evidence as it is (qualify.seal.form).
        run_id: of the run, or of the duel.
        what: ``run`` or ``duel``, as messages call it.
        trusted: public keys; empty = any key may have signed, which proves that nothing changed since, not by whom.
        sha256: the digest of the lines, where the caller has computed it already; empty = it is computed here.
    """
    if seal is None:
        return _refused("it is not sealed")
    check_installed("a seal")
    try:
        stated = _stated(seal, trusted)
    except (_Unsealed, UsageError) as error:
        return _refused(str(error))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        return _refused(f"its seal is damaged ({type(error).__name__}: {error})")
    why, found = stated.why_other(run_id, what), tuple[Difference, ...]()
    if not why and sha256 != stated.sha256:
        content = list(lines)
        if digest_of(content) != stated.sha256:
            found = _what_differs(seal, stated.parts_sha256, parts_of(content))
            why = f"it is not what was sealed: {_told(found, what)}"
    known = stated.signer.id in {key.id for key in trusted}
    return SealCheck(signed_by=stated.signer, trusted=known, at=stated.at, why_not=why, differences=found)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stated:
    """What a seal says."""

    signer: PublicKey
    run: object
    """id of the run or duel"""
    form: object
    at: str
    """when it was sealed"""
    sha256: str
    """digest of the evidence's lines"""
    parts_sha256: str
    """digest of the field digests (qualify.seal.parts)"""

    def why_other(self, run_id: str, what: str) -> str:
        """Why the seal says nothing about that run or duel; empty where it does."""
        if self.run != run_id:
            return f"its seal is that of {what} {self.run}"
        if self.form != FORM:
            return (
                f"its seal is of form {self.form}, this qualify reads {FORM}: verify it with the qualify that sealed it"
            )
        return ""


def _stated(seal: Seal, trusted: Sequence[PublicKey]) -> _Stated:
    """What the seal says. Raises _Unsealed, UsageError, or KeyError and the like where it is damaged."""
    statement, signer = _opened(seal.envelope, trusted)
    predicate = statement["predicate"]
    return _Stated(
        signer=signer,
        run=predicate["run"],
        form=predicate["form"],
        at=str(predicate["sealed_at"]),
        sha256=str(statement["subject"][0]["digest"]["sha256"]),
        parts_sha256=str(predicate["parts"]["sha256"]),
    )


def own_digest(seal: Seal) -> str:
    """The sha256 that a seal states of its evidence. The signature is not checked. Empty where it states none."""
    try:
        payload = json.loads(_payload(seal.envelope))
        return str(payload["subject"][0]["digest"]["sha256"])
    except (KeyError, IndexError, TypeError, ValueError):
        return ""


class _Unsealed(Exception):
    """No valid signature of a key that counts."""


def _opened(envelope: Mapping[str, Any], trusted: Sequence[PublicKey]) -> tuple[dict[str, Any], PublicKey]:
    """The statement of an envelope and the key that signed it; without trusted keys the envelope's own key counts."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import Error

    try:
        # The library changes what it reads.
        found = Envelope.from_dict(json.loads(json.dumps(dict(envelope))))
    except Error as error:
        raise _Unsealed(f"its seal is damaged ({error})") from error
    statement = json.loads(found.payload)
    if found.payload_type != PAYLOAD or statement.get("predicateType") != PREDICATE:
        raise _Unsealed(f"its seal is not one of qualify ({found.payload_type}, {statement.get('predicateType')})")
    keys = list(trusted) or [public_key(statement["predicate"]["public_key"], "the key in the seal")]
    return statement, _signer(found, keys, statement["predicate"]["public_key"])


def _signer(envelope: Envelope, keys: Sequence[PublicKey], claimed: str) -> PublicKey:
    """The first of the keys whose signature holds. ``claimed`` is the key that the seal states of itself."""
    from securesystemslib.exceptions import UnverifiedSignatureError

    present = [key for key in keys if key.id in envelope.signatures]
    why = ""
    for key in present:
        try:
            key.key.verify_signature(envelope.signatures[key.id], envelope.pae())
        except UnverifiedSignatureError as error:
            why = reason(error)
        else:
            return key
    if present:
        raise _Unsealed(f"the signature of its seal does not hold: the seal was changed, or it is no seal ({why})")
    signers = ", ".join(name[:12] for name in envelope.signatures) or "nobody"
    names = f" (it says: {claimed})" if claimed.startswith("{") else ""
    raise _Unsealed(f"it is sealed by {signers}{names}, not by one of the required keys")


def _payload(envelope: Mapping[str, Any]) -> bytes:
    return base64.b64decode(envelope["payload"])


def _what_differs(seal: Seal, parts_digest: str, found: FieldDigests) -> tuple[Difference, ...]:
    sealed = parts_from(seal.parts, parts_digest)
    return tuple(differences(sealed, found)) if sealed else ()


def _told(found: Sequence[Difference], what: str) -> str:
    """The first differences, in words."""
    if not found:
        return "where cannot be told, because the seal's digests of the fields were changed or are too short"
    more = f", and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return "; ".join(it.words(what) for it in found[:NAMED]) + more


def _refused(why: str) -> SealCheck:
    return SealCheck(signed_by=None, trusted=False, at="", why_not=why)
