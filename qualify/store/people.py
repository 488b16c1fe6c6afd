"""What people say and do, and the audit log. Each method is one transaction; none changes or removes a row.

What somebody does is stored together with its line in the log, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from qualify.errors import UsageError
from qualify.facts.people import AuditEntry, Comment, HoldAction, Revocation, SignOff
from qualify.store import retention
from qualify.store.clock import now_of
from qualify.store.database import Database
from qualify.store.fires import lock_holds
from qualify.store.reading import chunks
from qualify.store.tables import audit, comments, hold_actions, holds, revocations, signoffs

_SIGNOFF = ("id", "run_id", "sha256", "sealed", "verdict", "by", "role", "reason", "at", "origin", "how")
_COMMENT = tuple(Comment.__dataclass_fields__)
_ACTION = tuple(HoldAction.__dataclass_fields__)
_AUDIT = tuple(AuditEntry.__dataclass_fields__)


class People:
    """What people say and do in one database; :attr:`qualify.store.Store.people`.

    Methods that write take the line of the audit log that says who did it. Where the run or the hold is missing, they
    raise UsageError and write nothing.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def sign(self, signoff: SignOff, entry: AuditEntry) -> SignOff:
        """Adds a sign-off; returns it as it is stored. The run can no longer be removed."""
        with self._database.writing() as connection:
            if not retention.lock(connection, signoff.run_id):
                raise UsageError(f"run {signoff.run_id} has been removed meanwhile; nothing was signed")
            added = connection.execute(insert(signoffs).returning(signoffs.c.id), _row(signoff, _SIGNOFF[1:]))
            number = added.scalar_one()
            insert_entry(connection, entry)
            return replace(signoff, id=number)

    def revoke(self, signoff_id: int, revocation: Revocation, entry: AuditEntry) -> SignOff:
        """Ends a sign-off, with a reason; both stay. Raises UsageError where it has ended already."""
        with self._database.writing(in_file=True) as connection:
            # Of two who revoke it at once the second waits here, and then finds what the first one stored.
            mine = signoffs.c.id == signoff_id
            connection.execute(select(signoffs.c.id).where(mine).with_for_update())
            found = _signoffs(connection, mine)
            if not found:
                raise UsageError(
                    f"there is no sign-off {signoff_id}. `qualify signoff RUN --list` shows those of a run."
                )
            if ended := found[0].revoked:
                raise UsageError(f"sign-off {signoff_id} was revoked already, by {ended.by} on {ended.at:%Y-%m-%d}")
            row = {"signoff_id": signoff_id, **_row(revocation, ("by", "reason", "at"))}
            connection.execute(insert(revocations), row)
            insert_entry(connection, entry)
            return replace(found[0], revoked=revocation)

    def signoffs(self, run_ids: Sequence[str]) -> list[SignOff]:
        """The sign-offs of some runs, also the revoked ones, in the order in which they were given."""
        with self._database.reading() as connection:
            return [it for some in chunks(run_ids) for it in _signoffs(connection, signoffs.c.run_id.in_(some))]

    def signoff(self, signoff_id: int) -> SignOff | None:
        """The sign-off of that number."""
        with self._database.reading() as connection:
            return next(iter(_signoffs(connection, signoffs.c.id == signoff_id)), None)

    def comment(self, comment: Comment, entry: AuditEntry) -> Comment:
        """Adds a comment on a run, or on a case."""
        with self._database.writing() as connection:
            if comment.run_id is not None and not retention.lock(connection, comment.run_id):
                raise UsageError(f"run {comment.run_id} has been removed meanwhile; nothing was written")
            added = connection.execute(insert(comments).returning(comments.c.id), _row(comment, _COMMENT[1:]))
            number = added.scalar_one()
            insert_entry(connection, entry)
            return replace(comment, id=number)

    def comments(self, *, run_id: str | None = None, case_id: str = "") -> list[Comment]:
        """The comments on a run or on a case, in the order in which they were written."""
        where = comments.c.run_id == run_id if run_id is not None else comments.c.case_id == case_id
        with self._database.reading() as connection:
            return _comments(connection, where)

    def act(self, action: HoldAction, entry: AuditEntry) -> HoldAction:
        """Acknowledges a hold, or releases it. Raises UsageError where there is none, or it has been released."""
        with self._database.writing() as connection:
            lock_holds(connection)
            wanted = select(holds.c.released_at).where(holds.c.id == action.hold_id)
            found = connection.execute(wanted).one_or_none()
            if found is None:
                raise UsageError(f"there is no hold {action.hold_id}. `qualify hold list` shows the open ones.")
            if found.released_at is not None:
                raise UsageError(
                    f"hold {action.hold_id} was released already on {found.released_at:%Y-%m-%d %H:%M} UTC"
                )
            if action.kind == "release":
                ended = update(holds).where(holds.c.id == action.hold_id).values(released_at=action.at)
                connection.execute(ended)
            added = connection.execute(insert(hold_actions).returning(hold_actions.c.id), _row(action, _ACTION[1:]))
            number = added.scalar_one()
            insert_entry(connection, entry)
            return replace(action, id=number)

    def hold_actions(self, hold_ids: Sequence[int]) -> list[HoldAction]:
        """What was done about some holds, in that order."""
        with self._database.reading() as connection:
            found: list[HoldAction] = []
            for some in chunks(hold_ids):
                wanted = select(hold_actions).where(hold_actions.c.hold_id.in_(some)).order_by(hold_actions.c.id)
                rows = connection.execute(wanted).mappings()
                found += [HoldAction(**{name: row[name] for name in _ACTION}) for row in rows]
            return found

    def log(self, entry: AuditEntry) -> None:
        """Adds a line about a refused request. Methods that write add their own line."""
        with self._database.writing() as connection:
            insert_entry(connection, entry)

    def audit(self, limit: int = 100, before: int | None = None) -> list[AuditEntry]:
        """The newest lines of the log; with ``before``, the newest ones before the line of that number."""
        wanted = select(audit).order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            wanted = wanted.where(audit.c.id < before)
        with self._database.reading() as connection:
            return [AuditEntry(**{name: row[name] for name in _AUDIT}) for row in connection.execute(wanted).mappings()]

    def version(self, run_id: str) -> tuple[int, int, int]:
        """A value that changes whenever people say something new about a run, and is cheap to read."""
        newest = select(func.coalesce(func.max(signoffs.c.id), 0)).where(signoffs.c.run_id == run_id)
        ended = select(func.count()).select_from(revocations.join(signoffs)).where(signoffs.c.run_id == run_id)
        said = select(func.coalesce(func.max(comments.c.id), 0)).where(comments.c.run_id == run_id)
        with self._database.reading() as connection:
            row = connection.execute(
                select(newest.scalar_subquery(), ended.scalar_subquery(), said.scalar_subquery())
            ).one()
            return row[0], row[1], row[2]


