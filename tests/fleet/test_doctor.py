"""What `qualify doctor` says of things that only a deployment knows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from qualify.fleet.doctor import _examine_bytecode, _examine_image


@pytest.mark.parametrize(
    ("image", "told"),
    [
        ("", "container image: unknown"),
        ("registry.example/qualify:0.1", "QUALIFY_IMAGE=registry.example/qualify:0.1 has no digest"),
        (f"registry.example/qualify@sha256:{'a' * 64}", ""),
    ],
)
def test_an_image_is_named_by_its_digest(image: str, told: str) -> None:
    """An unknown image, and one whose tag can move, are noted; neither is an error."""
    found = _examine_image(image)
    assert bool(told) == bool(found)
    assert all(told in item.detail and "note" == item.severity for item in found)


def test_torch_without_bytecode_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason, and the command that ends it; once the bytecode is there, nothing is told."""
    kept = tmp_path / "torch.pyc"
    assert torch.__spec__ is not None
    monkeypatch.setattr(torch.__spec__, "cached", str(kept))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (concern,) = _examine_bytecode()
    assert concern.severity == "note"
    assert "PYTHONDONTWRITEBYTECODE is set" in concern.detail
    assert f"python -m compileall -q -j 0 {Path(torch.__file__).parent}" in concern.detail
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (concern,) = _examine_bytecode()
    assert f"{tmp_path} cannot be written" in concern.detail
    kept.touch()
    assert _examine_bytecode() == []
