"""What differs between two stacks, in words: packages, driver, device, variables; never two hashes."""

from __future__ import annotations

from dataclasses import replace

from stored_runs import make_stack

from qualify.facts.differing import stack_words
from qualify.facts.stack import Component, Stack

OLD = make_stack()


def with_files(stack: Stack, **files: str) -> Stack:
    """The stack with mapped files and their digests."""
    parts = [Component(kind="binary", name=name, version="", digest=digest * 64) for name, digest in files.items()]
    return replace(stack, components=(*stack.components, *parts))


def test_versions_then_and_now() -> None:
    """The version of each side; digests only where the versions are the same, because a wheel was built again."""
    assert "torch 2.11.0 → 2.12.0" == stack_words(OLD, make_stack(torch="2.12.0"))
    rebuilt = make_stack(torch=f"2.11.0:{'b' * 64}")
    assert f"torch 2.11.0 sha256:{'a' * 12} → 2.11.0 sha256:{'b' * 12}" == stack_words(OLD, rebuilt)
    assert "vllm absent → 0.24" == stack_words(OLD, make_stack(vllm="0.24"))


def test_what_weighs_most_stands_first() -> None:
    """Device, driver, variables, then packages; what does not fit is counted."""
    driver = Component(kind="driver", name="driver", version="590.1", digest="")
    parts = {f"part{number}": "1" for number in range(9)}
    new = make_stack(**parts)
    new = replace(
        new,
        device=replace(new.device, name="Other CPU"),
        components=(*new.components, driver),
        environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    )
    words = stack_words(OLD, new)
    first = ["device Test CPU → Other CPU", "driver absent → 590.1", "CUBLAS_WORKSPACE_CONFIG unset → :4096:8"]
    assert [*first, "part0 absent → 1"] == words.split(", ")[:4]
    assert words.endswith(", and 6 more")


def test_files_count_only_where_nothing_else_differs() -> None:
    """A process maps what it needs: a replaced file is named, one that is only mapped here is not news beside it."""
    old, new = with_files(OLD, torch_so="c", only_before="d"), with_files(OLD, torch_so="e")
    assert f"torch_so sha256:{'c' * 12} → sha256:{'e' * 12}" == stack_words(old, new)
    assert "torch 2.11.0 → 2.12.0" == stack_words(old, with_files(make_stack(torch="2.12.0"), torch_so="e"))


def test_an_unknown_stack() -> None:
    """Nobody reported it."""
    assert "one of the stacks is unknown" == stack_words(None, OLD)
