"""Imports modules of vLLM without the side effects of that import on the process.

An import of the whole of vLLM, with its CUDA platform, turns cuDNN off in PyTorch's SDPA and makes vLLM log to stdout.
The same process may also run SDPA (benchmarks/calibrate.py does), and stdout is for results.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch


def import_vllm(name: str) -> Any:
    """Import a module of vLLM, let vLLM log to stderr, and restore the cuDNN setting of PyTorch's SDPA.

    Args:
        name: full name of the module.

    Raises:
        ImportError: the module, or something that it needs, is not installed.
    """
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    try:
        return import_module(name)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
