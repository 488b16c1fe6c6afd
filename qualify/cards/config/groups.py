"""From a config to the family that can read it, and through wrappers to the text model inside."""

from __future__ import annotations

from dataclasses import replace

from qualify.cards.config.encoders import read_mllama
from qualify.cards.config.families import FAMILIES
from qualify.cards.config.keys import Keys
from qualify.cards.config.layers import TOKENS, WHOLE
from qualify.cards.config.refusals import STATE, refuse_leftovers, why_unexpressed
from qualify.cards.config.towers import read_tower
from qualify.cards.config.wrappers import CLASS_DEFAULTS, WRAPPERS, Wrapper
from qualify.cards.model import LayerGroup
from qualify.cards.problems import meant, shown

LOOKED_FOR = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "layer_types",
    "sliding_window",
)
"""keys of a geometry that most families have"""
WAY_OUT = (
    "Describe the layers that can be measured in a matrix of your own, models: [{model: NAME, geometry: {groups: "
    "[{layers: [0, 1, …], heads_q: …, heads_kv: …, head_dim: …, mask: causal}]}}] (docs/models.md)"
)
"""what a user can do where a config is not read"""
MISSPELT = ", if that is a misspelling; never write another family's name there: it says how all keys are read"
"""beside the nearest family: a published config names its own, which is another model"""

BOTH_WAYS = "use_bidirectional_attention"
"""key of a text model whose tokens all see each other"""


def read_groups(keys: Keys) -> list[LayerGroup]:
    """The layer groups of a config; problems and findings are remembered in ``keys``."""
    kind = keys.text("model_type")
    if keys.problems:
        return []
    wrapper = next((wrapper for wrapper in WRAPPERS if kind in wrapper.model_types), None)
    if wrapper is None:
        return _read_family(keys, kind)
    under, vision = keys.inner(wrapper.under), keys.inner("vision_config")
    text, inner = _text_model(keys, under, wrapper, kind)
    if text is None:
        return []
    if inner == "mllama_text_model":
        groups = read_mllama(text, vision)
        refuse_leftovers(text, inner, [] if keys.problems else groups)
        return [*groups, *read_tower(vision, "mllama_vision_model")]
    if wrapper.prefix:
        text = _of_prompts(text)
    elif wrapper.image_tokens and text.data.get(BOTH_WAYS) is True:
        text.wrong(BOTH_WAYS, f"is true, which makes an encoder of the text model, and {kind} is read as a decoder")
        return []
    groups = _read_family(text, inner)
    if wrapper.prefix:
        groups = _see_prompts(text, groups)
    seen = not wrapper.image_key or text.value(wrapper.image_key) == "vision"
    if wrapper.image_tokens and vision is not None and seen:
        size = {"image_tokens": keys.count(wrapper.image_tokens, default=wrapper.image_size)}
        groups = [each.model_copy(update=size) if each.mask in wrapper.image_masks else each for each in groups]
    if text is not keys:
        keys.asked.update(name for name in keys.data if name in text.data and keys.data[name] == text.data[name])
        refuse_leftovers(keys, kind)
    return [*groups, *read_tower(vision, kind)]


def _text_model(keys: Keys, under: Keys | None, wrapper: Wrapper, kind: str) -> tuple[Keys | None, str]:
    """The keys of a wrapper's text model, and its family; None where a key is wrong or missing.

    Args:
        under: what stands where the wrapper has its text model; None where nothing does.
    """
    text = keys if under is None and wrapper.flat else under
    if keys.problems:
        return None, ""
    if text is None:
        keys.wrong(wrapper.under, f"is missing, and {kind} has the keys of its text model there")
        return None, ""
    inner = (text.text("model_type") if text is not keys else "") or wrapper.text
    if keys.problems:
        return None, ""
    if inner in wrapper.model_types and wrapper.text:  # Qwen names the wrapper inside as well
        inner = wrapper.text
    if wrapper.left_out:
        text = replace(text, data={**CLASS_DEFAULTS.get(inner, {}), **text.data})
    return text, inner


def _of_prompts(keys: Keys) -> Keys:
    """The text model of a prefix model. Where transformers 5 says that it sees both ways, only prompts do."""
    if not keys.flag(BOTH_WAYS, default=True):
        keys.wrong(BOTH_WAYS, "is false, but the prompts of this model are read as seen whole")
    return replace(keys, data={**keys.data, BOTH_WAYS: None})


def _see_prompts(keys: Keys, groups: list[LayerGroup]) -> list[LayerGroup]:
    """The groups of a prefix model: in a prompt every token sees every other, and later tokens are causal."""
    if any(each.mask != "causal" for each in groups):
        keys.wrong("model_type", f"is {keys.text('model_type')}: a prompt seen whole through a window is not read")
        return []
    return [
        *(each.model_copy(update={"mask": "full", "phases": WHOLE}) for each in groups),
        *(each.model_copy(update={"phases": TOKENS}) for each in groups),
    ]


def _read_family(keys: Keys, kind: str) -> list[LayerGroup]:
    family = next((family for family in FAMILIES if kind in family.model_types), None)
    if family is None and any(kind in wrapper.model_types for wrapper in WRAPPERS):
        nested = "a model of several parts, inside another one, which is not read"
        keys.wrong("model_type", f"is {kind}, {nested}. {WAY_OUT}")
        return []
    if family is None:
        keys.wrong("model_type", _unknown(keys, kind))
        return []
    groups = family.read(keys)
    refuse_leftovers(keys, kind, [] if keys.problems else groups)
    return groups


def known_types() -> list[str]:
    """Every model_type that can be read, sorted."""
    types = (*(each.model_types for each in FAMILIES), *(each.model_types for each in WRAPPERS))
    return sorted(name for names in types for name in names)


def _unknown(keys: Keys, kind: str) -> str:
    """The message for an unknown family: what was looked for, what was found of it, and the way out."""
    known = known_types()
    reason = why_unexpressed(kind)
    if reason:
        return f"is {kind}, a model that {reason}{'' if reason == STATE else f'. {WAY_OUT}'}"
    near = meant(kind, known)
    near += MISSPELT if near else ""
    what = f"is {shown(kind)}, a family that qualify does not know{near}" if kind else "is missing"
    inner = keys.inner("text_config")
    hint = inner.text("model_type") if inner else ""
    found = [f"{name} = {shown(keys.data[name])}" for name in LOOKED_FOR if keys.has(name)]
    return (
        f"{what}. Of the keys that most families have ({', '.join(LOOKED_FOR)}) the file has "
        f"{', '.join(found) or 'none'}{', and qualify does not guess what they mean' if found else ''}"
        + (f"; its text_config is {shown(hint)}" if hint else "")
        + f". docs/models.md lists the {len(known)} families. {WAY_OUT}"
    )
