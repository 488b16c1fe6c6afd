"""Refuses what a config says about attention and qualify does not read: whole families, and keys that are left over.

A key that changes attention and that the reader of a family does not know is an error. An engine may follow it and
make another call than the one that was read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from qualify.cards.config.keys import Keys
from qualify.cards.config.wrappers import WRAPPERS
from qualify.cards.model import LayerGroup
from qualify.cards.problems import shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Unexpressed:
    """Families that are known, and whose attention cannot be written as layer groups."""

    model_types: tuple[str, ...]
    reason: str
    """why, as the end of a sentence about the model"""


BIAS = "adds a bias that depends on the distance of the tokens to the scores, which the attention call cannot carry"
ENCODER = "attends from its decoder to an encoder whose length is that of the prompt, so the keys have no fixed number"
TEXT_MODELS = tuple(dict.fromkeys(it.under for it in WRAPPERS))
"""keys under which a text model lies"""
SPARSE = "chooses the keys or blocks that a query sees; such a mask cannot be expressed"
STATE = "has no softmax attention at all; there is nothing to test"

UNEXPRESSED: tuple[Unexpressed, ...] = (
    Unexpressed(
        model_types=(
            "t5", "mt5", "umt5", "longt5", "switch_transformers", "udop", "pop2piano",
            "mpnet", "deberta", "deberta-v2", "layoutlmv2", "layoutlmv3", "beit", "data2vec-vision", "swin", "swinv2",
            "tapas", "transfo-xl", "xlnet", "funnel", "wav2vec2-bert", "wavlm",
        ),
        reason=BIAS,
    ),
    Unexpressed(
        model_types=(
            "bart", "mbart", "pegasus", "pegasus_x", "marian", "m2m_100", "nllb-moe", "blenderbot", "blenderbot-small",
            "plbart", "fsmt", "prophetnet", "led", "bigbird_pegasus", "encoder-decoder", "seamless_m4t",
            "seamless_m4t_v2", "speech_to_text", "moonshine", "t5gemma", "t5gemma2",
        ),
        reason=ENCODER,
    ),
    Unexpressed(
        model_types=(
            "phi3small", "deepseek_v32", "glm_moe_dsa", "longformer", "big_bird", "reformer", "minicpm4",
        ),
        reason=SPARSE,
    ),
    Unexpressed(model_types=("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "fnet"), reason=STATE),
    Unexpressed(
        model_types=("zamba", "zamba2"),
        reason="shares attention layers between places of the stack and feeds them another width; that is not read",
    ),
    Unexpressed(
        model_types=(
            "kimi_linear", "minimax", "minimax_text_01", "minimax_m1", "recurrent_gemma", "olmo_hybrid",
            "bailing_hybrid",
        ),
        reason="mixes attention with linear or recurrent layers in a way that is not read",
    ),
    Unexpressed(
        model_types=("nemotron-nas", "deci"),
        reason="changes heads from layer to layer, or leaves attention out, in `block_configs`; that is not read",
    ),
    Unexpressed(
        model_types=("longcat_flash",), reason="has two attention calls in each layer; that is not read"
    ),
)  # fmt: skip


def why_unexpressed(kind: str) -> str:
    """The reason why a model_type cannot be read though it is known; empty where there is none."""
    return next((each.reason for each in UNEXPRESSED if kind in each.model_types), "")


def _used(value: Any) -> bool:
    """Whether a value switches something on."""
    return value is not None and value is not False and value not in (0, -1, "", "null", [], {})


def _unusual_positions(value: Any) -> bool:
    """Whether the kind of positions is neither added to the input nor rotated in."""
    return _used(value) and not str(value).startswith(("absolute", "learned", "rope", "rotary"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover:
    """Keys that change attention."""

    names: re.Pattern[str]
    changes: str
    """what they change"""
    counts: Callable[[Any], bool] = _used
    """whether a value of such a key changes it"""
    overruled: bool = False
    """whether the key does not count where the reader followed a list of the layers' masks"""


def _left(names: str, changes: str, counts: Callable[[Any], bool] = _used, *, overruled: bool = False) -> Leftover:
    return Leftover(names=re.compile(names), changes=changes, counts=counts, overruled=overruled)


def _not_one(value: Any) -> bool:
    return _used(value) and not (isinstance(value, list) and all(each == 1 for each in value))


