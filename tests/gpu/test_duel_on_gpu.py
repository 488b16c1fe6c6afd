"""Duels on a real card: graphs, cold and warm, planted slowdowns, and what NVML says meanwhile."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from qualify.facts.duel import Duel
from qualify.fleet.duel import Duelling
from qualify.fleet.sides import BLOCK_US, DuelAsked, make_duel
from qualify.run.host.blocks import Blocks
from qualify.run.machine.device import processor_of
from qualify.run.machine.fitness import WatchedCard, fitness_of

pytestmark = pytest.mark.gpu

MATRIX = """\
matrix: gpu-duel
models: [llama-3.1-8b]
phases:
  prefill: {batch: 1, seqlen: 2048}
  decode: {batch: 8, context: 8192}
dtypes: [bf16]
kernels: [torch-sdpa-flash, torch-sdpa-cudnn, torch-sdpa-math]
"""
BUSY = "import time, torch; torch.ones(1, device='cuda'); print('ready', flush=True); time.sleep(60)"


def fought(folder: Path, a: str, b: str, *, plant: float = 0.0, select: str = "", pairs: int = 5) -> Duel:
    """A duel of a few cells."""
    matrix = folder / "gpu-duel.yaml"
    matrix.write_text(MATRIX)
    asked = DuelAsked(a=a, b=b, matrix=str(matrix), null=a == b, plant=plant, select=select, pairs=pairs)
    request = make_duel(asked)
    return Duelling(request, lambda step: None).fight()


@pytest.mark.usefixtures("unused_card")
def test_a_planted_slowdown_is_found_and_none_is_invented(tmp_path: Path) -> None:
    """2 % of a kernel of more than 50 µs; the same kernel without it is the same."""
    honest = fought(tmp_path, "torch-sdpa-flash", "torch-sdpa-flash")
    assert not [cell for cell in honest.cells if cell.verdict in {"SLOWER", "FASTER"}]
    slowed = fought(tmp_path, "torch-sdpa-flash", "torch-sdpa-flash", plant=0.02, select="*/prefill/*")
    (cell,) = slowed.cells
    assert "SLOWER" == cell.verdict
    assert cell.ratio is not None
    assert 0.015 < cell.ratio.change < 0.03


@pytest.mark.usefixtures("unused_card")
def test_every_way_is_timed(tmp_path: Path) -> None:
    """Decode has a warm L2 too; the graph decides, and the host's time of a launch stands apart."""
    found = fought(tmp_path, "torch-sdpa-flash", "torch-sdpa-cudnn", pairs=2)
    ways = {cell.phase: set(cell.ratios) for cell in found.cells}
    assert {"graph", "eager", "host"} == ways["prefill"]
    assert {"graph", "graph_warm", "eager", "host"} == ways["decode"]
    assert {"graph"} == {cell.way for cell in found.cells}


def test_what_cannot_be_captured_raises() -> None:
    """A call that waits for the device breaks a capture; the process can go on, and draw random numbers."""
    processor = processor_of("cuda")
    values = torch.ones(1, device="cuda")
    with pytest.raises(RuntimeError):
        Blocks([values.item], processor, graph=True, block_us=1000, plant=0.0)
    assert Blocks([values.item], processor, graph=False, block_us=1000, plant=0.0).time() > 0
    assert torch.rand(1, device="cuda").item() < 1
    assert processor.healthy()


@pytest.mark.parametrize("graph", [False, True])
def test_a_plant_takes_its_share(*, graph: bool) -> None:
    """10 % of a large product, within two, in blocks as long as a duel's: longer ones end at another clock."""
    processor = processor_of("cuda")
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def launch() -> torch.Tensor:
        return matrix @ matrix

    plain = Blocks([launch], processor, graph=graph, block_us=BLOCK_US["large"], plant=0.0)
    slowed = Blocks([launch], processor, graph=graph, block_us=BLOCK_US["large"], plant=0.1)
    ratios = [slowed.time() / plain.time() for _ in range(9)]
    assert 1.08 < sorted(ratios)[4] < 1.12


def test_a_plant_takes_its_share_though_the_host_stumbles() -> None:
    """A host that sometimes waits 2 ms with a launch makes no planted spin longer or shorter."""
    processor = processor_of("cuda")
    matrix = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    launched = itertools.count(1)

    def launch() -> torch.Tensor:
        if next(launched) % 97 == 0:
            time.sleep(0.002)
        return matrix @ matrix

    def slowed() -> float:
        return Blocks([launch], processor, graph=True, block_us=BLOCK_US["large"], plant=0.2).time()

    plain = Blocks([launch], processor, graph=True, block_us=BLOCK_US["large"], plant=0.0)
    ratios = [slowed() / plain.time() for _ in range(8)]
    assert all(1.15 < ratio < 1.25 for ratio in ratios), ratios


@pytest.mark.usefixtures("unused_card")
def test_another_process_is_noticed() -> None:
    """One that was there before, and one that comes later."""
    watch, note = fitness_of("cuda")
    assert "" == note
    assert isinstance(watch, WatchedCard)
    assert () == watch.refusals(own=0)
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert "ready\n" == other.stdout.readline()
        assert "other process" in " ".join(watch.refusals(own=0))
        other.kill()
    watch.begin()
    assert watch.end().clock_mhz > 0
    watch.close()
