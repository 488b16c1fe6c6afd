"""The seal of a run: a signed statement about its evidence, and digests by which each part can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Seal:
    """What is stored beside a run, and travels with it."""

    envelope: Mapping[str, Any]
    """the DSSE envelope as JSON: payload, payloadType, signatures; the payload is an in-toto statement"""
    parts: str
    """short digests of every field of the evidence (qualify.seal.parts); the statement holds their sha256"""
