"""What people said of a run travels with it, and is imported as what it is: the word of a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import store_examples as examples
from cli_process import call, environment
from exported import changed, lines_of
from stored_runs import sound_run

from qualify.errors import UsageError
from qualify.facts.people import AuditEntry, Comment, Revocation, SignOff
from qualify.judge.signoffs import signed_off
from qualify.store import Store

RUN = examples.run(1).id
AT = examples.STARTED
ENTRY = AuditEntry(who="jane", how="command", address="", action="sign", subject="run", allowed=True)


def sign(store: Store, role: str, run: str) -> SignOff:
    """Somebody signs the run as it is."""
    sha256 = store.evidence(run).sha256
    facts = {"sealed": True, "verdict": "PASS", "by": "jane", "reason": examples.HOSTILE, "at": AT, "how": "jwt"}
    return store.people.sign(SignOff(id=0, run_id=run, sha256=sha256, role=role, **facts), ENTRY)


def speak(store: Store, run: str) -> None:
    """Jane signs the run twice, and comments on it; one sign-off is revoked."""
    sign(store, "kernel", run)
    first = sign(store, "release", run)
    store.people.revoke(first.id, Revocation(by="joe", reason="wrong run", at=AT), ENTRY)
    store.people.comment(Comment(id=0, run_id=run, case_id="", by="jane", text=examples.HOSTILE, at=AT), ENTRY)


@pytest.fixture
def origin(sqlite_of_runs: str) -> Path:
    """A store with a run of which jane spoke."""
    path = Path(sqlite_of_runs).rename(Path(sqlite_of_runs).with_name("origin.db"))
    with Store.open(str(path)) as store:
        speak(store, RUN)
    return path


@pytest.fixture
def file(origin: Path, tmp_path: Path) -> Path:
    """That run as a file."""
    with Store.open(str(origin)) as store:
        moved = store.export_run(RUN, tmp_path / "run.jsonl.gz")
    assert (2, 1) == (moved.signoffs, moved.comments)
    return tmp_path / "run.jsonl.gz"


def test_sign_offs_and_comments_come_along(origin: Path, file: Path, empty_store: str, tmp_path: Path) -> None:
    """With digest, reason and revocation; the file that they are from is noted; a second import adds nothing."""
    with Store.open(str(origin)) as there, Store.open(empty_store) as store:
        store.begin(examples.run(3))
        moved = store.import_run(file)
        assert (2, 1) == (moved.signoffs, moved.comments)
        bare = [replace(it, id=0, origin="") for it in store.people.signoffs([RUN])]
        assert [replace(it, id=0, how="") for it in there.people.signoffs([RUN])] == bare
        assert {"run.jsonl.gz"} == {it.origin for it in store.people.signoffs([RUN])}
        assert ["run.jsonl.gz"] == [it.origin for it in store.people.comments(run_id=RUN)]
        assert ["imported", "revoked"] == [it.state for it in signed_off(store, [RUN])]
        again = store.import_run(file)
        assert (0, 0) == (again.signoffs, again.comments)
        store.export_run(RUN, tmp_path / "again.gz")
        assert (tmp_path / "again.gz").read_bytes() == file.read_bytes()


def test_what_was_said_here_stays(origin: Path, file: Path, tmp_path: Path) -> None:
    """A file adds nothing to a sign-off of this store; it ends one that it brought itself."""
    ended = changed(tmp_path / "run.jsonl.gz", _revoke_all)
    with Store.open(str(origin)) as store:
        assert (0, 0) == (store.import_run(ended).signoffs, store.import_run(ended).comments)
        assert ["valid", "revoked"] == [it.state for it in signed_off(store, [RUN])]
        other = store.export_run(RUN, tmp_path / "first.gz")
        assert (2, 1) == (other.signoffs, other.comments)
    with Store.open(str(tmp_path / "other.db")) as store:
        store.import_run(tmp_path / "first.gz")
        store.import_run(ended)
        assert ["revoked", "revoked"] == [it.state for it in signed_off(store, [RUN])]


def _revoke_all(lines: list) -> None:
    for line in lines:
        if "signoff" in line:
            line["signoff"]["revoked"] = {"by": "joe", "reason": "r", "at": AT.isoformat()}


def test_an_imported_sign_off_of_other_evidence_is_that(file: Path, tmp_path: Path) -> None:
    """The digest that was signed is kept, so a sign-off of another state of the run shows."""
    changed(file, lambda lines: [it["signoff"].update(sha256="ab" * 32) for it in lines if "signoff" in it])
    with Store.open(str(tmp_path / "other.db")) as store:
        store.import_run(file)
        assert ["changed", "revoked"] == [it.state for it in signed_off(store, [RUN])]


@pytest.mark.parametrize(
    "edit", [{"run_id": "another"}, {"reason": "x" * 5000}, {"by": "x" * 300}, {"verdict": "FINE"}], ids=str
)
def test_what_nobody_may_say_is_refused(file: Path, edit: dict[str, str], tmp_path: Path) -> None:
    """Of another run, longer than here, or with a word that does not exist."""
    changed(file, lambda lines: next(it for it in lines if "signoff" in it)["signoff"].update(edit))
    with Store.open(str(tmp_path / "other.db")) as store:
        with pytest.raises(UsageError, match="its records cannot be read"):
            store.import_run(file)
        assert [] == store.runs()


def test_the_commands(origin: Path, tmp_path: Path) -> None:
    """The import counts them, `signoff --list` says where they are from, and --without-people leaves them out."""
    run = sound_run(origin)
    with Store.open(str(origin)) as store:
        speak(store, run)
        store.export_run(run, tmp_path / "run.jsonl.gz")
    into = call("db", "import", "run.jsonl.gz", "--db", "other.db", cwd=tmp_path)
    assert (0, True) == (into.code, "2 sign-offs and 1 comment added" in into.out), into
    listed = call("signoff", run, "--list", "--db", "other.db", cwd=tmp_path)
    assert "imported, and nobody here checked who signed: jane as kernel" in listed.out
    assert "(sign-off 1, from run.jsonl.gz, sealed evidence" in listed.out
    for option, value in {"--revoke": 1, "--role": "kernel", "--reason": "x", "--by": "j", "--token-file": "t"}.items():
        refused = call("signoff", run, "--list", option, value, "--db", "other.db", cwd=tmp_path)
        assert (2, "", f"qualify: --list and {option}: ") == (
            refused.code,
            refused.out,
            refused.err.partition("--list o")[0],
        )
    env = environment(QUALIFY_TOKEN_FILE="t")
    assert listed.out == call("signoff", run, "--list", "--db", "other.db", cwd=tmp_path, env=env).out
    data = call("signoff", run, "--list", "--db", "other.db", "--json", cwd=tmp_path).data["signoffs"]
    assert [("imported", "run.jsonl.gz"), ("revoked", "run.jsonl.gz")] == [(it["state"], it["origin"]) for it in data]
    for words, said in (((), {"signoff", "comment"}), (("--without-people",), set())):
        ended = call("db", "export", run, *words, "--out", "run.gz", "--db", origin.name, cwd=tmp_path)
        assert 0 == ended.code, ended.err
        assert said == {"signoff", "comment"} & {key for it in lines_of(tmp_path / "run.gz") for key in it}
