"""Counts what a GPU's host would have to do: operators that it launches, and waits for numbers that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

MEMORY = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "set_", "lift_fresh"))
"""operators that provide memory, and fill none of it"""
VIEWS = frozenset(("alias", "as_strided", "detach", "expand", "permute", "select", "slice", "split", "squeeze", "t"))
MORE_VIEWS = frozenset(("split_with_sizes", "transpose", "unbind", "unsqueeze", "view", "view_as", "_unsafe_view"))
NO_LAUNCH = MEMORY | VIEWS | MORE_VIEWS | {"item"}
PERHAPS = frozenset(("contiguous", "flatten", "movedim", "reshape", "to", "unflatten"))
"""operators that launch something, or only make a view"""
READ = frozenset(("_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "_unique2"))
"""operators that wait until their result is on the host"""
INDEXED = frozenset(("index", "index_put", "index_put_", "_index_put_impl_"))
"""operators that count what a mask marks, and wait for the number"""


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives its base no types
    """While it is entered: the names of operators that are launched, and of those that wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launched: list[str] = []
        self.waits: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the operator, and note its name."""
        given = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        same = name in PERHAPS and (
            name == "item" or given.untyped_storage()._cdata == args[0].untyped_storage()._cdata
        )
        if name in READ or (name in INDEXED and any(_is_mask(each) for each in args[1])):
            self.waits.append(name)
        if name not in NO_LAUNCH and not same:
            self.launched += [name] * (2 if name == "equal" else 1)  # it compares, and then asks whether all are equal
        return given


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype == torch.bool


@contextmanager
def counted() -> Iterator[Operators]:
    """Count within, also tensors that are copied to the host as a whole: on a CPU no operator does that."""
    found = Operators()

    def noted(name: str) -> Callable[[Tensor], Any]:
        real = getattr(Tensor, name)

        def method(tensor: Tensor) -> Any:
            if _get_current_dispatch_mode() is found:  # a kernel's own waits are not the judge's
                found.waits.append(name)
            return real(tensor)

        return method

    with mock.patch.multiple(Tensor, tolist=noted("tolist"), cpu=noted("cpu")), found:
        yield found
