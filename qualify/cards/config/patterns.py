"""Which layers of a decoder attend, under which mask, and which of them rotate q and k.

The functions read the keys that say so where ``layer_types`` does not.
"""

from __future__ import annotations

from collections.abc import Callable

from qualify.cards.config.keys import Keys
from qualify.cards.model import LayerMask

EXAONE_WINDOW = 4096
"""the window of EXAONE 4 where its config has no such key"""

Masks = Callable[[Keys, int], list[LayerMask | None]]
"""The mask of each layer; None where a layer has no attention."""
Rope = Callable[[Keys, list[LayerMask | None]], list[bool]]
"""Which layers rotate q and k, by their masks."""


def causal(_keys: Keys, count: int) -> list[LayerMask | None]:
    """Causal in all layers."""
    return ["causal"] * count


def window_if_given(absent: int | None = None) -> Masks:
    """A window in all layers, unless ``sliding_window`` is null."""

    def masks(keys: Keys, count: int) -> list[LayerMask | None]:
        return ["window" if keys.maybe("sliding_window", absent=absent) else "causal"] * count

    return masks


def alternating(every: int, key: str = "") -> Masks:
    """Windows, and a causal layer at the end of each ``every``; ``key`` may give another number."""

    def masks(keys: Keys, count: int) -> list[LayerMask | None]:
        step = keys.count(key, default=every) if key else every
        if keys.data.get(f"_{key}") == step:  # what transformers writes beside layer_types, and does not read
            keys.value(f"_{key}")
        return ["causal" if (layer + 1) % step == 0 else "window" for layer in range(count)]

    return masks


def leading(every: int) -> Masks:
    """Windows, and a causal layer at the beginning of each ``every``."""

    def masks(_keys: Keys, count: int) -> list[LayerMask | None]:
        return ["window" if layer % every else "causal" for layer in range(count)]

    return masks


def dots_windows(keys: Keys, count: int) -> list[LayerMask | None]:
    """A window in the layers from ``max_window_layers`` on, unless ``sliding_window`` is null."""
    first = keys.number_from_0("max_window_layers", default=62)
    windows = keys.maybe("sliding_window", absent=4096)
    return ["window" if windows and layer >= first else "causal" for layer in range(count)]


def qwen_windows(keys: Keys, count: int) -> list[LayerMask | None]:
    """With ``use_sliding_window``, a window in the layers from ``max_window_layers`` on."""
    first = keys.number_from_0("max_window_layers", default=28)
    windows = _switched_on(keys)
    return ["window" if windows and layer >= first else "causal" for layer in range(count)]


def qwen2_moe_windows(keys: Keys, count: int) -> list[LayerMask | None]:
    """With ``use_sliding_window``, a window in every second layer below ``max_window_layers``, from layer 0 on."""
    first = keys.number_from_0("max_window_layers", default=28)
    windows = keys.flag("use_sliding_window", default=False)
    return ["window" if windows and layer % 2 == 0 and layer < first else "causal" for layer in range(count)]


def qwen3_moe_windows(keys: Keys, count: int) -> list[LayerMask | None]:
    """With ``use_sliding_window``, a window in all layers."""
    return ["window" if _switched_on(keys) else "causal"] * count


def _switched_on(keys: Keys) -> bool:
    """Whether ``use_sliding_window`` is true, and there is a window: null is none, and a missing key the default."""
    null = keys.says("sliding_window") and not keys.has("sliding_window")
    return keys.flag("use_sliding_window", default=False) and not null


def chunks_where_rotated(keys: Keys, count: int) -> list[LayerMask | None]:
    """Chunked attention in the layers that rotate, causal in the others."""
    if not keys.maybe("attention_chunk_size", absent=8192):
        return ["causal"] * count
    return ["chunked" if rotated else "causal" for rotated in rope_listed(keys, ["causal"] * count)]


def smollm_windows(keys: Keys, count: int) -> list[LayerMask | None]:
    """With ``use_sliding_window``, a window in the layers that do not rotate."""
    windows = keys.flag("use_sliding_window", default=False) and keys.has("sliding_window")
    return ["window" if windows and not rotated else "causal" for rotated in rope_listed(keys, ["causal"] * count)]


def exaone_windows(keys: Keys, count: int) -> list[LayerMask | None]:
    """``sliding_window_pattern``: letters that repeat, with L for a window and G for all keys, or a number.

    The last layer sees all keys. With a ``sliding_window`` of null all of them do.
    """
    if not keys.maybe("sliding_window", absent=EXAONE_WINDOW):
        return ["causal"] * count
    pattern = keys.value("sliding_window_pattern")
    if pattern is None or isinstance(pattern, int):
        return alternating(4, "sliding_window_pattern")(keys, count)
    letters = keys.text("sliding_window_pattern")
    if not letters or set(letters) - {"L", "G"}:
        keys.wrong("sliding_window_pattern", "must be a number, or letters L (window) and G (all keys)")
        return ["causal"] * count
    repeated = (letters * count)[:count]
    return ["window" if letter == "L" and layer < count - 1 else "causal" for layer, letter in enumerate(repeated)]


