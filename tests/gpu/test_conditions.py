"""What NVML says before and during a fire, on a real card."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qualify.canary.conditions import Monitor, examine
from qualify.canary.watch import look

pytestmark = pytest.mark.gpu

BUSY = "import time, torch; torch.ones(1, device='cuda'); print('ready', flush=True); time.sleep(60)"
FAULT = """
import torch
index = torch.full((1,), 1 << 40, device="cuda", dtype=torch.int64)
print(torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return *(T*)(1ull << 60); }")(index))
torch.cuda.synchronize()
"""


def test_a_healthy_card_is_not_refused() -> None:
    """Nor is a fire on the CPU of a machine with a GPU."""
    assert () == examine("cuda").refuse
    assert ((), ()) == (examine("cpu").refuse, examine("cpu").numerics_only)


def test_another_process_makes_times_worthless() -> None:
    """It is named by its pid."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True) as other:
        assert "ready\n" == other.stdout.readline()
        doubts = examine("cuda").numerics_only
        other.kill()
    assert any("other processes use the card (pid " in doubt for doubt in doubts)


def test_a_fault_of_a_kernel_is_seen() -> None:
    """An access to an address that does not exist is Xid 31 (or 13)."""
    monitor = Monitor("cuda")
    subprocess.run([sys.executable, "-c", FAULT], check=False, capture_output=True)
    monitor.sample()
    xids = monitor.seen[1]
    monitor.close()
    assert set(xids) & {13, 31, 43}


def test_the_watched_stack_names_driver_and_firmware() -> None:
    """They are what changes unannounced."""
    names = {part.name for part in look().components}
    assert {"driver", "cuda", "vbios"} <= names