def said_of(connection: Connection, run_id: str) -> tuple[list[SignOff], list[Comment]]:
    """The sign-offs of a run and the comments on it, in the order in which they were given."""
    return _signoffs(connection, signoffs.c.run_id == run_id), _comments(connection, comments.c.run_id == run_id)


def receive(connection: Connection, given: Sequence[SignOff], said: Sequence[Comment], origin: str) -> tuple[int, int]:
    """Adds sign-offs and comments from another store that are new here; returns how many of each were added.

    What people gave here stays as it is: an imported revocation ends only an imported sign-off.

    Args:
        origin: the file that they are from.
    """
    counts = [0, 0]
    for one in given:
        known = next((it for it in said_of(connection, one.run_id)[0] if _same(it, one)), None)
        if known is None:
            row = _row(replace(one, origin=origin), _SIGNOFF[1:])
            number = connection.execute(insert(signoffs).returning(signoffs.c.id), row).scalar_one()
            counts[0] += 1
        if one.revoked and (known is None or (known.origin and not known.revoked)):
            ended = {"signoff_id": known.id if known else number, **_row(one.revoked, ("by", "reason", "at"))}
            connection.execute(insert(revocations), ended)
    for text in said:
        if not any(_same(it, text) for it in said_of(connection, str(text.run_id))[1]):
            connection.execute(insert(comments), _row(replace(text, origin=origin), _COMMENT[1:]))
            counts[1] += 1
    return counts[0], counts[1]


def _same(one: SignOff | Comment, other: SignOff | Comment) -> bool:
    """Whether both are the same statement. Number, origin, revocation and how the person is known do not count."""
    plain = [replace(it, id=0, origin="") for it in (one, other)]
    bare = [replace(it, revoked=None, how="") if isinstance(it, SignOff) else it for it in plain]
    return bare[0] == bare[1]


def _signoffs(connection: Connection, where: ColumnElement[bool]) -> list[SignOff]:
    mine = revocations.c.signoff_id.in_(select(signoffs.c.id).where(where))
    ended = {
        row.signoff_id: Revocation(by=row.by, reason=row.reason, at=row.at)
        for row in connection.execute(select(revocations).where(mine))
    }
    rows = connection.execute(select(signoffs).where(where).order_by(signoffs.c.id)).mappings()
    return [SignOff(**{name: row[name] for name in _SIGNOFF}, revoked=ended.get(row["id"])) for row in rows]


def _comments(connection: Connection, where: ColumnElement[bool]) -> list[Comment]:
    rows = connection.execute(select(comments).where(where).order_by(comments.c.id)).mappings()
    return [Comment(**{name: row[name] for name in _COMMENT}) for row in rows]


def _row(record: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def insert_entry(connection: Connection, entry: AuditEntry) -> None:
    """Adds a line to the audit log, with the database's time."""
    names = ("who", "how", "address", "action", "subject", "allowed", "detail")
    connection.execute(insert(audit), {**_row(entry, names), "at": now_of(connection)})
