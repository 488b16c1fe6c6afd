"""The dtype in which a model is served, as its config.json has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qualify.cards.config.keys import Keys
from qualify.cards.config.wrappers import WRAPPERS
from qualify.cards.problems import shown
from qualify.facts.dtypes import HALVES, TORCH_NAMES, USUAL, Dtype

NAMES = ("dtype", "torch_dtype")
"""keys that may say it: that of transformers 5, which wins where both stand, and that of earlier versions"""
QUANTIZED = (
    ("quantization_config",),
    ("quantization_config", "quantization"),
    ("quantization_config", "export"),
    ("compression_config",),
)
"""where a checkpoint says how it is quantized: the usual key, ModelOpt and Quark within it, and earlier
compressed-tensors"""
CACHES = ("kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_group", "kv_cache_quant_config")
"""keys there that say how the cache is quantized: of compressed-tensors, of ModelOpt, and two of Quark"""


def read_dtype(keys: Keys) -> Dtype:
    """The 16-bit dtype that the config names, at its top or in its text model; the usual one where it names none.

    Engines serve weights of 32 bits in 16, and nothing else is a dtype of queries. A finding says so.
    """
    kind = keys.text("model_type")
    parts = [keys, *(keys.inner(each.under) for each in WRAPPERS if kind in each.model_types)]
    there = [part for part in parts if part]
    dtype = _named(there)
    for part in there:
        _note_cache(part, dtype)
    return dtype


def _named(parts: Sequence[Keys]) -> Dtype:
    """The dtype that one of the parts names."""
    named = next(((part, name) for part in parts for name in NAMES if part.has(name)), None)
    if named is None:
        return USUAL
    part, name = named
    value = part.value(name)
    known = TORCH_NAMES.get(value.removeprefix("torch.")) if isinstance(value, str) else None
    dtype = next((each for each in HALVES if each == known), None)
    if dtype is None:
        unless = "unless `qualify check --dtype` or the key dtypes of a matrix names another type"
        part.note("no-effect", name, f"is {shown(value)}, and the model is planned in {USUAL} {unless}")
    return dtype or USUAL


def _note_cache(part: Keys, dtype: Dtype) -> None:
    """A finding where the checkpoint has scales for a quantized cache: an engine may take one without being told."""
    found = (_under(part.data, way) for way in QUANTIZED)
    for way, quantized in zip(QUANTIZED, found, strict=True):
        for name in (name for name in CACHES if quantized.get(name)):
            detail = (
                f"names a quantized cache of keys and values, and the model is planned with a cache in {dtype} "
                f"unless `qualify check --dtype {dtype}_kv_fp8_e4m3` or the key dtypes of a matrix asks for one in fp8"
            )
            part.note("no-effect", ".".join((*way, name)), detail)


def _under(data: Mapping[str, Any], way: Sequence[str]) -> Mapping[str, Any]:
    """The mapping at the end of a way of keys; an empty one where there is none."""
    for name in way:
        inner = data.get(name)
        data = inner if isinstance(inner, dict) else {}
    return data
