"""Who may sign a run, in which role and how often, who may end that, and whom a token proves."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sealing import seal_run
from stored_runs import MATRIX, NOW, WRONG, make_stack, shipped_kernels, store_run

from qualify.cards.access import AccessCard
from qualify.cards.tokens import make_token
from qualify.errors import NotAllowed, UsageError
from qualify.facts.people import LONGEST_NAME, LONGEST_TEXT, SignOff
from qualify.facts.run import Run
from qualify.facts.typed import Typed
from qualify.judge.judged import judge
from qualify.judge.newer import judged_now, newer_failure_note
from qualify.judge.signing import Person, Tried, act_on_hold, by_token, checked_text, named, revoke, sign
from qualify.store.store import Store

ACCESS = AccessCard.model_validate(
    {
        "access": "site",
        "signers": [
            {"name": "jane", "roles": ["release", "kernel"]},
            {"name": "ann", "roles": ["release"]},
            {"name": "bob", "roles": ["kernel"]},
        ],
    }
)


def proven(name: str) -> Person:
    """Somebody whom a token proves."""
    return Person(name=name, how="token 1")


def typed(name: str) -> Person:
    """Somebody who typed a name."""
    return named(name, "ci")


@pytest.fixture
def run(store: Store, tmp_path: Path) -> Run:
    """A run that qualified."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return store_run(store, tmp_path / "serving.yaml")


@pytest.fixture
def signing(store: Store, run: Run) -> Callable[..., SignOff]:
    """Signs the run as it is stored now."""

    def signed(by: Person, role: str = "release", **changes: Any) -> SignOff:
        judged = judge(store, run.id, shipped_kernels(), now=NOW)
        return sign(store, judged, by, ACCESS, role=role, reason=" read ", now=NOW, **changes)

    return signed


def test_a_sign_off_is_given_once_in_each_role(store: Store, signing: Callable[..., SignOff]) -> None:
    """Other people and other roles may; so may the same person again, after the first one was revoked."""
    first = signing(proven("jane"))
    assert ("read", "release", False) == (first.reason, first.role, first.sealed)
    with pytest.raises(UsageError, match=r"jane signed run .* as release already; a sign-off is given once"):
        signing(proven("jane"))
    assert ["kernel", "release"] == [signing(proven("jane"), "kernel").role, signing(proven("ann")).role]
    revoke(store, first.id, proven("jane"), ACCESS, reason="late", now=NOW)
    assert first.id != signing(proven("jane")).id


def test_a_token_may_follow_a_typed_name_and_not_the_other_way(signing: Callable[..., SignOff]) -> None:
    """A typed name counts nowhere, so it takes nobody's place."""
    signing(typed("jane"))
    with pytest.raises(UsageError, match="already"):
        signing(typed("jane"))
    assert signing(proven("jane")).proven
    with pytest.raises(UsageError, match="already"):
        signing(typed("jane"))


def test_nobody_signs_what_is_not_as_it_was_sealed(store: Store, run: Run) -> None:
    """Somebody edited the evidence after it was measured: the person would vouch for the edit."""
    judged = judge(store, run.id, shipped_kernels(), now=NOW, typed=Typed(db="my e.db"))
    seal_run(store, run.id)
    with closing(sqlite3.connect(store.where)) as database, database:
        database.execute("UPDATE runs SET qualify_version = '9.9'")
    with pytest.raises(
        UsageError, match=rf"is not what its seal says\. See what differs: qualify verify {run.id} --db 'my e\.db'$"
    ):
        sign(store, judged, proven("jane"), ACCESS, role="release", reason="read", now=NOW)


def test_nobody_signs_what_was_changed_since_it_was_read(
    store: Store, run: Run, signing: Callable[..., SignOff]
) -> None:
    """The digest that the person saw is not the stored one; without one, what is stored is signed."""
    with pytest.raises(UsageError, match="and you saw 000000000000: it was changed meanwhile"):
        signing(proven("jane"), sha256="0" * 64)
    stored = store.evidence(run.id).sha256
    assert (stored, stored) == (signing(proven("jane"), sha256=stored).sha256, signing(proven("ann")).sha256)


def test_who_may_end_a_sign_off(store: Store, signing: Callable[..., SignOff]) -> None:
    """Who gave it, or a signer in that role; what a token proved, only with a token."""
    by_jane, by_ann, by_bob = (
        signing(who, role)
        for who, role in ((proven("jane"), "kernel"), (proven("ann"), "release"), (typed("bob"), "kernel"))
    )
    for number, by, words in (
        (by_jane.id, proven("ann"), "'ann' may sign as release, not as 'kernel'"),
        (by_ann.id, proven("bob"), "'bob' may sign as kernel, not as 'release'"),
        (by_ann.id, proven("eve"), "'eve' may not sign: the access file lists jane, ann, bob as signers"),
        (by_ann.id, typed("ann"), "so a typed name cannot revoke it"),
        (by_jane.id, typed("bob"), "so a typed name cannot revoke it"),
    ):
        with pytest.raises(NotAllowed, match=words):
            revoke(store, number, by, ACCESS, reason="late", now=NOW)
    for number, by in ((by_jane.id, proven("bob")), (by_ann.id, proven("ann")), (by_bob.id, typed("jane"))):
        ended = revoke(store, number, by, ACCESS, reason="late", now=NOW).revoked
        assert (by.name, "late") == (ended and ended.by, ended and ended.reason)


