"""Names and content of calls as earlier releases wrote them: stored evidence is found by them."""

from __future__ import annotations

import hashlib
import json

import pytest

from qualify.cards.load import load_matrix
from qualify.plan.geometry import expand_geometries
from qualify.plan.workloads import geometry_of

RECORDED = {
    "all-models": "0a4f128870dc22d3",
    "hopper": "bc48ca3f2a454a35",
    "incidents": "ee1ad47c1d5149fd",
    "encoders": "98387104d4670c9c",
    "gpt-oss": "7190e43245c7151a",
}
"""before masks became one value"""


@pytest.mark.parametrize("name", RECORDED)
def test_content_hashes_of_known_masks_stay(name: str) -> None:
    """Of every mask that the shipped matrices ask for: a hash that moves throws away what was measured."""
    matrix = load_matrix(name)
    calls = [(call.model, call.label, call.canonical) for call in expand_geometries(matrix.card, matrix.models)]
    for incident in matrix.card.incidents:
        geometries = [geometry_of(call) for call in incident.calls]
        calls += [(incident.incident, geometry.label, geometry.canonical) for geometry in geometries]
    assert RECORDED[name] == hashlib.sha256(json.dumps(calls).encode()).hexdigest()[:16]
