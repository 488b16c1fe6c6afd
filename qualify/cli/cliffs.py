"""``qualify cliffs``: where a library changes its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qualify.cli.shared import (
    LARGEST,
    CardsOption,
    DeviceOption,
    EnvironmentOption,
    JsonOption,
    OutOption,
    check_folder,
    emit_json,
)
from qualify.cli.terminal import emit, say
from qualify.errors import UsageError
from qualify.text import one_line, shell_word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qualify.cards.kernel import KernelCard
    from qualify.facts.cliffs import KernelMaps, Map, MapPhase


class CliffAxis(str, Enum):
    """What is varied to find cliffs."""

    seqlen = "seqlen"
    context = "context"
    batch = "batch"
    head_dim = "head_dim"
    group = "group"
    page_size = "page_size"


class CliffPhase(str, Enum):
    """The call whose axes are varied."""

    prefill = "prefill"
    decode = "decode"


CLIFFS_ELSEWHERE = {
    ("prefill", False): {"context", "page_size"},
    ("prefill", True): {"context"},
    ("decode", False): {"seqlen", "page_size"},
    ("decode", True): {"seqlen"},
}
"""axes that a call does not have, by phase and whether it has pages"""


def cliffs(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="Name of a kernel card.")],
    axis: Annotated[
        list[CliffAxis] | None, typer.Option("--axis", help="Vary only this; may be repeated. Default: all.")
    ] = None,
    phase: Annotated[CliffPhase, typer.Option(help="Phase of the call that is varied.")] = CliffPhase.prefill,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="DTYPE", help="Element type of the call that is varied.")
    ] = "bf16",
    seqlen: Annotated[
        int, typer.Option(min=1, max=LARGEST, metavar="N", help="Keys of the call that is varied.")
    ] = 512,
    page_size: Annotated[int, typer.Option(min=0, max=LARGEST, metavar="N", help="Keys per page; 0 = no pages.")] = 0,
    grids: Annotated[bool, typer.Option("--grids", help="Count another grid of the same kernel as a cliff.")] = False,
    limit: Annotated[
        int, typer.Option(min=16, max=LARGEST, metavar="N", help="At most so many traced values on each axis.")
    ] = 200,
    device: Annotated[DeviceOption, typer.Option(help="Where to run.")] = "auto",
    environment: EnvironmentOption = None,
    cards: CardsOption = None,
    out: OutOption = Path("out"),
    as_json: JsonOption = False,
) -> None:
    """Find the shapes at which a library launches another kernel.

    It traces both ends, the powers of two, and the middle of two values that launch different kernels. It does not find
    a change that begins and ends between two traced values that agree.
    """
    wanted = CliffsAsked(
        kernel=kernel,
        axes=tuple(dict.fromkeys(item.value for item in axis or ())),
        phase=phase.value,
        dtype=dtype,
        seqlen=seqlen,
        page_size=page_size,
        grids=grids,
        limit=limit,
        device=device,
        environments=tuple(environment or ()),
        cards=tuple(cards or ()),
    )
    from qualify.report.cliffs import maps_data
    from qualify.report.cliffs_page import write_cliffs

    check_folder(out)
    letters: dict[str, str] = {}
    found = trace(wanted, (lambda _: None) if as_json else (lambda each: emit("\n".join(lines_of(each, letters)))))
    page = write_cliffs(out, found)
    if as_json:
        emit_json("cliffs", maps_data(found) | {"report": str(page)})
    else:
        emit(f"report: {one_line(str(page))}")
        emit(f"into the report of a run: qualify report RUN --cliffs {shell_word(str(page.with_suffix('.json')))}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CliffsAsked:
    """What the command line asked for."""

    kernel: str
    axes: tuple[str, ...]
    """empty = all that the call has"""
    phase: MapPhase
    dtype: str
    seqlen: int
    """keys of the call"""
    page_size: int
    """keys in a page; 0 = no pages"""
    grids: bool
    limit: int
    """values that are traced on each axis at most"""
    device: str
    environments: tuple[str, ...]
    """NAME=PYTHON"""
    cards: tuple[Path, ...]

    @property
    def call(self) -> str:
        """The call that is varied, in words."""
        pages = f", pages of {self.page_size} keys" if self.page_size else ""
        return f"{self.phase}, {self.dtype}, {self.seqlen} keys{pages}, 32 query heads on 8, 128 elements, causal"

    @property
    def varied(self) -> tuple[str, ...]:
        """The axes that were asked for, or all that the call has."""
        elsewhere = CLIFFS_ELSEWHERE[self.phase, bool(self.page_size)]
        return self.axes or tuple(item.value for item in CliffAxis if item.value not in elsewhere)


def trace(wanted: CliffsAsked, show: Callable[[Map], None]) -> KernelMaps:
    """The maps of the kernel; each is shown once it is found."""
    from qualify import __version__
    from qualify.facts import codec
    from qualify.facts.cliffs import Axis, KernelMaps
    from qualify.facts.dtypes import Dtype
    from qualify.fleet.cliffs import base_workload, check_axes, find_maps
    from qualify.fleet.probe import find_host
    from qualify.plan.host import shipped_version
    from qualify.plan.interpreter import find_interpreters
    from qualify.report.figures import counted

    card, environments = _card(wanted)
    dtype = codec.from_data(Dtype, wanted.dtype)
    base = base_workload(dtype=dtype, phase=wanted.phase, seqlen=wanted.seqlen, page_size=wanted.page_size)
    host = find_host(wanted.device)
    axes = codec.from_data(tuple[Axis, ...], wanted.varied)
    if wanted.axes:
        check_axes(card, axes, base, host.kind)
    paths = [str(folder.resolve()) for folder in wanted.cards]
    maps = []
    tracing = f"tracing {counted(len(axes), 'axis', 'axes')}; each is shown once it is found"
    say(f"{wanted.kernel} on {host}: {tracing}; its report has the names of kernels in full")
    for found in find_maps(
        card, axes, base, host.kind, paths, grids=wanted.grids, limit=wanted.limit, environments=environments, tell=say
    ):
        show(found)
        maps.append(found)
    return KernelMaps(
        kernel=wanted.kernel,
        phase=wanted.phase,
        call=wanted.call,
        device=str(host),
        library=shipped_version(card, find_interpreters(environments).get(card.environment)),
        qualify_version=__version__,
        maps=tuple(maps),
    )


def _card(wanted: CliffsAsked) -> tuple[KernelCard, Mapping[str, str]]:
    """The kernel's card, and the interpreters by the name of their environment."""
    from qualify.cards.environments import parse_environments
    from qualify.cards.load import in_environments, load_kernels
    from qualify.cards.problems import meant
    from qualify.plan.interpreter import check_interpreter

    environments = parse_environments(wanted.environments)
    known = in_environments(load_kernels(wanted.cards), environments)
    if wanted.kernel not in known:
        hint = meant(wanted.kernel, known)
        raise UsageError(f"no kernel is called {wanted.kernel!r}{hint}; `qualify kernels` lists them")
    card = known[wanted.kernel].card
    if card.environment:
        check_interpreter(card.environment, environments[card.environment])
    if wanted.dtype not in card.claims.dtypes:
        raise UsageError(f"--dtype {wanted.dtype}: {wanted.kernel} claims {', '.join(card.claims.dtypes)}")
    return card, environments


def lines_of(found: Map, letters: dict[str, str]) -> list[str]:
    """One axis as text: its unit, then a line for each part.

    Args:
        letters: by what was launched until now; what is new gets the next one. They are those of the report.
    """
    from qualify.report.cliffs import add_letters

    add_letters(letters, found)
    cliffs = len(found.segments) - 1
    return [
        f"{found.title}: {cliffs} {'cliff' if cliffs == 1 else 'cliffs'}, {found.traced} values traced",
        *(
            one_line(
                f"  {part.first:>7} to {part.last:<7} {'' if part.exact else '(about) '}"
                f"{letters[part.launched]}: {_short(part.launched)}"
            )
            for part in found.segments
        ),
    ]


def _short(launched: str) -> str:
    """The kernels by the names that people call them, with their grids; or how the call ended."""
    from qualify.facts.cliffs import ENDS, GRID
    from qualify.report.names import short_name

    if launched.startswith(ENDS):
        return launched
    names = (each.partition(GRID) for each in launched.split(" + "))
    return " + ".join(f"{short_name(name)}{times}{grid}" for name, times, grid in names)
