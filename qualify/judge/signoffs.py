"""Sign-offs: whether the evidence is still what was signed."""

from __future__ import annotations

from collections.abc import Sequence

from qualify.facts.people import SignedOff, SignOff, SignOffState
from qualify.store.store import Store


def signed_off(store: Store, runs: Sequence[str]) -> tuple[SignedOff, ...]:
    """The sign-offs of some runs, each beside the evidence as it is now.

    The digest of a run's evidence is computed only where a sign-off of it was not revoked.
    """
    found = store.people.signoffs(runs)
    open_runs = {it.run_id for it in found if it.revoked is None}
    digests = {run: store.evidence(run).sha256 for run in sorted(open_runs)}
    return tuple(SignedOff(signoff=it, state=_state(it, digests.get(it.run_id, ""))) for it in found)


def _state(signoff: SignOff, sha256: str) -> SignOffState:
    if signoff.revoked is not None:
        return "revoked"
    if signoff.sha256 != sha256:
        return "changed"
    if signoff.origin:
        return "imported"
    return "valid" if signoff.proven else "unproven"
