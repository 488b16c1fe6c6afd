"""What people say stays: sign-offs, comments, what is done about holds, and the log; on both databases."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta

import canary_examples
import dumps
import pytest
import store_examples as examples
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from qualify.errors import StoreError, UsageError
from qualify.facts.people import AuditEntry, Comment, HoldAction, Revocation, SignOff
from qualify.store import Store, people
from qualify.store.address import parse
from qualify.store.database import Database
from qualify.store.tables import APPEND_ONLY

RUN = examples.run(1).id
AT = canary_examples.THREE


def entry(action="sign", **changes):
    """A line of the log."""
    usual = {"who": "jane", "how": "command", "address": "", "subject": f"run {RUN}", "allowed": True}
    return AuditEntry(action=action, **(usual | changes))


def signoff(**changes):
    """A sign-off of the completed run."""
    usual = {"id": 0, "run_id": RUN, "sha256": "ab" * 32, "sealed": True, "verdict": "PASS"}
    said = {"by": "jane", "role": "release", "reason": examples.HOSTILE, "at": AT}
    return SignOff(**(usual | said | changes))


def test_signoffs_come_back(filled):
    """A sign-off and its revocation are what was stored, and the log has a line for each."""
    first = filled.people.sign(signoff(), entry())
    second = filled.people.sign(signoff(role="kernel", sealed=False), entry())
    ended = Revocation(by="joe", reason="the wrong run", at=AT)
    assert filled.people.revoke(first.id, ended, entry("revoke", who="joe")).revoked == ended
    expected = [signoff(id=first.id, revoked=ended), signoff(id=second.id, role="kernel", sealed=False)]
    assert expected == filled.people.signoffs([RUN])
    assert ["revoke", "sign", "sign"] == [line.action for line in filled.people.audit()]
    assert second == filled.people.signoff(second.id)


def test_a_signoff_ends_once(filled):
    """A second revocation is refused, and so is one of a sign-off that is not there; neither leaves a line."""
    stored = filled.people.sign(signoff(), entry())
    ended = Revocation(by="joe", reason="x", at=AT)
    filled.people.revoke(stored.id, ended, entry("revoke"))
    with pytest.raises(UsageError, match="revoked already, by joe"):
        filled.people.revoke(stored.id, ended, entry("revoke"))
    with pytest.raises(UsageError, match="no sign-off 999"):
        filled.people.revoke(999, ended, entry("revoke"))
    assert 2 == len(filled.people.audit())


def test_only_one_of_two_ends_a_signoff(filled, monkeypatch):
    """Who revokes it while the first one is about to commit waits for it, and is told who it was."""
    stored = filled.people.sign(signoff(), entry())
    first, second = (Revocation(by=name, reason="x", at=AT) for name in ("joe", "ann"))
    with ThreadPoolExecutor() as pool:

        def late(connection, line):
            """Lets the second one begin before the first one commits."""
            monkeypatch.undo()
            begun.append(pool.submit(filled.people.revoke, stored.id, second, entry("revoke")))
            with pytest.raises(TimeoutError):
                begun[0].result(timeout=0.1)
            people.insert_entry(connection, line)

        begun = []
        monkeypatch.setattr(people, "insert_entry", late)
        filled.people.revoke(stored.id, first, entry("revoke"))
        with pytest.raises(UsageError, match="revoked already, by joe"):
            begun[0].result(timeout=20)
    assert ["revoke", "sign"] == [line.action for line in filled.people.audit()]


def test_retention_keeps_a_signed_run(filled):
    """A run with a sign-off stays, also with a revoked one; one with comments only goes, with its comments."""
    stored = filled.people.sign(signoff(), entry())
    filled.people.revoke(stored.id, Revocation(by="joe", reason="x", at=AT), entry("revoke"))
    other = examples.run(2).id
    filled.people.comment(Comment(id=0, run_id=other, case_id="", by="jane", text="odd", at=AT), entry("comment"))
    may_go, held = filled.retention.old_runs(AT + timedelta(days=900), 0)
    assert ([other], [RUN]) == ([run.id for run in may_go], [run.id for run in held])
    assert (False, True) == (
        filled.retention.remove_run(RUN, by="jane", how="prune", reason="old"),
        filled.retention.remove_run(other, by="jane", how="prune", reason="old"),
    )
    assert [] == filled.people.comments(run_id=other)
    with pytest.raises(UsageError, match="removed meanwhile"):
        filled.people.sign(signoff(run_id=other), entry())


def test_comments(filled):
    """Comments on a run and on a case come back in their order, and tell apart what they are about."""
    said = {"id": 0, "by": "jane", "at": AT}
    case = examples.case(0).id
    for text_ in ("first", examples.HOSTILE):
        filled.people.comment(Comment(run_id=RUN, case_id="", text=text_, **said), entry("comment"))
    filled.people.comment(Comment(run_id=None, case_id=case, text="flaky", **said), entry("comment"))
    assert ["first", examples.HOSTILE] == [it.text for it in filled.people.comments(run_id=RUN)]
    assert ["flaky"] == [it.text for it in filled.people.comments(case_id=case)]


def test_holds_are_acknowledged_and_released(filled):
    """An acknowledged hold stays open; a released one does not, and is not released twice."""
    canary_examples.fill(filled)
    (hold,) = filled.canaries.holds()
    facts = {"id": 0, "hold_id": hold.id, "by": "jane", "reason": "known", "at": AT}
    filled.people.act(HoldAction(kind="acknowledge", **facts), entry("acknowledge"))
    assert [hold] == filled.canaries.holds()
    filled.people.act(HoldAction(kind="release", **facts), entry("release"))
    assert [] == filled.canaries.holds()
    (ended,) = filled.canaries.holds(released=True)
    assert (AT, None) == (ended.released_at, ended.released_by)
    with pytest.raises(UsageError, match="released already"):
        filled.people.act(HoldAction(kind="release", **facts), entry("release"))
    assert ["acknowledge", "release"] == [it.kind for it in filled.people.hold_actions([hold.id])]


def test_the_version_changes_with_what_is_said(filled):
    """What is rendered from it is rendered again after a sign-off, a revocation and a comment, and only then."""
    seen = [filled.people.version(RUN)]
    stored = filled.people.sign(signoff(), entry())
    seen.append(filled.people.version(RUN))
    filled.people.revoke(stored.id, Revocation(by="joe", reason="x", at=AT), entry("revoke"))
    seen.append(filled.people.version(RUN))
    filled.people.comment(Comment(id=0, run_id=RUN, case_id="", by="j", text="x", at=AT), entry("comment"))
    seen.append(filled.people.version(RUN))
    assert len(seen) == len(set(seen))
    assert filled.people.version(RUN) == seen[-1]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def spoken(request, tmp_path_factory):
    """The address of a store with rows in every table that only grows: nobody can change them, so it serves all."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            empty, folder = request.getfixturevalue("runs_sqlite"), tmp_path_factory.mktemp("spoken")
            address = str(shutil.copy(empty, folder))
        else:
            like, name = request.getfixturevalue("postgres_like"), request.getfixturevalue("runs_postgres")
            address = stack.enter_context(like(name))
        with Store.open(address) as store:
            canary_examples.fill(store)
            dumps.fill_people(store)
            dumps.fill_deletions(store)
        yield address


@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET {}"])
@pytest.mark.parametrize("table", APPEND_ONLY, ids=lambda table: table.name)
def test_append_only(spoken, table, statement):
    """Neither SQLite nor PostgreSQL changes or removes a row of these tables, whoever asks."""
    database = Database(parse(spoken), busy_timeout_s=1)
    with (
        pytest.raises((DBAPIError, StoreError), match="append-only"),
        database.writing() as connection,
    ):
        connection.execute(text(statement.format(table.name, '"at" = "at"')))
    database.close()
