"""``qualify schema``: the JSON Schemas."""

from __future__ import annotations

import json
from enum import Enum

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


def show_schema(kind: SchemaKind, _as_json: AlwaysJsonOption = False) -> None:
    """Print the JSON Schema (draft-07) of a card, or of the gate's JSON."""
    from qualify.cards.schema import schema
    from qualify.report.contract import gate_schema

    emit(json.dumps(gate_schema() if kind is SchemaKind.gate else schema(kind.value), indent=2), plain=True)
