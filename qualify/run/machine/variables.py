"""Environment variables: those that this process was started with, and those that steer dispatch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

DISPATCH = re.compile(
    r"^(?:CUDA_(?!VISIBLE_DEVICES$)|CUDNN_|CUBLAS_|CUBLASLT_|NVRTC_|NVCC_|NCCL_|NVTE_|NVIDIA_(?!REQUIRE_|VISIBLE_DEVICES$)"
    r"|TORCH|PYTORCH_|ATEN_|INDUCTOR_|DISABLE_ADDMM_CUDA_LT|TRITON_|CUTE_|CUTLASS_|QUACK_|TVM_"
    r"|FLASH|FA[234]_|VLLM_|SGLANG_|SGL_|XFORMERS_"
    r"|MKL_|MKLDNN_|ONEDNN_|DNNL_|OPENBLAS_|OMP_(?!WAIT_POLICY$)|GOMP_|KMP_"
    r"|(?:LD_LIBRARY_PATH|LD_PRELOAD|LD_AUDIT|GLIBC_TUNABLES)$)"
)
"""Environment variables that steer dispatch, the numbers, or which library is loaded.

``*_VISIBLE_DEVICES`` says which card a process sees, and the stack names that by itself. ``NVIDIA_REQUIRE_*`` says
which drivers an image wants. ``OMP_WAIT_POLICY`` says how threads wait, and qualify's own
processes get one.
"""
SECRET = re.compile(r"TOKEN(?!S)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|(?:^|_)KEYS?(?:_|$)")
"""in the name of a variable that is never stored"""
_IN_URL = re.compile(r"(://)[^/\s@]*@")
_IN_PARAMETER = re.compile(
    r"((?:^|[?&;,\s])[\w.-]*(?:token|secret|passw|passphrase|credential|signature|key)[\w.-]*=)[^&;,\s]*", re.IGNORECASE
)
"""what may be a secret in a value: user and password of a URL, and a parameter of such a name"""


@cache
def started_with() -> Mapping[str, str]:
    """The environment that this process was started with; one that keeps to itself must have asked before.

    What libraries set in it later follows from them, and would differ between a worker that loaded them and a process
    that did not.
    """
    try:
        content = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def dispatch_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that steer dispatch; never one that may hold a secret, and in values ``***`` for what may be one."""
    return told_safely({name: value for name, value in variables.items() if DISPATCH.match(name)})


def told_safely(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that may hold a secret, and in values ``***`` for what may be one."""
    return {
        name: _IN_PARAMETER.sub(r"\1***", _IN_URL.sub(r"\1***@", value))
        for name, value in sorted(variables.items())
        if not SECRET.search(name)
    }
