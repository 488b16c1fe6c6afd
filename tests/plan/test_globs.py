"""Many globs at once match what each of them matches by itself."""

from __future__ import annotations

from fnmatch import fnmatchcase

from qualify.plan.globs import Globs

IDS = [
    f"{model}/{shape}/{kernel}"
    for model in ("toy.tp1", "incidents/pytorch-1")
    for shape in ("b1.q8", "b1.q9")
    for kernel in ("flash-attn-3", "flash-attn-3@next", "tiled-torch", "[odd]")
]
GLOBS = [
    *("*", "", "tiled-torch", "*tiled-torch", "*/tiled-torch", "*/tiled-*", "*/flash-attn-3", "*/flash-attn-?"),
    *("toy*", "toy.tp1/*/flash-attn-3@next", "*/b1.q8/*", "*/[ft]*", "*[/]tiled-torch", "*/[[]odd]", "*/", "*/odd]"),
    *("toy.tp1/b1.q8/tiled-torch", "*/TILED-TORCH", "*/b1[.]q9/tiled-torch", "*/flash-attn-3*", "/tiled-torch"),
]


def test_each_glob_matches_what_it_matches_alone() -> None:
    """Whether it names a kernel at its end or leaves it open."""
    globs = Globs(GLOBS)
    alone = {name: {number for number, glob in enumerate(GLOBS) if fnmatchcase(name, glob)} for name in IDS}
    assert alone == {name: set(globs.matching(name)) for name in IDS}
    assert all(any(number in found for found in alone.values()) for number in (0, 4, 6, 9, 12, 13, 16))
