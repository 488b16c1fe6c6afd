"""Nsight Compute's CSV: what is read, and what is said where it is not there, not permitted, or prints nonsense."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qualify.errors import DeviceError
from qualify.facts.counters import CaseCounters, KernelCounters
from qualify.report.counters import to_text
from qualify.run.measure.nsight import METRICS, counters, find_ncu, profile

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>, true>(Flash_fwd_params)"
FORBIDDEN = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
    "target device 0. For instructions on enabling permissions and to get more information see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)


def row(launch: int, name: str, metric: str, unit: str, value: str) -> str:
    """One launch's metric, as the details page has it."""
    fixed = f'"{launch}","4711","python3.11","127.0.0.1","{name}","1","7","(128, 1, 1)","(32, 2, 16)","0","9.0"'
    return f'{fixed},"Command line profiler metrics","{metric}","{unit}","{value}"'


def printed(*rows: str) -> str:
    """The CSV between what ncu says beside it."""
    before = [
        "==PROF== Connected to process 4711 (/usr/bin/python3.11)",
        '==PROF== Profiling "k" - 0: 0%....100%',
        HEAD,
    ]
    return "\n".join([*before, *rows, "==PROF== Disconnected from process 4711"])


def launches() -> list[str]:
    """Two launches of an attention kernel, and one of another kernel."""
    units = ("byte", "byte", "%", "ns")
    found = []
    for launch, values in enumerate(
        (("124,000,000", "36,000,000", "61.5", "812,000"), ("126000000", "36000000", "62.5", "808000"))
    ):
        found += [
            row(launch, FLASH, metric, unit, value) for metric, unit, value in zip(METRICS, units, values, strict=True)
        ]
    return [*found, row(2, "void at::native::vectorized_elementwise_kernel<4>(int)", METRICS[0], "byte", "512")]


def test_attention_kernels_are_counted_per_launch() -> None:
    """Bytes with separators, shares and times in their units; other kernels are left out."""
    (kernel,) = counters(printed(*launches()), 0)
    assert (
        KernelCounters(
            name=FLASH, launches=2, read_bytes=125e6, written_bytes=36e6, tensor_share=0.62, duration_us=810.0
        )
        == kernel
    )


def test_a_counter_that_the_card_lacks_is_said() -> None:
    """`n/a` is no number, and neither is an unknown unit."""
    rows = [
        row(0, FLASH, METRICS[0], "byte", "5"),
        row(0, FLASH, METRICS[2], "%", "n/a"),
        row(0, FLASH, METRICS[1], "?", "1"),
    ]
    (kernel,) = counters(printed(*rows), 0)
    assert (5.0, None, None, None) == (kernel.read_bytes, kernel.written_bytes, kernel.tensor_share, kernel.duration_us)


def test_no_permission_is_told_with_the_way_out() -> None:
    """Not a parsing error."""
    with pytest.raises(DeviceError, match=r"not permitted.*NVreg_RestrictProfilingToAdminUsers=0"):
        counters(FORBIDDEN, 0)


@pytest.mark.parametrize("text", ["", "Segmentation fault", HEAD, f'{HEAD}\n"0","cut', printed(launches()[-1])])
def test_nonsense_is_told_with_its_end(text: str) -> None:
    """Nothing, no CSV, no row, half a row, and no attention kernel."""
    with pytest.raises(DeviceError, match="ncu profiled no attention kernel; it ended with status 139"):
        counters(text, 139)


def fake(folder: Path, body: str) -> str:
    """A program in the place of ncu: only its errors and its text are looked at."""
    path = folder / "ncu"
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_program_is_asked_for_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name on PATH; it is given the interpreter and the script, and its text on both streams is read."""
    (tmp_path / "out").write_text(printed(*launches()))
    body = (
        f"import sys\nopen('asked', 'w').write(' '.join(sys.argv[1:]))\nprint(open({str(tmp_path / 'out')!r}).read())"
    )
    program = fake(tmp_path, body)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program == find_ncu()
    (tmp_path / "call.py").write_text("")
    (kernel,) = profile(program, "/opt/next/bin/python", tmp_path / "call.py", limit_s=60)
    assert 125e6 == kernel.read_bytes
    asked = (tmp_path / "asked").read_text()
    assert asked.endswith(f"/opt/next/bin/python -P {tmp_path / 'call.py'}")
    assert f"--metrics {','.join(METRICS)}" in asked


def test_a_program_that_hangs_or_is_none_is_told(tmp_path: Path) -> None:
    """Within its limit."""
    with pytest.raises(DeviceError, match=r"did not end within 0\.5 s"):
        profile(fake(tmp_path, "import time; time.sleep(60)"), sys.executable, tmp_path / "call.py", limit_s=0.5)
    with pytest.raises(DeviceError, match="cannot be started"):
        profile(str(tmp_path / "missing"), sys.executable, tmp_path / "call.py", limit_s=1)


def test_without_ncu_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("qualify.run.measure.nsight.ELSEWHERE", str(tmp_path))
    with pytest.raises(DeviceError, match="ncu is not installed"):
        find_ncu()


def test_the_text_puts_counters_beside_what_must_be_moved() -> None:
    """Bytes over the compulsory ones, the share of the copy rate in the measured time, and the tensor cores."""
    (kernel,) = counters(printed(*launches()), 0)
    found = CaseCounters(
        case="c", run="r", kernels=(kernel,), compulsory_bytes=100_000_000, latency_us=100.0, copy_bytes_per_s=3.22e12
    )
    text = to_text(found)
    assert "125.00 MB read and 36.00 MB written by a launch, 1.61 times the 100.00 MB that it must; 50% of" in text
    assert "tensor cores: busy in 62.0% of the kernel's cycles" in text
