"""What a page holds as data: every case, and what its script builds of it."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any


def data_of(html: str) -> dict[str, Any]:
    """The data of a page."""
    found = re.search(r'<script type="text/plain" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    return unpacked(found[1])


def unpacked(text: str) -> dict[str, Any]:
    """The data as the script unpacks it."""
    return json.loads(zlib.decompress(base64.b64decode(text, validate=True)))


def case_ids(data: dict[str, Any]) -> list[str]:
    """Ids of all cases."""
    return [case[12] if case[12:] else _id(data, case) for case in data["cases"]]


def _id(data: dict[str, Any], case: list[Any]) -> str:
    return f"{data['shapes'][case[0]][0]}/{data['kernels'][case[1]]}"


def anchors(data: dict[str, Any]) -> set[str]:
    """Fragments that the script leads to a case or a shape."""
    return {f"case-{case[4]}" for case in data["cases"]} | {shape[5] for shape in data["shapes"]}


def verdicts(data: dict[str, Any]) -> dict[str, str]:
    """Verdict by case id."""
    names = [name for name, _, _ in data["verdicts"]]
    return {name: names[case[2]] for name, case in zip(case_ids(data), data["cases"], strict=True)}
