"""The outside face: its names and signatures are those that were recorded, and it says when torch is missing.

``python tests/test_api.py`` records what is there now; a line that goes or changes breaks other people's code.
"""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import server

from qualify import api

RECORDED = Path(__file__).parent / "recorded_api.txt"


def described() -> str:
    """Each name with its fields, attributes and methods, one a line."""
    return "".join(f"{line}\n" for name in api.__all__ for line in lines_of(name, getattr(api, name)))


def lines_of(name: str, thing: object) -> Iterator[str]:
    """One name."""
    if not inspect.isclass(thing):
        yield f"{name} = {thing!r}"
        return
    yield f"class {name}"
    if dataclasses.is_dataclass(thing):
        for item in dataclasses.fields(thing):
            optional = item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING
            yield f"{name}.{item.name}: {item.type}{' (optional)' if optional else ''}"
    else:
        yield from (f"{name}.{key}: {value}" for key, value in vars(thing).get("__annotations__", {}).items())
    for key, value in sorted(vars(thing).items()):
        public = not key.startswith("_") or (key == "__call__" and inspect.isfunction(value))
        if inspect.isfunction(value) and public:
            yield f"{name}.{key}{inspect.signature(value)}"
        elif isinstance(value, property):
            yield f"{name}.{key} -> {value.fget.__annotations__['return']}"


def test_names_and_signatures_are_the_recorded_ones() -> None:
    """A change is meant, or it breaks other distributions."""
    assert RECORDED.read_text().splitlines() == described().splitlines(), f"if it is meant: python {__file__}"


def test_every_name_is_documented() -> None:
    """Each class says what it is; the list is sorted and complete."""
    assert sorted(api.__all__) == api.__all__
    assert not [name for name in api.__all__ if inspect.isclass(getattr(api, name)) and not getattr(api, name).__doc__]
    # pytest adds names that are none where it rewrites assertions: it does so for the package of a plugin.
    public = {name for name in vars(api) if name.isidentifier() and not name.startswith("_")} - {"annotations"}
    assert set(api.__all__) == public
    text = (Path(__file__).parent.parent / "docs" / "cards.md").read_text()
    assert [] == [name for name in api.__all__ if name not in text]


def python(code: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_package_itself_needs_no_torch() -> None:
    """Neither ``import qualify`` nor the loader of cards imports it."""
    ended = python("import sys, qualify, qualify.cards.load; sys.exit('torch' in sys.modules)")
    assert 0 == ended.returncode, ended.stderr


def test_a_missing_torch_is_named() -> None:
    """The base install has none: the message says what to type."""
    ended = python("import sys; sys.modules['torch'] = None\nimport qualify.api")
    last = ended.stderr.strip().splitlines()[-1]
    assert "pip install 'attn-qualify[run]'" in last
    assert last.startswith("ImportError: qualify.api needs torch")


WITHOUT = """
import sys

assert "torch" in sys.modules
for name in [name for name in sys.modules if name.split(".")[0] in {{"qualify", "{missing}"}}]:
    del sys.modules[name]
sys.modules["{missing}"] = None
import qualify.api
"""


@pytest.mark.parametrize("missing", ["pydantic", "packaging"])
def test_another_missing_module_is_not_taken_for_torch(missing, tmp_path) -> None:
    """Its own name is in the message. What asks for it is imported after torch, which is there already."""
    script = tmp_path / "importing.py"
    script.write_text(WITHOUT.format(missing=missing))
    ended = server().run([], tmp_path, 60, script=str(script))
    assert ended.code == 1
    assert missing in ended.err.strip().splitlines()[-1]


if __name__ == "__main__":
    RECORDED.write_text(described())
