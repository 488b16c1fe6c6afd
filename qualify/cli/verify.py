"""``qualify verify``: who sealed a run or a duel, and what differs from what was sealed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualify.cli.shared import DbOption, JsonOption, SignedByOption, emit_json, open_store, reading_only
from qualify.cli.terminal import emit
from qualify.errors import NO_VERDICT, QUALIFIED
from qualify.files import is_file, kind_of

if TYPE_CHECKING:
    from qualify.seal.keys import PublicKey
    from qualify.seal.sealed import SealCheck
    from qualify.store.archive import Archive

ENDING = ".jsonl.gz"
"""end of the name of an exported file"""
OF_DUELS = "duel-"
"""what the id of a duel begins with"""


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A run or a duel, and what was found out about it."""

    archive: Archive
    checked: SealCheck
    size: str
    """how much it holds, in words"""
    contradictions: tuple[str, ...] = ()
    unchecked: str = ""
    """why the verdicts of a duel were not computed again; empty where they were"""
    skew: str = ""
    """what a wrong clock of its machine means for it; empty where the clock was right, or unknown"""

    @property
    def sound(self) -> bool:
        """Whether it is as it was sealed, its verdicts were computed again, and it does not contradict itself."""
        return not (self.checked.why_not or self.contradictions or self.unchecked)


def verify(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DUEL|FILE",
            help="Id of a run or a duel, a unique prefix, `latest` for the newest run, or a file of `db export`.",
        ),
    ],
    signed_by: SignedByOption = None,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say who sealed a run or a duel, and what was changed since then.

    It also computes verdicts again, and names what in the evidence contradicts itself.
    """
    reading_only()
    from qualify.seal.keys import public_keys

    keys = public_keys(signed_by) if signed_by else []
    found = [_verified(one, keys) for one in _found(what, db)]
    if as_json:
        emit_json("verify", _data(found))
    else:
        emit("\n".join(text for one in found for text in _lines(one)))
    raise typer.Exit(QUALIFIED if all(one.sound for one in found) else NO_VERDICT)


def _found(what: str, db: str) -> Sequence[Archive]:
    """What a file holds, or what is stored under that id, which has no slash.

    A folder beside the command does not count: it may have the name of its run.
    """
    path = Path(what)
    if "/" in what or what.endswith(ENDING) or is_file(path) or kind_of(path) not in ("", "a folder"):
        from qualify.store.transfer import read

        return read(path).archives
    with open_store(db, create=False) as store:
        if what.startswith(OF_DUELS):
            return [store.duel(store.resolve_duel(what))]
        return [store.evidence(store.resolve(what), even_edited=True)]


def _verified(found: Archive, keys: Sequence[PublicKey]) -> Verified:
    """What its seal says, what its numbers say, and for a run what its clock says."""
    from qualify.facts.clock import skew_note
    from qualify.judge.duels import check_duel
    from qualify.judge.edits import contradictions_in
    from qualify.seal.sealed import check_seal
    from qualify.store.archive import DuelArchive, RunArchive

    checked = check_seal(found.seal, found.lines, found.id, keys, what=found.what)
    if isinstance(found, RunArchive):
        return Verified(
            archive=found,
            checked=checked,
            size=f"{len(found.cases)} cases",
            contradictions=contradictions_in(found),
            skew=skew_note(found.id, found.run.clock_skew_s),
        )
    assert isinstance(found, DuelArchive)
    proven = check_duel(found.duel)
    return Verified(
        archive=found,
        checked=checked,
        size=f"{len(found.duel.cells)} cells",
        contradictions=proven.contradictions,
        unchecked=proven.unchecked,
    )


def _lines(found: Verified) -> Iterable[str]:
    """The answer for a person."""
    checked, signer = found.checked, found.checked.signed_by
    name = f"{found.archive.what} {found.archive.id}"
    if checked.differences:
        assert signer
        yield f"{name} is not what {signer.id[:12]} sealed at {checked.at}:"
        yield from (f"  {difference.words(found.archive.what)}" for difference in checked.differences)
    elif checked.why_not:
        yield f"{name}: {checked.why_not}"
        if found.archive.seal is None:
            yield "A run is sealed while it runs, by the key that QUALIFY_SIGNING_KEY names (docs/signing.md)."
    else:
        assert signer
        yield f"{name} is as it was sealed at {checked.at}: {found.size}, sha256 {found.archive.sha256}"
        yield f"sealed by key {signer.id[:12]}, {signer.shown}"
    if signer and not checked.trusted:
        yield "You named no key, so anybody may have sealed it. Name the keys that you trust: --signed-by KEYS"
    yield from (f"{name} contradicts itself: {text}" for text in found.contradictions)
    if found.unchecked:
        yield f"{name}: {found.unchecked}"
    if found.skew:
        yield found.skew


def _data(found: Sequence[Verified]) -> dict[str, Any]:
    """The answer for a program: the run at the top, where there is one, and the duels."""
    run = next((one for one in found if one.archive.what == "run"), None)
    duels = [{"duel": one.archive.id} | _one_data(one) for one in found if one.archive.what == "duel"]
    return {"run": run.archive.id if run else None} | (_one_data(run) if run else {}) | {"duels": duels}


def _one_data(found: Verified) -> dict[str, Any]:
    checked, signer = found.checked, found.checked.signed_by
    return {
        "sealed": not checked.why_not,
        "trusted": checked.trusted and not checked.why_not,
        "key": signer.id if signer else None,
        "key_file": signer.shown if signer and checked.trusted else None,
        "sealed_at": checked.at,
        "sha256": found.archive.sha256,
        "why_not": checked.why_not,
        "differences": [{"case": it.case, "field": it.field, "what": it.what} for it in checked.differences],
        "contradictions": list(found.contradictions),
        "unchecked": found.unchecked,
        "clock": found.skew,
    }