MASK, BLOCKS = "the mask", "which layers attend"
LEFTOVERS: tuple[Leftover, ...] = (
    _left(
        r"_?(interleaved_)?sliding_windows?(_sizes?|_pattern|_layers)?|local_attention(_window_len)?"
        r"|((local|swa|rswa|attn|attention)_)*windows?(_sizes?)?",
        "the mask",
        overruled=True,
    ),
    _left(r"use_sliding_window|attention_chunk_size|use_(local|sliding)_attention", "the mask", overruled=True),
    _left(
        r"layer_types|layers_block_type|block_types|attention_(types|layers)|per_layer_config|block_configs", "the mask"
    ),
    _left(r"attn_type_list", "which layers attend", _not_one),
    _left(
        r"(hybrid_override|hybrid_layer|interleaved?)_pattern|(hybrid|local)_layer_ids|layer_group_size"
        r"|global_attn_every_n_layers|attn_layer_(indices|period|offset)|full_attention_interval|full_attn_idxs"
        r"|linear_(key_head_dim|num_key_heads|attn_config)|mamba_(d_state|n_heads|num_heads)|ssm_(cfg|state_size)",
        BLOCKS,
        overruled=True,
    ),
    _left(r"prefix_lm|use_bidirectional_attention|bidirectional(_attention)?|position_encoding_2d", MASK),
    _left(r"is_causal|causal", MASK, lambda value: value is False),
    _left(r"cross_attention_layers|add_cross_attention|is_encoder_decoder", "what is attended to"),
    _left(
        r"index(er)?_(topk|topk_blocks|n_heads|head_dim|kv_heads|budget|types)|num_landmarks|compress_rates|(nsa|moba|dsa|sparse|lightning|dual_chunk)_?(attn|attention)?_config|sparse_attention"
        r"|use_sparse_attention|blocksparse_.*|dense_attention_every_n_layers|compress_ratios",
        "which keys a query sees",
    ),
    _left(r"(use_)?alibi(_.*)?", "the scores"),
    _left(r"position(al)?_embedding_type|pos_emb(_type)?", "positions", _unusual_positions),
    _left(r"relative_attention(_.*)?|relative_position_.*|use_relative_.*", "the scores"),
    _left(
        r"((attn|attention)_logits?|logits)_soft_?cap(ping)?|attn_soft_?cap(ping)?|(attn|attention)_logit_cap|softcap",
        "the scores",
    ),
    _left(r"query_pre_attn_scalar|attention_multiplier|(attn_)?softmax_scale|attention_scale|sm_scale", "the scale"),
    _left(r"scale_attn_by_inverse_layer_idx", "the scale"),
    _left(r"scale_attn_weights", "the scale", lambda value: value is False),
    _left(
        r"(add_.*)?(attention|attn)_sinks?(_.*)?|use_sinks?|.*_sink_bias|learnable_sink(_.*)?"
        r"|(num_)?sink_(tokens?|size|length)",
        "the denominator",
    ),
    _left(r"no_rope_layers|no_rope_layer_interval|nope_layer_interval", "positions"),
    _left(r"multi_query(_attention)?", "the KV heads"),
    _left(r"attention_head_type", "the KV heads", lambda value: _used(value) and value != "multihead"),
    _left(r"kv_lora_rank|qk_(nope|rope)_head_dim|v_head_dim", "the keys and values"),
    _left(
        r"(num_)?(swa|sliding|global|local)_(head_dim|(num_)?(attention|key_value)_heads)", "the heads of some layers"
    ),
    _left(
        r"num_(attention|key_value)_heads_per_layer|pruned_heads",
        "the heads of some layers",
    ),
)
SWITCHES = (
    ("use_sliding_window", "sliding_window"),
    ("use_mla", "kv_lora_rank"),
    ("use_mla", "qk_nope_head_dim"),
    ("use_mla", "qk_rope_head_dim"),
    ("use_mla", "v_head_dim"),
)
"""a key, and the beginning of the keys that are off where it is false"""
WINDOW_SIZES = (
    "sliding_window_size", "interleaved_sliding_window", "attention_window_size", "attention_window", "window_size",
    "attn_window_size", "swa_window_size", "rswa_window",
)  # fmt: skip
"""names for the size of a window besides the family's own"""
ALL_WINDOWS = ("sliding_window", "local_attention", *WINDOW_SIZES)
"""all names for the size of a window, which a list of the layers' masks does not hold"""
LISTS = ("layer_types", "layers_block_type")
PARTS = (
    "vision_config",
    "audio_config",
    "img_processor",
    "embd_layer",
    "audio_processor",
    "vision_tower",
    "speech_config",
    "visual",
    "audio",
    "mm_vision_tower",
)
"""keys of parts of a model that the reader of a text model leaves out"""


COUNTS: tuple[tuple[str, tuple[str, ...], Callable[[LayerGroup], tuple[int, ...]]], ...] = (
    (
        "elements per head",
        (
            "head_dim", "attention_head_dim", "kv_channels", "head_size", "d_kv", "attention_head_size",
            "attn_head_dim", "d_head", "dim_head", "size_per_head",
        ),
        lambda group: (group.head_dim, group.head_dim_v),
    ),
    (
        "KV heads",
        (
            "num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "kv_n_heads", "num_query_groups",
            "num_attention_kv_heads", "num_kv_attention_heads", "n_kv_head", "kv_heads",
        ),
        lambda group: (group.heads_kv,),
    ),
)  # fmt: skip
"""what is counted, the keys that count it, and the numbers that a group has for it"""


