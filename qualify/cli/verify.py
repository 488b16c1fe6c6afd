"""``qualify verify``: who sealed a run, and what is not as it was sealed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualify.cli.shared import DbOption, JsonOption, emit_json, open_store, reading_only
from qualify.cli.terminal import emit
from qualify.errors import NO_VERDICT, QUALIFIED

if TYPE_CHECKING:
    from qualify.seal.sealed import SealCheck
    from qualify.store.transfer import RunArchive

ENDING = ".jsonl.gz"
"""of an exported file"""


def verify(
    what: Annotated[
        str, typer.Argument(metavar="RUN|FILE", help="Run id, a unique prefix, `latest`, or a file of `db export`.")
    ],
    signed_by: Annotated[
        list[Path] | None,
        typer.Option(
            "--signed-by",
            metavar="KEYS",
            help="Public keys, one of which must have sealed it: a file, or a folder; may be repeated.",
        ),
    ] = None,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say who sealed a run, or what in it is not as it was sealed, or contradicts itself."""
    reading_only()
    from qualify.facts.clock import skew_note
    from qualify.seal.keys import public_keys
    from qualify.seal.sealed import check_seal
    from qualify.verdict.consistency import contradictions_of

    keys = public_keys(signed_by) if signed_by else []
    found = _found(what, db)
    checked = check_seal(found.seal, found.lines, found.run.id, keys)
    wrong = contradictions_of(found.run, found.records)
    skew = skew_note(found.run.id, found.run.clock_skew_s)
    if as_json:
        emit_json("verify", _data(found, checked, wrong, skew))
    else:
        emit("\n".join(_lines(found, checked, wrong, skew)))
    raise typer.Exit(NO_VERDICT if checked.why_not or wrong else QUALIFIED)


def _found(what: str, db: str) -> RunArchive:
    """The evidence of a file or of a stored run."""
    if what.endswith(ENDING) or Path(what).is_file():
        from qualify.store.transfer import read

        return read(Path(what))
    with open_store(db, create=False) as store:
        return store.evidence(store.resolve(what))


def _lines(found: RunArchive, checked: SealCheck, wrong: list[str], skew: str) -> list[str]:
    """The answer for a person."""
    run, signer = found.run.id, checked.signed_by
    if checked.why_not and not checked.differences:
        lines = [f"run {run}: {checked.why_not}"]
    elif checked.differences:
        assert signer
        lines = [f"run {run} is not what {signer.id[:12]} sealed at {checked.at}:"]
        lines += [f"  {difference}" for difference in checked.differences]
    else:
        assert signer
        lines = [f"run {run} is as it was sealed at {checked.at}: {len(found.cases)} cases, sha256 {found.sha256}"]
        lines.append(f"sealed by key {signer.id[:12]}, {signer.shown}")
    if signer and not checked.trusted:
        lines.append("You named no key, so anybody may have sealed it: --signed-by KEYS says whom you believe.")
    lines += [f"run {run} contradicts itself: {text}" for text in wrong]
    return [*lines, skew] if skew else lines


def _data(found: RunArchive, checked: SealCheck, wrong: list[str], skew: str) -> dict[str, Any]:
    """The answer for a program."""
    signer = checked.signed_by
    return {
        "run": found.run.id,
        "sealed": not checked.why_not,
        "trusted": checked.trusted and not checked.why_not,
        "key": signer.id if signer else None,
        "key_file": signer.shown if signer and checked.trusted else None,
        "sealed_at": checked.at,
        "sha256": found.sha256,
        "why_not": checked.why_not,
        "differences": [{"case": it.case, "field": it.field, "what": it.what} for it in checked.differences],
        "contradictions": wrong,
        "clock": skew,
    }
