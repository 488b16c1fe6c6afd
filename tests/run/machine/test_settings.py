"""How a card is set, by a driver that answers as NVML does."""

from __future__ import annotations

import pytest

from qualify.run.machine.settings import settings

pynvml = pytest.importorskip("pynvml")


class Driver:
    """NVML's functions with the settings of one card; what it was not given, it does not support."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_GRAPHICS = pynvml.NVML_CLOCK_GRAPHICS
    NVML_CLOCK_MEM = pynvml.NVML_CLOCK_MEM
    c_nvmlGpuFabricInfo_t = pynvml.c_nvmlGpuFabricInfo_t

    def __init__(self, **answers) -> None:
        self.answers = answers

    def __getattr__(self, name: str):
        def answer(handle, *more):
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
