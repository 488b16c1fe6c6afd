"""``qualify access``: who may do what on the site, and who may sign."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qualify.cli.shared import JsonOption, emit_json, login_name
from qualify.cli.terminal import emit
from qualify.errors import NotAllowed, UsageError
from qualify.text import one_line

if TYPE_CHECKING:
    from qualify.cards.access import AccessCard, Right, Token
    from qualify.judge.signing import Person, Tried
    from qualify.store.store import Store

app = typer.Typer(
    help="Who may do what on the site, and who may sign evidence.", no_args_is_help=True, rich_markup_mode=None
)
LONGEST_DAYS = 366
LONGEST_TOKEN_BYTES = 1024
AccessOption = Annotated[
    Path | None,
    typer.Option(
        "--access", metavar="FILE", envvar="QUALIFY_ACCESS", help="Access file: who may read, write and sign."
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="QUALIFY_TOKEN_FILE",
        help="File with your bearer token, which proves who you are.",
    ),
]


class RightOption(str, Enum):
    """What a token may be used for."""

    read = "read"
    comment = "comment"
    sign = "sign"


@app.command("token")
def access_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who gets it, as in `signers`.")],
    right: Annotated[
        list[RightOption] | None, typer.Option("--right", help="What the token allows; may be repeated. Default: read.")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=LONGEST_DAYS, metavar="N", help="How long it holds.")] = 90,
    as_json: JsonOption = False,
) -> None:
    """Make a bearer token, and print it once.

    It also prints the entry of the access file, which holds only the hash.
    """
    from qualify.cards.tokens import make_token

    if not name.strip():
        raise UsageError("NAME is empty: sign-offs, comments and the audit log show this name")
    token, number, hashed = make_token()
    rights = list(dict.fromkeys(it.value for it in right or [RightOption.read]))
    expires = (datetime.now(UTC).date() + timedelta(days=days)).isoformat()
    entry = {"id": number, "name": name, "hash": hashed, "rights": rights, "expires": expires}
    if as_json:
        emit_json("token", {"token": token, "entry": entry})
        return
    lines = [f"    {key}: {json.dumps(value)}" for key, value in entry.items()]
    emit("\n".join([f"# the token; it is shown only now: {token}", "tokens:", "  -" + lines[0][3:], *lines[1:]]))


@app.command("check")
def access_check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An access file.")], as_json: JsonOption = False
) -> None:
    """Say who may do what; exit 2 where the file is wrong. No token is shown, because the file holds none."""
    from qualify.cards.access import load_access

    card, today = load_access(file), datetime.now(UTC).date()
    if as_json:
        tokens = [
            {"id": it.id, "name": it.name, "rights": list(it.rights), "expires": it.expires.isoformat()}
            for it in card.tokens
        ]
        signers = [{"name": it.name, "roles": list(it.roles)} for it in card.signers]
        local = {"name": card.local.name, "rights": list(card.local.rights)} if card.local else None
        emit_json("access", {"tokens": tokens, "jwt": card.jwt is not None, "local": local, "signers": signers})
        return
    lines = [f"token {it.id}: {it.name}: {', '.join(it.rights)}; {_until(it, today)}" for it in card.tokens]
    lines += [f"jwt: {card.jwt.issuer} for {card.jwt.audience}"] if card.jwt else []
    lines += [f"loopback: {card.local.name}: {', '.join(card.local.rights)}"] if card.local else []
    lines += [f"signer: {it.name} as {', '.join(it.roles)}" for it in card.signers]
    emit("\n".join(map(one_line, lines)) or f"{file}: nobody is named, so everybody on loopback reads and nobody signs")


def _until(token: Token, today: date) -> str:
    from qualify.cards.access import in_force

    return f"{'until' if in_force(token, today) else 'EXPIRED'} {token.expires}"


def signers(path: Path | None) -> AccessCard:
    """The access file, which says who may sign. Raises NotAllowed where none is given."""
    from qualify.cards.access import load_access

    if path is None:
        raise NotAllowed(
            "nobody may sign: no access file says who. Write one with `signers` and give it with --access FILE or "
            "QUALIFY_ACCESS; docs/service.md shows it."
        )
    return load_access(path)


def person_of(
    store: Store,
    by: str | None,
    token_file: Path | None,
    access: AccessCard | None,
    right: Right,
    tried: Tried,
    now: datetime,
) -> Person:
    """Who does something on the command line: the token's owner, or a name that somebody typed and nothing proves.

    Args:
        by: the value of ``--by``.
        right: what the token must allow.
        tried: what the person wants to do; the audit log has a line where the token is not accepted.

    Raises:
        NotAllowed: the access file does not accept the token for that.
        UsageError: nothing names a person; the token is another person's; or no access file says whose it is.
    """
    from qualify.judge.signing import by_token, named

    name = by or ""
    if token_file is None:
        if not name:
            raise UsageError("nothing says who you are: give a token with --token-file FILE, or an unproven --by NAME")
        return named(name, login_name())
    if access is None:
        raise UsageError(
            "--token-file needs the access file that has the token's hash: --access FILE or QUALIFY_ACCESS"
        )
    person = by_token(store, access, _token_in(token_file), right, tried, now)
    if name not in ("", person.name):
        raise UsageError(f"--by is {name!r}, and the token is that of {person.name!r}: leave --by out")
    return person


def _token_in(path: Path) -> str:
    """The token in a file."""
    from qualify.files import IrregularFileError, open_regular

    try:
        with open_regular(path) as file:
            return file.read(LONGEST_TOKEN_BYTES).decode("ascii", "replace").strip()
    except (IrregularFileError, OSError, ValueError) as error:
        raise UsageError(f"the token file {path} cannot be read: {error}") from error
