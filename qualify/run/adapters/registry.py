"""Adapters by the name that cards use, and third parties' functions."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from qualify.cards.kernel import KernelCard
from qualify.plan.code import ENTRY_POINTS
from qualify.run.adapters.interface import Adapter, AttentionCall, Prepared
from qualify.run.adapters.source import constants

ADAPTERS = (
    "flash_attn",
    "flash_attn_cute",
    "flashinfer",
    "flashinfer_mla",
    "flashmla",
    "flex_attention",
    "tiled_torch",
    "torch_sdpa",
    "vllm_flash_attn",
    "vllm_triton",
)
"""modules of this package with a ``create(options)``"""

ENTRY_SOURCE = """\
import importlib
import sys

{chosen}
sys.path.append(FOLDER)
entry = importlib.import_module("{module}").{path}


def attend(call):
    returned = entry(call, **OPTIONS)
    return returned if isinstance(returned, tuple) else (returned, None)
"""


class EntryAdapter:
    """A third party's function, called with the canonical layout as it is (``adapter: call``)."""

    def __init__(self, function: Any, options: dict[str, Any], entry: str = "") -> None:
        self.function = function
        self.options = options
        self.entry = entry

    def prepare(self, call: AttentionCall) -> Prepared:
        """Nothing to convert."""

        def result(native: Any) -> tuple[Tensor, Tensor | None]:
            return native if isinstance(native, tuple) else (native, None)

        return Prepared(launch=lambda: self.function(call, **self.options), result=result)

    def source(self) -> str:
        """The import of the entry from the folder in which its module lies, and its call."""
        module_name, _, path = self.entry.partition(":")
        file = Path(str(getattr(sys.modules[module_name], "__file__", "")))
        levels = module_name.count(".") + (file.stem == "__init__")
        chosen = constants(FOLDER=str(file.resolve().parents[levels]), OPTIONS=self.options)
        return ENTRY_SOURCE.format(chosen=chosen, module=module_name, path=path)


def create_adapter(card: KernelCard) -> Adapter:
    """The adapter that a card names, with the card's options bound.

    Raises:
        ImportError: the library or the third party's entry cannot be imported; the message names it.
    """
    options = dict(card.options)
    if card.adapter == "call":
        return EntryAdapter(load_entry(str(card.entry)), options, str(card.entry))
    if card.adapter in ADAPTERS:
        module = importlib.import_module(f"qualify.run.adapters.{card.adapter}")
        adapter: Adapter = module.create(options)
        return adapter
    for entry in metadata.entry_points(group=ENTRY_POINTS, name=card.adapter):
        offered: Adapter = entry.load()(options)
        return offered
    raise ImportError(
        f"no adapter named {card.adapter!r}: built in are {', '.join(ADAPTERS)}; other distributions offer theirs in "
        f"the entry-point group {ENTRY_POINTS}"
    )


def load_entry(entry: str) -> Any:
    """The function behind ``package.module:function``.

    Raises:
        ImportError: the module does not import, or has no such function.
    """
    module_name, _, path = entry.partition(":")
    target: Any = importlib.import_module(module_name)
    for name in path.split("."):
        if not hasattr(target, name):
            raise ImportError(f"{entry}: module {module_name} has no {path}")
        target = getattr(target, name)
    if not callable(target):
        raise ImportError(f"{entry} is {type(target).__name__}, not a function")
    return target
