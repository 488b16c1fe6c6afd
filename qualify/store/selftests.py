"""The selftest's results in the database. Every function works inside the transaction of its connection."""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, Table, insert, select

from qualify.facts import codec
from qualify.facts.case import Level
from qualify.facts.selftest import Alarm, CorrectKernel, Detection, PlantedFault, SelfTest
from qualify.store.tables import correct_kernels, planted_faults, selftests


def insert_selftest(connection: Connection, result: SelfTest) -> None:
    """Adds a result."""
    row = {
        "check_version": result.check_version,
        "qualify_version": result.qualify_version,
        "levels": list(result.levels),
        "select": result.select,
        "started_at": result.started_at,
        "wall_s": result.wall_s,
    }
    key: int = connection.execute(insert(selftests).returning(selftests.c.id), row).scalar_one()
    faults = [_part(fault, key, position, "detections") for position, fault in enumerate(result.faults)]
    kernels = [_part(kernel, key, position, "alarms") for position, kernel in enumerate(result.correct)]
    for table, rows in ((planted_faults, faults), (correct_kernels, kernels)):
        if rows:
            connection.execute(insert(table), rows)


def load_selftest(connection: Connection, check_version: int) -> SelfTest | None:
    """The newest result of all planted faults for that version of the checks; None where there is none."""
    wanted = (
        select(selftests)
        .where(selftests.c.check_version == check_version, selftests.c.select == "")
        .order_by(selftests.c.id.desc())
        .limit(1)
    )
    row = connection.execute(wanted).mappings().one_or_none()
    if row is None:
        return None
    return SelfTest(
        check_version=row["check_version"],
        qualify_version=row["qualify_version"],
        levels=codec.from_data(tuple[Level, ...], row["levels"]),
        select=row["select"],
        started_at=row["started_at"],
        wall_s=row["wall_s"],
        faults=tuple(_fault(part) for part in _parts(connection, planted_faults, row["id"])),
        correct=tuple(_kernel(part) for part in _parts(connection, correct_kernels, row["id"])),
    )


def _part(record: PlantedFault | CorrectKernel, key: int, position: int, nested: str) -> dict[str, object]:
    """The row of a fault or a correct kernel; what is nested in it becomes JSON."""
    data = {name: getattr(record, name) for name in record.__dataclass_fields__ if name != nested}
    return {"selftest_id": key, "position": position, **data, nested: codec.to_data(record)[nested]}


def _parts(connection: Connection, table: Table, key: int) -> list[RowMapping]:
    wanted = select(table).where(table.c.selftest_id == key).order_by(table.c.position)
    return list(connection.execute(wanted).mappings())


def _fault(row: RowMapping) -> PlantedFault:
    return PlantedFault(
        name=row["name"],
        kind=row["kind"],
        mirrors=row["mirrors"],
        does=row["does"],
        equivalent=row["equivalent"],
        detections=codec.from_data(tuple[Detection, ...], row["detections"]),
    )


def _kernel(row: RowMapping) -> CorrectKernel:
    alarms = codec.from_data(tuple[Alarm, ...], row["alarms"])
    return CorrectKernel(name=row["name"], does=row["does"], runs=row["runs"], alarms=alarms)
