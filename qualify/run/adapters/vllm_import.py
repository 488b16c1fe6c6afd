"""Modules of vLLM, imported without the marks that vLLM's import leaves on the process.

The whole of vLLM (its CUDA platform) switches cuDNN off in PyTorch's SDPA when it is imported, and logs to stdout. A
worker measures SDPA in the same process, and stdout belongs to results.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch


def import_vllm(name: str) -> Any:
    """A module of vLLM, with PyTorch's SDPA as it was before.

    Raises:
        ImportError: it, or something that it needs, is not installed.
    """
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    try:
        return import_module(name)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
