"""What the judge knows of a call that failed in a host."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import make_workload
from subjects import CPU

from qualify.run.host.interface import HostLost
from qualify.run.host.remote_kernel import _told
from qualify.run.inputs.tensors import make_inputs


@pytest.mark.parametrize(
    ("device", "lengths"), [("cpu", ((5, 0), (7, 3))), ("meta", None)], ids=["a device", "a lost device"]
)
def test_what_fails_knows_the_lengths_of_its_call(device: str, lengths: object) -> None:
    """Where the judge cannot read them either, the failure of the host is told as it is."""
    call = make_inputs(make_workload(seqlens_q=(5, 0), seqlens_k=(7, 3)), kind="normal", seed=1, device=CPU).call
    there = replace(call, cu_seqlens_q=call.cu_seqlens_q.to(torch.device(device)))
    with pytest.raises(HostLost, match="it ended") as caught, _told(there):
        raise HostLost("it ended", log="", limit_s=None)
    assert lengths == caught.value.lengths
