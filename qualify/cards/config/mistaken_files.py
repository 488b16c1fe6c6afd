"""Files and folders that people give for a model, and from which no attention is read: weights and adapters."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from qualify.cards.config.hub import FILE
from qualify.errors import UsageError
from qualify.files import exists, is_file, is_folder
from qualify.text import one_line, shell_word

WEIGHTS = frozenset({".gguf", ".safetensors", ".bin", ".pt", ".pth", ".onnx"})
"""how the names of files of weights end"""
ADAPTER = "adapter_config.json"
"""what PEFT calls the config of an adapter, such as LoRA"""
LONGEST = 1 << 16
"""bytes of such a config that are read"""


def refuse_mistaken(path: Path) -> None:
    """Raises UsageError for a folder without a config.json, for a file of weights, and for the config of an adapter."""
    if is_folder(path) and not exists(path / FILE):
        why = _of_adapter(path / ADAPTER) or f"Give the folder of a model, or the path of its {FILE}."
        raise UsageError(f"{path}: the folder has no {FILE}. {why}")
    if is_file(path) and path.suffix.lower() in WEIGHTS:
        beside = path.with_name(FILE)
        there = (
            f"the {FILE} beside it: {beside}" if is_file(beside) else "the config.json of the model that they are of"
        )
        raise UsageError(f"{path}: holds weights, and attention is read from a {FILE}. Give {there}")
    if path.name == ADAPTER and (why := _of_adapter(path)):
        raise UsageError(f"{path}: is the config of an adapter, and no {FILE} of a model. {why}")


def _of_adapter(path: Path) -> str:
    """Which model has the attention of an adapter; empty where the file does not say it."""
    base = None
    with suppress(OSError, ValueError, RecursionError, AttributeError):
        if path.stat().st_size <= LONGEST:
            base = json.loads(path.read_text()).get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        return ""
    named = one_line(base)
    return f"An adapter has the attention of its base model, here {named}: qualify check {shell_word(named)}"
