"""PyTorch's scaled_dot_product_attention, one backend pinned or PyTorch's own choice.

It has no packed form. Sequences of equal length become a dense view of the packed tensors; ragged ones
are padded under a boolean mask, as model code does, which changes the kernel that PyTorch picks. Both
happen outside the timed region. Sequences without queries or keys are cut out: their rows give 0.

The public function returns no LSE.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from qualify.masks import UNBOUNDED, visible
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import (
    Sequences,
    boolean_mask,
    is_failure,
    live_sequences,
    refuse,
    to_dense,
    to_packed,
)
from qualify.run.adapters.source import constants, source_of

BACKENDS = {
    "auto": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
ALIGNMENTS = ("lower_right", "is_causal")

ATTEND = '''\
def attend(call):
    """scaled_dot_product_attention on a dense view of the packed tensors; ragged ones padded under a boolean mask."""
    live = live_sequences(call)
    total, heads, dim = call.q.shape[0], call.q.shape[1], call.v.shape[-1]
    if not live.q_lengths:
        return call.q.new_zeros(total, heads, dim), None
    q = to_dense(call.q, live.q_starts, live.q_lengths)
    k, v = (to_dense(tensor, live.k_starts, live.k_lengths) for tensor in (call.k, call.v))
    seqlen_q, seqlen_k = max(live.q_lengths), max(live.k_lengths)
    mask = {}
    if IS_CAUSAL:
        mask = {"is_causal": call.causal}
    elif tuple(call.window) != (UNBOUNDED, UNBOUNDED) or call.chunk or live.ragged:
        sides = {"causal": call.causal, "window": call.window, "chunk": call.chunk}
        mask = {"attn_mask": boolean_mask(live, **sides, device=call.q.device)}
    elif call.causal and seqlen_q > 1 and seqlen_q == seqlen_k:
        mask = {"is_causal": True}
    elif call.causal and seqlen_q > 1 and not call.q.is_cuda:
        mask = {"attn_mask": boolean_mask(live, causal=True, window=call.window, device=call.q.device)}
    elif call.causal and seqlen_q > 1:
        mask = {"attn_mask": causal_lower_right(seqlen_q, seqlen_k)}
    if call.q.shape[1] != call.k.shape[1]:
        mask["enable_gqa"] = True
    with contextlib.nullcontext() if BACKEND is None else sdpa_kernel(getattr(SDPBackend, BACKEND)):
        out = F.scaled_dot_product_attention(q, k, v, scale=call.scale, **mask)
    return to_packed(out, live.q_starts, live.q_lengths, total), None
'''
"""What ``prepare`` and ``launch`` do, for a script."""
IMPORTS = """\
import contextlib
from dataclasses import dataclass

import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

"""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card.

    Args:
        options: ``backend``: auto (default), flash, efficient, cudnn or math. ``causal``: lower_right
            (default), or is_causal, which hands ``is_causal=True`` to PyTorch whatever the lengths.

    Raises:
        ValueError: unknown option or value.
    """
    backend = options.get("backend", "auto")
    alignment = options.get("causal", "lower_right")
    if options.keys() - {"backend", "causal"} or backend not in BACKENDS or alignment not in ALIGNMENTS:
        raise ValueError(f"torch_sdpa: options {options}; backend is {list(BACKENDS)}, causal is {list(ALIGNMENTS)}")
    return TorchSdpa(backend=backend, is_causal=alignment == "is_causal")


