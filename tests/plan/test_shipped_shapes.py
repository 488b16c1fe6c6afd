"""What the shipped matrices ask: calls that serving makes, with several KV heads."""

from __future__ import annotations

import pytest

from qualify.cards.load import load_kernels, load_matrix, load_models
from qualify.cards.named import matrix_names
from qualify.facts.case import Case, Workload
from qualify.plan.plan import make_plan

KERNELS = load_kernels()
MATRICES = [
    name for name in matrix_names() if name in {"smoke", "fp8", "hopper", "ampere", "deepseek", "llama", "qwen"}
]
ROW_BLOCKS = (64, 128)
"""queries in a row block of the fused kernels"""


def cases_of(matrix: str) -> tuple[Case, ...]:
    """The cases that a shipped matrix plans, whatever the machine."""
    return make_plan(load_matrix(matrix), KERNELS).cases


def ragged_on_pages(workload: Workload) -> bool:
    """Several queries in a sequence, pages, and contexts that differ."""
    contexts = {keys - queries for queries, keys in zip(workload.seqlens_q, workload.seqlens_k, strict=True)}
    return bool(workload.page_size) and max(workload.seqlens_q) > 1 and len(contexts) > 1


def ends_apart(workload: Workload) -> bool:
    """Whether a sequence's last row block follows a full one and has fewer rows than its partial last page has keys."""
    for block in ROW_BLOCKS:
        ends = (
            queries > block and 0 < queries % block < keys % workload.page_size
            for queries, keys in zip(workload.seqlens_q, workload.seqlens_k, strict=True)
        )
        if not any(ends):
            return False
    return True


@pytest.mark.parametrize("matrix", MATRICES)
def test_every_kernel_with_pages_meets_several_queries_after_a_context(matrix: str) -> None:
    """Chunks and drafts of requests with different contexts, for each kernel that a matrix plans on pages."""
    cases = cases_of(matrix)
    paged = {case.kernel for case in cases if case.workload.page_size}
    asked = {case.kernel for case in cases if ragged_on_pages(case.workload)}
    assert paged
    assert paged - asked <= {"vllm-flash-attn-2"}  # on Hopper its driver compiles each kernel for minutes


@pytest.mark.parametrize("matrix", [name for name in MATRICES if name != "deepseek"])
def test_a_chunk_on_pages_ends_in_a_partial_row_block_and_a_longer_partial_page(matrix: str) -> None:
    """Every chunked call of unequal requests on pages: lost rows and lost keys at the end are different ones."""
    chunks = {case.workload for case in cases_of(matrix) if case.phase == "chunked" and ragged_on_pages(case.workload)}
    assert chunks
    assert all(ends_apart(workload) for workload in chunks)
    assert all(len(set(workload.seqlens_q)) > 1 for workload in chunks)


def test_ampere_asks_the_kernel_that_hopper_leaves_out() -> None:
    """FlashAttention-2 as vLLM ships it has code for compute capability 8.x."""
    kernels = {case.kernel for case in cases_of("ampere") if ragged_on_pages(case.workload)}
    assert "vllm-flash-attn-2" in kernels


@pytest.mark.parametrize("matrix", ["smoke", "fp8"])
def test_small_matrices_keep_several_kv_heads(matrix: str) -> None:
    """Each model that has several KV heads runs with several, and with several query heads on each, in every phase."""
    cases, models = cases_of(matrix), load_models()
    phases = {case.phase for case in cases}
    for entry in load_matrix(matrix).card.models:
        assert all(group.heads_kv > 1 for group in models[entry.model].card.groups)
        own = [case for case in cases if case.model.startswith(f"{entry.model}.tp")]
        for phase in phases:
            heads = [(case.workload.heads_q, case.workload.heads_kv) for case in own if case.phase == phase]
            assert heads
            assert all(heads_kv > 1 and heads_q > heads_kv for heads_q, heads_kv in heads), (entry.model, phase)
