"""Commands of tests fork what the product starts: the evidence is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import call, write_cards, write_matrix


def essence(data: Any) -> Any:
    """A run without its id, numbers and times."""
    cases = [
        (
            item["id"],
            item["outcome"],
            item["verdict"],
            item["reasons"][0].partition(":")[0] if item["reasons"] else "",
            item["kernel_launched"],
            [(finding["check"], finding["verdict"]) for finding in item["findings"]],
        )
        for item in data["cases"]
    ]
    kept = ("verdict", "exit_code", "stack", "device", "counts", "cells")
    return {name: data[name] for name in kept} | {"cases": cases}


@pytest.mark.slow
def test_a_forked_run_gives_what_a_started_one_gives(tmp_path: Path) -> None:
    """The same stack, outcomes, kernels, findings and reasons, of a right, a wrong and a crashing kernel."""
    write_cards(tmp_path / "cards", "wrong_numbers", "segfaults")
    write_matrix(tmp_path / "both.yaml", "tiled-torch", "wrong-numbers", "segfaults")
    forked, started = (
        call("run", "both.yaml", "--cards", "cards", "--db", f"{real}.db", "--json", cwd=tmp_path, started=real).data
        for real in (False, True)
    )
    assert essence(started) == essence(forked)
    assert (2, 1) == tuple(forked["counts"]["outcomes"][name] for name in ("measured", "crashed"))
