"""``qualify.testing``: what is refused before anything runs. tests/test_packaging.py runs kernels as a project does."""

from __future__ import annotations

import contextlib
import functools
import importlib
import shutil
import subprocess
import sys

import pytest
from cli_process import ROOT, environment

from qualify.errors import UsageError
from qualify.testing import KernelNotQualified, qualify_kernel


def attend(call):
    raise AssertionError("nobody runs it")


RAISES = "def attend(call):\n    raise ValueError(LUCK)\n"


@contextlib.contextmanager
def quiet():
    yield


@quiet()
def decorated(call):
    raise ValueError("no \x1b[31mluck")


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


def test_a_function_that_another_process_would_not_find_under_its_name_is_refused() -> None:
    """A wrapper has the name of the function in it, so that one would be judged in its place."""
    wrapper = functools.wraps(attend)(lambda call: call.q)
    with pytest.raises(UsageError, match=r"would import test_testing\.attend, which is another object"):
        qualify_kernel(wrapper)


def test_a_module_that_another_process_would_find_elsewhere_is_refused(tmp_path, monkeypatch) -> None:
    """An installed module of the same name comes first there, so that one would be judged in its place."""
    for folder in ("installed", "src"):
        package = tmp_path / folder / "twice"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("def attend(call):\n    return call.q\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'installed'}:{ROOT}")
    monkeypatch.syspath_prepend(tmp_path / "src")
    twice = importlib.import_module("twice")
    try:
        with pytest.raises(UsageError) as caught:
            qualify_kernel(twice.attend, device="cpu")
    finally:
        del sys.modules["twice"]
    found = f"would import twice from {tmp_path}/installed/twice/__init__.py, and not from {twice.__file__}"
    assert found in str(caught.value)