class TorchSdpa:
    """``F.scaled_dot_product_attention`` on dense tensors."""

    def __init__(self, *, backend: str, is_causal: bool) -> None:
        self._name = f"torch sdpa {backend}"
        self._backend = BACKENDS[backend]
        self._is_causal = is_causal

    def prepare(self, call: AttentionCall) -> Prepared:
        """Make the dense form, build the mask, and ask PyTorch once whether it takes the call.

        Raises:
            LibraryRefusal: with the reasons that PyTorch gives in its warnings.
        """
        refuse(call, self._name, window=True, chunk=True, head_dim_v=True, fp32=True)
        sequences = live_sequences(call)
        total, heads, dim = call.q.shape[0], call.q.shape[1], call.v.shape[-1]
        if not sequences.q_lengths:
            return Prepared(launch=lambda: None, result=lambda _: (call.q.new_zeros(total, heads, dim), None))
        q = to_dense(call.q, sequences.q_starts, sequences.q_lengths)
        k, v = (to_dense(tensor, sequences.k_starts, sequences.k_lengths) for tensor in (call.k, call.v))
        arguments = self._mask_arguments(call, sequences)
        attend = partial(F.scaled_dot_product_attention, q, k, v, scale=call.scale, **arguments)
        if call.q.shape[1] != call.k.shape[1]:
            attend = partial(attend, enable_gqa=True)
        launch = attend if self._backend is None else partial(_pinned, self._backend, attend)
        self._probe(launch, q, k, v)

        def result(native: Tensor) -> tuple[Tensor, None]:
            return to_packed(native, sequences.q_starts, sequences.q_lengths, total), None

        return Prepared(launch=launch, result=result)

    def source(self) -> str:
        """The helpers that make the dense form and the mask, and ``attend(call)``."""
        backend = None if self._backend is None else self._backend.name
        chosen = constants(BACKEND=backend, IS_CAUSAL=self._is_causal, UNBOUNDED=UNBOUNDED)
        helpers = source_of(visible, Sequences, live_sequences, to_dense, to_packed, boolean_mask)
        return f"{IMPORTS}{chosen}\n\n{helpers}\n\n{ATTEND}"

    def _mask_arguments(self, call: AttentionCall, sequences: Sequences) -> dict[str, Any]:
        """The keywords that say the mask: none, ``is_causal`` or ``attn_mask``."""
        windowed = call.window != (UNBOUNDED, UNBOUNDED) or bool(call.chunk)
        seqlen_q, seqlen_k = max(sequences.q_lengths), max(sequences.k_lengths)
        if self._is_causal:
            if windowed or sequences.ragged:
                raise LibraryRefusal(
                    f"{self._name}: is_causal excludes the boolean mask that window={call.window}, chunk={call.chunk} "
                    f"or lengths {sequences.q_lengths} x {sequences.k_lengths} need"
                )
            return {"is_causal": call.causal}
        if windowed or sequences.ragged:
            sides: Any = {"causal": call.causal, "window": call.window, "chunk": call.chunk}
            return {"attn_mask": boolean_mask(sequences, **sides, device=call.q.device)}
        if not call.causal or seqlen_q == 1:
            return {}
        if seqlen_q == seqlen_k:
            return {"is_causal": True}
        if not call.q.is_cuda:
            # On the CPU the lower-right bias would only be turned into this mask at every call.
            mask = boolean_mask(sequences, causal=True, window=call.window, device=call.q.device)
            return {"attn_mask": mask}
        with warnings.catch_warnings():
            # It warns where rows see no key; what such a row gives is a claim of the card, and checked.
            warnings.filterwarnings("ignore", message="Lower right causal bias will produce NaNs")
            return {"attn_mask": causal_lower_right(seqlen_q, seqlen_k)}

    def _probe(self, launch: Callable[[], Any], q: Tensor, k: Tensor, v: Tensor) -> None:
        """One call, with every reason that PyTorch gives for refusing it."""
        with _recorded_warnings() as recorded:
            try:
                launch()
            except RuntimeError as error:
                if is_failure(error):
                    raise
                if q.is_cuda and self._backend is not None:
                    _explain(self._backend, q, k, v)
                said = [str(warning.message).partition(" (Triggered internally")[0] for warning in recorded]
                reasons = dict.fromkeys(text for text in said if "runtime disabled" not in text)
                raise LibraryRefusal(" ".join([f"{self._name}: {error}", *reasons])) from error


def _pinned(backend: SDPBackend, attend: Callable[[], Tensor]) -> Tensor:
    with sdpa_kernel(backend):
        return attend()


def _explain(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Make PyTorch warn about all that keeps a backend from serving these tensors without a mask."""
    questions = {
        SDPBackend.FLASH_ATTENTION: torch.backends.cuda.can_use_flash_attention,
        SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.can_use_efficient_attention,
        SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.can_use_cudnn_attention,
    }
    ask = questions.get(backend)
    if ask is not None:
        gqa = q.shape[1] != k.shape[1]
        with sdpa_kernel(backend):
            ask(torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, False, gqa), debug=True)


@contextmanager
def _recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Collect every warning, those too that PyTorch would give only once in a process."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always")
            yield recorded
    finally:
        torch.set_warn_always(always)
