"""Options of kernel cards: what an adapter declares is checked when the card is loaded, and says where and what."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import call

from qualify.cards.load import load_kernels
from qualify.errors import CardError
from qualify.facts.adapters import ADAPTERS, Option, settle

MODULES = {
    "acme_declares": (
        "from qualify.facts.adapters import Option\n"
        "def create(options):\n    raise AssertionError('no adapter is made')\n"
        "create.declared_options = (Option(name='tile', default=64, at_least=16, meaning='keys of a tile'),)\n"
    ),
    "acme_silent": "def create(options):\n    return None\n",
    "acme_broken": "raise RuntimeError('no driver')\n",
}


def problems(folder: Path, write: Any, kernel: Any, **changes: Any) -> list[str]:
    """What is wrong with a card, with its place."""
    write(kernel({"kernel": "mine", **changes}), "mine.yaml")
    try:
        load_kernels((folder,))
    except CardError as error:
        return [f"{Path(place.path).name}:{place.line}:{place.column}: {text}" for place, text in error.problems]
    return []


BACKENDS = "must be one of auto, flash, efficient, cudnn, math, but is"
FLAG = "must be true or false, but is"
WRONG: tuple[tuple[str, str, Any, str], ...] = (
    ("torch_sdpa", "backend", "autoo", f'{BACKENDS} "autoo"; perhaps you meant auto'),
    ("torch_sdpa", "backend", "fastest", f'{BACKENDS} "fastest"'),
    (
        "torch_sdpa",
        "backnd",
        "auto",
        "unknown option of the adapter torch_sdpa; perhaps you meant backend. Allowed here: backend, causal",
    ),
    ("flash_attn", "fa_version", 2, "unknown option; the adapter flash_attn has none"),
    ("vllm_flash_attn", "fa_version", 4, "must be one of 3, 2, but is 4"),
    ("vllm_flash_attn", "fa_version", "3", 'must be one of 3, 2, but is "3"; write it without quotes'),
    ("vllm_flash_attn", "fa_version", True, "must be one of 3, 2, but is true"),
    ("flashinfer", "use_tensor_cores", "yes", f'{FLAG} "yes"; YAML 1.2 reads yes, no, on and off as text'),
    ("flashinfer", "use_tensor_cores", 1, f"{FLAG} 1"),
    ("tiled_torch", "tile_q", 0, "must be at least 1, but is 0"),
    ("tiled_torch", "tile_k", 1.5, "must be a whole number, but is 1.5"),
)


@pytest.mark.parametrize(("adapter", "name", "value", "expected"), WRONG)
def test_a_wrong_option_is_refused_with_its_place(tmp_path, write, kernel, adapter, name, value, expected) -> None:
    """Key or value, the allowed ones, and the one that was perhaps meant."""
    (found,) = problems(tmp_path, write, kernel, adapter=adapter, options={name: value})
    assert f"options.{name}: {expected}" == found.partition(": ")[2]
    lines = (tmp_path / "mine.yaml").read_text().splitlines()
    _, line, column = found.partition(": ")[0].split(":")
    assert name in lines[int(line) - 1]
    assert int(column) >= 1


@pytest.mark.parametrize("command", [("kernels",), ("plan", "smoke"), ("run", "smoke", "--db", "e.db")])
def test_commands_refuse_a_card_with_a_wrong_option(tmp_path, write, kernel, command) -> None:
    """Exit 2 with file, line and column, before anything is planned or run."""
    write(kernel({"kernel": "mine", "adapter": "torch_sdpa", "options": {"backend": "autoo"}}), "mine.yaml")
    ended = call(*command, "--cards", ".", cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    assert re.search(r"mine\.yaml:\d+:\d+: options\.backend: .* perhaps you meant auto", ended.err)
    assert not (tmp_path / "e.db").exists()


@pytest.mark.parametrize("known", ADAPTERS, ids=lambda known: known.name)
def test_every_declared_value_is_taken(tmp_path, write, kernel, known) -> None:
    """Defaults and choices are allowed on a card and by the adapter itself."""
    for option in known.options:
        assert option.allows(option.default)
        for value in (option.default, *option.choices):
            assert [] == problems(tmp_path, write, kernel, adapter=known.name, options={option.name: value})
            assert value == settle(known.name, {option.name: value})[option.name]
    assert {option.name: option.default for option in known.options} == settle(known.name, {})


def test_every_option_is_documented() -> None:
    """The page of cards has a row for each, with its values and its default."""
    page = (Path(__file__).parents[2] / "docs" / "cards.md").read_text()
    rows = {(known.name, option.name): option for known in ADAPTERS for option in known.options}
    for (adapter, name), option in rows.items():
        values = ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in option.choices)
        default = json.dumps(option.default).strip('"')
        assert f"| `{adapter}` | `{name}` | {values or type(option.default).__name__} | `{default}` |" in page


def test_options_of_a_function_are_its_keywords(tmp_path, write, kernel) -> None:
    """``adapter: call`` hands them on; nothing is known of them."""
    changes = {"adapter": "call", "entry": "mine:attend", "shipped_by": ..., "options": {"any": "thing"}}
    assert [] == problems(tmp_path, write, kernel, **changes)


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution that offers three adapters."""
    site = tmp_path / "site"
    (site / "acme-1.0.dist-info").mkdir(parents=True)
    (site / "acme-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    offered = "".join(f"{name} = {name}:create\n" for name in MODULES)
    (site / "acme-1.0.dist-info" / "entry_points.txt").write_text(f"[qualify.adapters]\n{offered}")
    for name, text in MODULES.items():
        (site / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(site))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def test_another_distributions_declaration_is_read(tmp_path, write, kernel, acme) -> None:
    """Its options are checked as those of the shipped adapters, and no adapter is made for it."""
    (found,) = problems(tmp_path, write, kernel, adapter="acme_declares", options={"tyle": 64})
    assert found.endswith("unknown option of the adapter acme_declares; perhaps you meant tile. Allowed here: tile")
    (found,) = problems(tmp_path, write, kernel, adapter="acme_declares", options={"tile": 8})
    assert found.endswith("options.tile: must be at least 16, but is 8")
    assert [] == problems(tmp_path, write, kernel, adapter="acme_declares", options={"tile": 32})


@pytest.mark.parametrize("adapter", ["acme_silent", "acme_broken", "not_installed"])
def test_without_a_declaration_nothing_is_checked(tmp_path, write, kernel, acme, adapter) -> None:
    """Neither where the adapter says nothing, nor where it cannot be imported here."""
    assert [] == problems(tmp_path, write, kernel, adapter=adapter, options={"any": "thing"})


def test_numbers_are_no_flags() -> None:
    """True is no 1, and 3.0 no 3."""
    option = Option(name="n", default=1, choices=(1, 3), meaning="x")
    assert [True, False, False, False] == [option.allows(value) for value in (3, True, 3.0, 2)]
