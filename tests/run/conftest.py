"""Tests of small tensors run side by side: more than one thread in each process only waits for the others."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
