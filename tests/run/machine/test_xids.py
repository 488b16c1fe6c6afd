"""Xids in the kernel's log: lines as drivers have written them, and which card and case they belong to."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from qualify.facts.xid import Xid, blame_of, worst_blame
from qualify.run.machine.xids import KernelLog, NvmlXids, XidWatch, at_case, bus_of, of_cards, parse

FELL = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
FAULT = (
    "4,1871,912345678,-;NVRM: Xid (PCI:0000:00:06): 31, pid=79749, name=exe, Ch 0000000a, intr 00000000. MMU Fault: "
    "ENGINE GRAPHICS GPC2 GPCCLIENT_T1_7 faulted @ 0x2b57_b3000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
)
NAMED = "NVRM: GPU at PCI:0000:3b:00: GPU-0b6b7808-c002-f593-ac86-cd8e57757b94"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (FELL, ("0000:3b:00", 79, "pid=1234, name=python, GPU has fallen off the bus.")),
        ("NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.",
         ("0000:06:00", 79, "GPU has fallen off the bus.")),
        ("Okt 06 17:59:27 balrog kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.",
         ("0000:01:00", 79, "pid=1122, GPU has fallen off the bus.")),
        ("[14387.209961] NVRM: Xid (PCI:0000:c1:00): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1).",
         ("0000:c1:00", 94, "pid='<unknown>', name=<unknown>, Contained: SM (0x1).")),
        ("NVRM: Xid (PCI:0000:83:00): 48", ("0000:83:00", 48, "")),
        ("NVRM: Xid (0000:03:00): 13, Graphics Exception: ESR 0x405840=0x83",
         ("0000:03:00", 13, "Graphics Exception: ESR 0x405840=0x83")),
        ("NVRM: GPU 0000:06:00.0: GPU has fallen off the bus.", None),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01", None),
    ],
)  # fmt: skip
def test_a_line_of_the_log(line: str, expected: tuple[str, int, str] | None) -> None:
    """Of dmesg, of journalctl, with and without a process; other lines of the driver are none."""
    assert expected == parse(line)


def test_a_page_fault_of_a_kernel() -> None:
    """A record of /dev/kmsg, in a virtual machine."""
    bus, number, text = parse(FAULT) or ("", 0, "")
    assert ("0000:00:06", 31, "kernel") == (bus, number, blame_of(number))
    assert text.startswith("pid=79749, name=exe, Ch 0000000a")


def test_one_form_of_a_place_on_the_bus() -> None:
    """NVML writes it longer, and in capitals."""
    assert ["0000:3b:00"] * 3 == [bus_of(text) for text in ("00000000:3B:00.0", "0000:3b:00", "0000:3B:00.0")]


def test_a_broken_card_counts_before_the_kernel_whose_context_it_took_along() -> None:
    """Every listed number has its side; an unknown one has none."""
    assert {"hardware"} == {blame_of(number) for number in (48, 63, 64, 74, 79, 92, 94, 95, 119, 120)}
    assert {"kernel"} == {blame_of(number) for number in (13, 31, 43, 45)}
    assert ("hardware", "kernel", "unknown", None) == (
        worst_blame([45, 79]), worst_blame([154, 31]), worst_blame([154]), worst_blame([])
    )  # fmt: skip


class Told(NvmlXids):
    """A machine whose NVML lists one card and tells what it is given."""

    def __init__(self) -> None:
        self.buses = {"0000:3b:00": "GPU-a"}
        self.told: list[tuple[str, int]] = []

    def read(self) -> Any:
        """Each once."""
        told, self.told = self.told, []
        return iter(told)

    def close(self) -> None:
        """Nothing to close."""


def test_the_log_and_nvml_tell_one_error_once(tmp_path: Path) -> None:
    """With the driver's words and the card; what stood there before is not read."""
    path = tmp_path / "kmsg"
    path.write_text(f"{FELL}\n")
    nvml = Told()
    watch = XidWatch(KernelLog(path), nvml)
    nvml.told = [("GPU-a", 79)]
    watch.look()
    with path.open("a") as file:
        file.write(f"eth0: link up\n{FELL}\n{FELL[:30]}")
    watch.look()
    with path.open("a") as file:
        file.write(f"{FELL[30:]}\n{NAMED.replace('3b', '5d')}\n{FELL.replace('3b', '5d')}\n")
    watch.look()
    watch.close()
    assert [("GPU-a", 79), ("GPU-a", 79), ("GPU-0b6b7808-c002-f593-ac86-cd8e57757b94", 79)] == [
        (xid.card, xid.number) for xid in watch.found
    ]
    assert {"pid=1234, name=python, GPU has fallen off the bus."} == {xid.text for xid in watch.found}


class Lost:
    """What of pynvml reads errors: a card that was lost before, and one that falls off the bus."""

    NVMLError = pynvml.NVMLError
    nvmlEventTypeXidCriticalError = pynvml.nvmlEventTypeXidCriticalError

    def __init__(self) -> None:
        self.events = [79]

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - as pynvml calls it
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return ctypes.cast(0x1000, pynvml.c_nvmlDevice_t)

    def nvmlDeviceGetPciInfo(self, _: Any) -> Any:  # noqa: N802
        return SimpleNamespace(busId=b"00000000:3B:00.0")

    def nvmlEventSetCreate(self) -> Any:  # noqa: N802
        return object()

    def nvmlEventSetWait_v2(self, *_: Any) -> Any:  # noqa: N802
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(device=ctypes.cast(0x1000, pynvml.c_nvmlDevice_t), eventData=self.events.pop())

    def nvmlDeviceGetUUID(self, _: Any) -> str:  # noqa: N802
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return "GPU-a"


def test_a_card_that_fell_off_the_bus_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML does not tell its UUID any more, and nobody may read the kernel's log."""
    monkeypatch.setitem(sys.modules, "pynvml", Lost())
    watch = XidWatch(KernelLog(tmp_path / "none"))
    watch.look()
    assert [("GPU-a", 79)] == [(it.card, it.number) for it in watch.found]


def test_a_log_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    """Then NVML alone tells."""
    log = KernelLog(tmp_path / "none")
    assert ("No such file or directory", []) == (log.why_not.rpartition(": ")[2], list(log.lines()))


def test_an_xid_belongs_to_the_case_that_had_begun_last() -> None:
    """On its own card."""
    cases = [(1.0, "a"), (2.0, "b"), (3.0, "c")]
    xid = Xid(number=31, card="GPU-a", bus="", seen_s=2.5, text="")
    assert ("b", "") == (at_case(xid, cases).case, at_case(xid, [(3.0, "c")]).case)
    assert {"GPU-a": (xid,), "GPU-b": ()} == of_cards([xid], ["GPU-a", "GPU-b"])
    assert "Xid 31 (GPU memory page fault) during b" == at_case(xid, cases).words
