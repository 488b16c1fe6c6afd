"""``qualify node``: a plan on the cards of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qualify.cli.shared import (
    LARGEST,
    AlwaysJsonOption,
    QuietOption,
    SelectOption,
    check_folder,
    detail_of,
    emit_json,
    joined,
    log_of,
    talk_of,
)
from qualify.errors import UsageError

if TYPE_CHECKING:
    from qualify.facts.fleet import NodePlan

LEAST_S = 0.001
"""least number of seconds that a plan may name"""
NUMBERS: Mapping[str, tuple[float, str]] = {
    "attempt": (1, "attempts are counted from 1"),
    "shards": (0, "give how many shards there are, or leave it out"),
    "shard": (0, "shards are counted from 1"),
    "deadline_s": (LEAST_S, "give seconds above 0, or leave it out for no deadline"),
    "interim_s": (LEAST_S, "give the seconds between two exports, 10 where it is left out"),
}
"""fields of a plan that are numbers: the least that each may be, and what to write"""
ArrayOption = Annotated[
    str,
    typer.Option("--fleet", metavar="NAME", help="What all nodes that share the plan are called, such as an array."),
]


def node(
    plan: Annotated[
        str, typer.Argument(metavar="PLAN", help="File of JSON that says what to run; or a matrix, on every GPU.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the exported runs.")] = Path("out/node"),
    select: SelectOption = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="What the engine calls this machine, in place of its host name.")
    ] = "",
    shard: Annotated[
        int, typer.Option("--shard", min=0, metavar="N", help="The shard to run, from 1 to the plan's `shards`.")
    ] = 0,
    fleet_name: ArrayOption = "",
    quiet: QuietOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every case that begins.")] = False,
    _as_json: AlwaysJsonOption = False,
) -> None:
    """Run a plan on the cards of this machine. Prints the node's verdict as JSON; the runs lie in DIR as files."""
    from qualify.facts import codec
    from qualify.fleet.node import run_node

    talk = talk_of(quiet=quiet, verbose=verbose)
    order = plan_of(plan)
    order = replace(
        order,
        select=joined(select) if select else order.select,
        node=name or order.node,
        shard=shard or order.shard,
        fleet=fleet_name or order.fleet,
    )
    check_names(order)
    check_folder(out)
    found = run_node(order, out, log_of(quiet=quiet), detail_of(talk))
    emit_json("node", codec.to_data(found) | {"folder": str(out)})
    raise typer.Exit(found.exit_code)


def plan_of(text: str) -> NodePlan:
    """The plan of a file, or that of a matrix on every GPU."""
    from pydantic import ValidationError

    from qualify.cards.load import load_matrix
    from qualify.cards.plain_json import parse_json
    from qualify.facts import codec
    from qualify.facts.fleet import NodePlan
    from qualify.files import open_regular, why_unread

    if not text.endswith(".json"):
        load_matrix(text, (), {})  # a mistyped name fails here, before qualify looks at the machine
        return NodePlan(matrix=text)
    try:
        with open_regular(Path(text)) as file:
            data = parse_json(Path(text), file.read().decode(), float)
        _check_fields(text, data)
        found: NodePlan = codec.from_data(NodePlan, data)
        _check_numbers(text, found)
        return found
    except OSError as error:
        raise UsageError(f"{text}: {why_unread(error)}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        wrong = "is missing" if first["type"] == "missing" else first["msg"]
        raise UsageError(f"{text}: {place}: {wrong}. {_fields()}") from error
    except ValueError as error:
        raise UsageError(f"{text}: it is no JSON ({error})") from error


def _check_fields(text: str, data: object) -> None:
    """Raises UsageError for a field that no plan has: a mistyped one would change what runs, and nobody would know."""
    from qualify.cards.problems import meant, shown
    from qualify.facts.fleet import NodePlan

    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "one value"
        raise UsageError(f"{text}: a plan is an object, and this file holds {kind}. {_fields()}")
    known = NodePlan.__dataclass_fields__
    for name in data:
        if name not in known:
            raise UsageError(f"{text}: {name} is no field of a plan{meant(name, known)}. {_fields()}")
    for name in NUMBERS:
        if isinstance(value := data.get(name), bool | str):
            raise UsageError(f"{text}: {name} is {shown(value)}, and must be a number: write it without quotes")


def check_names(plan: NodePlan) -> None:
    """Raises UsageError for the name of a fleet or a node that is more than one line, or holds what nobody can see."""
    for name, value in (("fleet", plan.fleet), ("node", plan.node)):
        if not value.isprintable():
            raise UsageError(f"the name of the {name}, {value!r}: must be one line of characters that can be printed")


def _check_numbers(text: str, plan: NodePlan) -> None:
    """Raises UsageError for a number that no node could obey."""
    for name, (least, todo) in NUMBERS.items():
        number = getattr(plan, name)
        if number is not None and not least <= number <= LARGEST:
            raise UsageError(f"{text}: {name} is {number}, and must be from {least} to {LARGEST}: {todo}")


def _fields() -> str:
    from qualify.facts.fleet import NodePlan

    return f"The fields of a plan: {', '.join(NodePlan.__dataclass_fields__)}"
