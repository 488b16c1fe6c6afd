"""Vision towers: every patch of an image sees every other. An unknown tower is left out, and a finding says so."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qualify.cards.config.encoders import SIGLIP_BASE
from qualify.cards.config.keys import Keys
from qualify.cards.config.layers import WHOLE, group, heads, split
from qualify.cards.config.refusals import refuse_miscounted
from qualify.cards.model import LayerGroup, Positions


@dataclass(frozen=True, kw_only=True, slots=True)
class Tower:
    """The keys of one kind of vision tower."""

    model_types: tuple[str, ...]
    layers: tuple[str, ...] = ("num_hidden_layers",)
    heads: str = "num_attention_heads"
    hidden: str = "hidden_size"
    positions: Positions = "none"
    defaults: tuple[tuple[str, int], ...] = ()
    """counts that published configs leave out"""

    def read(self, keys: Keys) -> list[LayerGroup]:
        """The layer groups."""
        usual = dict(self.defaults)
        count = keys.count(self.heads, default=usual.get(self.heads))
        hidden = keys.count(self.hidden, default=usual.get(self.hidden))
        layer = heads(keys, count, count, split(keys, hidden, count, self.hidden))
        layer = replace(layer, mask="full", positions=self.positions, stack="vision", phases=WHOLE)
        layers = sum(keys.layers(name, default=usual.get(name)) for name in self.layers)
        return group((number, layer) for number in range(layers))


PIXTRAL = {"num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 1024}
"""what Pixtral's config leaves out; it has head_dim, 64, which is hidden / heads in its own class too"""

QWEN2_VL = (("depth", 32), ("num_heads", 16))
"""what transformers 4.4x leaves out of a saved vision_config of Qwen2-VL and Qwen2.5-VL, as their class has it"""

TOWERS: tuple[Tower, ...] = (
    Tower(model_types=("siglip_vision_model", "siglip2_vision_model"), defaults=tuple(SIGLIP_BASE.items())),
    Tower(model_types=("clip_vision_model",)),
    Tower(model_types=("pixtral",), positions="rope", defaults=tuple(PIXTRAL.items())),
    Tower(model_types=("llama4_vision_model",), positions="rope"),
    Tower(
        model_types=("mllama_vision_model",), layers=("num_hidden_layers", "num_global_layers"), heads="attention_heads"
    ),
    Tower(
        model_types=("qwen2_vl", "qwen2_vl_vision"),
        layers=("depth",),
        heads="num_heads",
        hidden="embed_dim",
        positions="rope",
        defaults=(*QWEN2_VL, ("embed_dim", 1280)),
    ),
    Tower(
        model_types=("qwen2_5_vl", "qwen2_5_vl_vision"),
        layers=("depth",),
        heads="num_heads",
        positions="rope",
        defaults=QWEN2_VL,
    ),
    Tower(
        model_types=(
            "qwen3_vl",
            "qwen3_vl_vision",
            "qwen3_vl_moe",
            "qwen3_vl_moe_vision",
            "qwen3_5",
            "qwen3_5_vision",
            "qwen3_5_moe",
            "qwen3_5_moe_vision",
        ),
        layers=("depth",),
        heads="num_heads",
        positions="rope",
    ),
)


def read_tower(keys: Keys | None, model_type: str) -> list[LayerGroup]:
    """The groups of the tower; none, and a finding, where its kind or one of its keys is not known."""
    if keys is None:
        return []
    kind = keys.text("model_type") or model_type
    tower = next((tower for tower in TOWERS if kind in tower.model_types), None)
    if tower is None:
        keys.note("unread", "model_type", f"{kind or 'nothing'}: this vision tower is not known, so it has no group")
        return []
    missing = [
        name
        for name in (*tower.layers, tower.heads, tower.hidden)
        if not keys.has(name) and name not in dict(tower.defaults)
    ]
    if missing:
        keys.note(
            "unread", missing[0], f"is missing, so the vision tower has no group; looked for {', '.join(missing)}"
        )
        return []
    _note_windows(keys)
    groups = tower.read(keys)
    refuse_miscounted(keys, kind, [] if keys.problems else groups)
    return groups


def _note_windows(keys: Keys) -> None:
    """Qwen2.5-VL packs the windows of an image as sequences of their own, except in a few layers."""
    if keys.has("fullatt_block_indexes"):
        detail = "the other layers see windows of an image, packed as sequences: give their lengths as varlen"
        keys.note("no-effect", "fullatt_block_indexes", detail)
