"""The tables of docs/models.md."""

from __future__ import annotations

from generating.tables import table
from qualify.cards.config.families import FAMILIES, Family
from qualify.cards.config.wrappers import WRAPPERS, Wrapper
from qualify.cards.config.writing import described
from qualify.cards.load import load_models


def families_table() -> str:
    """The families that `qualify model` reads, and the keys of their configurations that decide about masks."""
    families: list[Family | Wrapper] = [*FAMILIES, *WRAPPERS]
    rows = [[each.title, ", ".join(f"`{name}`" for name in each.model_types), each.convention] for each in families]
    return table(["models", "`model_type`", "masks"], rows)


def models_table() -> str:
    """The shipped model cards with their layer groups."""
    rows = []
    for name, loaded in load_models().items():
        groups = "<br>".join(f"{len(group.layers)} × {described(group)}" for group in loaded.card.groups)
        rows.append([f"`{name}`", f"{loaded.card.hub}", f"{loaded.card.layers}", groups])
    return table(["card", "on the hub", "layers", "attention"], rows)
