"""Values are kept up to a limit of bytes, the ones asked for lately longest; and everything can be forgotten."""

from __future__ import annotations

import torch
from builders import make_workload

from qualify.run.checks.rows import rows_of
from qualify.run.inputs.kept import Kept, forget, lengths_on
from qualify.run.inputs.tensors import kept_inputs, make_inputs

CPU = torch.device("cpu")


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


def test_the_same_lengths_are_one_tensor() -> None:
    """Of whole numbers with 64 bits."""
    first = lengths_on((3, 0, 5), CPU)
    assert [3, 0, 5] == first.tolist()
    assert torch.int64 == first.dtype
    assert first is lengths_on((3, 0, 5), CPU)
    assert lengths_on((3, 0, 6), CPU).tolist() == [3, 0, 6]


def test_everything_is_forgotten_at_once() -> None:
    """Lengths, rows and inputs."""
    workload = make_workload()
    make_inputs(workload, kind="normal", seed=0, device=CPU)
    lengths, rows = lengths_on((1, 2), CPU), rows_of(workload, CPU)
    assert rows is rows_of(workload, CPU)
    forget()
    assert lengths is not lengths_on((1, 2), CPU)
    assert rows is not rows_of(workload, CPU)
    assert 0 == len(kept_inputs())
