"""What `qualify doctor` says of things that only a deployment knows."""

from __future__ import annotations

import pytest

from qualify.fleet.doctor import _examine_image


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
