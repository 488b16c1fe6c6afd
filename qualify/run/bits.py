"""Digests of the bits of a call: one of its result, one of its inputs.

Where a deterministic kernel ran the same call on the same inputs on two cards, both must return the same bits, or one
card is at fault. The host hashes outputs with SHA-256. Inputs may have gigabytes, so the device sums them. It
multiplies each word by a factor of its place and adds modulo 2**64, so the order of the additions does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.interface import ContractBreach, Result, Subject
from qualify.run.checks.rows import rows_of
from qualify.run.inputs.kept import keep

WORDS = 1 << 22
"""words that are summed at once; each takes 8 bytes for each sum in several temporary tensors on the device"""
FACTORS = ((0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9), (0x94D049BB133111EB, 0xD6E8FEB86659FD93))
"""(step, start) of the factors of each sum. There are two sums, because one alone may be equal where zeros move."""
HASHING = ThreadPoolExecutor(1, thread_name_prefix="hashing")
"""hashes outputs while the checks go on: SHA-256 and copies to the host leave the interpreter to others"""


def output_digest(subject: Subject, call: AttentionCall) -> Callable[[], str]:
    """Begin the sha256 over out and lse of the process's first call of the case; returns a function that waits for it.

    The call is that first one.

    It is empty where the result breaks the call contract. Where the card promises nothing for rows that see no key,
    these rows are hashed as zeros. The LSE is hashed only where the card claims one.
    """
    assert subject.first is not None, "the case was called"
    try:
        result = subject.judged(subject.first(), call)
    except ContractBreach:
        return lambda: ""
    parts = [(_shape(tensor), None if tensor is None else _bytes(tensor)) for tensor in _promised(subject, result)]
    return HASHING.submit(_hashed, parts).result


def _hashed(parts: list[tuple[bytes, Tensor | None]]) -> str:
    """sha256 over shapes and bytes."""
    digest = hashlib.sha256()
    for shape, data in parts:
        digest.update(shape)
        if data is not None:
            digest.update(data.cpu().numpy().data)
    return digest.hexdigest()


def _promised(subject: Subject, result: Result) -> tuple[Tensor, Tensor | None]:
    """(out, lse) with zeros where the card promises nothing."""
    policy, out, lse = subject.card.claims.empty_row, result.out, result.lse
    if "any" not in {policy.out, policy.lse}:
        return out, lse
    hidden = ~rows_of(subject.workload, out.device).visible().some
    if policy.out == "any":
        out = out.masked_fill(hidden.view(-1, 1, 1), 0)
    if lse is not None:
        lse = lse.masked_fill(hidden, 0)
    return out, lse


def inputs_digest(call: AttentionCall) -> str:
    """sha256 over the names, shapes, dtypes and sums of all tensors of a call."""
    digest, read = hashlib.sha256(), dict[str, Tensor]()
    for field in fields(call):
        tensor = getattr(call, field.name)
        if isinstance(tensor, Tensor) and not (field.name == "v" and call.latent):
            read[field.name] = tensor
    for (name, tensor), sums in zip(read.items(), _sums([*map(_words, read.values())]).tolist(), strict=True):
        numbers = [number % (1 << 64) for number in sums]
        digest.update(f"{name} {numbers} ".encode() + _shape(tensor))
    return digest.hexdigest()


def _shape(tensor: Tensor | None) -> bytes:
    if tensor is None:
        return b"none;"
    return f"{tensor.dtype} {tuple(tensor.shape)};".encode()


def _bytes(tensor: Tensor) -> Tensor:
    """(bytes,) uint8: the tensor's bytes in the order of its elements."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _words(tensor: Tensor) -> Tensor:
    """The bytes as words of four, where number and address of the bytes are multiples of four; else as they are."""
    data = _bytes(tensor)
    return data if data.numel() % 4 or data.data_ptr() % 4 else data.view(torch.int32)


def _sums(read: list[Tensor]) -> Tensor:
    """(tensors, pairs) int64: of the words of each, Σ (word + 1) · ((place · step + start) | 1), modulo 2**64, wrapped.

    The factors are made once for all tensors.
    """
    step, start, one = _factors(read[0].device)
    sums: list[list[Tensor]] = [[] for _ in read]
    longest = max(map(len, read))
    for first in range(0, max(longest, 1), WORDS):
        places = torch.arange(first, min(longest, first + WORDS), device=step.device)
        factors = (places * step).add_(start).bitwise_or_(1)
        for words, parts in zip(read, sums, strict=True):
            if len(words) > first or not first:
                some = words[first : first + WORDS] + one
                parts.append((factors[:, : len(some)] * some).sum(1))
    return torch.stack([sum(parts[1:], parts[0]) for parts in sums])


@keep(2)
def _factors(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Step and start of each sum's factors, (pairs, 1) int64; and (1,) 1, whose sum with words is int64."""
    signed = [[value - (1 << 64) if value >> 63 else value for value in pair] for pair in FACTORS]
    step, start = torch.tensor(signed, device=device).T.unsqueeze(-1)
    return step, start, torch.ones(1, dtype=torch.int64, device=device)
