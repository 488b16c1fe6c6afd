"""Environment variables: those with which this process was started, and those that steer dispatch."""

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

Left out are ``*_VISIBLE_DEVICES``, because the stack itself names the card; ``NVIDIA_REQUIRE_*``, which only says which
drivers an image accepts; and ``OMP_WAIT_POLICY``, which qualify sets for its own processes.
"""
SECRET = re.compile(r"TOKEN(?!S)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|(?:^|_)KEYS?(?:_|$)")
"""matches the names of variables that are never stored"""
_IN_URL = re.compile(r"(://)[^/\s@]*@")
_IN_PARAMETER = re.compile(
    r"((?:^|[?&;,\s])[\w.-]*(?:token|secret|passw|passphrase|credential|signature|key)[\w.-]*=)[^&;,\s]*", re.IGNORECASE
)
"""these two match what may be a secret in a value: user and password of a URL, and parameters with such names"""


@cache
def started_with() -> Mapping[str, str]:
    """The environment with which this process was started.

    Variables that libraries set later are not in it, because they would differ between a worker that loaded these
    libraries and a process that did not. A process that makes itself undumpable must call this before, because it can
    no longer read /proc/self/environ; the result is kept.
    """
    try:
        content = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def dispatch_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that steer dispatch, made safe to store (:func:`told_safely`)."""
    return told_safely({name: value for name, value in variables.items() if DISPATCH.match(name)})


def told_safely(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that are safe to store: without names that suggest a secret, and with ``***`` for secrets in values."""
    return {
        name: _IN_PARAMETER.sub(r"\1***", _IN_URL.sub(r"\1***@", value))
        for name, value in sorted(variables.items())
        if not SECRET.search(name)
    }
