"""A real attention kernel that cannot have done the call, beside products that did; and shipped kernels that did."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from subjects import traces
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from qualify.cards.kernel import KernelCard
from qualify.cards.load import load_kernels, load_matrix
from qualify.facts.case import Case, Workload
from qualify.facts.stack import Ceilings
from qualify.masks import Mask
from qualify.plan.plan import make_plan
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal
from qualify.run.inputs.tensors import make_inputs
from qualify.run.machine.device import processor_of
from qualify.run.measure.capacity import need_of
from qualify.run.measure.ceilings import measure_ceilings
from qualify.run.measure.witness import decide

pytestmark = pytest.mark.gpu

FLASH = "pytorch_flash::flash_fwd"
CARDS = {name: loaded.card for name, loaded in load_kernels().items() if loaded.card.requires.device != "cpu"}
MATRICES = ("smoke", "fp8", "deepseek", "whisper")
CASES_OF_A_KERNEL = 12
"""of each matrix, at most twice as many"""


@pytest.fixture(scope="module")
def ceilings() -> Ceilings:
    """Of this card, as a worker measures them."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return measure_ceilings(processor_of("cuda"))


def units() -> int:
    """Multiprocessors of this card."""
    return torch.cuda.get_device_properties(0).multi_processor_count


def prefill(rows: int) -> Workload:
    """One causal bf16 sequence, 16 heads of 128."""
    return Workload(
        heads_q=16,
        heads_kv=16,
        head_dim=128,
        head_dim_v=128,
        dtype="bf16",
        scale=128**-0.5,
        softcap=0.0,
        sinks=False,
        seqlens_q=(rows,),
        seqlens_k=(rows,),
        page_size=0,
        mask=Mask(causal=True),
    )


def flash(call: AttentionCall, rows: int, heads: int) -> None:
    """PyTorch's FlashAttention on the first rows and heads of a call."""
    q, k, v = (tensor[:rows, :heads].transpose(0, 1)[None] for tensor in (call.q, call.k, call.v))
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        scaled_dot_product_attention(q, k, v, is_causal=True)


def products(call: AttentionCall) -> torch.Tensor:
    """The call by einsum."""
    scores = torch.einsum("qhd,khd->hqk", call.q, call.k) * call.scale
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), call.v)


def test_a_dummy_call_beside_einsum_proves_nothing() -> None:
    """One row of one head, beside products that the card does not name."""
    workload = prefill(4096)
    call = make_inputs(workload, kind="normal", seed=1, device=torch.device("cuda", 0)).call

    def launch() -> None:
        flash(call, 1, 1)
        products(call)

    launch()
    (found,) = traces([launch], "cuda")
    seen = decide(found, [FLASH], ["elementwise"])
    assert "unproven" == seen.state
    assert "the card does not name took " in seen.reason


@pytest.mark.parametrize("rows", [16, 128, 1024, 8192])
def test_the_whole_call_is_proven(ceilings: Ceilings, rows: int) -> None:
    """From a launch that one multiprocessor does to one that fills the card."""
    workload = prefill(rows)
    call = make_inputs(workload, kind="normal", seed=1, device=torch.device("cuda", 0)).call

    def launch() -> None:
        flash(call, rows, 16)

    launch()
    (found,) = traces([launch], "cuda")
    seen = decide(found, [FLASH], ["at::native::"], need=need_of(workload, ceilings, units()))
    assert ("proven", "") == (seen.state, seen.reason)


def asked_of(kernel: str) -> list[Case]:
    """Cases of a kernel, of every phase that a matrix has."""
    kernels, found = load_kernels(), []
    for matrix in MATRICES:
        planned = [case for case in make_plan(load_matrix(matrix), kernels).cases if case.kernel == kernel]
        found += planned[:: max(1, len(planned) // CASES_OF_A_KERNEL)]
    return found


@pytest.mark.parametrize("name", sorted(CARDS))
def test_no_shipped_kernel_is_doubted(
    ceilings: Ceilings, adapter_of: Callable[[KernelCard], Adapter], name: str
) -> None:
    """What is seen as the card's kernel could have done its call, and no product beside it is foreign."""
    card = CARDS[name]
    adapter, rules = adapter_of(card), card.witness
    cases = asked_of(name)
    assert cases
    for case in cases:
        call = make_inputs(case.workload, kind="normal", seed=1, device=torch.device("cuda", 0), descaled=True).call
        try:
            prepared = adapter.prepare(call)
            prepared.launch()
        except LibraryRefusal:
            continue
        (found,) = traces([prepared.launch], "cuda")
        need = need_of(case.workload, ceilings, units())
        without = decide(found, rules.must_match, rules.may_match)
        seen = decide(found, rules.must_match, rules.may_match, need=need)
        assert (without.state, without.reason) == (seen.state, seen.reason), case.id
        assert "does not name took" not in seen.reason, case.id
