"""What FlashAttention-2's functions are given for a call, read back as its interface describes the arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from subjects import make_call
from torch import Tensor

from qualify.run.adapters.flash_attn import FlashAttn2
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.adapters.tiled_torch import TiledTorch

PAGE = 256


def attend(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """(out, lse) of the portable kernel."""
    prepared = TiledTorch().prepare(call)
    out, lse = prepared.result(prepared.launch())
    assert lse is not None
    return out, lse


class Library:
    """The two functions as flash_attn_interface.py describes them, computed by the portable kernel."""

    def __init__(self, call: AttentionCall) -> None:
        self.call = call
        self.served: list[str] = []

    def flash_attn_varlen_func(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor, None]:
        """Packed, or keys in pages, whose number for each sequence is told by ``cu_seqlens_k``."""
        self.served.append("varlen")
        bounds, table = given["cu_seqlens_k"], given["block_table"]
        assert torch.int32 == bounds.dtype
        paged = {"cu_seqlens_k": None, "seqused_k": bounds.diff(), "block_table": table}
        lengths = {"cu_seqlens_k": bounds} if table is None else paged
        out, lse = attend(replace(self.call, q=q, k=k, v=v, cu_seqlens_q=given["cu_seqlens_q"], **lengths))
        return out, lse, None

    def flash_attn_with_kvcache(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        """(batch, queries, heads, dim) on pages."""
        self.served.append("with_kvcache")
        lengths = {"seqused_k": given["cache_seqlens"], "block_table": given["block_table"]}
        out, lse = attend(replace(self.call, q=q.flatten(0, 1), k=k, v=v, **lengths))
        return out.view(q.shape), lse.view(-1, *q.shape[:2]).transpose(0, 1)


@pytest.mark.parametrize(
    ("changes", "served"),
    [
        ({"seqlens_q": (70, 3)}, "varlen"),
        ({"seqlens_q": (3, 3), "seqlens_k": (300, 70), "page_size": PAGE}, "with_kvcache"),
        ({"seqlens_q": (66, 1, 17), "seqlens_k": (330, 260, 17), "page_size": PAGE}, "varlen"),
        ({"seqlens_q": (66, 0, 17), "seqlens_k": (330, 260, 17), "page_size": PAGE}, "varlen"),
    ],
)
def test_each_layout_goes_to_the_function_that_serves_it(changes: dict[str, Any], served: str) -> None:
    """Chunks of unequal lengths after unequal contexts read the pages too; and the results agree."""
    call = make_call(**changes)
    library = Library(call)
    prepared = FlashAttn2(library=library).prepare(call)
    out, lse = prepared.result(prepared.launch())
    expected_out, expected_lse = attend(call)
    assert [served] * 2 == library.served
    assert torch.equal(expected_out, out)
    assert torch.equal(expected_lse, lse)


@pytest.mark.parametrize("keys", [0, 16])
def test_a_chunk_on_pages_whose_lse_would_leave_its_memory_is_refused(keys: int) -> None:
    """A block of queries without a key writes its LSE elsewhere, so no such call is made; equal queries are taken."""
    call = make_call(seqlens_q=(66, 1, 17), seqlens_k=(330, 260, keys), page_size=PAGE)
    library = Library(call)
    with pytest.raises(LibraryRefusal, match="1 sequences on pages have more queries than keys"):
        FlashAttn2(library=library).prepare(call)
    assert [] == library.served
    call = make_call(seqlens_q=(17, 17), seqlens_k=(330, keys), page_size=PAGE)
    library = Library(call)
    FlashAttn2(library=library).prepare(call)
    assert ["with_kvcache"] == library.served
