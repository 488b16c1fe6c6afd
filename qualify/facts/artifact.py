"""What a verdict is about: an artifact and its digest, as registries name images."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from qualify.errors import UsageError

ARTIFACT = re.compile(r"(?P<name>[^\s@]+)@sha256:(?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """An artifact and its digest."""

    name: str
    sha256: str

    def data(self) -> dict[str, Any]:
        """As in-toto's ResourceDescriptor."""
        return {"name": self.name, "digest": {"sha256": self.sha256}}


def parse_artifact(source: str, text: str) -> Artifact:
    """An artifact as it is typed: NAME@sha256:HEX. Raises UsageError, which names the source, for anything else."""
    found = ARTIFACT.fullmatch(text)
    if not found:
        raise UsageError(
            f"{source} {text}: give NAME@sha256:HEX with 64 lower-case hexadecimal digits, as registries name images"
        )
    return Artifact(name=found["name"], sha256=found["digest"])
