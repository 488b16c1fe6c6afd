"""What was deleted, and what still refers to it. Every function works inside the transaction of its connection."""

from __future__ import annotations

from sqlalchemy import Column, Connection, insert, select

from qualify.facts.deletion import BY_HAND, Deletion, deletion_words
from qualify.store.tables import baselines, comments, deletions, fires, fleet_cards, holds, runs, signoffs

_FIELDS = tuple(Deletion.__dataclass_fields__)
_BACK = "Restore the store from a backup, or import the run's file with `qualify db import`."


def insert_deletion(connection: Connection, deletion: Deletion) -> None:
    """Notes a deletion; the database refuses to change or remove it."""
    connection.execute(insert(deletions), {name: getattr(deletion, name) for name in _FIELDS})


def load_deletions(connection: Connection, *, beginning: str = "", limit: int | None = None) -> list[Deletion]:
    """The newest deletions of runs and duels whose id starts with ``beginning``, newest first."""
    wanted = select(deletions).order_by(deletions.c.id.desc()).limit(limit)
    if beginning:
        wanted = wanted.where(deletions.c.name.startswith(beginning, autoescape=True))
    rows = connection.execute(wanted).mappings()
    return [Deletion(**{name: row[name] for name in _FIELDS}) for row in rows]


def newer_deletion(connection: Connection, run_id: str) -> Deletion | None:
    """The newest run of the same matrix that began after this one, was deleted, and was not imported again; or None."""
    this = select(runs.c.matrix, runs.c.started_at).where(runs.c.id == run_id).subquery()
    wanted = (
        select(deletions)
        .where(deletions.c.what == "run", deletions.c.matrix == this.c.matrix)
        .where(deletions.c.started_at > this.c.started_at)
        .where(deletions.c.name.not_in(select(runs.c.id)))
        .order_by(deletions.c.started_at.desc(), deletions.c.id.desc())
        .limit(1)
    )
    row = connection.execute(wanted).mappings().first()
    return Deletion(**{name: row[name] for name in _FIELDS}) if row else None


def gone(connection: Connection, typed: str) -> str:
    """What became of a missing run or duel whose id starts with ``typed``, in words; empty where nobody knows."""
    found = load_deletions(connection, beginning=typed, limit=1)
    if found and found[0].how != BY_HAND:
        return f"{deletion_words(found[0])}."
    name = found[0].name if found else _referred(connection, typed)
    if not name:
        return ""
    told = deletion_words(found[0]) if found else f"run {name} is not stored any more, and no deletion of it was noted"
    still = ", ".join(references(connection, name))
    return f"{told}. {f'These still refer to it: {still}. ' if still else ''}{_BACK}"


def _referred(connection: Connection, typed: str) -> str:
    """The id of a missing run that starts with ``typed`` and that a row still refers to; empty where there is none."""
    for column in (baselines.c.run_id, signoffs.c.run_id, comments.c.run_id, fires.c.run_id, fleet_cards.c.run_id):
        wanted = select(column).where(column.startswith(typed, autoescape=True), column.not_in(select(runs.c.id)))
        found = connection.execute(wanted.limit(1)).scalar_one_or_none()
        if found:
            return str(found)
    return ""


def references(connection: Connection, run_id: str) -> list[str]:
    """What refers to a run, in words: baselines, sign-offs, comments, holds, fires and cards of fleets."""
    accepted = select(baselines).where(baselines.c.run_id == run_id).order_by(baselines.c.id)
    found = [
        f"a baseline of {row['matrix']} that {row['accepted_by']} accepted on {row['accepted_at']:%Y-%m-%d}"
        for row in connection.execute(accepted).mappings()
    ]
    signed = select(signoffs).where(signoffs.c.run_id == run_id).order_by(signoffs.c.id)
    found += [f"sign-off {row['id']} by {row['by']}" for row in connection.execute(signed).mappings()]
    held = select(holds.c.id, holds.c.canary).join(fires, fires.c.id == holds.c.fire_id)
    held = held.where(fires.c.run_id == run_id).order_by(holds.c.id)
    found += [f"hold {row.id} of canary {row.canary}" for row in connection.execute(held)]
    for column, words in _OTHERS:
        if connection.execute(select(column).where(column == run_id).limit(1)).first():
            found.append(words)
    return found


_OTHERS: tuple[tuple[Column[str], str], ...] = (
    (comments.c.run_id, "a comment"),
    (fires.c.run_id, "a fire of a canary"),
    (fleet_cards.c.run_id, "a card of a fleet"),
)
