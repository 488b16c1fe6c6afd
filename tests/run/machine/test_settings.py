"""How a card is set, by a driver that answers as NVML does."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from qualify.errors import DeviceError
from qualify.run.machine.device import Cuda
from qualify.run.machine.settings import keeps_others_out, settings
from qualify.run.machine.software import describe_cpu

pynvml = pytest.importorskip("pynvml")


class Driver:
    """NVML's functions with the settings of one card; what it was not given, it does not support."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_GRAPHICS = pynvml.NVML_CLOCK_GRAPHICS
    NVML_CLOCK_MEM = pynvml.NVML_CLOCK_MEM
    NVML_COMPUTEMODE_DEFAULT = pynvml.NVML_COMPUTEMODE_DEFAULT
    c_nvmlGpuFabricInfo_t = pynvml.c_nvmlGpuFabricInfo_t

    def __init__(self, **answers) -> None:
        self.answers = answers

    def __getattr__(self, name: str):
        def answer(handle=None, *more):
            if name not in self.answers:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            found = self.answers[name]
            return found(*more) if callable(found) else found

        return answer


def told(**answers) -> dict[str, str]:
    """Settings by name."""
    return {part.name: part.version for part in settings(Driver(**answers), None)}


def test_what_an_administrator_sets() -> None:
    """Modes with what a reset will make of them, limits and clocks with their units."""

    def fabric(info) -> None:
        info._obj.state, info._obj.status = 3, 0

    assert {
        "ecc": "on, off after a reset",
        "mig": "off",
        "power limit": "700 W",
        "graphics clock": "1980 MHz",
        "memory clock": "2619 MHz",
        "compute mode": "exclusive process",
        "fabric": "completed",
    } == told(
        nvmlDeviceGetEccMode=[1, 0],
        nvmlDeviceGetMigMode=[0, 0],
        nvmlDeviceGetPowerManagementLimit=700000,
        nvmlDeviceGetApplicationsClock=lambda kind: {0: 1980, 2: 2619}[kind],
        nvmlDeviceGetComputeMode=3,
        nvmlDeviceGetGpuFabricInfo=fabric,
    )


def test_a_fabric_that_failed() -> None:
    """Its error is part of the setting."""

    def fabric(info) -> None:
        info._obj.state, info._obj.status = 3, 999

    assert {"fabric": "completed, error 999"} == told(nvmlDeviceGetGpuFabricInfo=fabric)


def test_a_card_that_tells_nothing() -> None:
    """What is not supported is left out."""
    assert {} == told()


@pytest.mark.parametrize(
    ("mode", "clients", "said"),
    [
        (0, [], ""),
        (2, [], "prohibited"),
        (3, [], "exclusive process"),
        (3, ["a client of MPS"], ""),
    ],
)
def test_a_mode_in_which_no_second_process_may_use_the_card(mode, clients, said) -> None:
    """Each mode but the first; with MPS, whose server is the only process that the driver sees, others may come."""
    card = Driver(nvmlDeviceGetComputeMode=mode, nvmlDeviceGetMPSComputeRunningProcesses=clients)
    assert said == keeps_others_out(card, None)


def test_a_mode_that_nobody_tells() -> None:
    """A driver without these questions keeps nobody out."""
    assert "" == keeps_others_out(Driver(), None)
    assert "" == keeps_others_out(Driver(nvmlDeviceGetComputeMode=3), None)


class OnProcessor(Cuda):
    """A GPU whose tensors lie in the memory of this machine."""

    device = torch.device("cpu")


def test_a_judge_does_not_begin_on_a_card_that_admits_no_host(monkeypatch) -> None:
    """Every kernel would fail there, because its process cannot use the card."""
    described = replace(describe_cpu(), name="H100", uuid="GPU-1")
    card = Driver(
        nvmlInit=None,
        nvmlDeviceGetHandleByUUID="a handle",
        nvmlDeviceGetComputeMode=3,
        nvmlDeviceGetMPSComputeRunningProcesses=[],
    )
    monkeypatch.setitem(sys.modules, "pynvml", card)
    with pytest.raises(DeviceError) as refused:
        OnProcessor().take(described)
    assert str(refused.value).startswith("H100 is in compute mode 'exclusive process', which admits one process")
    assert "nvidia-smi -i GPU-1 -c DEFAULT" in str(refused.value)
    card.answers["nvmlDeviceGetComputeMode"] = 0
    OnProcessor().take(described)


def test_who_uses_a_card_is_known_only_where_this_process_is_among_them(monkeypatch) -> None:
    """In some containers NVML names processes by their ids outside, which mean nothing here."""
    described = replace(describe_cpu(), uuid="GPU-1")
    seen = [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=7)]
    card = Driver(nvmlInit=None, nvmlDeviceGetHandleByUUID="a handle", nvmlDeviceGetComputeRunningProcesses=seen)
    monkeypatch.setitem(sys.modules, "pynvml", card)
    assert sorted([7, os.getpid()]) == list(Cuda().users(described))
    del seen[0]
    assert () == Cuda().users(described)
    del card.answers["nvmlDeviceGetComputeRunningProcesses"]
    assert () == Cuda().users(described)
