"""Kernels that only look like attention: what they say of themselves proves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import CEILINGS, make_card, make_case, make_workload

from qualify.facts.outcome import Evidence, evidence_of
from qualify.facts.stack import Device
from qualify.run.execute import Session
from qualify.run.host.hosts import LocalHosts
from qualify.run.machine.device import Cpu
from qualify.run.process.messages import CaseRequest

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
DEVICE = Device(
    kind="cpu", name="a CPU", uuid="", compute_capability="", units=2, memory_bytes=1 << 30, cache_bytes=1 << 20
)
LIARS = f'''
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

FLASH = "{FLASH}"


class Flash(torch.autograd.Function):
    """A function of torch with the name of its operator."""

    @staticmethod
    def forward(ctx, q, k, v, call):
        return products(call)


Flash.__name__ = FLASH


def products(call):
    """Attention by einsum, one sequence after another."""
    out = torch.zeros(*call.q.shape[:2], call.v.shape[-1])
    bounds = call.cu_seqlens_q.tolist()
    for first, last in zip(bounds, bounds[1:]):
        q, k, v = (tensor[first:last].float() for tensor in (call.q, call.k, call.v))
        k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * call.scale
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
    return out.to(call.out_dtype)


def annotated(call):
    with torch.profiler.record_function(FLASH):
        return products(call)


def fast_record(call):
    with torch._C._profiler._RecordFunctionFast(FLASH):
        return products(call)


def fast_record_of_tensors(call):
    with torch._C._profiler._RecordFunctionFast(FLASH, [call.q, call.k, call.v], {{}}):
        return products(call)


def annotated_math(call):
    with torch.profiler.record_function(FLASH):
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (call.q, call.k, call.v))
        with sdpa_kernel([SDPBackend.MATH]):
            out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)


def annotated_flash(call):
    with torch.profiler.record_function("library.attention"):
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (call.q, call.k, call.v))
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


turns = iter(range(-1, 1000))


def range_of_its_own(call):
    """Hides the products before a range that is called like qualify's; the first call is not traced."""
    out = products(call)
    with torch.profiler.record_function(f"qualify#0#{{next(turns)}}"):
        annotated_flash(call)
    return out


def function(call):
    return Flash.apply(call.q, call.k, call.v, call)
'''
ATEN = "^aten::(?!_scaled_dot_product)"


@pytest.fixture
def liars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels above as a module that a card can name."""
    (tmp_path / "liars.py").write_text(LIARS)
    monkeypatch.syspath_prepend(tmp_path)


def examined(entry: str, **rules: Any) -> Evidence:
    """A case of a kernel of ``liars``, through all stages."""
    witness = {"must_match": [FLASH], "may_match": [ATEN], **rules}
    card = make_card(kernel="own", adapter="call", entry=f"liars:{entry}", features=["gqa", "ragged"], witness=witness)
    session = Session(
        device=DEVICE,
        ceilings=CEILINGS,
        cards={"own": card},
        level="smoke",
        reference="fp64",
        hosts=LocalHosts(Cpu()),
        announce=lambda case, stage: None,
        timed=False,
    )
    (settled,) = session.run([CaseRequest(case=make_case("own", workload=make_workload()), attempt=1)])
    found = evidence_of(settled.outcome)
    assert found is not None, settled.outcome
    return found


SEPARATE = f"{FLASH} ran the separate operator aten::bmm; a real fused operator computes products and softmax itself"


@pytest.mark.usefixtures("liars")
@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("annotated", f"no launched kernel matches must_match ({FLASH}) and none is known as attention"),
        ("fast_record", f"{FLASH} took no tensor: only its name is in the trace, no real operator"),
        ("fast_record_of_tensors", SEPARATE),
        ("range_of_its_own", "the kernel opened a range qualify#0#0, as the witness does"),
        ("function", SEPARATE),
    ],
)
def test_the_name_of_an_operator_around_products_proves_nothing(entry: str, reason: str) -> None:
    """Its numbers are right; who computed them is not proven."""
    seen = examined(entry)
    assert not [finding for finding in seen.findings if finding.verdict == "fail"]
    assert ("unproven", reason) == (seen.witness.state, seen.witness.reason.partition("; launched: ")[0])


@pytest.mark.usefixtures("liars")
def test_the_operator_within_a_range_is_the_one_that_counts() -> None:
    """A library may annotate its calls: the range's name neither proves nor spoils anything."""
    within = examined("annotated_math").witness
    assert "substituted" == within.state
    assert ("aten::_scaled_dot_product_attention_math",) == within.attention_names
    assert ("proven", (FLASH,)) == (
        examined("annotated_flash").witness.state,
        examined("annotated_flash").witness.attention_names,
    )
