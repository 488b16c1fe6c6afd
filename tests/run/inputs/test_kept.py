"""Values are kept up to a limit of bytes, the ones asked for lately longest."""

from __future__ import annotations

from qualify.run.inputs.kept import Kept


def test_a_value_is_made_once():
    """Until everything is forgotten."""
    kept: Kept[list[str]] = Kept(100, len)
    first = kept.get("a", lambda: ["made"])
    assert first is kept.get("a", lambda: ["never"])
    assert (1, 1) == (len(kept), kept.held_bytes)
    kept.clear()
    assert (0, 0) == (len(kept), kept.held_bytes)
    assert ["again"] == kept.get("a", lambda: ["again"])


def test_those_not_asked_for_longest_go_first():
    """As many as the newest one needs."""
    kept: Kept[str] = Kept(10, len)
    for name in "abc":
        kept.get(name, lambda name=name: name * 3)
    kept.get("a", lambda: "another")
    kept.get("d", lambda: "dddd")
    assert 10 == kept.held_bytes
    assert ["aaa", "ccc", "dddd"] == [kept.get(name, lambda: "gone") for name in "acd"]
    assert "gone" == kept.get("b", lambda: "gone")


def test_what_alone_is_too_large_is_given_out_and_not_kept():
    """Nothing else has room beside it either."""
    kept: Kept[str] = Kept(10, len)
    kept.get("small", lambda: "x")
    assert "y" * 11 == kept.get("large", lambda: "y" * 11)
    assert (0, 0) == (len(kept), kept.held_bytes)
