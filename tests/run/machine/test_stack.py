"""The fingerprint of what a run ran on."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qualify
from qualify.errors import DeviceError
from qualify.facts.stack import Component
from qualify.plan import digests
from qualify.plan.installed import digest_of
from qualify.run.machine import software, stack
from qualify.run.machine.device import processor_of
from qualify.run.machine.software import describe_cpu, distributions, libraries, promised_distributions
from qualify.run.machine.stack import MAPPED_BYTES, describe_stack, mapped_binaries, named_binaries
from qualify.run.machine.variables import dispatch_environment

ROOT = Path(qualify.__file__).resolve().parents[1]


def test_this_cpu_is_described() -> None:
    """Name, cores and memory of the machine; no capability."""
    device = processor_of("cpu").describe()
    assert ("cpu", "") == (device.kind, device.compute_capability)
    assert device.name
    assert device.units >= 1
    assert device.memory_bytes > 1 << 28
    assert device.cache_bytes >= 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_gpu_is_an_error_that_says_what_to_do() -> None:
    """Why there is none, and the way out."""
    with pytest.raises(DeviceError, match=r"no CUDA device: .*--device cpu"):
        processor_of("cuda").describe()


def test_the_stack_names_versions_and_binaries(tmp_path: Path) -> None:
    """Python, torch with the digest of its RECORD, and torch's mapped libraries by their content."""
    cache = tmp_path / "sha256.json"
    found = describe_stack(processor_of("cpu").describe(), cache)
    assert platform.python_version() == found.version("python")
    torch_itself = next(part for part in found.components if part.name == "torch")
    assert ("distribution", 64) == (torch_itself.kind, len(torch_itself.digest))
    library = next(path for path in mapped_binaries() if path.name.startswith("libtorch_python"))
    digests = {part.name: part.digest for part in found.components if part.kind == "binary"}
    assert hashlib.sha256(library.read_bytes()).hexdigest() == digests[library.name]
    assert found == describe_stack(processor_of("cpu").describe(), cache)


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two distributions and one binary are all that counts: to hash torch takes a second."""
    monkeypatch.setattr(software, "DISTRIBUTIONS", ("numpy", "quack-kernels"))
    smallest = min(mapped_binaries(), key=lambda path: path.stat().st_size)
    monkeypatch.setattr(stack, "mapped_binaries", lambda: [smallest])


def test_a_broken_or_unwritable_cache_only_costs_time(tmp_path: Path, few_files: None) -> None:
    """Hashes are computed again."""
    device = processor_of("cpu").describe()
    cache = tmp_path / "sha256.json"
    expected = describe_stack(device, cache)
    cache.write_text("{broken")
    assert expected == describe_stack(device, cache)
    (tmp_path / "file").write_text("")
    assert expected == describe_stack(device, tmp_path / "file" / "sha256.json")


def test_equal_software_on_two_cards_has_one_fingerprint(tmp_path: Path, few_files: None) -> None:
    """The card's UUID does not count, everything else does."""
    found = describe_stack(processor_of("cpu").describe(), tmp_path / "sha256.json")
    assert found.fingerprint == replace(found, device=replace(found.device, uuid="another")).fingerprint
    assert found.fingerprint != replace(found, device=replace(found.device, units=1000)).fingerprint
    assert found.fingerprint != replace(found, environment={**found.environment, "VLLM_X": "1"}).fingerprint
    assert found.fingerprint != replace(found, components=found.components[1:]).fingerprint


def test_the_environment_holds_what_steers_dispatch_and_no_secret() -> None:
    """Variables of the libraries, sorted; never one that may hold a token."""
    hidden = {"NVIDIA_API_KEY": "hidden", "TORCH_HUB_TOKEN": "hidden", "HOME_COLOUR": "blue"}
    found = dispatch_environment({"VLLM_ATTENTION_BACKEND": "FLASH_ATTN", "CUDA_X": "1", **hidden})
    assert [("CUDA_X", "1"), ("VLLM_ATTENTION_BACKEND", "FLASH_ATTN")] == list(found.items())


@pytest.mark.parametrize(
    "name",
    [
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "CUTE_DSL_ARCH", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "OMP_SCHEDULE"),
        *("NCCL_ALGO", "SGLANG_ATTENTION_BACKEND", "XFORMERS_FORCE_DISABLE_TRITON", "CUBLASLT_LOG_LEVEL"),
        *("NVIDIA_TF32_OVERRIDE", "TORCHINDUCTOR_MAX_AUTOTUNE", "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE"),
        *("OPENBLAS_CORETYPE", "GLIBC_TUNABLES", "NVTE_FLASH_ATTN", "CUTLASS_PATH"),
    ],
)
def test_what_steers_dispatch_is_kept(name: str) -> None:
    """Libraries that are found elsewhere, compilers, thread pools, and each library's own variables."""
    assert {name: "1"} == dispatch_environment({name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA_REQUIRE_CUDA", "NVIDIA_REQUIRE_DRIVER", "OMP_WAIT_POLICY", "LD_LIBRARY_PATH_OLD", "HOME"),
        *("VLLM_API_KEY", "SGLANG_AUTH", "TORCH_PASSWD", "NCCL_SECRETS", "VLLM_S3_ACCESS_KEY_ID", "TRITON_CREDENTIALS"),
    ],
)
def test_what_says_nothing_or_is_a_secret_is_not_kept(name: str) -> None:
    """What an image wants of a driver, how threads wait, and every name that a secret may have."""
    assert {} == dispatch_environment({name: "1"})


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("https://ann:secret@cache.example/x", "https://***@cache.example/x"),
        ("redis://:secret@host:1,redis://:secret@other:2", "redis://***@host:1,redis://***@other:2"),
        ("https://host/x?api_key=secret&size=3", "https://host/x?api_key=***&size=3"),
        ("level=3;access_token=secret", "level=3;access_token=***"),
        ("expandable_segments:True,max_split_size_mb:64", "expandable_segments:True,max_split_size_mb:64"),
        ("/opt/a/lib:/opt/b@2/lib", "/opt/a/lib:/opt/b@2/lib"),
    ],
)
def test_a_secret_in_a_value_is_not_stored(value: str, stored: str) -> None:
    """Of a URL neither user nor password, of parameters none that bears such a name; the rest stays."""
    assert {"TORCH_X": stored} == dispatch_environment({"TORCH_X": value})


