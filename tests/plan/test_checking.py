"""The matrix of a check: sizes by device, phases of the model, pages that somebody claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qualify.cards.load import load_kernels, load_matrix, load_model
from qualify.cards.named import model_names
from qualify.errors import UsageError
from qualify.plan.checking import check_matrix, check_parallel, first_matrix, idle_masks, most_parallel
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


@pytest.mark.parametrize(
    ("model", "host", "told"),
    [
        ("gemma-2-9b", CPU, "a window or chunk of 4,096 keys, which hides nothing at these shapes: the"),
        ("gemma-2-9b", H100, ""),
        ("gpt-oss-20b", CPU, ""),
        ("qwen3-8b", CPU, ""),
    ],
)
def test_a_window_that_no_shape_reaches_is_said(model: str, host: Host, told: str) -> None:
    """A kernel that ignores such a window passes: whoever reads the answer has to know it."""
    assert told == idle_masks(load_model(model).card, host).removesuffix(" longest sequence has 512 keys")
    assert bool(told) == ("# Not tested: " in text_of(model, host))
    assert told in text_of(model, host)


@pytest.mark.parametrize(("size", "told"), [(513, False), (1021, False), (1023, True)])
def test_a_band_hides_keys_on_both_sides_of_a_query(size: int, told: bool) -> None:
    """Of 512 keys the first query sees half of it, and its own."""
    card = load_model("modernbert-base").card
    wide = [group.model_copy(update={"window": size}) if group.window else group for group in card.groups]
    assert told == bool(idle_masks(card.model_copy(update={"groups": tuple(wide)}), CPU))


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


def test_a_check_has_the_shapes_of_its_device() -> None:
    """Large ones for a GPU and small ones for a CPU; of several kinds of layers each prompt has one length."""
    gpu, cpu = text_of("qwen3-8b", H100), text_of("qwen3-8b", CPU)
    for text, lines in (
        (
            gpu,
            (
                "    tensor_parallel: [1]",
                "  prefill: {batch: [1], seqlen: [1024, 4096]}",
                "  chunked: {chunk: 512, context: [3584], page_size: [contiguous, 16]}",
                "  varlen: {lengths: [[1, 17, 300, 1024]]}",
                "  decode: {batch: [1, 32], context: [4096], page_size: [contiguous, 16, 256]}",
            ),
        ),
        (
            cpu,
            (
                "    tensor_parallel: [4]",
                "  prefill: {batch: [1], seqlen: [32, 128]}",
                "  chunked: {chunk: 33, context: [95], page_size: [contiguous, 16]}",
                "  varlen: {lengths: [[1, 17, 60]]}",
                "  decode: {batch: [2], context: [128], page_size: [contiguous, 16]}",
            ),
        ),
    ):
        assert [] == [line for line in lines if line not in text.splitlines()]
    assert ("for about two minutes of a GPU", "which prove nothing about a GPU") == tuple(
        text.splitlines()[0].rpartition("shapes ")[2].rstrip(".").replace("for a CPU, ", "") for text in (gpu, cpu)
    )
    assert "  prefill: {batch: [1], seqlen: [4096]}" in text_of("gpt-oss-20b", H100).splitlines()


COMPILED = [
    f'  - "*/{phase}/*/flex-attention"   # each of its shapes takes seconds to compile'
    for phase in ("chunked", "varlen", "decode")
]
HOPPER = '  - "*/vllm-flash-attn-2"   # it has no code for Hopper: the driver compiles it for minutes'


@pytest.mark.parametrize(
    ("host", "kernels", "left_out"),
    [
        (H100, (), [*COMPILED, HOPPER]),
        (Host(kind="cuda", name="A100", compute_capability="8.0"), (), COMPILED),
        (H100, ("flex-attention", "vllm-flash-attn-2"), []),
        (CPU, (), []),
    ],
    ids=["Hopper", "Ampere", "asked for", "a CPU"],
)
def test_what_costs_minutes_is_left_out_unless_it_is_asked_for(
    host: Host, kernels: tuple[str, ...], left_out: list[str]
) -> None:
    """Each with its reason; a kernel that somebody names runs, and small shapes cost nothing."""
    head, _, excluded = text_of("qwen3-8b", host, *kernels).partition("exclude:\n")
    assert left_out == excluded.splitlines()
    assert head.endswith("]\n")


def test_a_first_matrix_leaves_out_only_what_every_gpu_compiles() -> None:
    """It is written before anybody knows the device."""
    text = first_matrix(load_model("qwen3-8b").card, shipped=True, dtype="bf16", name="serving", waivers="waivers.yaml")
    assert [*COMPILED, "waivers: waivers.yaml"] == text.partition("exclude:\n")[2].splitlines()
    assert {"matrix: serving", "    tensor_parallel: [1]", 'kernels: ["*"]'} <= set(text.splitlines())


@pytest.mark.parametrize(("kernel", "pages"), [("flash-attn-2", "contiguous, 256"), ("flash-attn-3", "contiguous, 16")])
def test_no_page_is_asked_for_that_the_kernel_cannot_have(kernel: str, pages: str) -> None:
    """A multiple of what its card claims: another page would be a shape without a kernel, and a red check."""
    chunked = next(line for line in text_of("qwen3-8b", H100, kernel).splitlines() if "chunked:" in line)
    assert chunked.endswith(f"page_size: [{pages}]}}")


def test_how_many_gpus_can_share_the_heads() -> None:
    """As many as divide query heads and key heads, or give each key head to several; a CPU takes at most four."""
    cards = {name: load_model(name).card for name in ("qwen3-8b", "phi-4", "falcon-7b", "gemma-2b")}
    assert [4, 2, 1, 4] == [most_parallel(card) for card in cards.values()]
    for possible in (None, 1, 8, 16, 32):
        check_parallel(cards["qwen3-8b"], possible)
    for name, count, words in (
        ("qwen3-8b", 3, "3: cannot share the heads of qwen3-8b, 32 query heads on 8; give one of 1, 2, 4, 8, 16, 32"),
        ("qwen3-8b", 64, "64: cannot share the heads of qwen3-8b, 32 query heads on 8; give one of 1, 2, 4, 8, 16, 32"),
        ("phi-4", 4, "4: cannot share the heads of phi-4, 40 query heads on 10; give one of 1, 2, 5, 10, 20, 40"),
        ("falcon-7b", 2, "2: cannot share the heads of falcon-7b, 71 query heads on 1; give one of 1, 71"),
    ):
        with pytest.raises(UsageError) as caught:
            check_parallel(cards[name], count)
        assert f"--tensor-parallel {words}" == str(caught.value)
