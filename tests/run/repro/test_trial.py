"""Scripts of failures: what a fresh Python that has only torch and the kernel makes of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import make_card, make_case, make_workload
from fresh_python import Nursery, nursery
from subjects import make_subject

from qualify.run.adapters.registry import create_adapter
from qualify.run.host.hosts import LocalHosts
from qualify.run.machine.device import Cpu
from qualify.run.process.messages import TrialEnded, TrialRequest
from qualify.run.repro.trial import Trial

FOLDER = Path(__file__).parents[1]
PAGED = {"page_size": 16, "seqlens_q": (1, 1, 1), "seqlens_k": (37, 20, 5)}
EMPTY = {"seqlens_q": (7, 4), "seqlens_k": (7, 0)}
FP32 = {"dtype": "fp32"}


def trial(function: str, check: str, finding: str = "", level: str = "smoke", **workload: Any) -> TrialEnded:
    """One check of a wrong kernel, recorded."""
    sizes = {"seqlens_q": (30,), "heads_q": 4, "heads_kv": 2, "head_dim": 32} | workload
    card = make_card(adapter="call", entry=f"wrong_kernels:{function}", shipped_by=...)
    adapter = create_adapter(card)
    subject = make_subject(adapter, card=card, level=level, **sizes)
    case = make_case(workload=make_workload(**sizes))
    asked = TrialRequest(case=case, seed=1, check=check, finding=finding or check, script=True, text="As found.")
    return Trial(asked, subject, LocalHosts(Cpu(), {card.kernel: adapter})).run()


@pytest.fixture(scope="module")
def fresh() -> Iterator[Nursery]:
    """What runs a script in a fresh Python, for many of them."""
    with nursery() as made:
        yield made


def run_script(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """A Python of its own, started as users start it, without the checkout."""
    path = tmp_path / "repro.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, "-P", str(path)], cwd=tmp_path, capture_output=True, text=True, check=False, env={"PATH": ""}
    )


@pytest.mark.parametrize(
    ("function", "check", "finding", "workload"),
    [
        ("sees_the_future", "census", "census", {}),
        ("sees_the_future", "suffix", "suffix", {}),
        ("skips_a_key", "needle", "needle", {}),
        ("reads_the_tail", "poison", "poison", PAGED),
        ("reads_the_tail", "census", "census", PAGED),
        ("lse_to_base_2", "budget", "lse", FP32),
        ("lse_to_base_2", "census", "census", FP32),
        ("half_a_percent", "budget", "budget", {}),
        ("garbage_in_empty_rows", "budget", "empty_row", EMPTY | FP32),
        ("flickers", "repeat", "repeat", FP32),
        ("last_row_is_zero", "budget", "budget", {}),
        ("tiles_the_heads", "heads", "heads", {"heads_q": 6, "heads_kv": 3}),
        ("ignores_the_scale", "parameters", "parameters", FP32),
        ("depends_on_pages", "page_permutation", "page_permutation", PAGED),
        ("overflows", "powers_of_two", "powers_of_two", {}),
        ("garbage_in_empty_rows", "degenerate", "degenerate", FP32),
        ("ignores_strides", "layout", "layout", FP32),
        ("keeps_the_first_mask", "history", "history", FP32),
        ("lse_to_base_2", "merge", "merge", FP32 | PAGED),
    ],
)
def test_a_script_shows_the_failure(function, check, finding, workload, fresh: Nursery, tmp_path) -> None:
    """It prints the value beside the expected one and exits 1; with a corrected kernel it exits 0."""
    ended = trial(function, check, finding, **workload)
    assert f"finding:{finding}" == ended.ended, ended
    script = ended.script
    assert "import qualify" not in script
    assert "from qualify" not in script
    shown = fresh.run(script, tmp_path)
    assert (1, "WRONG") == (shown.returncode, shown.stdout.splitlines()[-1]), shown.stdout + shown.stderr
    assert "sequence " in shown.stdout
    fixed = fresh.run(script.replace(f"wrong_kernels:{function}'", "wrong_kernels:correct'"), tmp_path)
    assert (0, "right") == (fixed.returncode, fixed.stdout.splitlines()[-1]), fixed.stdout + fixed.stderr


@pytest.mark.parametrize(
    ("function", "says"),
    [("returns_no_lse", "the kernel returned no LSE"), ("returns_its_workspace", "out of the first call")],
)
def test_a_script_shows_a_broken_contract(function, says, fresh: Nursery, tmp_path) -> None:
    """What the card claims and what the next call does are asserted too; a correct kernel is right."""
    script = trial(function, "contract").script
    shown = fresh.run(script, tmp_path)
    assert (1, "WRONG") == (shown.returncode, shown.stdout.splitlines()[-1]), shown.stdout + shown.stderr
    assert says in shown.stdout
    fixed = fresh.run(script.replace(f"wrong_kernels:{function}'", "wrong_kernels:correct'"), tmp_path)
    assert (0, "right") == (fixed.returncode, fixed.stdout.splitlines()[-1]), fixed.stdout + fixed.stderr


def test_a_bias_is_shown_over_all_rows(fresh: Nursery, tmp_path) -> None:
    """Where no element is over its limit the script measures the statistic that is."""
    ended = trial("half_a_percent", "budget", seqlens_q=(200,), head_dim=64, dtype="fp16")
    assert "finding:budget" == ended.ended
    shown = fresh.run(ended.script, tmp_path)
    assert 1 == shown.returncode, shown.stdout + shown.stderr


def test_a_correct_kernel_gives_a_script_that_passes(tmp_path) -> None:
    """The script of a case that passed shows one value beside the exact one and exits 0."""
    ended = trial("correct", "budget", "passed")
    assert "passed" == ended.ended
    shown = run_script(ended.script, tmp_path)
    assert (0, "right") == (shown.returncode, shown.stdout.splitlines()[-1]), shown.stdout + shown.stderr


def test_a_repeated_trial_writes_the_same_script() -> None:
    """Inputs that an earlier trial has made stand in it as draws from a seed, and not as their bytes."""
    scripts = [trial("half_a_percent", "budget").script for _ in range(2)]
    assert scripts[0]
    assert scripts[0] == scripts[1]
    assert "unpack(" not in scripts[1]


def test_a_recorded_call_is_no_leak() -> None:
    """The check that measures memory is repeated without the recorder, which keeps every call's tensors."""
    ended = trial("correct", "leak", level="full", seqlens_q=(64,))
    assert ("passed", "it passes", "") == (ended.ended, ended.detail, ended.script)


def test_a_name_that_is_no_check_has_no_script() -> None:
    """What only qualify can see, such as the witness's verdict, is not shown by a script of calls."""
    ended = trial("correct", "witness")
    assert ("finding:witness", "") == (ended.ended, ended.script)
