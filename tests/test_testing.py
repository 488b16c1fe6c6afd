"""``qualify.testing``: what is refused before anything runs. tests/test_packaging.py runs kernels as a project does."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cli_process import ROOT, environment

from qualify.errors import CardError, UsageError
from qualify.testing import qualify_kernel


def attend(call):
    raise AssertionError("nobody runs it")


class Kernels:
    """No module: another process cannot name what stands in it."""

    @staticmethod
    def attend(call):
        raise AssertionError("nobody runs it")


@pytest.mark.parametrize("function", [lambda call: call.q, Kernels.attend, len, "mykernel:attend"])
def test_what_another_process_cannot_import_is_refused(function) -> None:
    """With what to do about it."""
    with pytest.raises(UsageError, match="it must be a function at the top level of a module"):
        qualify_kernel(function)


def test_a_wrong_claim_is_refused_before_a_process_starts() -> None:
    """A mask that is mistyped, a dtype that nobody has, a feature that no card knows."""
    with pytest.raises(UsageError, match="must be labels of masks with their size, like full, causal, window4096"):
        qualify_kernel(attend, masks=["causl"])
    for wrong in ({"dtypes": ["bf17"]}, {"features": ["gqaa"]}, {"accuracy": {"bf16": "exact"}}):
        with pytest.raises(CardError):
            qualify_kernel(attend, device="cpu", **wrong)


def test_importing_it_takes_no_torch() -> None:
    """A suite that only collects its tests does not wait for it."""
    code = "import sys, qualify.pytest_plugin; assert not {'torch', 'sqlalchemy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment())
