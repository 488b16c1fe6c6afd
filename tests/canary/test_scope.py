"""What is watched beside the rest: third-party kernels, and what a canary's card names or ignores."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cli_process import write_cards, write_matrix
from stored_runs import make_stack

from qualify.canary.deck import Deck
from qualify.canary.scope import Scope, Scopes, together
from qualify.canary.watch import decide
from qualify.errors import UsageError
from qualify.facts.canary import Watched
from qualify.facts.differing import changes_words, stack_changes
from qualify.facts.stack import Component, Stack
from qualify.run.machine import software

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A --cards folder with a third party's kernel, a canary that waits for a change, and something of one's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Other tests put a folder with a module of the same name on the path.
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not Path(entry, "third_party.py").exists()])
    cards = write_cards(tmp_path / "cards", "correct")
    write_matrix(cards / "tiny.yaml", "correct")
    (tmp_path / "own.so").write_bytes(b"first")
    canary(cards, "ours", f"files: [{tmp_path}/*.so], variables: [OUR_*], distributions: [no-such-distribution]")
    canary(cards, "plain", "settle: 1s")
    return cards


def canary(cards: Path, name: str, asked: str) -> None:
    """A canary of the tiny matrix."""
    (cards / f"{name}.yaml").write_text(f"canary: {name}\nmatrix: ./tiny.yaml\nstack_change: {{{asked}}}\n")


def changes(scopes: Scopes, before: Stack, name: str = "ours") -> list[str]:
    """Components that a canary sees changed since that look."""
    return [item.component for item in stack_changes(scopes.of(name).view(before), scopes.of(name).view(now(scopes)))]


def now(scopes: Scopes) -> Stack:
    """A look of all canaries, without what takes long to hash."""
    return replace(make_stack(), components=(*make_stack().components, *scopes.look()))


def test_a_kernel_that_changes_while_its_cards_are_replaced_is_noticed(place: Path) -> None:
    """A deployment takes the folder away, or leaves a matrix that cannot be read: looks meanwhile forget no kernel."""
    scopes = Scopes(Deck((place,), ("ours", "plain")))
    known = now(scopes)
    place.rename(place.with_name("aside"))
    with pytest.raises(UsageError, match=r"cards: the folder is away or empty"):
        scopes.look()
    place.with_name("aside").rename(place)
    matrix, code = place / "tiny.yaml", place / "third_party.py"
    good = matrix.read_text()
    matrix.write_text("matrix: tiny\n")
    known = replace(known, components=now(scopes).components)
    matrix.write_text(good)
    code.write_text(code.read_text() + "\n# another\n")
    assert ["code of correct"] == changes(scopes, known)


def test_a_third_partys_code_is_watched(place: Path) -> None:
    """By the bytes of its module, for every canary whose matrix asks for the kernel; the change has its name."""
    scopes = Scopes(Deck((place,), ("ours", "plain")))
    before = now(scopes)
    assert [] == changes(scopes, before)
    (place / "third_party.py").write_text((place / "third_party.py").read_text() + "\n# another\n")
    assert ["code of correct"] == changes(scopes, before)
    assert ["code of correct"] == changes(scopes, before, "plain")


def test_files_and_distributions_of_the_card_are_watched(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changed, one that came, a distribution that was installed; only by the canary that names them."""
    scopes = Scopes(Deck((place,), ("ours", "plain")))
    before = now(scopes)
    (tmp_path / "own.so").write_bytes(b"other")
    assert [f"{tmp_path}/*.so"] == changes(scopes, before)
    assert [] == changes(scopes, before, "plain")
    (tmp_path / "own.so").write_bytes(b"first")
    (tmp_path / "more.so").write_bytes(b"")
    assert [f"{tmp_path}/*.so"] == changes(scopes, before)
    (tmp_path / "more.so").unlink()
    info = tmp_path / "site" / "no_such_distribution-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: no-such-distribution\nVersion: 1.0\n")
    (info / "RECORD").write_text("no_such.py,sha256=abc,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    view = scopes.of("ours").view
    assert "no-such-distribution absent → 1.0" in changes_words(list(stack_changes(view(before), view(now(scopes)))))


def test_a_variable_of_the_card_is_watched_and_no_secret(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that fit the pattern, with their values; what may be a secret is not read."""
    scopes = Scopes(Deck((place,), ("ours",)))
    before = now(scopes)
    given = {"OUR_MODE": "fast", "OUR_TOKEN": "hunter2", "OTHER": "1"}
    monkeypatch.setattr("qualify.canary.scope.started_with", lambda: given)
    view = scopes.of("ours").view
    assert "OUR_* unset → OUR_MODE=fast" == changes_words(list(stack_changes(view(before), view(now(scopes)))))


def test_what_a_card_ignores_does_not_fire(place: Path) -> None:
    """Components and variables, by name or pattern."""
    scope = Scope(ignore=frozenset({"torch", "VLLM_*"}))
    before, after = make_stack(), make_stack(torch="9")
    after = replace(after, environment={"VLLM_X": "1"})
    assert [] == list(stack_changes(scope.view(before), scope.view(after)))
    assert 2 == len(list(stack_changes(before, after)))


def test_a_card_that_asks_for_more_fires_nothing(place: Path, tmp_path: Path) -> None:
    """What was not looked at before has not changed; from then on it counts."""
    scopes = Scopes(Deck((place,), ("ours", "plain")))
    known = Watched(
        lease="l@n", canary="plain", node="n", stack=scopes.of("plain").view(now(scopes)), seen_at=START,
        changing_to="", changing_since=None,
    )  # fmt: skip
    wide = together([scopes.of("ours"), scopes.of("plain")])
    first = decide(known, wide.view(now(scopes)), START, timedelta(0))
    assert ((), ()) == (first.noticed, first.fire)
    assert first.watched is not None
    (tmp_path / "own.so").write_bytes(b"other")
    second = decide(first.watched, wide.view(now(scopes)), START, timedelta(0))
    assert [f"{tmp_path}/*.so"] == [item.component for item in second.noticed]


def test_a_broken_matrix_leaves_what_the_card_names(place: Path, tmp_path: Path) -> None:
    """Its fire will say what is wrong with it; the watch goes on, and sees it repaired."""
    good = (place / "tiny.yaml").read_text()
    (place / "tiny.yaml").write_text("matrix: [")
    scopes = Scopes(Deck((place,), ("ours",)))
    names = {part.name for part in scopes.look()}
    assert f"{tmp_path}/*.so" in names
    assert "code of correct" not in names
    (place / "tiny.yaml").write_text(good)
    assert "code of correct" in {part.name for part in scopes.look()}


def test_settings_that_one_side_does_not_know_have_not_changed() -> None:
    """Evidence of an older program has none; where both have, another limit is another stack."""
    limit = Component(kind="setting", name="power limit", version="700 W", digest="")
    older, newer = make_stack(), make_stack()
    newer = replace(newer, components=(*newer.components, limit))
    lower = replace(newer, components=(*make_stack().components, replace(limit, version="400 W")))
    assert older.agrees_with(newer)
    assert [] == list(stack_changes(older, newer))
    assert not newer.agrees_with(lower)
    assert "power limit 700 W → 400 W" == changes_words(list(stack_changes(newer, lower)))


def test_a_library_of_the_same_size_and_time_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes count: who sets the time of a changed file back deceives nobody."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("qualify.plan.digests.SETTLED_NS", 0)
    path = tmp_path / "libflash.so"
    path.write_bytes(b"first")
    seen = path.stat()
    one = software.hashed([path], tmp_path / "cache.json")
    assert one == software.hashed([path], tmp_path / "cache.json")
    path.write_bytes(b"other")
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert (seen.st_size, seen.st_mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)
    assert one != software.hashed([path], tmp_path / "cache.json")


def test_a_python_file_of_a_package_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line changed under the same version, as somebody who debugs does it."""
    info = tmp_path / "site" / "flash_attn-2.8.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.0\n")
    (info / "RECORD").write_text("flash_attn_interface.py,,\n")
    module = tmp_path / "site" / "flash_attn_interface.py"
    module.write_text("scale = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    cache = tmp_path / "cache.json"
    (before,) = software.distributions(cache, ["flash-attn"])
    module.write_text("scale = 2\n")
    (after,) = software.distributions(cache, ["flash-attn"])
    assert ("2.8.0", "2.8.0") == (before.version, after.version)
    assert before.digest != after.digest