def _says_the_window(name: str, value: Any, groups: Sequence[LayerGroup]) -> bool:
    """Whether it is a second name of the window that was read, as Gemma 2 has ``sliding_window_size``."""
    return name in WINDOW_SIZES and any(each.mask == "window" and each.window == value for each in groups)


def refuse_leftovers(keys: Keys, kind: str, groups: Sequence[LayerGroup] = ()) -> None:
    """An error for each key that changes attention and was not looked for, and a finding for each part left out.

    Args:
        kind: the family.
        groups: what was read. A key that counts something in them, and that nobody looked for, must say the same.
    """
    _refuse_unread(keys, kind, groups)
    refuse_miscounted(keys, kind, groups)
    _refuse_architectures(keys, kind, groups)
    if groups:
        _refuse_second_text(keys, kind)
    for name in PARTS:
        if name not in keys.asked and _used(keys.data.get(name)):
            keys.note("unread", name, "this part of the model has no layer group")


def _refuse_second_text(keys: Keys, kind: str) -> None:
    """An error for each key of a text model inside this one that says something else than the same key around it."""
    read = {*keys.asked}
    for name in TEXT_MODELS:
        inner = keys.inner(name) if name not in read and isinstance(keys.data.get(name), dict) else None
        if inner is None:
            continue
        for key, value in inner.data.items():
            around = keys.data.get(key)
            if key in read and _used(value) and value != around:
                there = "is missing" if around is None else f"is {shown(around)}"
                told = f"but {kind} is read from the keys around {name}, where it {there}"
                inner.wrong(key, f"is {shown(value)}, {told}. Remove {name}, or the keys around it")


def _refuse_unread(keys: Keys, kind: str, groups: Sequence[LayerGroup]) -> None:
    """An error for each key that changes attention and was not looked for."""
    off = tuple(prefix for switch, prefix in SWITCHES if keys.data.get(switch) is False)
    listed = any(name in keys.asked - keys.compared and _used(keys.data.get(name)) for name in LISTS)
    unsaid = any(each.mask in {"window", "band"} for each in groups) or _without_mask(keys)
    sizes = ALL_WINDOWS if unsaid else ()
    for name, value in keys.data.items():
        if name in keys.asked:
            continue
        left = next((each for each in LEFTOVERS if each.names.fullmatch(name)), None)
        if left is None or name.startswith(off) or _says_the_window(name, value, groups):
            continue
        if left.overruled and listed and name not in sizes:
            continue
        if left.counts(value):
            keys.wrong(
                name,
                f"is {shown(value)} and changes {left.changes}, but {kind} is read without it. Set it to null if the "
                "engine ignores it, or give the geometry in a matrix (docs/models.md)",
            )


def _without_mask(keys: Keys) -> bool:
    """Whether a list calls layers just ``attention``, as hybrids do: it does not say that they have no window."""
    lists = [keys.data[name] for name in LISTS if isinstance(keys.data.get(name), list)]
    return any("attention" in words for words in lists)


def refuse_miscounted(keys: Keys, kind: str, groups: Sequence[LayerGroup]) -> None:
    """An error for each key whose number differs from what was read into the groups."""
    for what, names, count in COUNTS:
        found = sorted({each for group in groups for each in count(group)})
        for name in names:
            value = None if name in keys.asked else keys.data.get(name)
            if found and _used(value) and value not in found:
                read = " and ".join(map(str, found))
                keys.wrong(name, f"is {shown(value)}, but {kind} is read without it, with {read} {what}")


BOTH_WAYS = re.compile(r"bidirec|BiModel|BiFor|Encoder(Model)?$", re.IGNORECASE)
"""in the name of a decoder's class: it has been made an encoder, as embedding models are"""
TASK = re.compile(r"For[A-Z]|LMHead|Model")
"""where the name of a class says what it is for; the family stands before it"""


def _refuse_architectures(keys: Keys, kind: str, groups: Sequence[LayerGroup]) -> None:
    """An error for each class that attends in another way than ``model_type`` says: engines choose code by it."""
    named = keys.data.get("architectures")
    for name in named if isinstance(named, list) else ():
        told = _other_family(str(name), kind)
        if BOTH_WAYS.search(str(name)) and any(each.mask != "full" and each.stack == "main" for each in groups):
            told = f"whose tokens all see each other, but {kind} is read as causal"
        if told:
            keys.wrong(
                "architectures",
                f"holds {name}, {told}. Engines choose the model's code by this name: correct model_type or this, or "
                "give the geometry in a matrix (docs/models.md)",
            )


def _other_family(name: str, kind: str) -> str:
    """Why a class belongs to a family that is not read; empty where it does not, or where model_type says so, too."""
    own = _plain(TASK.split(name, maxsplit=1)[0])
    other = next((each for it in UNEXPRESSED for each in it.model_types if _plain(each) == own != _plain(kind)), "")
    return f"which is {other}, a model that {why_unexpressed(other)}, but model_type is {kind}" if other else ""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
