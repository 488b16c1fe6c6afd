"""`qualify canary` from the command line: fires by hand, advice against a baseline, holds, lists, exit codes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from cli_process import call, command, environment, write_cards, write_matrix

from qualify.store import Store


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cards: a canary of a right kernel, and one whose matrix needs an interpreter that is not there."""
    folder = tmp_path_factory.mktemp("canary")
    cards = write_cards(folder / "cards", "correct", "wrong_numbers")
    write_matrix(cards / "tiny.yaml", "correct")
    common = "level: smoke\ndevice: cpu\n"
    (cards / "t-good.yaml").write_text(f'canary: t-good\nmatrix: ./tiny.yaml\ncron: "30 2 * * mon"\n{common}')
    alert = "alerts: [{target: chat, kind: slack, url_env: SLACK_URL, events: failed}]\n"
    write_matrix(cards / "gone.yaml", "correct")
    with (cards / "gone.yaml").open("a") as file:
        file.write("environments: {gone: {python: /nowhere/python}}\n")
    (cards / "t-none.yaml").write_text(f"canary: t-none\nmatrix: ./gone.yaml\n{common}{alert}")
    return folder


def canary(place: Path, *words: str, code: int) -> dict:
    """The JSON of a command that ends with that code."""
    ended = call("canary", *words, "--cards", "cards", "--json", cwd=place)
    assert code == ended.code, ended.err
    return ended.data


def test_from_the_first_fire_to_promote_and_hold(place: Path) -> None:
    """Without a baseline it holds; with one it promotes and releases; a kernel that got worse on one stack holds."""
    first = canary(place, "fire", "t-good", "--node", "n", code=5)
    assert ("completed", "PASS", "hold", "manual") == (
        first["state"], first["verdict"], first["advice"], first["trigger"]
    )  # fmt: skip
    assert "qualify baseline accept" in first["reasons"][0]
    (hold,) = listed(place, "t-good")["holds"]
    about = ("hold", "acknowledge", hold["id"], "--by", "me\nhold 1: released", "--reason", "known")
    by = "me hold 1: released (unproven)"
    assert f"hold {hold['id']}: acknowledged by {by}\n" == call(*about, cwd=place).out
    held = call("hold", "list", cwd=place).out
    assert held.startswith(f"{hold['id']}  acknowledged ({by}, {hold['since'][:10]} "), held
    assert ": known)  t-good on n (" in held
    accepted = ("baseline", "accept", first["run_id"], "--by", "me", "--reason", "first", "--cards", "cards")
    assert 0 == call(*accepted, cwd=place).code
    second = canary(place, "fire", "t-good", "--node", "n", "--reason", "again", code=0)
    assert ("promote", "again") == (second["advice"], second["reason"])
    assert [] == listed(place, "t-good")["holds"]
    assert "no open hold; --all also lists those that ended\n" == call("hold", "list", cwd=place).out
    module = place / "cards" / "third_party.py"
    right = module.read_text()
    module.write_text(right.replace("correct = attend", "correct = lambda call: attend(call) * 1.01"))
    third = canary(place, "fire", "t-good", "--node", "n", code=1)
    module.write_text(right)
    assert ("FAIL", "hold") == (third["verdict"], third["advice"])
    assert any("the stack is that of baseline" in reason for reason in third["reasons"])
    explained = canary(place, "explain", "t-good", code=0)
    assert ["hold", "promote", "hold"] == [fire["advice"] for fire in explained["history"]]
    assert 5 == len(explained["next"])
    assert all(moment[10:] == "T02:30:00+00:00" for moment in explained["next"])
    assert "fires at 30 2 * * mon UTC; if times were missed, it fires once, for the last of them" in explained["why"]


def listed(place: Path, name: str) -> dict:
    """The entry of a canary in the list."""
    (found,) = [item for item in canary(place, "list", code=0)["canaries"] if item["canary"] == name]
    return found


