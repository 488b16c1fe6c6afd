"""``qualify cliffs``: where a library changes its kernel."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from qualify.cli.shared import CardsOption, DeviceOption, EnvironmentOption, JsonOption, OutOption, emit_json
from qualify.cli.terminal import emit
from qualify.errors import UsageError


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
    phase: Annotated[CliffPhase, typer.Option(help="Of the call that is varied.")] = CliffPhase.prefill,
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Of the call that is varied.")] = "bf16",
    seqlen: Annotated[int, typer.Option(min=1, metavar="N", help="Keys of the call that is varied.")] = 512,
    page_size: Annotated[int, typer.Option(min=0, metavar="N", help="Keys per page; 0 = no pages.")] = 0,
    grids: Annotated[bool, typer.Option("--grids", help="Another grid of the same kernel is a cliff too.")] = False,
    limit: Annotated[int, typer.Option(min=16, metavar="N", help="Values traced on each axis at most.")] = 200,
    device: Annotated[DeviceOption, typer.Option(help="Where to run.")] = "auto",
    environment: EnvironmentOption = None,
    cards: CardsOption = None,
    out: OutOption = Path("out"),
    as_json: JsonOption = False,
) -> None:
    """Find the exact shapes at which a kernel's library launches something else.

    Traced are the ends, the powers of two, and what halves the distance between two that differ: a change that begins
    and ends between two traced values that agree is not found.
    """
    from qualify.cards.environments import in_environments, parse_environments
    from qualify.cards.load import load_kernels
    from qualify.cards.problems import meant
    from qualify.facts import codec
    from qualify.facts.cliffs import Axis, Map
    from qualify.facts.dtypes import Dtype
    from qualify.fleet.cliffs import base_workload, find_maps
    from qualify.fleet.probe import find_host
    from qualify.plan.interpreter import check_interpreter
    from qualify.report.cliffs import write_cliffs
    from qualify.report.files import check_folder

    folders = tuple(cards or ())
    environments = parse_environments(environment or ())
    known = in_environments(load_kernels(folders), environments)
    if kernel not in known:
        raise UsageError(f"no kernel is called {kernel!r}{meant(kernel, known)}; `qualify kernels` lists them")
    card = known[kernel].card
    if card.environment:
        check_interpreter(card.environment, environments[card.environment])
    if dtype not in card.claims.dtypes:
        raise UsageError(f"--dtype {dtype}: {kernel} claims {', '.join(card.claims.dtypes)}")
    base = base_workload(dtype=codec.from_data(Dtype, dtype), phase=phase.value, seqlen=seqlen, page_size=page_size)
    usual = [item for item in CliffAxis if item.value not in CLIFFS_ELSEWHERE[phase.value, bool(page_size)]]
    host = find_host(device)
    check_folder(out)
    maps = []
    paths = [str(folder.resolve()) for folder in folders]
    axes = codec.from_data(tuple[Axis, ...], [item.value for item in axis or usual])
    for found in find_maps(card, axes, base, host.kind, paths, grids=grids, limit=limit, environments=environments):
        maps.append(found)
        if not as_json:
            emit(f"{found.axis}: {len(found.segments) - 1} cliffs, {found.traced} values traced on {host}")
            for part in found.segments:
                emit(f"  {part.first:>7} to {part.last:<7} {'' if part.exact else '(about) '}{part.launched}")
    pages = f", pages of {page_size} keys" if page_size else ""
    call = f"{phase.value}, {dtype}, {seqlen} keys{pages}, 32 query heads on 8, 128 elements, causal"
    report = write_cliffs(out, kernel, call, str(host), maps)
    if as_json:
        data = {"kernel": kernel, "device": str(host), "maps": codec.to_data(maps, list[Map]), "report": str(report)}
        emit_json("cliffs", data)
    else:
        emit(f"report: {report}")
