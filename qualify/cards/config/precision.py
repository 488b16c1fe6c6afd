"""The dtype in which a model is served, as its config.json has it."""

from __future__ import annotations

from qualify.cards.config.keys import Keys
from qualify.cards.config.wrappers import WRAPPERS
from qualify.cards.problems import shown
from qualify.facts.dtypes import HALVES, TORCH_NAMES, USUAL, Dtype

NAMES = ("dtype", "torch_dtype")
"""keys that may say it: that of transformers 5, which wins where both stand, and that of earlier versions"""


def read_dtype(keys: Keys) -> Dtype:
    """The 16-bit dtype that the config names, at its top or in its text model; the usual one where it names none.

    Engines serve weights of 32 bits in 16, and nothing else is a dtype of queries. A finding says so.
    """
    kind = keys.text("model_type")
    parts = [keys, *(keys.inner(each.under) for each in WRAPPERS if kind in each.model_types)]
    named = next(((part, name) for part in parts if part for name in NAMES if part.has(name)), None)
    if named is None:
        return USUAL
    part, name = named
    value = part.value(name)
    known = TORCH_NAMES.get(value.removeprefix("torch.")) if isinstance(value, str) else None
    dtype = next((each for each in HALVES if each == known), None)
    if dtype is None:
        other = "`qualify check --dtype` and the key dtypes of a matrix take another one"
        part.note("no-effect", name, f"is {shown(value)}, and the model is planned in {USUAL}; {other}")
    return dtype or USUAL