def test_a_fire_that_cannot_run_is_told(place: Path) -> None:
    """It failed without evidence: exit 4, a hold, and an alert in the outbox."""
    before = canary(place, "list", code=0)["alerts"]["pending"]
    fire = canary(place, "fire", "t-none", code=4)
    assert ("failed", "hold", None) == (fire["state"], fire["advice"], fire["verdict"])
    assert "environment gone, /nowhere/python: no such file" in fire["reasons"][0]
    assert before + 1 == canary(place, "list", code=0)["alerts"]["pending"]
    text = call("canary", "list", "--cards", "cards", cwd=place).out
    assert "t-none" in text
    assert "held" in text
    assert "alerts 1 pending" in text
    moments = [line for line in text.splitlines() if line.startswith(("  next", "  last", "  held"))]
    assert moments
    assert all(re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d UTC", line) for line in moments)


def test_a_canary_of_a_part_names_the_run_that_can_be_accepted(place: Path) -> None:
    """No run of its own can be: the command that it prints runs the whole matrix."""
    (place / "cards" / "t-part.yaml").write_text(
        "canary: t-part\nmatrix: ./tiny.yaml\nkernel: correct\nlevel: smoke\ndevice: cpu\n"
    )
    fire = canary(place, "fire", "t-part", "--db", "part.db", code=5)
    (place / "cards" / "t-part.yaml").unlink()
    _, _, printed = fire["reasons"][0].partition("accept one of the whole: ")
    program, *words = shlex.split(printed)
    assert ("qualify", 0) == (program, call(*words, "--quiet", cwd=place).code)
    accept = ("baseline", "accept", "latest", "--by", "me", "--reason", "first", "--db", "part.db", "--cards", "cards")
    assert 0 == call(*accept, cwd=place).code


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
def test_a_fire_whose_process_ended_is_told_at_the_next_one(place: Path, *, stopped: bool) -> None:
    """With cron alone nobody goes on with it: it fails, on its own node, with its alert. One for a leader waits."""
    db = f"{stopped}.db"
    with Store.open(str(place / db)) as store:
        lost, waits = (store.canaries.ask("t-none", "./gone.yaml", "cron", "canary").id for _ in range(2))
        lease = store.canaries.acquire("canary", "another/1/x", 60)
        assert store.canaries.take(lease, "another", only=lost)
        if stopped:
            store.canaries.put_back(lease, lost, "the service was stopped", 0.0)
        store.canaries.release(lease)
        canary(place, "fire", "t-none", "--node", "n", "--db", db, code=4)
        fires = {fire.id: fire for fire in store.canaries.fires()}
        assert ("failed", "another", "pending") == (fires[lost].state, fires[lost].node, fires[waits].state)
        assert ("its process ended before it did, and no service went on with it",) == fires[lost].reasons
        assert {"another", "n"} == {hold.node for hold in store.canaries.holds()}
        assert [lost] == [alert.fire_id for alert in store.canaries.alerts() if alert.body["node"] == "another"]


def test_not_to_wait(place: Path) -> None:
    """The fire is left for whoever leads."""
    assert "pending" == canary(place, "fire", "t-none", "--no-wait", code=0)["state"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("explain", "nigthly"), "no canary is called 'nigthly'; perhaps you meant nightly"),
        (("fire", "missing"), "There are: nightly, stack-change, t-good, t-none"),
        (("serve", "missing"), "no canary is called 'missing'"),
        (("serve", "--poll", "60"), "--poll 60: give a number and its unit s, m, h or d"),
        (("serve", "--lease-time", "0s"), "--lease-time 0s: give a number"),
        (("serve", "--allow-program", "nope"), "--allow-program nope: no program is there that can be run"),
        (("serve", "--allow-program", "./cards"), "--allow-program cards: no program is there that can be run"),
    ],
)
def test_wrong_command_lines(place: Path, words: tuple[str, ...], expected: str) -> None:
    """One message, exit 2."""
    ended = call("canary", *words, "--cards", "cards", cwd=place)
    assert 2 == ended.code
    assert expected in ended.err