def install(folder: Path, file: str, content: bytes) -> str:
    """A distribution of one file; the text of its RECORD."""
    promise = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    record = f"quack/{file},sha256={promise},5\n"
    for name, text in (("RECORD", record), ("METADATA", "Metadata-Version: 2.1\nName: quack-kernels\nVersion: 9\n")):
        (folder / "quack_kernels-9.dist-info").mkdir(exist_ok=True)
        (folder / "quack_kernels-9.dist-info" / name).write_text(text)
    (folder / "quack").mkdir()
    (folder / "quack" / file).write_bytes(content)
    return record


def test_a_library_that_is_mapped_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a file of a distribution and a binary; level full reads every file, and the large ones are both."""
    record, read = install(tmp_path, "fast.so", b"code"), []
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(digests, "_sha256", lambda path: read.append(path) or hashlib.sha256(b"code").hexdigest())
    found = libraries([tmp_path / "quack" / "fast.so"], None, ["quack-kernels"])
    assert [("quack-kernels", digest_of(record, {})), ("fast.so", digests._sha256(""))] == [
        (part.name, part.digest) for part in found
    ]
    assert [str(tmp_path / "quack" / "fast.so")] == read[:-1]


def test_what_a_host_names_is_read_only_where_it_may_be_a_library(tmp_path: Path) -> None:
    """A host may name a pipe, a folder, a file without end, or one of another kind: to read it would hold the judge."""
    library, pipe, folder, vast = (tmp_path / f"libtorch_{name}.so" for name in ("own", "pipe", "folder", "vast"))
    library.write_bytes(b"code")
    os.mkfifo(pipe)
    folder.mkdir()
    vast.touch()
    os.truncate(vast, MAPPED_BYTES)
    other = tmp_path / "passwords.txt"
    other.write_text("a secret")
    named = [*map(str, (library, pipe, folder, vast, other)), "/dev/zero", str(tmp_path / "libtorch_gone.so"), "a\0.so"]
    assert [library] == named_binaries(named)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that was looked at may be another one when it is read."""
    file = tmp_path / "libtorch.so"
    file.write_bytes(b"code")
    look = digests._look

    def replaced(path: str) -> tuple[str, int] | None:
        seen = look(path)
        file.unlink()
        os.mkfifo(file)
        return seen

    monkeypatch.setattr(digests, "_look", replaced)
    assert {} == digests.digests_of([str(file)], None)


def test_a_changed_file_of_a_distribution_is_another_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_files: None
) -> None:
    """Its RECORD stays as it was, and so does the digest, until a file is not as it promises."""
    record = install(tmp_path, "fast.py", b"x = 1")
    monkeypatch.syspath_prepend(str(tmp_path))

    def digest() -> str:
        return next(part.digest for part in distributions(tmp_path / "sha256.json") if part.name == "quack-kernels")

    assert digest_of(record, {}) == digest()
    (tmp_path / "quack" / "fast.py").write_text("x = 2")
    assert digest_of(record, {}) != digest()


def test_a_distribution_that_offers_an_adapter_is_in_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_files: None
) -> None:
    """With its version and its code, as a judge and as a host of another environment describe what is installed."""
    install(tmp_path, "attend.py", b"x = 1")
    info = (tmp_path / "quack_kernels-9.dist-info").rename(tmp_path / "acme-2.1.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text("[qualify.adapters]\nacme = quack.attend:create\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def described() -> list[Component]:
        told = (*describe_stack(describe_cpu(), None).components, *promised_distributions())
        return [part for part in told if part.name == "acme"]

    whole, promised = described()
    assert whole == promised == Component(kind="distribution", name="acme", version="2.1", digest=whole.digest)
    assert whole.digest
    (tmp_path / "quack" / "attend.py").write_text("x = 2")
    assert whole.digest != described()[0].digest


def test_what_a_library_sets_is_not_what_was_set() -> None:
    """The environment is that of the process's start: a worker that loaded a library and one that did not agree."""
    code = (
        "import os; os.environ['VLLM_LATER'] = '1'; "
        "from qualify.run.machine.variables import dispatch_environment, started_with; "
        "print(sorted(dispatch_environment(started_with())))"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "VLLM_AT_START": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "['VLLM_AT_START']\n" == ended.stdout
