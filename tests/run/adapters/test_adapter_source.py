"""Source of an adapter's call: on the CPU the adapter's bits, everywhere complete and without qualify."""

from __future__ import annotations

import ast
import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from builders import make_call

from qualify.run.adapters.flash_attn import FlashAttn2
from qualify.run.adapters.flash_attn_cute import FlashAttn4
from qualify.run.adapters.flashinfer import FlashInfer
from qualify.run.adapters.flashinfer_mla import FlashInferMla
from qualify.run.adapters.flashmla import FlashMla
from qualify.run.adapters.flex_attention import FlexAttention
from qualify.run.adapters.interface import Adapter
from qualify.run.adapters.source import Sourced
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.adapters.torch_sdpa import create as create_sdpa
from qualify.run.adapters.vllm_flash_attn import UpstreamFlashAttn3, VllmFlashAttn
from qualify.run.adapters.vllm_triton import VllmTriton
from qualify.run.checks.interface import same_bits

PRELUDE = "from __future__ import annotations\nimport math\nimport torch\nfrom torch import Tensor\n"
LIBRARY = SimpleNamespace(flash_attn_varlen_func=lambda return_attn_probs: None)
ADAPTERS: dict[str, Adapter] = {
    "tiled-torch": TiledTorch(tile_q=32, tile_k=16),
    "sdpa auto": create_sdpa({}),
    "sdpa flash": create_sdpa({"backend": "flash"}),
    "sdpa math": create_sdpa({"backend": "math"}),
    "sdpa is_causal": create_sdpa({"causal": "is_causal"}),
    "vllm 3": VllmFlashAttn(library=None, version=3),
    "vllm triton": VllmTriton(function=None),
    "upstream 3": UpstreamFlashAttn3(library=LIBRARY),
    "flash-attn 2": FlashAttn2(library=None),
    "flash-attn 4": FlashAttn4(function=None),
    "flashinfer": FlashInfer(library=None, backend="fa2", use_tensor_cores=False),
    "flashinfer mla": FlashInferMla(library=None, backend="fa3"),
    "flashmla": FlashMla(library=None),
    "flex": FlexAttention(),
}
CALLS: dict[str, dict[str, Any]] = {
    "prefill": {"seqlens_q": (70, 70)},
    "full": {"causal": False},
    "chunked": {"seqlens_q": (20,), "seqlens_k": (55,)},
    "ragged with empty ones": {"seqlens_q": (3, 0, 40, 5), "seqlens_k": (3, 9, 40, 0)},
    "window": {"window": (9, 0)},
    "decode": {"seqlens_q": (1, 1), "seqlens_k": (70, 70)},
}
FEATURES: dict[str, dict[str, Any]] = {
    "paged": {"seqlens_q": (4, 1), "seqlens_k": (33, 18), "page_size": 16},
    "latent": {"seqlens_q": (2, 2), "seqlens_k": (33, 18), "heads_kv": 1, "head_dim_v": 48, "latent": True},
    "softcap and sinks": {"softcap": 4.0, "sinks": True},
}
ON_CPU = ("tiled-torch", "sdpa auto", "sdpa flash", "sdpa math", "sdpa is_causal")


def attend(adapter: Any, call: Any) -> Any:
    """What the source gives, in a namespace of its own."""
    names: dict[str, Any] = {"__name__": "script"}
    import sys

    sys.modules["script"] = SimpleNamespace(__dict__=names)  # dataclasses look their module up
    exec(PRELUDE + adapter.source(), names)
    return names["attend"](call)


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        *((name, workload) for name in ON_CPU for workload in CALLS.values()),
        *(("tiled-torch", workload) for workload in FEATURES.values()),
    ],
)
def test_the_source_gives_the_adapters_bits(name, workload) -> None:
    """Every layout, mask and feature that the adapter takes; what it refuses is not asked."""
    adapter, call = ADAPTERS[name], make_call(**workload)
    if name == "sdpa is_causal" and (call.window != (-1, -1) or len(set(call.cu_seqlens_q.diff().tolist())) > 1):
        return
    prepared = adapter.prepare(call)
    expected, actual = prepared.result(prepared.launch()), attend(adapter, call)
    assert bool(same_bits(expected[0], actual[0]).all())
    assert (expected[1] is None) == (actual[1] is None)
    if expected[1] is not None:
        assert bool(same_bits(expected[1], actual[1]).all())


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_every_source_is_complete(adapter) -> None:
    """It parses, defines attend(call), imports nothing of qualify, and leaves no name to chance."""
    assert isinstance(adapter, Sourced)
    tree = ast.parse(PRELUDE + adapter.source())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert ["call"] == [argument.arg for argument in functions["attend"].args.args]
    modules = [name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in [str(node.module)]]
    assert not [name for name in modules if name.startswith("qualify")]
    assert [] == sorted(_loaded(tree) - _stored(tree) - set(dir(importlib.import_module("builtins"))))


def _loaded(tree: ast.AST) -> set[str]:
    """Names that code reads; annotations are not evaluated."""
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for inner in ast.walk(part)
    }
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return {node.id for node in names if id(node) not in annotations}


def _stored(tree: ast.AST) -> set[str]:
    """Names that code defines anywhere."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            stored.add(node.name)
        if isinstance(node, ast.arg):
            stored.add(node.arg)
        if isinstance(node, ast.Import | ast.ImportFrom):
            stored |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return stored


def test_an_undefined_name_is_seen() -> None:
    """The reader of names finds one that nothing defines, and no annotation."""
    tree = ast.parse("def f(a: Missing):\n    return a + unknown")
    assert {"unknown"} == _loaded(tree) - _stored(tree)
