"""What a machine has, as the tools of makers list it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qualify.errors import DeviceError
from qualify.facts.devices import KINDS, ListedDevice, Listing
from qualify.fleet.probe import find_host


def tool(folder: Path, name: str, text: str, status: int = 0) -> None:
    """A program that prints that text and ends with that status, with its arguments behind it on stderr."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\nprint({text!r})\nsys.exit({status})\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def test_the_first_card_of_nvidias_tool_is_found(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the one that the environment chooses, by number or by the beginning of its UUID."""
    tool(machine, "nvidia-smi", "0, GPU-aa, NVIDIA H100 80GB HBM3, 9.0\n1, GPU-bb, NVIDIA A100, 8.0")
    assert ("cuda", "NVIDIA H100 80GB HBM3", "9.0") == _found("auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert ("cuda", "NVIDIA A100", "8.0") == _found("cuda")


def test_a_tool_of_another_language_is_a_row_of_the_table(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments and how its answer is read stand with the kind: no other file knows the tool."""

    def read(printed: str) -> list[ListedDevice]:
        return [
            ListedDevice(index=str(at), uuid=it["id"], name=it["name"], compute_capability="")
            for at, it in enumerate(json.loads(printed)["cards"])
        ]

    listing = Listing(maker="Else", tool="else-smi", arguments=("list", "--json"), read=read, chosen_by="ELSE_VISIBLE")
    monkeypatch.setitem(KINDS, "cuda", replace(KINDS["cuda"], listing=listing))
    tool(machine, "else-smi", json.dumps({"cards": [{"id": "e-0", "name": "Else One"}, {"id": "e-1", "name": "Two"}]}))
    assert ("cuda", "Else One", "") == _found("auto")
    monkeypatch.setenv("ELSE_VISIBLE", "1")
    assert ("cuda", "Two", "") == _found("auto")
    for nonsense in ("no JSON", "{}", ""):
        tool(machine, "else-smi", nonsense)
        assert "cpu" == _found("auto")[0]


def test_a_tool_that_fails_lists_nothing(machine: Path) -> None:
    """And whoever asked for a GPU is told which tool said so."""
    tool(machine, "nvidia-smi", "0, GPU-aa, NVIDIA H100, 9.0", status=9)
    with pytest.raises(DeviceError, match="nvidia-smi lists none"):
        find_host("cuda")


def _found(asked: str) -> tuple[str, str, str]:
    host = find_host(asked)
    return host.kind, host.name, host.compute_capability
