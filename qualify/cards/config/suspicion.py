"""Keys of a config that name code, or choose it. They are reported and never followed.

A key of ``config.json`` decided once which code ran in attention dispatch (CVE-2026-4372).
"""

from __future__ import annotations

import re

from qualify.cards.config.keys import ConfigNote
from qualify.cards.places import dotted
from qualify.cards.problems import shown
from qualify.cards.words import Where

KEYS = re.compile(
    r"auto_map|trust_remote_code|code_revision|custom_(pipelines|generate|code|objects|modules?)|.*_?implementation"
    r"(_.*)?|.*(attn|attention)_?(impl|class|cls|fn|func|function|kernel|module|backend)|(kernel|module|entry|import)s?_?"
    r"(config|path|file|name|point|repo)?|__(?!float__).*__|.*_(script|py|pickle|exec)"
)
"""names of keys that name code or choose between code paths; ``__float__`` is how transformers writes infinity"""
CACHES = ("dynamic", "dynamic_full", "static", "sliding_window", "hybrid", "hybrid_chunked", "mamba", "paged")
CACHE_KINDS = ("offloaded", *CACHES, *(f"offloaded_{name}" for name in CACHES))
"""caches of transformers itself, as ``cache_implementation`` of the Gemma models names one: they hold the same keys"""
VALUES = (
    (re.compile(r"\.(py|so|pkl|pickle)\b"), "names a file of code"),
    (re.compile(r"--[\w.]+\.\w+$"), "names a class in another repository"),
    (re.compile(r"^[\w.-]+/[\w.-]+(@[\w.-]+)?:[\w.:]+$"), "names a function in a repository of kernels"),
    (re.compile(r"\b(import |__\w+__|lambda\b|eval\(|exec\(|os\.system|subprocess|!!python)"), "holds code"),
)


def suspicious(data: object, where: Where = ()) -> list[ConfigNote]:
    """A finding for each key that names code, at any depth; what lies below such a key belongs to it."""
    found: list[ConfigNote] = []
    items = enumerate(data) if isinstance(data, list) else data.items() if isinstance(data, dict) else ()
    for key, value in items:
        here = (*where, key)
        if isinstance(key, str) and value not in (None, "", [], {}) and KEYS.fullmatch(key.lower()):
            if key != "cache_implementation" or value not in CACHE_KINDS:
                found.append(_finding(here, f"{shown(value)}: names or chooses code; it was not followed"))
        elif isinstance(value, str):
            found += [
                _finding(here, f"{shown(value)}: {what}; it was not followed")
                for pattern, what in VALUES
                if pattern.search(value)
            ][:1]
        else:
            found += suspicious(value, here)
    return found


def _finding(where: Where, detail: str) -> ConfigNote:
    return ConfigNote(kind="names-code", where=dotted(where), detail=detail)
