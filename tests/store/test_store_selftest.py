"""The selftest's results in the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import store_examples as examples
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from qualify.facts.selftest import Alarm, CorrectKernel, Detection, PlantedFault, SelfTest
from qualify.store import Store
from qualify.store.database import Database, parse
from qualify.store.schema import config, upgrade

CAUGHT = Detection(level="smoke", cases=3, caught_by=("witness", "census"), example=examples.HOSTILE)
MISSED = Detection(level="full", cases=16, caught_by=(), example="")
ALARM = Alarm(case_id="selftest/prefill/x", level="full", seed=2, check="budget", detail="E 1.2 > 1")
RESULT = SelfTest(
    check_version=1,
    qualify_version="0.1.0",
    levels=("smoke", "full"),
    select="",
    started_at=examples.STARTED,
    wall_s=201.5,
    faults=(
        PlantedFault(
            name="topleft", kind="A", mirrors="x#1", does="shifts", equivalent="", detections=(CAUGHT, MISSED)
        ),
        PlantedFault(name="same", kind="I", mirrors="x#2", does="nothing", equivalent="because", detections=()),
    ),
    correct=(
        CorrectKernel(name="plain", does="as it is", runs=160, alarms=()),
        CorrectKernel(name="exp2", does="exp2", runs=144, alarms=(ALARM, ALARM)),
    ),
)


def test_a_result_comes_back(store: Store) -> None:
    """Everything is rebuilt from the tables."""
    store.add_selftest(RESULT)
    assert RESULT == store.selftest(1)


def test_the_newest_result_counts(store: Store) -> None:
    """A later result of the same checks replaces an earlier one."""
    newer = replace(RESULT, wall_s=1.0, faults=RESULT.faults[:1], correct=())
    store.add_selftest(RESULT)
    store.add_selftest(newer)
    assert newer == store.selftest(1)


def test_other_checks_and_parts_do_not_count(store: Store) -> None:
    """A result of another version of the checks, or of some faults only, says nothing about these checks."""
    store.add_selftest(replace(RESULT, check_version=2))
    store.add_selftest(replace(RESULT, select="top*"))
    assert store.selftest(1) is None


def test_runs_of_before_were_made_with_version_1(tmp_path: Path) -> None:
    """A database of the first schema is brought forward, and its runs have the version that there was."""
    path = tmp_path / "old.db"
    database = Database(parse(str(path)), busy_timeout_s=1)
    first = ScriptDirectory.from_config(config()).get_bases()[0]
    with database.migrating() as connection:
        upgrade(connection, first)
        connection.execute(
            text(
                'INSERT INTO runs (id, matrix, matrix_hash, matrix_source, matrix_path, level, device, "select",'
                " kernel, qualify_version, started_at, state) VALUES ('r', 'm', '', '', '', 'smoke', 'cpu', '', '',"
                " '0.1.0', '2026-11-20 00:00:00', 'completed')"
            )
        )
    database.close()
    with Store.open(str(path), create=False) as store:
        assert 1 == store.run("r").check_version
        assert store.selftest(1) is None
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert 0 == connection.execute(text("SELECT count(*) FROM selftests")).scalar_one()
    engine.dispose()
