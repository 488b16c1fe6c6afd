"""PyTorch's scaled_dot_product_attention, one backend pinned or PyTorch's own choice.

It has no packed form. Sequences of equal length become a dense view of the packed tensors; ragged ones
are padded under a boolean mask, as model code does, which changes the kernel that PyTorch picks. Both
happen outside the timed region. Sequences without queries or keys are cut out: their rows give 0.

The public function returns no LSE.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from qualify.facts.adapters import settle
from qualify.facts.dtypes import HALVES
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import (
    WINDOWED,
    Sequences,
    boolean_mask,
    is_failure,
    live_sequences,
    refuse,
    to_dense,
    to_packed,
)

BACKENDS = {
    "auto": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
ALIGNED = 128
"""bytes; where a tensor begins within a block of so many may decide which backend takes it"""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card.

    Raises:
        ValueError: unknown option or value.
    """
    settings = settle("torch_sdpa", options)
    return TorchSdpa(backend=settings["backend"], is_causal=settings["causal"] == "is_causal")


class TorchSdpa:
    """``F.scaled_dot_product_attention`` on dense tensors."""

    def __init__(self, *, backend: str, is_causal: bool) -> None:
        self._name = f"torch sdpa {backend}"
        self._backend = BACKENDS[backend]
        self._is_causal = is_causal
        self._taken: set[Hashable] = set()
        """what PyTorch decided by, of every call that it took"""
        self.bind = partial(bind, backend=backend, is_causal=is_causal)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Make the dense form, build the mask, and ask PyTorch whether it takes such a call, unless it took one before.

        Raises:
            LibraryRefusal: with the reasons that PyTorch gives in its warnings.
        """
        refuse(call, self._name, masks=WINDOWED | {"chunked"}, head_dim_v=True, dtypes=HALVES | {"fp32"})
        sequences = live_sequences(call)
        if self._is_causal and sequences.q_lengths and _needs_mask(call, sequences):
            raise LibraryRefusal(
                f"{self._name}: is_causal excludes the boolean mask that {call.mask.words} "
                f"or lengths {sequences.q_lengths} x {sequences.k_lengths} need"
            )
        prepared = self.bind(call)
        form = _form(call, sequences)
        if form not in self._taken:
            self._probe(prepared.launch, call, sequences)
            self._taken.add(form)
        return prepared

    def _probe(self, launch: Callable[[], Any], call: AttentionCall, sequences: Sequences) -> None:
        """One call, with every reason that PyTorch gives for refusing it."""
        with _recorded_warnings() as recorded:
            try:
                launch()
            except RuntimeError as error:
                if is_failure(error):
                    raise
                if call.q.is_cuda and self._backend is not None:
                    _explain(self._backend, *_dense_inputs(call, sequences))
                said = [str(warning.message).partition(" (Triggered internally")[0] for warning in recorded]
                reasons = dict.fromkeys(text for text in said if "runtime disabled" not in text)
                raise LibraryRefusal(" ".join([f"{self._name}: {error}", *reasons])) from error


def _form(call: AttentionCall, sequences: Sequences) -> Hashable:
    """Everything of a call by which PyTorch takes or refuses it: all but the values of its tensors."""
    tensors = [
        (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() % ALIGNED)
        for tensor in (call.q, call.k, call.v)
    ]
    return (*tensors, sequences, call.mask)


def bind(call: AttentionCall, *, backend: str, is_causal: bool) -> Prepared:
    """The dense form and its mask, on a pinned backend or on PyTorch's choice.

    Args:
        backend: a key of ``BACKENDS``.
        is_causal: hand ``is_causal=True`` to PyTorch whatever the lengths.
    """
    sequences = live_sequences(call)
    total, heads, dim = call.q.shape[0], call.q.shape[1], call.v.shape[-1]
    if not sequences.q_lengths:
        return Prepared(launch=lambda: None, result=lambda _: (call.q.new_zeros(total, heads, dim), None))
    q, k, v = _dense_inputs(call, sequences)
    arguments = {"is_causal": call.causal} if is_causal else _mask_arguments(call, sequences)
    attend = partial(F.scaled_dot_product_attention, q, k, v, scale=call.scale, **arguments)
    if call.q.shape[1] != call.k.shape[1]:
        attend = partial(attend, enable_gqa=True)
    pinned = BACKENDS[backend]

    def result(native: Tensor) -> tuple[Tensor, None]:
        return to_packed(native, sequences.q_starts, sequences.q_lengths, total), None

    return Prepared(launch=attend if pinned is None else partial(_pinned, pinned, attend), result=result)


def _dense_inputs(call: AttentionCall, sequences: Sequences) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as (sequences, heads, longest, dim)."""
    q = to_dense(call.q, sequences.q_starts, sequences.q_lengths)
    k, v = (to_dense(tensor, sequences.k_starts, sequences.k_lengths) for tensor in (call.k, call.v))
    return q, k, v


def _needs_mask(call: AttentionCall, sequences: Sequences) -> bool:
    """Whether ``is_causal`` alone cannot say what each query sees."""
    return call.mask.kind not in {"full", "causal"} or sequences.ragged


def _mask_arguments(call: AttentionCall, sequences: Sequences) -> dict[str, Any]:
    """The keywords that say the mask: none, ``is_causal`` or ``attn_mask``."""
    seqlen_q, seqlen_k = max(sequences.q_lengths), max(sequences.k_lengths)
    if _needs_mask(call, sequences):
        return {"attn_mask": boolean_mask(call.mask, sequences, call.q.device)}
    if not call.causal or seqlen_q == 1:
        return {}
    if seqlen_q == seqlen_k:
        return {"is_causal": True}
    if not call.q.is_cuda:
        # On the CPU the lower-right bias would only be turned into this mask at every call.
        return {"attn_mask": boolean_mask(call.mask, sequences, call.q.device)}
    # Here, because it imports the compiler, which takes seconds.
    from torch.nn.attention.bias import causal_lower_right

    with warnings.catch_warnings():
        # It warns where rows see no key; what such a row gives is a claim of the card, and checked.
        warnings.filterwarnings("ignore", message="Lower right causal bias will produce NaNs")
        return {"attn_mask": causal_lower_right(seqlen_q, seqlen_k)}


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