def neo_windows(keys: Keys, count: int) -> list[LayerMask | None]:
    """``attention_layers`` of GPT-Neo, or ``attention_types``: pairs of a list of global and local, and how often."""
    words: list[object] = []
    pairs = keys.value("attention_types")
    listed = keys.words("attention_layers", count, ("global", "local"))
    if listed:
        return ["window" if word == "local" else "causal" for word in listed]
    for pair in pairs if isinstance(pairs, list) else [[["global", "local"], count // 2]]:
        match pair:
            case [list() as kinds, int() as times] if 0 < times <= count:
                words += kinds * times
            case _:
                words.append(pair)
    if len(words) != count or any(word not in ("global", "local") for word in words):
        keys.wrong("attention_types", f"must be pairs [[global or local, …], how often] for {count} layers together")
        return ["causal"] * count
    return ["window" if word == "local" else "causal" for word in words]


def every_nth_attends(every: int, key: str) -> Masks:
    """The last layer of each ``key`` attends, the others are linear."""

    def masks(keys: Keys, count: int) -> list[LayerMask | None]:
        step = keys.count(key, default=every)
        return ["causal" if (layer + 1) % step == 0 else None for layer in range(count)]

    return masks


def jamba_blocks(keys: Keys, count: int) -> list[LayerMask | None]:
    """One layer of each ``attn_layer_period`` attends, the one at ``attn_layer_offset``."""
    period = keys.count("attn_layer_period", default=8)
    offset = keys.number_from_0("attn_layer_offset", default=4)
    return ["causal" if layer % period == offset else None for layer in range(count)]


def listed_blocks(name: str) -> Masks:
    """The layers whose numbers a key lists attend; it must be there."""

    def masks(keys: Keys, count: int) -> list[LayerMask | None]:
        listed = keys.numbers(name, below=count)
        if listed is None:
            keys.needed(name)
            return ["causal"] * count
        return ["causal" if layer in listed else None for layer in range(count)]

    return masks


def nemotron_blocks(keys: Keys, count: int) -> list[LayerMask | None]:
    """``hybrid_override_pattern``: a letter for each layer, with * for attention."""
    letters = keys.text("hybrid_override_pattern")
    if not letters:
        keys.needed("hybrid_override_pattern")
    elif set(letters) - set("M*-E"):
        keys.wrong("hybrid_override_pattern", "must have a letter for each layer: M (Mamba), * (attention), - or E")
    elif len(letters) != count:
        keys.wrong("hybrid_override_pattern", f"has {len(letters)} letters for {count} layers")
    else:
        return ["causal" if letter == "*" else None for letter in letters]
    return ["causal"] * count


def must_be_listed(keys: Keys, count: int) -> list[LayerMask | None]:
    """An error: for this family only ``layer_types`` says the masks, and it is missing."""
    keys.needed("layer_types")
    return ["causal"] * count


def rope_everywhere(_keys: Keys, masks: list[LayerMask | None]) -> list[bool]:
    """All layers rotate."""
    return [True] * len(masks)


def rope_nowhere(_keys: Keys, masks: list[LayerMask | None]) -> list[bool]:
    """No layer rotates: positions are added to the input, or left to the layers without attention."""
    return [False] * len(masks)


def rope_in_windows(_keys: Keys, masks: list[LayerMask | None]) -> list[bool]:
    """The layers with a window rotate; the others have no positions at all."""
    return [mask == "window" for mask in masks]


def rope_unless_mixed(keys: Keys, masks: list[LayerMask | None]) -> list[bool]:
    """Only the layers with a window rotate; where ``sliding_window`` is null, all layers do."""
    window = keys.maybe("sliding_window", absent=EXAONE_WINDOW)
    return rope_in_windows(keys, masks) if window else rope_everywhere(keys, masks)


def rope_named(keys: Keys, masks: list[LayerMask | None]) -> list[bool]:
    """With ``position_embedding_type: rope`` all layers rotate, else none."""
    kind = keys.text("position_embedding_type")
    if kind not in {"", "rope", "nope"}:
        keys.wrong("position_embedding_type", f"is {kind}, which is not read here; known are rope and nope")
    return [kind == "rope"] * len(masks)


def rope_listed(keys: Keys, masks: list[LayerMask | None]) -> list[bool]:
    """A layer rotates where ``no_rope_layers`` holds 1. Where that list is left out, every fourth layer does not.

    The first Llama 4 configs have ``nope_layer_interval``, which no code reads. It is accepted where it says the same.
    """
    every = keys.count("no_rope_layer_interval", default=4)
    found = keys.flags("no_rope_layers", len(masks)) or _all_but_every(every, len(masks))
    second = keys.data.get("nope_layer_interval")
    if type(second) is int and second > 0 and _all_but_every(second, len(masks)) == found:
        keys.value("nope_layer_interval")
    return found


def _all_but_every(step: int, count: int) -> list[bool]:
    """All layers but each ``step``-th."""
    return [bool((layer + 1) % step) for layer in range(count)]
