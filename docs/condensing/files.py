"""Reads JSON, and writes it as docs/evidence keeps it.

Numbers are short and each entry is a line of its own, so that a change shows as a few lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qualify.facts import codec

DIGITS = 8
"""significant ones of a number; the documents show two or three"""


def read(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        SystemExit: there is no such file, or it is no JSON.
    """
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}. The name is probably mistyped.") from error
    except ValueError as error:
        raise SystemExit(f"{path}: it is no JSON ({error}). Give the file that the help names.") from error


def short(value: Any) -> Any:
    """The same data with every fraction in so many digits."""
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [short(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def text_of(data: dict[str, Any]) -> str:
    """Strict JSON: each key on a line, and beneath it each entry of its list or object on a line of its own."""
    fields = [f"{json.dumps(name)}: {_entries(codec.strict(short(value)))}" for name, value in data.items()]
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _entries(value: Any) -> str:
    if isinstance(value, dict) and value:
        lines = [f"{json.dumps(key, ensure_ascii=False)}: {_compact(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + "\n}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(_compact(item) for item in value) + "\n]"
    return _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
