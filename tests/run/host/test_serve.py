"""What a host says of what its kernel returned or raised, whatever that is."""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qualify.facts.lines import decode_line
from qualify.run.host import messages as says
from qualify.run.host.launch import new_file
from qualify.run.host.memory import SharedFile
from qualify.run.host.serve import Server

SIZE = 1 << 16


def answered(step: Callable[[Server], says.Answer], memory: SharedFile | None = None) -> Any:
    """What a host answers whose kernel does that."""
    answers = io.BytesIO()
    server = Server(answers, [] if memory is None else [memory])
    server.methods = {says.Wait: lambda _: step(server)}
    reading, writing = os.pipe()
    os.write(writing, says.encode(says.Wait(asked=1)))
    os.close(writing)
    with os.fdopen(reading, "rb") as requests:
        server.serve(requests)
    return decode_line(answers.getvalue(), says.ANSWERS)


VALUES = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
RIGHT = {
    "negated": torch._neg_view(-VALUES),
    "conjugated": torch.complex(VALUES, -VALUES).conj(),
    "turned": VALUES.T.contiguous().T,
    "expanded": VALUES[:1].expand(2, 2),
    "learnt": torch.nn.Parameter(VALUES),
}


@pytest.mark.parametrize("returned", RIGHT.values(), ids=RIGHT)
def test_a_result_arrives_as_its_numbers_are(returned: torch.Tensor) -> None:
    """However torch keeps them: negated or conjugated when they are read, with other strides, or with gradients."""
    shared = new_file(SIZE)
    try:
        memory = SharedFile(shared, SIZE)
        said = answered(lambda server: server._returned(returned, (0, 0, SIZE)), memory)
        count = returned.numel() * returned.element_size()
        there = memory.bytes(0, count).view(returned.dtype).view(returned.shape)
        assert torch.equal(returned.detach().resolve_neg().resolve_conj(), there)
        assert 0 == said.parts[0].offset
    finally:
        os.close(shared)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch gives some of them up
    QUANTIZED = torch.quantize_per_tensor(VALUES, 0.1, 0, torch.qint8)
    NESTED = torch.nested.nested_tensor([VALUES, VALUES])
OTHERS = {
    "sparse_coo_tensor": VALUES.to_sparse(),
    "mkldnn_tensor": VALUES.to_mkldnn(),
    "quantized_tensor": QUANTIZED,
    "nested_tensor": NESTED,
    "UntypedStorage": VALUES.untyped_storage(),
}


@pytest.mark.parametrize(("kind", "returned"), OTHERS.items(), ids=OTHERS)
def test_what_is_no_plain_tensor_is_named(kind: str, returned: Any) -> None:
    """Its numbers cannot be compared: the call contract is broken, and the message says by what."""
    said = answered(lambda server: server._returned(returned, (0, 0, 0)))
    assert [(kind, "")] == [(part.kind, part.dtype) for part in said.parts]


class Silent(Exception):
    """Its methods raise what they like."""

    def __str__(self) -> str:
        """Nothing."""
        raise SystemExit(0)


class Tricky(str):
    """A text that cannot be cut."""

    __slots__ = ()

    def __getitem__(self, _: Any) -> str:
        """Nothing."""
        raise RuntimeError("no part of it")


class Long(Exception):
    """What it says is longer than a line may be, and no text of Python's own."""

    def __str__(self) -> str:
        """Very much."""
        return Tricky("x" * (10 << 20))


class NamelessKind(type):
    """Classes that do not say what they are called."""

    @property
    def __name__(cls) -> str:
        """Nothing."""
        raise RuntimeError("no name")


class Nameless(Exception, metaclass=NamelessKind):
    """One of them."""


class Untraceable(Exception):
    """No traceback can be written of it."""

    @property
    def __cause__(self) -> Any:
        """Nothing."""
        raise RuntimeError("no cause")


RAISED: dict[str, tuple[BaseException, str, str]] = {
    "SystemExit": (SystemExit("good bye"), "SystemExit", "good bye"),
    "KeyboardInterrupt": (KeyboardInterrupt(), "KeyboardInterrupt", ""),
    "Silent": (Silent(), "Silent", ""),
    "Long": (Long(), "Long", "x" * says.TEXT_KEPT),
    "Nameless": (Nameless("who"), "an exception without a name", "who"),
    "Untraceable": (Untraceable("where"), "Untraceable", "where"),
    "halves": (ValueError("\x1b[31m \0 \ud800"), "ValueError", "\x1b[31m \0 ?"),
}


@pytest.mark.parametrize(("error", "name", "text"), RAISED.values(), ids=RAISED)
def test_whatever_a_kernel_raises_is_told(error: BaseException, name: str, text: str) -> None:
    """Also what ends a process otherwise, and what cannot even be printed: the judge hears the kernel's own words."""

    def step(_: Server) -> says.Answer:
        raise error

    said = answered(step)
    assert ("other", name, text) == (said.kind, said.name, said.text)
    assert len(json.dumps(vars(said))) < 6 * (says.TEXT_KEPT + says.LOG_KEPT)
