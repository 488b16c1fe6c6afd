"""The matrix of a check: sizes by device, phases of the model, pages that somebody claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qualify.cards.load import load_kernels, load_matrix, load_model, model_names
from qualify.plan.checking import check_matrix
from qualify.plan.host import Host
from qualify.plan.plan import make_plan

CPU = Host(kind="cpu", name="a CPU", compute_capability="")
H100 = Host(kind="cuda", name="H100", compute_capability="9.0")
MOST_ON_A_CPU = 60
MOST_ON_A_GPU = 260


def text_of(model: str, host: Host, *kernels: str, shipped: bool = True, **asked: Any) -> str:
    cards = load_kernels()
    return check_matrix(
        load_model(model).card,
        shipped=shipped,
        host=host,
        dtype="bf16",
        kernels=[cards[name].card for name in kernels],
        parallel=None,
        **asked,
    )


@pytest.mark.parametrize(
    "name", ["bert-base", "deepseek-v3", "gemma-3-27b", "gpt-oss-20b", "qwen3-8b", "whisper-large"]
)
def test_models_of_every_kind_have_a_plan(name: str, tmp_path: Path) -> None:
    """Every phase that the model has is planned, on a CPU with few calls; something can run in each of them."""
    path = tmp_path / "check.yaml"
    path.write_text(text_of(name, CPU))
    plan = make_plan(load_matrix(str(path)), load_kernels(), host=CPU)
    assert 0 < plan.calls <= MOST_ON_A_CPU
    assert {case.phase for case in plan.cases} == {case.phase for case, _ in plan.refused}
    path.write_text(text_of(name, H100))
    assert make_plan(load_matrix(str(path)), load_kernels()).calls <= MOST_ON_A_GPU


def test_every_shipped_model_can_be_written_with_its_geometry(tmp_path: Path) -> None:
    """As models from the hub are, which have no card."""
    path = tmp_path / "check.yaml"
    for name in model_names():
        path.write_text(text_of(name, H100, shipped=False).replace(f"model: {name}\n", f"model: new-{name}\n"))
        assert load_matrix(str(path)).models[f"new-{name}"].groups == load_model(name).card.groups


def test_a_window_matters_where_the_device_can_hold_it(tmp_path: Path) -> None:
    """Twice the window of 4096 on a GPU; a CPU stays short, and takes twice the window of 128."""
    assert "seqlen: [8192]" in text_of("gemma-2-9b", H100)
    assert "seqlen: [512]" in text_of("gemma-2-9b", CPU)
    assert "seqlen: [256]" in text_of("gpt-oss-20b", CPU)


def test_pages_are_those_that_the_kernels_claim(tmp_path: Path) -> None:
    """A kernel without a paged cache is asked for none; FlashMLA takes pages of 64 alone."""
    sdpa, flashmla = text_of("qwen3-8b", H100, "torch-sdpa"), text_of("deepseek-v3", H100, "flashmla")
    assert "page_size: [contiguous]" in sdpa
    assert "page_size: [64]" in flashmla
    path = tmp_path / "check.yaml"
    path.write_text(flashmla)
    assert {"decode"} == {case.phase for case in make_plan(load_matrix(str(path)), load_kernels()).cases}
    assert "page_size: [contiguous, 16, 256]" in text_of("qwen3-8b", H100)


def test_a_page_that_only_a_missing_kernel_claims_is_not_asked_for() -> None:
    """It would be a shape without a kernel, and no fault of those that are here: flash-attn 2 is not installed."""
    both = text_of("qwen3-8b", CPU, "flash-attn-2", "torch-cpu-math")
    assert "page_size: [contiguous]" in both
    assert "kernels: [flash-attn-2, torch-cpu-math]" in both


def test_a_backend_for_decode_is_asked_for_decode_alone() -> None:
    """The engine serves prompts by another one."""
    phases = text_of("deepseek-v3", H100, "flashmla", phases=("decode", "verify")).partition("phases:\n")[2]
    assert phases.startswith("  decode: ")
