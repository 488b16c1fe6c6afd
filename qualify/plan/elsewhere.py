"""Says which file a fresh Python would import as a module. It runs there, by its path, on the standard library alone.

::

    python -P elsewhere.py MODULE ROOT FOLDER …

The last line of stdout is one JSON object: the folders that such a Python does not import from anyway, and the file.
Nothing is imported for it.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any


def look(module: str, root: str, folders: list[str]) -> dict[str, Any]:
    """What a kernel's process would find, with the root of the module and the other folders behind its own.

    Args:
        module: its dotted name.
        root: the folder of its outermost package.
        folders: others, resolved.
    """
    usual = {os.path.realpath(path) for path in sys.path}
    added = [folder for folder in folders if folder not in usual]
    sys.path += [root, *added]
    parts = module.split(".")
    spec = find_spec(parts[0])
    for depth in range(2, len(parts) + 1):
        spec = spec and PathFinder.find_spec(".".join(parts[:depth]), spec.submodule_search_locations or [])
    return {"added": added, "origin": spec and spec.origin}


if __name__ == "__main__":
    print(f"\n{json.dumps(look(sys.argv[1], sys.argv[2], sys.argv[3:]))}")
