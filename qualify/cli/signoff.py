"""``qualify signoff``: a person vouches for the evidence of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from qualify.cli.access import AccessOption, TokenFileOption, person_of, signers
from qualify.cli.shared import (
    LARGEST,
    CardsOption,
    DbOption,
    JsonOption,
    RunArgument,
    WaiversOption,
    emit_json,
    open_store,
    typed,
)
from qualify.cli.terminal import emit, say
from qualify.errors import NO_VERDICT, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qualify.cards.access import AccessCard
    from qualify.facts.typed import Typed
    from qualify.judge.judged import Judged
    from qualify.judge.signing import Person, Tried
    from qualify.store.store import Store


def signoff(
    ctx: typer.Context,
    run_id: RunArgument,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="Who signs, without a token: a name that is not proven.")
    ] = None,
    role: Annotated[str | None, typer.Option("--role", metavar="ROLE", help="The role in which you sign.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why.")] = None,
    revoke: Annotated[
        int | None,
        typer.Option("--revoke", min=1, max=LARGEST, metavar="N", help="End the sign-off of that number instead."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Only show who signed the run.")] = False,
    access: AccessOption = None,
    token_file: TokenFileOption = None,
    waivers: WaiversOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign the evidence of a run that qualified, or revoke a sign-off. Both stay with the run for ever.

    A token of the access file proves who signs. Without one the sign-off is unproven, and does not count.
    """
    from qualify.cards.load import load_kernels
    from qualify.judge.newer import judged_now, newer_failure
    from qualify.plan.code import code_of_cards

    if list_:
        _refuse_beside_list(ctx)
    in_role, why = role or "", reason or ""
    here = typed(cards=cards, db=db, waivers=waivers)
    now, kernels = datetime.now(UTC), load_kernels(tuple(cards or ()))
    with open_store(db, create=False) as store:
        found = store.resolve(run_id)
        if list_:
            _show(store, found, as_json=as_json)
            return
        card = signers(access)
        person = person_of(store, by, token_file, card, "sign", _tried(found, revoke), now)
        if revoke is not None:
            _revoke(store, found, revoke, card, person, why, now, as_json=as_json)
            return
        code = code_of_cards(cards or ())
        judged = judged_now(store, found, kernels, now=now, waivers=waivers, code=code, typed=here)
        _refuse(judged, here)
        notes = newer_failure(store, judged.run, kernels, now=now, waivers=waivers, typed=here)
        _sign(store, judged, card, person, in_role, why, now, notes, as_json=as_json)


def _refuse_beside_list(ctx: typer.Context) -> None:
    """Raises UsageError for an option of a sign-off, which ``--list`` would not act on. A variable may stay set."""
    for name in ("revoke", "role", "reason", "by", "token_file"):
        source = ctx.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"--list and {option}: --list only shows who signed the run. Leave one of them out")


def _tried(run: str, revoke: int | None) -> Tried:
    """What the command is about, for the audit log."""
    from qualify.judge.signing import Tried

    if revoke is None:
        return Tried(action="sign", subject=f"run {run}")
    return Tried(action="revoke", subject=f"sign-off {revoke} of run {run}")


def _refuse(judged: Judged, here: Typed) -> None:
    """Ends the command where the run cannot be signed, with the exit code of its verdict."""
    from qualify.judge.signing import why_not_signed

    if why := why_not_signed(judged):
        see = here.command("gate", "--run", judged.run.id)
        say(f"qualify: run {judged.run.id} cannot be signed: {why}. See: {see}")
        raise typer.Exit(judged.conclusion.exit_code or NO_VERDICT)


def _sign(
    store: Store,
    judged: Judged,
    card: AccessCard,
    person: Person,
    role: str,
    why: str,
    now: datetime,
    notes: Sequence[str],
    *,
    as_json: bool,
) -> None:
    from qualify.facts.people import SignedOff
    from qualify.judge.signing import sign
    from qualify.report.signoffs import plain_data, signoff_line

    if not (role and why):
        raise UsageError("a sign-off needs --role ROLE and --reason TEXT: they stay with the run for ever")
    signed = sign(store, judged, person, card, role=role, reason=why, now=now)
    shown = SignedOff(signoff=signed, state="valid" if signed.proven else "unproven")
    if as_json:
        emit_json("signoff", {"state": shown.state, **plain_data(signed), "notes": notes})
    else:
        emit("\n".join((f"run {signed.run_id}: {signoff_line(shown)}", *(f"note: {note}" for note in notes))))


def _revoke(
    store: Store, run: str, number: int, card: AccessCard, person: Person, why: str, now: datetime, *, as_json: bool
) -> None:
    from qualify.facts.people import SignedOff
    from qualify.judge.signing import revoke
    from qualify.report.signoffs import plain_data, signoff_line

    if not why:
        raise UsageError("a revocation needs --reason TEXT: it stays with the run for ever")
    stored = store.people.signoff(number)
    if stored is not None and stored.run_id != run:
        raise UsageError(f"sign-off {number} is of run {stored.run_id}, not of {run}")
    ended = revoke(store, number, person, card, reason=why, now=now)
    if as_json:
        emit_json("signoff", {"state": "revoked", **plain_data(ended)})
    else:
        emit(f"run {run}: {signoff_line(SignedOff(signoff=ended, state='revoked'))}")


def _show(store: Store, run: str, *, as_json: bool) -> None:
    from qualify.judge.signoffs import signed_off
    from qualify.report.signoffs import signoff_data, signoff_line

    found = signed_off(store, [run])
    if as_json:
        emit_json("signoffs", {"run": run, "signoffs": [signoff_data(it) for it in found]})
    else:
        emit("\n".join(signoff_line(it) for it in found) or f"nobody has signed run {run}")
