"""``qualify schema``: the JSON Schemas."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer

from qualify.cli.shared import AlwaysJsonOption
from qualify.cli.terminal import emit


class SchemaKind(str, Enum):
    """What has a JSON Schema: the cards, and the JSON of the gate."""

    kernel = "kernel"
    matrix = "matrix"
    model = "model"
    waivers = "waivers"
    traffic = "traffic"
    canary = "canary"
    access = "access"
    gate = "gate"


def show_schema(
    kind: Annotated[SchemaKind, typer.Argument(metavar="KIND", help="A kind of card, or gate for the gate's JSON.")],
    _as_json: AlwaysJsonOption = False,
) -> None:
    """Print the JSON Schema of a card, or of the gate's JSON.

    The schema follows draft-07.
    """
    from qualify.cards.schema import schema
    from qualify.report.contract import gate_schema

    emit(json.dumps(gate_schema() if kind is SchemaKind.gate else schema(kind.value), indent=2), plain=True)
