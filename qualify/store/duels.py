"""Duels in the database. Every function works inside the transaction of its connection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, insert, select

from qualify.facts.code import Code
from qualify.facts.duel import Duel, DuelCell, DuelPair, DuelQuad, Ratio, Way
from qualify.facts.seal import Seal
from qualify.store.bulk import insert_rows
from qualify.store.clock import believed_until
from qualify.store.failures import DamagedError
from qualify.store.reading import Stacks
from qualify.store.tables import duel_blocks, duel_cells, duel_ratios, duel_seals, duels
from qualify.store.types import texts, texts_by_name
from qualify.store.writing import stack_key

_OWN = (
    *("id", "matrix", "matrix_hash", "select", "a", "b", "null", "device", "device_uuid"),
    *("started_at", "finished_at", "complete", "least_pairs", "received_at"),
)
_OF_CELL = ("name", "a", "b", "phase", "verdict", "reason", "way", "thrown_away", "planted")
_OF_RATIO = tuple(Ratio.__dataclass_fields__)


def insert_duel(connection: Connection, duel: Duel, seal: Seal | None) -> None:
    """Adds a duel with all its parts, and its seal where there is one. A duel is never replaced."""
    row = {name: getattr(duel, name) for name in _OWN}
    row |= {"only_a": list(duel.only_a), "only_b": list(duel.only_b)}
    row |= {"code": {name: dict(code) for name, code in duel.code.items()}, "content": dict(duel.content)}
    row["stack_a_id"], row["stack_b_id"] = (stack_key(connection, stack) for stack in (duel.stack_a, duel.stack_b))
    connection.execute(insert(duels), row)
    insert_rows(connection, duel_cells, [_cell_row(duel.id, at, cell) for at, cell in enumerate(duel.cells)])
    ratios = [
        {"duel_id": duel.id, "position": at, "way": way, **{name: getattr(ratio, name) for name in _OF_RATIO}}
        for at, cell in enumerate(duel.cells)
        for way, ratio in cell.ratios.items()
    ]
    insert_rows(connection, duel_ratios, ratios)
    insert_rows(connection, duel_blocks, list(_block_rows(duel)))
    if seal is not None:
        insert_seal(connection, duel.id, seal)


def insert_seal(connection: Connection, duel_id: str, seal: Seal) -> None:
    """Adds the seal of a duel that has none."""
    sealed = {"duel_id": duel_id, "envelope": dict(seal.envelope), "parts": seal.parts}
    connection.execute(insert(duel_seals), sealed)


def ahead(connection: Connection) -> ColumnElement[bool]:
    """Whether a duel is dated in the future."""
    return duels.c.started_at > believed_until(connection)


def duel_ids(connection: Connection) -> list[str]:
    """The ids of all duels, newest first; those that are dated in the future last."""
    wanted = select(duels.c.id).order_by(ahead(connection), duels.c.started_at.desc(), duels.c.id.desc())
    return list(connection.execute(wanted).scalars())


def has_duel(connection: Connection, duel_id: str) -> bool:
    """Whether there is a duel of that full id."""
    return connection.execute(select(duels.c.id).where(duels.c.id == duel_id)).first() is not None


def load_duels(
    connection: Connection, *where: ColumnElement[bool], limit: int | None = None, times: bool = True
) -> list[Duel]:
    """The duels that meet all conditions, newest first; those that are dated in the future last.

    Args:
        times: whether each comes with all its samples, which are far more than everything else.
    """
    wanted = (
        select(duels)
        .where(*where)
        .order_by(ahead(connection), duels.c.started_at.desc(), duels.c.id.desc())
        .limit(limit)
    )
    rows = connection.execute(wanted).mappings().all()
    stacks = Stacks(connection, {row[key] for row in rows for key in ("stack_a_id", "stack_b_id")})
    return [_load(connection, row, stacks, times=times) for row in rows]


def load_duel_seal(connection: Connection, duel_id: str) -> Seal | None:
    """The seal of a duel; None where it has none."""
    part = duel_seals.c
    row = connection.execute(select(part.envelope, part.parts).where(part.duel_id == duel_id)).one_or_none()
    return Seal(envelope=row.envelope, parts=row.parts) if row else None


def _load(connection: Connection, row: RowMapping, stacks: Stacks, *, times: bool) -> Duel:
    uuid, keys = row["device_uuid"], (row["stack_a_id"], row["stack_b_id"])
    a, b = (stacks.of({"stack_id": key, "device_uuid": uuid}) for key in keys)
    if a is None or b is None:
        raise DamagedError(f"the duel {row['id']} has no stack")
    ratios: dict[int, dict[Way, Ratio]] = defaultdict(dict)
    for part in _parts(connection, duel_ratios, row["id"]):
        ratios[part["position"]][part["way"]] = Ratio(**{name: part[name] for name in _OF_RATIO})
    cells = [_cell(part, ratios[part["position"]]) for part in _parts(connection, duel_cells, row["id"])]
    samples: dict[str, list[DuelPair]] = defaultdict(list)
    for part in _parts(connection, duel_blocks, row["id"]) if times else ():
        samples[part["cell"]] += [_pair(part["way"], data) for data in part["pairs"]]
    return Duel(
        **{name: row[name] for name in _OWN},
        stack_a=a,
        stack_b=b,
        cells=tuple(cells),
        samples={name: in_order(pairs) for name, pairs in samples.items()},
        only_a=texts(row["only_a"] or []),
        only_b=texts(row["only_b"] or []),
        code=_code(row["code"] or {}),
        content=texts_by_name(row["content"] or {}),
    )


def _code(value: Any) -> dict[str, Code]:
    """The code of kernels, by name, as it was stored."""
    if type(value) is not dict:
        raise DamagedError(f"the code of kernels is {value!r:.60}")
    return {name: texts_by_name(code) for name, code in value.items()}


def in_order(pairs: Iterable[DuelPair]) -> tuple[DuelPair, ...]:
    """The pairs sorted by way, then by number: a store returns them in this order."""
    return tuple(sorted(pairs, key=lambda pair: (pair.way, pair.pair)))


def _parts(connection: Connection, table: Any, duel_id: str) -> list[RowMapping]:
    wanted = select(table).where(table.c.duel_id == duel_id).order_by(*table.primary_key.columns)
    return list(connection.execute(wanted).mappings())


def _cell_row(duel_id: str, position: int, cell: DuelCell) -> dict[str, Any]:
    row = {name: getattr(cell, name) for name in _OF_CELL}
    return {"duel_id": duel_id, "position": position, **row, "notes": list(cell.notes)}


def _cell(row: RowMapping, ratios: Mapping[Way, Ratio]) -> DuelCell:
    return DuelCell(**{name: row[name] for name in _OF_CELL}, ratios=dict(ratios), notes=texts(row["notes"]))


def _block_rows(duel: Duel) -> Iterable[dict[str, Any]]:
    for name, pairs in duel.samples.items():
        by_way: dict[Way, list[Any]] = defaultdict(list)
        for pair in in_order(pairs):
            quads = [[*quad.a_us, *quad.b_us] for quad in pair.quads]
            by_way[pair.way].append([pair.pair, pair.confirming, pair.thrown_away, quads])
        for way, data in by_way.items():
            yield {"duel_id": duel.id, "cell": name, "way": way, "pairs": data}


def _pair(way: Way, data: Any) -> DuelPair:
    """A pair of processes as it was stored."""
    try:
        number, confirming, thrown_away, quads = data
        return DuelPair(
            way=way,
            pair=int(number),
            quads=tuple(
                DuelQuad(a_us=(float(first), float(second)), b_us=(float(third), float(fourth)))
                for first, second, third, fourth in quads
            ),
            thrown_away=int(thrown_away),
            confirming=bool(confirming),
        )
    except (TypeError, ValueError) as error:
        raise DamagedError(f"the blocks of a duel are {data!r:.60}, which is no pair of processes") from error
