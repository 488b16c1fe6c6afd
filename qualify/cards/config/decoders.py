"""Families of decoders that differ in details: which keys they have, what the keys mean, and their defaults.

Published configs leave some keys out. Their value is then the default of the family's own configuration class
(transformers 5.23). Every other missing key is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from qualify.cards.config.keys import NOTHING, Keys
from qualify.cards.config.layers import LAYER_TYPES, WHOLE, Layer, group, heads, split, with_mask
from qualify.cards.config.patterns import Masks, Rope, causal, rope_everywhere
from qualify.cards.model import LayerGroup, LayerMask, Positions


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """What a family calls the counts that every decoder has."""

    layers: tuple[str, ...] = ("num_hidden_layers",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    heads_kv: tuple[str, ...] = ("num_key_value_heads",)
    """empty = it has as many as query heads"""
    hidden: tuple[str, ...] = ("hidden_size",)
    head_dim: tuple[str, ...] = ("head_dim",)
    """empty = hidden / heads, whatever such a key says"""
    window: str = "sliding_window"


OTHERS = ("linear_", "mamba_", "ssm_")
"""beginnings of the keys of layers, or of parts of layers, that are no attention"""
USUAL = Names()


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """One family of decoders; :meth:`read` turns its config into layer groups."""

    title: str
    """the models, for the documents"""
    model_types: tuple[str, ...]
    names: Names = USUAL
    masks: Masks = causal
    """the mask of each layer, where ``layer_types`` does not say it"""
    words: Mapping[str, LayerMask | None] = field(default_factory=lambda: LAYER_TYPES)
    """what the words of ``layer_types`` and ``layers_block_type`` mean"""
    listed: bool = False
    """whether the family's code reads such a list; else it must say what ``masks`` says"""
    convention: str = "causal in all layers"
    """which keys decide about the mask, for the documents"""
    rope: Rope = rope_everywhere
    positions: Positions = "rope"
    """kind of positions in the layers that ``rope`` names"""
    head_dim: int | None = None
    """elements per head where the config has none; None = hidden / heads"""
    heads_kv: int | None = None
    """KV heads where the config has no such key; None = as many as query heads"""
    head_dim_null: bool = False
    """whether null is known to mean hidden / heads, not the default"""
    window: int | None = None
    """the window where the config has none; None = it must have one where a layer needs it"""
    scale_key: str = ""
    """key of the factor on q·k; empty = ``scale_default``, or 1 / sqrt(head_dim)"""
    scale: Callable[[float], float] = lambda value: value
    """computes the factor from the value of that key"""
    scale_default: float | None = None
    softcap: float | None = None
    """``attn_logit_softcapping`` where the config has none; None = the family's code reads no such key"""
    sinks: bool = False
    bidirectional: bool = False
    """whether ``use_bidirectional_attention`` is known to make an encoder of it"""
    defaults: tuple[tuple[str, int], ...] = ()
    """counts that published configs leave out"""
    switched: bool = False
    """whether the family's code takes the window away where ``use_sliding_window`` is false or missing"""
    unused: tuple[str, ...] = ()
    """keys that change attention elsewhere, that published configs have, and that the family's code does not read"""
    beside: str = ""
    """what each layer has beside its attention, for a finding"""

    def read(self, keys: Keys) -> list[LayerGroup]:
        """The layer groups."""
        usual = dict(self.defaults)
        count = keys.layers(*self.names.layers, default=usual.get("num_hidden_layers") or self._listed(keys))
        layer = self._layer(keys, usual)
        masks = self._masks(keys, count)
        if keys.value("is_causal") is False:
            keys.wrong("is_causal", "is false, and this family is read as causal; give the geometry in a matrix")
        window = keys.maybe(self.names.window, absent=self.window) if "window" in masks else None
        chunk = keys.maybe("attention_chunk_size", absent=8192) if "chunked" in masks else None
        # Where no layer has a window, the family's own keys have switched it off. A hybrid's keys cannot: they only say
        # which layers attend.
        if self.masks is not causal and None not in self.words.values():
            keys.value(self.names.window)
        self._note_others(keys, masks)
        for name in self.unused:
            if keys.has(name):
                keys.note("no-effect", name, "the family's own code does not read it")
        bidirectional = keys.flag("use_bidirectional_attention", default=False)
        if bidirectional and not self.bidirectional:
            keys.wrong(
                "use_bidirectional_attention", "is true: only of Gemma 3 it is known what all engines make of it"
            )
        if not bidirectional:  # of a band, half of the window lies on each side
            _note_idle(keys, self.names.window, window)
        found = []
        for number, (mask, turns) in enumerate(zip(masks, self.rope(keys, masks), strict=True)):
            if mask is None:
                continue
            each = with_mask(keys, layer, mask, window, chunk)
            each = _both_sides(each) if bidirectional else each
            found.append((number, each if turns else replace(each, positions="none")))
        return group(found)

    def _listed(self, keys: Keys) -> int | None:
        """How many layers a hybrid lists, for configs without a number of layers; None where it has no list."""
        listed = keys.value("layers_block_type") if None in self.words.values() else None
        return len(listed) if isinstance(listed, list) else None

    def _layer(self, keys: Keys, usual: dict[str, int]) -> Layer:
        names = self.names
        count = keys.count(*names.heads, default=usual.get("num_attention_heads"))
        dim = self._head_dim(keys, count)
        scale = self.scale_default
        if self.scale_key:
            if _null(keys, self.scale_key):
                keys.wrong(self.scale_key, "is null, but the scale is computed from it; write the number that is meant")
            scale = self.scale(keys.number(self.scale_key, default=self.scale_default or 1.0))
        layer = heads(keys, count, self._kv(keys, count), dim, scale)
        if self.softcap is not None and not _null(keys, "attn_logit_softcapping"):
            layer = replace(layer, softcap=keys.number("attn_logit_softcapping", default=self.softcap))
        return replace(layer, sinks=self.sinks, positions=self.positions)

    def _head_dim(self, keys: Keys, count: int) -> int:
        """Elements per head; null is hidden / heads, and an error where the family's own default is another."""
        names = self.names.head_dim
        null = any(keys.says(name) for name in names) and not any(keys.has(name) for name in names)
        usual = None if null else self.head_dim
        dim = keys.count(*names, default=usual or NOTHING) if names else NOTHING
        if dim != NOTHING:
            return dim
        dim = split(keys, keys.count(*self.names.hidden), count, self.names.hidden[0])
        if null and not self.head_dim_null and self.head_dim not in {None, dim}:
            keys.wrong(
                names[0],
                f"is null: the family's own default is {self.head_dim}, hidden / heads {dim}; write the one meant",
            )
        return dim

    def _kv(self, keys: Keys, count: int) -> int:
        """KV heads: without such a key the family's own default, with null as many as query heads."""
        names = self.names.heads_kv
        if not names:
            return count
        if self.heads_kv is None or any(keys.says(name) for name in names):
            return keys.count(*names, default=count)
        if count % self.heads_kv:
            if not keys.problems:
                own = f"the family's own default is {self.heads_kv}, which does not divide {count} query heads"
                keys.wrong(names[0], f"is missing: {own}; write the one meant")
            return count
        return self.heads_kv

    def _masks(self, keys: Keys, count: int) -> list[LayerMask | None]:
        for name in ("layer_types", "layers_block_type"):
            words = keys.words(name, count, self.words)
            if not words:
                continue
            found = [self.words[word] for word in words]
            if not self.listed:
                return self._compared(keys, name, found)
            if self.switched and "window" in found and not keys.flag("use_sliding_window", default=False):
                missing = "false" if keys.has("use_sliding_window") else "missing, which is false"
                keys.wrong(name, f"holds sliding_attention, but use_sliding_window is {missing}: make them agree")
            return found
        return self.masks(keys, count)

    def _compared(self, keys: Keys, name: str, found: list[LayerMask | None]) -> list[LayerMask | None]:
        """The masks of a family whose code reads no list, where the list says the same; some engines follow it."""
        own = self.masks(keys, len(found))
        keys.compared.add(name)
        layer = next((number for number, pair in enumerate(zip(own, found, strict=True)) if pair[0] != pair[1]), None)
        if layer is not None:
            kind = keys.text("model_type") or self.model_types[0]
            says, has = (masks[layer] or "without attention" for masks in (found, own))
            keys.wrong(
                name,
                f"makes layer {layer} {says}, but {kind} is read without such a list, and layer {layer} is {has}. "
                "transformers ignores the list and vLLM may follow it: remove it if your engine ignores it, or give "
                "the geometry in a matrix (docs/models.md)",
            )
        return own

    def _note_others(self, keys: Keys, masks: list[LayerMask | None]) -> None:
        """Remember which parts of the model are no attention."""
        without = [layer for layer, mask in enumerate(masks) if mask is None]
        keys.idle.update(without)
        if len(without) == len(masks):
            keys.wrong(self.names.layers[0], f"is {len(masks)}, and none of the layers has attention")
        if self.beside:
            keys.note("unread", "model_type", f"each layer has {self.beside} beside its attention, which is not read")
        if self.beside or None in self.words.values():
            keys.asked.update(name for name in keys.data if name.startswith(OTHERS))


def _both_sides(layer: Layer) -> Layer:
    """What an embedding model makes of a layer: half of the window on each side of a query."""
    if layer.mask == "window":
        return replace(layer, mask="band", size=(layer.size or 1) // 2 * 2 + 1, phases=WHOLE)
    return replace(layer, mask="full", phases=WHOLE)


def _null(keys: Keys, name: str) -> bool:
    """Whether the key is there with null, which turns off what a missing key leaves on."""
    return keys.says(name) and not keys.has(name)


def _note_idle(keys: Keys, name: str, window: int | None) -> None:
    longest = keys.value("max_position_embeddings")
    if window is not None and isinstance(longest, int) and window >= longest:
        detail = f"a window of {window} keys hides none of max_position_embeddings = {longest}; engines may drop it"
        keys.note("no-effect", name, detail)
