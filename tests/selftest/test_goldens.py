"""Golden results are found again by what the call holds, and by nothing less."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import alter

from qualify.run.golden.reference import golden
from qualify.run.inputs.tensors import make_inputs
from qualify.selftest.goldens import Goldens
from qualify.selftest.workloads import SHAPES

CPU = torch.device("cpu")
PACKED, PAGED, SCALED = 6, 12, 19
"""numbers of workloads with sinks and a window, with pages beside them, and with descale factors"""


def call_of(number: int, seed: int = 1):
    return make_inputs(SHAPES[number][1], kind="normal", seed=seed, device=CPU, descaled=True).call


@pytest.mark.parametrize("number", [PACKED, PAGED, SCALED])
def test_equal_calls_share_a_result(number):
    """Drawn again from the same seed, in other memory: the kept result, which is the golden one."""
    goldens = Goldens()
    first = goldens(call_of(number), underflow=True)
    assert first is goldens(call_of(number), underflow=True)
    assert torch.equal(golden(call_of(number), underflow=True).out, first.out)


@pytest.mark.parametrize("number", [PACKED, PAGED, SCALED])
def test_whatever_differs_is_another_call(number):
    """One byte of any tensor, one number, or another question: computed again."""
    goldens = Goldens()
    call = call_of(number)
    first = goldens(call)
    tensors = ("q", "k", "v", "sinks", "block_table", "k_descale", "v_descale")
    present = [name for name in tensors if getattr(call, name) is not None]
    assert {"q", "k", "v"} < set(present)
    for name in present:
        touched = getattr(call, name).clone()
        touched.view(torch.uint8).view(-1)[0] ^= 1
        assert first is not goldens(replace(call, **{name: touched})), name
    for change in ({"scale": call.scale * 0.5}, {"causal": not call.causal}, {"window": (3, 0)}, {"softcap": 7.0}):
        assert first is not goldens(alter(call, **change)), change
    assert first is not goldens(call, underflow=True)
    assert first is not goldens(call, scores=True)
    assert first is not goldens(call, dtype=torch.float32)
    assert first is goldens(call)


def test_a_kernel_that_wrote_into_its_inputs_gets_their_golden_result():
    """The same tensors with other contents are another call."""
    goldens = Goldens()
    call = call_of(PACKED)
    before = goldens(call)
    call.v[-1] = 3.0
    after = goldens(call)
    assert after is not before
    assert torch.equal(golden(call).out, after.out)


def test_the_oldest_results_are_given_up():
    """The limit is kept; what was asked for lately stays."""
    sizes = Goldens()
    sizes(call_of(PACKED))
    goldens = Goldens(limit_bytes=2 * sizes.kept.held_bytes)
    first, second = (goldens(call_of(PACKED, seed)) for seed in (1, 2))
    assert first is goldens(call_of(PACKED, 1))
    goldens(call_of(PACKED, 3))
    assert goldens.kept.limit_bytes == goldens.kept.held_bytes
    assert first is goldens(call_of(PACKED, 1))
    assert second is not goldens(call_of(PACKED, 2))
