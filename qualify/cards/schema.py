"""JSON Schema (draft-07) of the cards, for editors: what pydantic generates, in the older dialect.

Pydantic writes draft 2020-12. Two things differ for these cards: ``$defs`` is called ``definitions``, and
draft-07 ignores everything beside a ``$ref``, so a reference with a description moves into ``allOf``.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from qualify.cards.access import AccessCard
from qualify.cards.canary import CanaryCard
from qualify.cards.kernel import KernelCard
from qualify.cards.matrix import MatrixCard
from qualify.cards.model import ModelCard
from qualify.cards.problems import meant
from qualify.cards.traffic import TrafficCard
from qualify.cards.waivers import WaiversCard
from qualify.errors import UsageError

DRAFT = "http://json-schema.org/draft-07/schema#"
KINDS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("kernel", KernelCard),
    ("matrix", MatrixCard),
    ("model", ModelCard),
    ("waivers", WaiversCard),
    ("traffic", TrafficCard),
    ("canary", CanaryCard),
    ("access", AccessCard),
)


def schema(kind: str) -> dict[str, Any]:
    """JSON Schema of one kind of card: a word of KINDS. Raises UsageError for another word."""
    for name, card in KINDS:
        if name == kind:
            generated = card.model_json_schema(mode="validation", ref_template="#/definitions/{model}")
            definitions = generated.pop("$defs", {})
            body = {**generated, "definitions": definitions} if definitions else generated
            return {"$schema": DRAFT, **in_draft_07(body)}
    known = [name for name, _ in KINDS]
    raise UsageError(f"no card is of the kind {kind!r}{meant(kind, known)}. There are: {', '.join(known)}.")


def in_draft_07(node: Any) -> Any:
    """A generated schema in the older dialect: nothing stands beside a reference."""
    if isinstance(node, list):
        return [in_draft_07(item) for item in node]
    if not isinstance(node, dict):
        return node
    converted = {key: in_draft_07(value) for key, value in node.items()}
    if isinstance(converted.get("$ref"), str) and len(converted) > 1:
        return {"allOf": [{"$ref": converted.pop("$ref")}], **converted}
    return converted