def test_who_signed_may_take_it_back_when_no_longer_a_signer(store: Store, signing: Callable[..., SignOff]) -> None:
    """Nobody's name stays in force against their will."""
    signed, nobody = signing(proven("jane")), AccessCard(access="site")
    with pytest.raises(NotAllowed, match="'ann' may not sign: the access file lists nobody as signers"):
        revoke(store, signed.id, proven("ann"), nobody, reason="late", now=NOW)
    assert revoke(store, signed.id, proven("jane"), nobody, reason="left", now=NOW).revoked


def test_a_text_is_kept_whole_or_refused(store: Store) -> None:
    """As long as it may be; nothing is cut off, and nothing empty is kept."""
    assert "x" * LONGEST_TEXT == checked_text("reason", f" {'x' * LONGEST_TEXT} ")
    with pytest.raises(UsageError, match=r"the reason has 4,001 characters, and at most 4,000 are kept: shorten it"):
        checked_text("reason", "x" * (LONGEST_TEXT + 1))
    with pytest.raises(UsageError, match="the text is empty: say it in words"):
        checked_text("text", " \n")
    assert ("jane", "command of ci") == ((it := named(" jane ", "ci")).name, it.how)
    with pytest.raises(UsageError, match="the name has 201 characters, and at most 200 are kept"):
        named("x" * (LONGEST_NAME + 1), "ci")
    with pytest.raises(UsageError, match="'ignore' is not an action on a hold; the actions are acknowledge, release"):
        act_on_hold(store, 1, "ignore", proven("jane"), reason="x", now=NOW)


TRIED = Tried(action="sign", subject="a run")


def test_a_token_is_accepted_to_the_end_of_its_last_day(store: Store) -> None:
    """For the rights that it has; another one's secret under its number is none."""
    (text, number, hashed), (other, *_) = make_token(), make_token()
    entry = {"id": number, "name": "jane", "hash": hashed, "rights": ["read", "sign"], "expires": str(NOW.date())}
    access = AccessCard.model_validate({"access": "site", "tokens": [entry]})
    assert ("jane", f"token {number}") == ((it := by_token(store, access, text, "sign", TRIED, NOW)).name, it.how)
    mixed = text.rpartition("_")[0] + "_" + other.rpartition("_")[2]
    for given, right, now, words in (
        (text, "sign", NOW + timedelta(days=1), "the token of jane expired on 2026-11-21: ask for a new one"),
        (text, "comment", NOW, "does not have the right 'comment'; it has read, sign"),
        (other, "read", NOW, "it is mistyped, or the access file does not have it"),
        (mixed, "read", NOW, "it is mistyped, or the access file does not have it"),
    ):
        with pytest.raises(NotAllowed, match=words):
            by_token(store, access, given, right, TRIED, now)


def test_whoever_signs_is_told_of_a_newer_run_that_fails(store: Store, run: Run, tmp_path: Path) -> None:
    """On the same stack, also where it is narrowed; not of another stack's, an older one, or one that only passes."""
    matrix, other = tmp_path / "serving.yaml", make_stack(torch="2.12.0")

    def told() -> list[str]:
        def exit_code(name: str) -> int:
            return judged_now(store, name, shipped_kernels(), now=NOW).conclusion.exit_code

        return newer_failure_note(store, run, exit_code, NOW)

    store_run(store, matrix, WRONG, age=timedelta(hours=2))
    store_run(store, matrix, WRONG, age=timedelta(minutes=40), stack=other)
    store_run(store, matrix, WRONG, age=-timedelta(days=1))
    store_run(store, matrix, age=timedelta(minutes=30))
    assert [] == told()
    failed = store_run(store, matrix, WRONG, age=timedelta(minutes=20), select="*tiled*")
    store_run(store, matrix, age=timedelta(minutes=10))
    see = f"qualify gate --run {failed.id}"
    assert [f"run {failed.id} is newer than run {run.id}, on the same stack, and not qualified. See: {see}"] == told()
    damaged = store_run(store, matrix, age=timedelta(minutes=5))
    with closing(sqlite3.connect(store.where)) as database, database:
        database.execute("pragma ignore_check_constraints=1")
        mine = "case_key in (select key from cases where run_id = ?)"
        database.execute(f"update outcomes set outcome = 'zebra' where {mine}", (damaged.id,))
    (note,) = told()
    assert note.startswith(
        f"run {damaged.id} is newer than run {run.id}, on the same stack, and cannot be judged. See: "
    )
