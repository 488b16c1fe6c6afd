"""Scripts of every installed kernel, run by a fresh Python that has the library and no qualify."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_case, make_workload

from qualify.cards.kernel import KernelCard
from qualify.cards.load import load_kernels
from qualify.plan.workloads import workload_refusals
from qualify.run.adapters.interface import Adapter
from qualify.run.checks.interface import Subject
from qualify.run.host.hosts import LocalHosts
from qualify.run.host.local import local
from qualify.run.machine.device import processor_of
from qualify.run.process.messages import TrialRequest
from qualify.run.repro.trial import Trial

pytestmark = pytest.mark.gpu

CARDS = {name: loaded.card for name, loaded in load_kernels().items() if loaded.card.requires.device != "cpu"}
MLA: dict[str, Any] = {"heads_q": 16, "heads_kv": 1, "head_dim": 576, "head_dim_v": 512, "latent": True}
DECODE: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (500, 500)}
WORKLOADS: dict[str, dict[str, Any]] = {
    "prefill": {"seqlens_q": (160, 160), "head_dim": 128},
    "varlen": {"seqlens_q": (3, 130, 64), "head_dim": 128},
    "window": {"seqlens_q": (160, 160), "head_dim": 128, "window": (31, 0)},
    "sinks": {"seqlens_q": (160, 160), "head_dim": 64, "sinks": True},
    "paged decode": {**DECODE, "head_dim": 128, "page_size": 256},
    "paged chunk": {"seqlens_q": (64, 64), "seqlens_k": (500, 500), "head_dim": 128, "page_size": 256},
    "fp8": {"seqlens_q": (160, 160), "head_dim": 128, "dtype": "fp8_e4m3"},
    "fp8 cache": {**DECODE, "head_dim": 128, "page_size": 16, "dtype": "bf16_kv_fp8_e4m3"},
    "latent decode": {**DECODE, **MLA, "page_size": 64},
}
DEFECTIVE = {("flashinfer-fa3-fp8", "fp8"): "docs/findings/flashinfer-fa3-fp8-hidden-keys.md"}
"""page of the defect, by kernel and workload"""


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("kernel", CARDS)
def test_a_script_calls_the_kernel_as_qualify_does(
    kernel: str, name: str, adapter_of: Callable[[KernelCard], Adapter], tmp_path: Path
) -> None:
    """It ends by itself with a value beside the exact one; the two agree, in fp8 within its own budget only.

    A kernel that is known to be wrong there shows its wrong value.
    """
    card, fp8 = CARDS[kernel], "fp8" in name
    workload = make_workload(**WORKLOADS[name], **({"descale": card.claims.fp8.descale} if fp8 else {}))
    if workload_refusals(card, workload):
        pytest.skip(f"{kernel} does not claim it")
    adapter = adapter_of(card)
    subject = Subject(
        workload=workload,
        card=card,
        kernel=local(adapter, "cuda"),
        device=torch.device("cuda", 0),
        level="smoke",
        reference=torch.float64,
        seed=1,
    )
    case, wrong = make_case(workload=workload), (kernel, name) in DEFECTIVE
    finding, ends = ("budget", "finding:budget") if wrong else ("passed", "passed")
    asked = TrialRequest(case=case, seed=1, check="budget", finding=finding, script=True, text="As the run said.")
    ended = Trial(asked, subject, LocalHosts(processor_of("cuda"), {card.kernel: adapter})).run()
    assert ends == ended.ended, ended.detail
    path = tmp_path / "script.py"
    path.write_text(ended.script)
    shown = subprocess.run([sys.executable, "-P", str(path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    last = shown.stdout.splitlines()[-1:]
    assert last in (["right"], ["WRONG"]), shown.stdout + shown.stderr
    expected = (1, ["WRONG"]) if wrong else (0, ["right"])
    assert expected == (shown.returncode, last) or (fp8 and not wrong), shown.stdout
