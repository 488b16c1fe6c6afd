"""PyTorch's scaled_dot_product_attention with a pinned backend, or with the backend that PyTorch chooses.

The function has no packed layout. The adapter passes sequences of equal length as a dense view of the packed tensors.
It pads sequences of different lengths and hides the padding with a boolean mask, as model code does. With such a mask
PyTorch chooses another kernel. All of this happens outside the timed region. The adapter leaves out sequences without
queries or keys, and their rows give 0.

The public function returns no LSE.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from qualify.facts.adapters import settle
from qualify.facts.devices import HOST
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
"""backends by the name that cards use; None = PyTorch chooses"""
ALIGNED = 128
"""bytes; a tensor's address modulo this number may decide which backend accepts it"""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card.

    Raises:
        ValueError: unknown option or value.
    """
    settings = settle("torch_sdpa", options)
    return TorchSdpa(backend=settings["backend"], is_causal=settings["causal"] == "is_causal")


class TorchSdpa:
    """Calls ``F.scaled_dot_product_attention`` with dense tensors."""

    def __init__(self, *, backend: str, is_causal: bool) -> None:
        self._name = f"torch sdpa {backend}"
        self._backend = BACKENDS[backend]
        self._is_causal = is_causal
        self._taken: set[Hashable] = set()
        """forms (:func:`_form`) of the calls that PyTorch has accepted"""
        self.bind = partial(bind, backend=backend, is_causal=is_causal)

    def warm_up(self, device: torch.device) -> None:
        """Import the bias of :func:`_mask_arguments`, which imports the compiler; that takes seconds."""
        if device.type != HOST:
            import_module("torch.nn.attention.bias")

    def prepare(self, call: AttentionCall) -> Prepared:
        """Make the dense form and the mask. Make one call, unless PyTorch has accepted a call of the same form before.

        Raises:
            LibraryRefusal: the adapter does not support a parameter, or PyTorch rejects the call. The message holds the
                reasons that PyTorch gives in its warnings.
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
        """Make one call, and collect every reason that PyTorch gives for rejecting it.

        Raises:
            LibraryRefusal: PyTorch rejects the call.
        """
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
    """All properties of a call by which PyTorch accepts or rejects it.

    These are shape, strides, dtype, device and alignment of q, k and v, the sequences, and the mask. The values of the
    tensors do not count.
    """
    tensors = [
        (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() % ALIGNED)
        for tensor in (call.q, call.k, call.v)
    ]
    return (*tensors, sequences, call.mask)


def bind(call: AttentionCall, *, backend: str, is_causal: bool) -> Prepared:
    """Bind the function to the dense form of the call and its mask.

    Args:
        backend: a key of ``BACKENDS``.
        is_causal: whether to pass a causal mask as ``is_causal=True`` for all lengths. PyTorch aligns it to the top
            left corner, so it hides the wrong keys if a sequence has different numbers of queries and keys.
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
    """(q, k, v), each as (sequences, heads, longest, dim)."""
    q = to_dense(call.q, sequences.q_starts, sequences.q_lengths)
    k, v = (to_dense(tensor, sequences.k_starts, sequences.k_lengths) for tensor in (call.k, call.v))
    return q, k, v


def _needs_mask(call: AttentionCall, sequences: Sequences) -> bool:
    """Whether the mask or different lengths need a boolean mask, because ``is_causal`` cannot express them."""
    return call.mask.kind not in {"full", "causal"} or sequences.ragged


def _mask_arguments(call: AttentionCall, sequences: Sequences) -> dict[str, Any]:
    """The keyword argument for the mask: ``is_causal``, ``attn_mask``, or none if every query sees every key."""
    seqlen_q, seqlen_k = max(sequences.q_lengths), max(sequences.k_lengths)
    if _needs_mask(call, sequences):
        return {"attn_mask": boolean_mask(call.mask, sequences, call.q.device)}
    if not call.causal or seqlen_q == 1:
        return {}
    if seqlen_q == seqlen_k:
        return {"is_causal": True}
    if not call.q.is_cuda:
        # On the CPU, PyTorch would convert the lower-right bias to this mask in every call.
        return {"attn_mask": boolean_mask(call.mask, sequences, call.q.device)}
    # Import it here, because it imports the compiler, which takes seconds.
    from torch.nn.attention.bias import causal_lower_right

    with warnings.catch_warnings():
        # It warns if a row sees no key. The card says what such a row gives, and a check verifies that.
        warnings.filterwarnings("ignore", message="Lower right causal bias will produce NaNs")
        return {"attn_mask": causal_lower_right(seqlen_q, seqlen_k)}


def _pinned(backend: SDPBackend, attend: Callable[[], Tensor]) -> Tensor:
    with sdpa_kernel(backend):
        return attend()


def _explain(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Make PyTorch warn about every reason why a backend does not support these tensors, even without a mask."""
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
    """Collect every warning, including those that PyTorch gives only once in a process."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always")
            yield recorded
    finally:
        torch.set_warn_always(always)