def test_a_service_tells_machines_that_it_serves(place: Path) -> None:
    """One object on stdout, and a log of objects on stderr; SIGTERM ends it with 0."""
    words = ("canary", "serve", "t-good", "--cards", "cards", "--db", "serve.db", "--node", "n", "--json")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(*words), cwd=place, env=environment(), **pipes) as service:
        lines = service.stdout.readline(), service.stderr.readline()
        service.terminate()
        assert 0 == service.wait(30)
    begun, first = map(json.loads, lines)
    assert ("qualify.serve/1", "n", "canary", ["t-good"], service.pid) == (
        begun["schema"], begun["node"], begun["lease"], begun["canaries"], begun["pid"]
    )  # fmt: skip
    assert ("info", "n") == (first["level"], first["node"])


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("missing",), 2, "no canary is called 'missing'"),
        (("--poll", "60"), 2, "--poll 60: give a number and its unit"),
        (("--pol", "60s"), 2, "No such option: --pol"),
        (("--log", "xml"), 2, "'xml' is not one of 'text', 'json'"),
        (("--db",), 2, "Try: qualify canary serve --help"),
        (("--db", "postgresql://me:secret@localhost:1/x"), 4, "cannot be reached"),
    ],
)
def test_what_ends_a_service_is_told_to_machines(place: Path, words: tuple[str, ...], code: int, expected: str) -> None:
    """The object has the message, without a password, and the exit code of the process."""
    ended = call("canary", "serve", "--cards", "cards", "--json", *words, cwd=place)
    assert (code, "qualify.error/1", code) == (ended.code, ended.data["schema"], ended.data["exit_code"])
    assert expected in ended.data["error"]
    assert "secret" not in ended.out
    assert "" == ended.err


def test_a_broken_card_ends_every_command(place: Path, tmp_path: Path) -> None:
    """With file, line and column."""
    path = tmp_path / "bad.yaml"
    path.write_text("canary: bad\nmatrix: smoke\ncron: tomorrow\n")
    for words in (("list",), ("serve",)):
        ended = call("canary", *words, "--cards", tmp_path, cwd=place)
        assert 2 == ended.code
        assert f"{path}:3:7: cron: must be five fields" in ended.err


def test_the_schema_is_printed(place: Path) -> None:
    """For editors."""
    printed = json.loads(call("schema", "canary", cwd=place).out)
    assert {"canary", "matrix", "cron", "stack_change", "alerts"} <= set(printed["properties"])


@pytest.mark.parametrize("words", [("list",), ("explain", "nightly")])
def test_whoever_looks_at_canaries_makes_no_store(tmp_path: Path, words: tuple[str, ...]) -> None:
    """An empty store would look as if something had run here; a folder that is missing is told, as elsewhere."""
    for options in ((), ("--db", "mine.db")):
        ended = call("canary", *words, *options, cwd=tmp_path)
        assert (0, []) == (ended.code, list(tmp_path.iterdir())), ended.err
    ended = call("canary", *words, "--db", "no/mine.db", cwd=tmp_path)
    assert 4 == ended.code
    assert "the folder no does not exist" in ended.err


def test_waves_of_a_canary_that_nobody_knows(tmp_path: Path) -> None:
    """A mistyped name is no canary without rollouts."""
    Store.open(str(tmp_path / "e.db")).close()
    ended = call("canary", "waves", "nightlie", "--db", "e.db", cwd=tmp_path)
    assert 2 == ended.code
    assert "no rollout of a canary 'nightlie' is stored" in ended.err
    assert 0 == call("canary", "waves", "nightly", "--db", "e.db", cwd=tmp_path).code
    none = call("canary", "waves", "nightly", "--wave", "3", "--db", "e.db", cwd=tmp_path)
    assert (2, True) == (none.code, none.err.endswith(". See: qualify canary waves nightly\n"))