def test_a_python_that_cannot_start_is_told(tmp_path, monkeypatch) -> None:
    """With its last words: a file that each new Python runs may be broken, and no kernel's process would start."""
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('no luck')\n")
    (tmp_path / "alone.py").write_text("def attend(call):\n    return call.q\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.syspath_prepend(tmp_path)
    alone = importlib.import_module("alone")
    try:
        with pytest.raises(
            UsageError, match="cannot say what another process would import as alone: SystemExit: no luck"
        ):
            qualify_kernel(alone.attend, device="cpu")
    finally:
        del sys.modules["alone"]


def test_a_kernel_may_import_from_every_folder_that_pytest_imports_from(tmp_path, monkeypatch) -> None:
    """Such as that of the option pythonpath; the command that repeats a failure names it as well."""
    for folder, text in (("src", "LUCK = 'no luck'\n"), ("tests", "from lucky import LUCK\n\n\n" + RAISES)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ("lucky.py" if folder == "src" else "unlucky.py")).write_text(text)
        monkeypatch.syspath_prepend(tmp_path / folder)
    unlucky = importlib.import_module("unlucky")
    try:
        with pytest.raises(KernelNotQualified) as caught:
            qualify_kernel(unlucky.attend, phases={"decode": {"batch": 1, "context": 3}}, device="cpu")
    finally:
        del sys.modules["unlucky"], sys.modules["lucky"]
    shutil.rmtree(caught.value.folder)
    assert "ValueError: no luck (unlucky.py:" in str(caught.value)
    assert f"--cards {tmp_path}/tests --cards {tmp_path}/src" in str(caught.value)


def test_a_wrong_claim_is_refused_before_a_process_starts() -> None:
    """A mask that is mistyped, a dtype that nobody has, a feature that no card knows."""
    with pytest.raises(UsageError, match="must be labels of masks with their size, like full, causal, window4096"):
        qualify_kernel(attend, masks=["causl"])
    with pytest.raises(UsageError, match=r"masks='causal': must be a list; write \['causal'\]"):
        qualify_kernel(attend, masks="causal")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"dtypes": ["bf17"]},
            "dtypes[0]: must be one of bf16, fp16, fp32, fp8_e4m3, bf16_kv_fp8_e4m3, fp16_kv_fp8_e4m3",
        ),
        ({"features": ["gqaa"]}, "features[0]: must be one of gqa, softcap, "),
        ({"accuracy": {"bf16": "exact"}}, "accuracy.bf16: must be one of fp32, fp16, "),
        ({"heads": (3, 2)}, "heads: is 2 and does not divide heads_q = 3"),
        ({"heads": 4}, "heads: must be query heads and KV heads, such as (4, 2), but is 4"),
        ({"head_dim": 0}, "head_dim: must be at least 1, but is 0"),
        ({"head_dim": "64"}, "head_dim: must be a whole number or a list of them, but is '64'"),
        ({"head_dim": []}, "head_dim: must be a whole number or a list of them, but is []"),
        ({"head_dim": [64, "x"]}, "head_dim: must be a whole number or a list of them, but is [64, 'x']"),
        ({"head_dim": 64.0}, "head_dim: must be a whole number or a list of them, but is 64.0"),
        ({"dtypes": None}, "dtypes: must be a list, but is None"),
        ({"masks": [3]}, "masks=[3]: must be labels of masks with their size"),
        ({"layouts": []}, "layouts: must be packed, paged or both, but is an empty list"),
        ({"dtypes": "bf16"}, "dtypes='bf16': must be a list; write ['bf16']"),
        ({"features": "gqa"}, "features='gqa': must be a list; write ['gqa']"),
        ({"layouts": "paged"}, "layouts='paged': must be a list; write ['paged']"),
        ({"must_match": "flash"}, "must_match='flash': must be a list; write ['flash']"),
        (
            {"phases": ["decode"]},
            "phases: must be a mapping, such as {'decode': {'batch': 3, 'context': 129}}, but is [",
        ),
        ({"accuracy": "bf16"}, "accuracy: must be a mapping, such as {'bf16': 'bf16'}, but is 'bf16'"),
        ({"softcap": -1.0}, "softcap: must be at least 0, but is -1.0"),
        ({"layouts": ["pagd"]}, "layouts: must be one of packed, paged, but is 'pagd'; perhaps you meant paged"),
        ({"must_match": ["("]}, "must_match[0]: must be a regular expression"),
        ({"timeout_s": -1}, "timeout_s: must be more than 0, but is -1"),
        ({"phases": {"prefil": {}}}, "phases.prefil: unknown key; perhaps you meant prefill"),
        ({"level": "deep"}, "level: must be one of smoke, full, but is 'deep'"),
        ({"device": "gpu"}, "device: must be one of auto, cpu, cuda, but is 'gpu'"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named_as_it_was_given(wrong, said, tmp_path, monkeypatch) -> None:
    """No file that the author never wrote is named, and none is left behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        qualify_kernel(attend, **({"device": "cpu"} | wrong))
    assert str(caught.value).startswith(said)
    assert [] == list(tmp_path.iterdir())


def test_what_the_arguments_leave_out_is_no_wrong_kernel() -> None:
    """The kernel did nothing wrong: its features do not fit the phases, so nobody called it there."""
    phases = {"varlen": {"lengths": [[1, 3]]}}
    with pytest.raises(KernelNotQualified) as caught:
        qualify_kernel(attend, features=["gqa"], phases=phases, device="cpu")
    said = str(caught.value)
    shutil.rmtree(caught.value.folder)
    assert said.startswith("attend is not proven to be correct: the arguments leave out 1 of 1 cases\n")
    assert "refuses it: 2 different lengths in one batch (attend does not claim ragged)\n" in said


def test_a_decorated_kernel_is_imported_from_its_own_module() -> None:
    """The decorator's wrapper stands in the standard library. What the kernel raises cannot colour a terminal."""
    with pytest.raises(KernelNotQualified) as caught:
        qualify_kernel(decorated, phases={"decode": {"batch": 1, "context": 3}}, device="cpu")
    shutil.rmtree(caught.value.folder)
    assert r"ValueError: no \x1b[31mluck (test_testing.py:" in str(caught.value)


def test_importing_it_takes_no_torch() -> None:
    """A suite that only collects its tests does not wait for it."""
    code = "import sys, qualify.pytest_plugin; assert not {'torch', 'sqlalchemy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment())
