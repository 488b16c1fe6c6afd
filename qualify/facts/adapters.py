"""The adapters that qualify ships and the options of each: data, so that a card is checked without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Scalar = str | int | float | bool
ENTRY_POINTS = "qualify.adapters"
"""entry-point group in which other distributions offer adapters; an entry is the name on a card and a ``create``"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One setting that an adapter takes from the ``options`` of a card."""

    name: str
    """key on the card"""
    default: Scalar
    """value where the card leaves it out; a card's value has the same type"""
    meaning: str
    """what it changes, in one line"""
    choices: tuple[Scalar, ...] = ()
    """allowed values; empty = every value of the type"""
    at_least: int | None = None
    """least allowed number; None = no limit"""

    def is_typed(self, value: object) -> bool:
        """Whether a value has the option's type; true and false are no numbers."""
        return isinstance(value, type(self.default)) and isinstance(value, bool) == isinstance(self.default, bool)

    def allows(self, value: Any) -> bool:
        """Whether a card may give this value."""
        if not self.is_typed(value) or (self.choices and value not in self.choices):
            return False
        return self.at_least is None or value >= self.at_least


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFacts:
    """One module of ``qualify.run.adapters``."""

    name: str
    """name of the module; a card gives it as ``adapter``"""
    options: tuple[Option, ...] = ()


ADAPTERS = (
    AdapterFacts(name="flash_attn"),
    AdapterFacts(name="flash_attn_cute"),
    AdapterFacts(
        name="flashinfer",
        options=(
            Option(name="backend", default="fa2", choices=("fa2", "fa3"), meaning="FlashInfer's family of kernels"),
            Option(
                name="use_tensor_cores",
                default=False,
                meaning="paged decode with fa2 takes the kernel with tensor cores for every head group",
            ),
        ),
    ),
    AdapterFacts(
        name="flashinfer_mla",
        options=(
            Option(name="backend", default="fa2", choices=("fa2", "fa3"), meaning="FlashInfer's family of kernels"),
        ),
    ),
    AdapterFacts(name="flashmla"),
    AdapterFacts(name="flex_attention"),
    AdapterFacts(
        name="tiled_torch",
        options=(
            Option(name="tile_q", default=256, at_least=1, meaning="queries of a tile"),
            Option(name="tile_k", default=512, at_least=1, meaning="keys of a tile"),
        ),
    ),
    AdapterFacts(
        name="torch_sdpa",
        options=(
            Option(
                name="backend",
                default="auto",
                choices=("auto", "flash", "efficient", "cudnn", "math"),
                meaning="backend that is pinned; auto = PyTorch chooses",
            ),
            Option(
                name="causal",
                default="lower_right",
                choices=("lower_right", "is_causal"),
                meaning="is_causal passes a causal mask to PyTorch as is_causal=True for all lengths",
            ),
        ),
    ),
    AdapterFacts(
        name="vllm_flash_attn",
        options=(Option(name="fa_version", default=3, choices=(3, 2), meaning="generation of FlashAttention"),),
    ),
    AdapterFacts(name="vllm_triton"),
)


def options_of(adapter: str) -> tuple[Option, ...] | None:
    """The options of a shipped adapter; None where qualify ships none of that name."""
    return next((known.options for known in ADAPTERS if known.name == adapter), None)


def settle(adapter: str, options: Mapping[str, Scalar]) -> dict[str, Any]:
    """A value for every option of a shipped adapter: the given one, else its default.

    Raises:
        ValueError: the adapter does not have an option, or does not allow a value.
    """
    declared: Sequence[Option] = options_of(adapter) or ()
    known = {option.name: option for option in declared}
    wrong = {name: value for name, value in options.items() if name not in known or not known[name].allows(value)}
    if wrong:
        allowed = {option.name: list(option.choices) or type(option.default).__name__ for option in declared}
        raise ValueError(f"{adapter}: options {wrong} are none of {allowed}")
    return {option.name: options.get(option.name, option.default) for option in declared}
