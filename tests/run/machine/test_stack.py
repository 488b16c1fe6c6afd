"""The fingerprint of what a run ran on."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qualify
from qualify.errors import DeviceError
from qualify.run.machine.device import processor_of
from qualify.run.machine.software import dispatch_environment
from qualify.run.machine.stack import describe_stack, mapped_binaries

ROOT = Path(qualify.__file__).resolve().parents[1]


def test_this_cpu_is_described() -> None:
    """Name, cores and memory of the machine; no capability."""
    device = processor_of("cpu").describe()
    assert ("cpu", "") == (device.kind, device.compute_capability)
    assert device.name
    assert device.units >= 1
    assert device.memory_bytes > 1 << 28
    assert device.cache_bytes >= 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_gpu_is_an_error_that_says_what_to_do() -> None:
    """Why there is none, and the way out."""
    with pytest.raises(DeviceError, match=r"no CUDA device: .*--device cpu"):
        processor_of("cuda").describe()


def test_the_stack_names_versions_and_binaries(tmp_path: Path) -> None:
    """Python, torch with the digest of its RECORD, and torch's mapped libraries by their content."""
    cache = tmp_path / "sha256.json"
    stack = describe_stack(processor_of("cpu").describe(), cache)
    assert platform.python_version() == stack.version("python")
    torch_itself = next(part for part in stack.components if part.name == "torch")
    assert ("distribution", 64) == (torch_itself.kind, len(torch_itself.digest))
    library = next(path for path in mapped_binaries() if path.name.startswith("libtorch_python"))
    digests = {part.name: part.digest for part in stack.components if part.kind == "binary"}
    assert hashlib.sha256(library.read_bytes()).hexdigest() == digests[library.name]
    assert stack == describe_stack(processor_of("cpu").describe(), cache)


def test_a_broken_or_unwritable_cache_only_costs_time(tmp_path: Path) -> None:
    """Hashes are computed again."""
    device = processor_of("cpu").describe()
    cache = tmp_path / "sha256.json"
    expected = describe_stack(device, cache)
    cache.write_text("{broken")
    assert expected == describe_stack(device, cache)
    (tmp_path / "file").write_text("")
    assert expected == describe_stack(device, tmp_path / "file" / "sha256.json")


def test_equal_software_on_two_cards_has_one_fingerprint(tmp_path: Path) -> None:
    """The card's UUID does not count, everything else does."""
    stack = describe_stack(processor_of("cpu").describe(), tmp_path / "sha256.json")
    assert stack.fingerprint == replace(stack, device=replace(stack.device, uuid="another")).fingerprint
    assert stack.fingerprint != replace(stack, device=replace(stack.device, units=1000)).fingerprint
    assert stack.fingerprint != replace(stack, environment={**stack.environment, "VLLM_X": "1"}).fingerprint
    assert stack.fingerprint != replace(stack, components=stack.components[1:]).fingerprint


def test_the_environment_holds_what_steers_dispatch_and_no_secret() -> None:
    """Variables of the libraries, sorted; never one that may hold a token."""
    hidden = {"NVIDIA_API_KEY": "hidden", "TORCH_HUB_TOKEN": "hidden", "HOME_COLOUR": "blue"}
    found = dispatch_environment({"VLLM_ATTENTION_BACKEND": "FLASH_ATTN", "CUDA_X": "1", **hidden})
    assert [("CUDA_X", "1"), ("VLLM_ATTENTION_BACKEND", "FLASH_ATTN")] == list(found.items())


def test_what_a_library_sets_is_not_what_was_set() -> None:
    """The environment is that of the process's start: a worker that loaded a library and one that did not agree."""
    code = (
        "import os; os.environ['VLLM_LATER'] = '1'; "
        "from qualify.run.machine.software import dispatch_environment, started_with; "
        "print(sorted(dispatch_environment(started_with())))"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "VLLM_AT_START": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "['VLLM_AT_START']\n" == ended.stdout
