"""Serving engines and the names that they give to attention backends: which kernel card each name means.

The table itself is in :mod:`qualify.facts.backends`, and vLLM's part in :mod:`qualify.facts.vllm_backends` and
:mod:`qualify.facts.vllm_rules`. Every rule quotes the engine's source, so that ``docs/check_engines.py`` can compare
the table with a released wheel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qualify.facts.case import Phase
from qualify.facts.devices import DeviceKind
from qualify.facts.dtypes import Dtype

EngineName = Literal["transformers", "vllm", "sglang"]
About = Literal[
    "head_dim",
    "dtype",
    "cache",
    "queries",
    "capability",
    "sinks",
    "latent",
    "windows",
    "images",
    "attention_type",
    "model_type",
]
Build = Literal["same", "other"]

LONG_HEAD = 256
"""elements of a key; the kernels of most libraries have no longer ones"""
HALF: tuple[Dtype, ...] = ("bf16", "fp16")
"""dtypes of queries of 16 bits, in the order in which documents name them"""
FP8: tuple[Dtype, ...] = ("fp8_e4m3",)
"""queries in fp8 beside a cache in fp8"""
HALF_ON_FP8: tuple[Dtype, ...] = ("bf16_kv_fp8_e4m3", "fp16_kv_fp8_e4m3")
"""queries of 16 bits beside a cache in fp8"""
PROMPTS: tuple[Phase, ...] = ("prefill", "chunked", "varlen")
"""phases in which a sequence has several new tokens, all of them of a prompt"""
ON_CACHE: tuple[Phase, ...] = ("chunked", "decode", "verify")
"""phases in which a sequence has keys in the cache"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    """A piece of an engine's source."""

    file: str
    """path inside of the wheel"""
    text: str
    """what stands there, with every run of white space as one space"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One thing that an engine looks at before it takes a backend, and what it says where it refuses."""

    about: About
    """the value that it looks at. dtype: that of the model; cache: format of keys and values, where it is fp8; queries:
    format in which they reach the kernel beside such a cache; capability: ten times the compute capability, 90 for 9.0;
    sinks, latent, windows: 1 where the model has it, else 0; images: 1 where the tokens of an image or of a prompt see
    later ones; attention_type: decoder, encoder_only or encoder_decoder"""
    says: str
    """the reason as the engine words it"""
    quote: Quote | None = None
    """where the engine's source says so; None where the script reads the values themselves (model_type)"""
    least: int | None = None
    most: int | None = None
    multiple_of: int = 1
    among: tuple[int | str, ...] = ()
    """the only values that are taken; empty = every one"""
    never: tuple[str, ...] = ()
    """values that are refused"""
    with_sinks: bool = False
    """the rule holds only for models with attention sinks"""
    with_fp8: bool = False
    """the rule holds only for a cache in fp8"""
    majors: tuple[int, ...] = ()
    """the rule holds only for compute capabilities with this first number; empty = for every one"""

    def refuses(self, value: int | str) -> bool:
        """Whether the engine refuses that value."""
        if value in self.never or (self.among and value not in self.among):
            return True
        if isinstance(value, str):
            return False
        return (
            (self.least is not None and value < self.least)
            or (self.most is not None and value > self.most)
            or value % self.multiple_of != 0
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFor:
    """A kernel card that stands for a backend, on some devices."""

    card: str
    build: Build = "same"
    """same: the card runs the binary that the engine uses; other: the same library from another package"""
    device: DeviceKind = "cuda"
    majors: tuple[int, ...] = ()
    """compute capabilities by their first number; empty = every one"""
    latent: bool | None = None
    """whether it is for latent attention; None = for both"""
    dtypes: tuple[Dtype, ...] = ()
    """dtypes of the calls that it is for; empty = every one without a cache in fp8"""
    phases: tuple[Phase, ...] = ()
    """phases that the backend gives to it; empty = all"""
    long_heads: bool | None = None
    """whether it is for models with keys of more than 256 elements; None = for both"""
    quotes: tuple[Quote, ...] = ()
    """where the engine's source chooses it"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """What one name of an engine means."""

    name: str
    """as its users write it"""
    named: Quote
    """where the engine lists the name"""
    served: tuple[CardFor, ...] = ()
    """the cards; empty = qualify has none, so it cannot check this backend"""
    rules: tuple[Rule, ...] = ()
    phases: tuple[Phase, ...] = ()
    """phases that it serves; empty = all. The engine has another backend for the others"""
    note: str = ""
    """what a reader should know of the choice; a sentence"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PerHead:
    """A family with latent attention that an engine runs as usual attention.

    Its cache has the keys and values of each head, and the values are padded to the length of the keys.
    """

    model_type: str
    quote: Quote


@dataclass(frozen=True, kw_only=True, slots=True)
class Wider:
    """A family in whose windows an engine shows one key more than the config says."""

    model_types: tuple[str, ...]
    quote: Quote


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """An architecture that an engine no longer runs, whatever the backend."""

    model_types: tuple[str, ...]
    """families that have it"""
    architecture: str
    says: str
    """the reason"""
    quote: Quote


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """A project that serves models, and its backends."""

    name: EngineName
    title: str
    version: str
    """release whose sources the table was compared with"""
    option: str
    """how its users choose a backend"""
    backends: tuple[Backend, ...]
    on_latent: bool = True
    """whether it decodes latent attention on the latent itself; else its cache has the keys and values of each head"""
    per_head: tuple[PerHead, ...] = ()
    """families that it decodes with the keys and values of each head, though it decodes others on the latent"""
    wider: tuple[Wider, ...] = ()
    """families whose windows it makes wider by one key"""
    dropped: tuple[Dropped, ...] = ()
    """architectures that it ran in earlier releases"""

    def backend(self, name: str) -> Backend | None:
        """The backend of that name, in any case of letters; None where the table has none."""
        return next((each for each in self.backends if each.name.lower() == name.lower()), None)
