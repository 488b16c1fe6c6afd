"""All checks together: silent on a correct kernel under every workload, and none without a test of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import make_card
from faults import Dense
from subjects import answers, verdicts

from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.registry import CHECKS

LATENT: dict[str, Any] = {"heads_kv": 1, "head_dim": 96, "head_dim_v": 64, "latent": True}
DEEPSEEK = LATENT | {"head_dim": 576, "head_dim_v": 512}
"""costs seconds at full level, so it has one query"""
WORKLOADS: list[dict[str, Any]] = [
    {"seqlens_q": (200,)},
    {"seqlens_q": (200,), "dtype": "fp16"},
    {"seqlens_q": (200,), "dtype": "fp32"},
    {"seqlens_q": (100,), "causal": False},
    {"seqlens_q": (200,), "window": (31, 0)},
    {"seqlens_q": (100,), "softcap": 50.0, "head_dim": 256, "heads_q": 2, "heads_kv": 1, "scale": 1 / 16},
    {"seqlens_q": (200,), "sinks": True, "window": (127, 0)},
    {"seqlens_q": (1, 17, 100, 3, 0, 64)},
    {"seqlens_q": (64,), "seqlens_k": (300,)},
    {"seqlens_q": (1,) * 5, "seqlens_k": (130, 64, 300, 17, 1), "page_size": 16},
    {"seqlens_q": (1,) * 3, "seqlens_k": (256,) * 3},
    {"seqlens_q": (1,) * 3, "seqlens_k": (256,) * 3, "window": (63, 0), "page_size": 16},
    {"seqlens_q": (1,), "seqlens_k": (64,), "page_size": 64, "heads_kv": 1},
    {"seqlens_q": (9, 3), "seqlens_k": (4, 3)},
    {"seqlens_q": (1,), "seqlens_k": (1,)},
    {"seqlens_q": (100,), "head_dim_v": 32},
    {"seqlens_q": (64,), "seqlens_k": (70,), "heads_q": 4, "heads_kv": 4, "head_dim": 192, "head_dim_v": 128},
    {"seqlens_q": (1, 1), "seqlens_k": (70, 33), "heads_kv": 1, "head_dim": 160, "head_dim_v": 128, "scale": 96**-0.5},
    {"seqlens_q": (1, 1), "seqlens_k": (70, 33), "page_size": 64, "scale": 192**-0.5} | DEEPSEEK,
    {"seqlens_q": (5, 5), "seqlens_k": (70, 133), "page_size": 16, "dtype": "fp16"} | LATENT,
    {"seqlens_q": (200,), "chunk": 64},
    {"seqlens_q": (90, 5), "seqlens_k": (150, 130), "chunk": 64},
    {"seqlens_q": (1, 1, 1), "seqlens_k": (130, 64, 129), "chunk": 64, "page_size": 16},
    {"seqlens_q": (100,), "causal": False, "window": (20, 20)},
    {"seqlens_q": (40,), "seqlens_k": (300,), "causal": False},
    {"seqlens_q": (100,), "head_dim": 16, "heads_q": 3, "heads_kv": 3},
]


SPANS: list[dict[str, Any]] = [
    {"seqlens_q": (120,), "spans": ((0, 40, 72),)},
    {"seqlens_q": (120, 30), "window": (15, 0), "spans": ((0, 40, 48), (1, 0, 30))},
    {"seqlens_q": (64,), "seqlens_k": (128,), "spans": ((0, 80, 112),)},
]
"""images whose tokens see each other"""


OWN_SHAPES = {"size_limits", "long_context"}
"""checks whose calls have thousands of keys whatever is asked; with wide heads they cost seconds"""
FEW: dict[str, Any] = {"heads_q": 4}
"""of a workload at smoke: test_any_workload.py has larger groups"""
SMALL: dict[str, Any] = {"heads_q": 4, "heads_kv": 2, "head_dim": 32}
"""of a workload at the full level, which has many calls and some long ones"""


def verdicts_at_full(workload: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(check, verdict, detail) of a correct kernel's findings.

    Each dtype and layout has its own long context. Those of wide heads are left to the tests of long calls.
    """
    made = SMALL | workload
    left_out = OWN_SHAPES if made["head_dim"] > 128 else set()
    return verdicts(level="full", asked=answers("", made), left_out=left_out, **made)


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
@pytest.mark.parametrize("adapter", [TiledTorch(tile_q=48, tile_k=32), Dense()], ids=["tiled", "dense"])
def test_correct_kernels_pass_every_check(adapter: Any, workload: dict[str, Any]) -> None:
    """No false alarm; what is not a pass is a note about NaN behind a window."""
    for check, verdict, detail in verdicts(adapter=adapter, **FEW | workload):
        assert verdict == "pass" or (verdict == "note" and check == "poison"), (check, detail)


@pytest.mark.parametrize("level", ["smoke", "full"])
@pytest.mark.parametrize("workload", SPANS, ids=str)
def test_images_pass_every_check(workload: dict[str, Any], level: str) -> None:
    """No false alarm on prompts with an image, under a causal mask and under a window."""
    found = verdicts_at_full(workload) if level == "full" else verdicts(**workload)
    for check, verdict, detail in found:
        if detail.startswith("passed before"):
            continue
        assert verdict == "pass" or (verdict == "note" and check in {"layout", "poison"}), (check, detail)


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_correct_kernels_pass_at_full_level(workload: dict[str, Any]) -> None:
    """More inputs, sweeps and repeats find nothing either; a machine may have no room for the largest tensors."""
    for check, verdict, detail in verdicts_at_full(workload):
        no_room = check == "size_limits" and "not run: no room for" in detail
        allowed = check in {"layout", "poison"} or detail.startswith("passed before") or no_room
        assert verdict == "pass" or (verdict == "note" and allowed), (check, detail)


@pytest.mark.parametrize("workload", WORKLOADS[::3], ids=str)
def test_a_card_that_claims_less_is_not_failed_for_it(workload: dict[str, Any]) -> None:
    """No LSE, no determinism, any value in empty rows: every check still runs and passes."""
    card = make_card(
        features=["gqa", "softcap", "sinks", "ragged", "empty"],
        deterministic=False,
        empty_row={"out": "any", "lse": "any"},
    )
    for check, verdict, detail in verdicts(card=card, **FEW | workload):
        assert verdict == "pass" or (verdict == "note" and check == "poison"), (check, detail)


def test_every_check_has_a_test_module() -> None:
    """Whoever adds a check adds the fault that it must catch: tests/run/checks/test_<name>.py."""
    here = Path(__file__).parent
    assert [] == [check.name for check in CHECKS if not (here / f"test_{check.name}.py").is_file()]


def test_every_check_runs_at_some_level_and_names_are_distinct() -> None:
    """Names are what findings, reports and waivers refer to."""
    names = [check.name for check in CHECKS]
    assert sorted(set(names)) == sorted(names)
    assert all(set(check.levels) & {"smoke", "full"} for check in CHECKS)
