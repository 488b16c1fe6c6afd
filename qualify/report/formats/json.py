"""The verdict for programs: ``qualify.run/1``, contract 3 in docs/reference.md."""

from __future__ import annotations

from collections.abc import Iterator

from qualify.facts import codec
from qualify.judge.judged import Judged
from qualify.report.formats.interface import OutputOptions
from qualify.report.verdict_json import to_data


def render(judged: Judged, _options: OutputOptions) -> Iterator[str]:
    """One strict JSON object."""
    return codec.to_pieces({"schema": "qualify.run/1", **to_data(judged)})
