"""What a script has of an adapter: the very function that the adapter runs, complete and without qualify."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from subjects import make_call

from qualify.facts import adapters as declared
from qualify.run.adapters.flash_attn import FlashAttn2
from qualify.run.adapters.flash_attn_cute import FlashAttn4
from qualify.run.adapters.flashinfer import FlashInfer
from qualify.run.adapters.flashinfer_mla import FlashInferMla
from qualify.run.adapters.flashmla import FlashMla
from qualify.run.adapters.interface import Adapter, Prepared, Scripted
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.adapters.torch_sdpa import create as create_sdpa
from qualify.run.adapters.vllm_flash_attn import UpstreamFlashAttn3, VllmFlashAttn
from qualify.run.adapters.vllm_triton import VllmTriton
from qualify.run.checks.difference import same_bits
from qualify.run.repro import standalone
from qualify.run.repro.export import CannotExport, Exporter, globals_of
from qualify.run.repro.script import Claim, export_kernel, render


def flex_attention() -> Adapter:
    """Imported by the tests of it alone: with it comes torch's compiler, a second of each process that collects."""
    from qualify.run.adapters.flex_attention import FlexAttention

    return FlexAttention()


LIBRARY = ModuleType("flash_attn_interface")
LIBRARY.flash_attn_varlen_func = lambda return_attn_probs: None
ADAPTERS: dict[str, Callable[[], Adapter]] = {
    "tiled-torch": partial(TiledTorch, tile_q=32, tile_k=16),
    "sdpa auto": partial(create_sdpa, {}),
    "sdpa flash": partial(create_sdpa, {"backend": "flash"}),
    "sdpa math": partial(create_sdpa, {"backend": "math"}),
    "sdpa is_causal": partial(create_sdpa, {"causal": "is_causal"}),
    "vllm 3": partial(VllmFlashAttn, library=None, version=3),
    "vllm triton": partial(VllmTriton, library=None),
    "upstream 3": partial(UpstreamFlashAttn3, library=LIBRARY),
    "flash-attn 2": partial(FlashAttn2, library=None),
    "flash-attn 4": partial(FlashAttn4, library=None),
    "flashinfer": partial(FlashInfer, library=None, backend="fa2", use_tensor_cores=False),
    "flashinfer mla": partial(FlashInferMla, library=None, backend="fa3"),
    "flashmla": partial(FlashMla, library=None),
    "flex": flex_attention,
}
MLA: dict[str, Any] = {
    "seqlens_q": (1, 1),
    "seqlens_k": (70, 33),
    "heads_q": 4,
    "heads_kv": 1,
    "head_dim": 576,
    "head_dim_v": 512,
    "latent": True,
    "causal": False,
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
CLAIMED = {
    "FlashMla": make_call(**MLA, page_size=64),
    "FlashInferMla": make_call(**MLA, page_size=64),
}
"""calls for the adapters that take no usual one"""
ON_CPU = ("tiled-torch", "sdpa auto", "sdpa flash", "sdpa math", "sdpa is_causal")


def exported(adapter: Any) -> dict[str, Any]:
    """The names of a script that has only the adapter's function, run in a namespace of its own."""
    exporter = Exporter(copied=(adapter.bind.func.__module__,))
    body = f"kernel = {export_kernel(exporter, adapter.bind)}\n"
    names: dict[str, Any] = {"__name__": "script"}
    sys.modules["script"] = SimpleNamespace(__dict__=names)  # dataclasses look their module up
    exec(exporter.script(title="Title", text="Text", body=body), names)
    return names


def whole_script(adapter: Any) -> str:
    """A script without inputs."""
    claim = Claim(shows=standalone.returns, given=("kernel", "call0"), launches=(0,), values={"what": "hung"})
    program = ["call0 = AttentionCall(q=unpack('', torch.int8, [0], device))"]
    device = torch.device("cuda", 0)
    return render(title="T", text="As found.", device=device, bind=adapter.bind, program=program, claim=claim)


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        *((name, workload) for name in ON_CPU for workload in CALLS.values()),
        *(("tiled-torch", workload) for workload in FEATURES.values()),
    ],
)
def test_the_source_gives_the_adapters_bits(name, workload) -> None:
    """Every layout, mask and feature that the adapter takes; what it refuses is not asked."""
    adapter, call = ADAPTERS[name](), make_call(**workload)
    if name == "sdpa is_causal" and (call.window != (-1, -1) or len(set(call.cu_seqlens_q.diff().tolist())) > 1):
        return
    prepared = adapter.prepare(call)
    again = exported(adapter)["kernel"](call)
    expected, actual = prepared.result(prepared.launch()), again.result(again.launch())
    assert bool(same_bits(expected[0], actual[0]).all())
    assert (expected[1] is None) == (actual[1] is None)
    if expected[1] is not None:
        assert bool(same_bits(expected[1], actual[1]).all())


def test_every_adapter_is_asked() -> None:
    """Each module of adapters has one here."""
    modules = {type(make()).__module__.rpartition(".")[2] for make in ADAPTERS.values()}
    assert {known.name for known in declared.ADAPTERS} == modules


@pytest.fixture(params=ADAPTERS.values(), ids=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    """Each adapter."""
    return request.param()


def test_every_script_is_complete(adapter) -> None:
    """It parses, imports nothing of qualify, leaves no name to chance, and calls the kernel with its options."""
    tree = ast.parse(whole_script(adapter))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [item.name for node in ast.walk(tree) if isinstance(node, ast.Import) for item in node.names]
    assert not [name for name in imported if name.startswith("qualify")]
    assert [] == sorted(_loaded(tree) - _stored(tree) - set(dir(importlib.import_module("builtins"))))


def test_a_script_has_the_function_that_the_adapter_runs(adapter, monkeypatch) -> None:
    """Its source stands in the script as it stands in the module, and ``prepare`` gets its result from it."""
    assert isinstance(adapter, Scripted)
    bound = adapter.bind
    source = inspect.getsource(bound.func).rstrip()
    assert source in whole_script(adapter)
    asked: list[Any] = []

    def spy(call: Any, **keywords: Any) -> Prepared:
        asked.append((call, keywords))
        return Prepared(launch=lambda: "native", result=lambda native: native)

    monkeypatch.setattr(adapter, "bind", partial(spy, **bound.keywords))
    call = CLAIMED.get(type(adapter).__name__, make_call(seqlens_q=(70, 70), head_dim=64))
    prepared = adapter.prepare(call)
    assert [(call, bound.keywords)] == asked
    assert "native" == prepared.launch()


def test_a_library_is_imported_by_its_name() -> None:
    """A module among the keywords becomes an import and its name; other values their Python."""
    library = ModuleType("acme.kernels")
    script = whole_script(SimpleNamespace(bind=partial(FlashAttn2(library=None).bind.func, library=library)))
    assert "\nimport acme.kernels\n" in script
    assert "\nkernel = partial(bind, library=acme.kernels)\n" in script


@pytest.fixture
def acme(tmp_path, monkeypatch) -> Iterator[Any]:
    """The adapter that docs/cards.md shows, as a module of its own, with a library under it."""
    page = (Path(__file__).parents[3] / "docs" / "cards.md").read_text()
    (example,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "acme" in text]
    (tmp_path / "acme_qualify.py").write_text(example)
    (tmp_path / "acme.py").write_text("def attention(q, k, v, tile):\n    return q + tile\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("acme_qualify").Acme
    for name in ("acme_qualify", "acme"):
        sys.modules.pop(name, None)


def test_another_distributions_adapter_is_exported(acme) -> None:
    """The documented one: its function is copied with what it takes from qualify.api, its library is imported."""
    assert ("tile",) == tuple(option.name for option in acme.declared_options)
    adapter, made = acme({"tile": 32}), make_call(seqlens_q=(4,))
    prepared = adapter.prepare(made)
    expected, lse = prepared.result(prepared.launch())
    again = exported(adapter)["kernel"](made)
    assert torch.equal(expected, again.result(again.launch())[0])
    assert torch.equal(made.q + 32, expected)
    assert lse is None
    script = whole_script(adapter)
    assert inspect.getsource(adapter.bind.func).rstrip() in script
    assert "qualify" not in script.replace("as qualify calls it", "").replace("acme_qualify", "").partition("import")[2]


def test_what_has_no_name_of_its_own_cannot_be_exported() -> None:
    """A function within a function, arguments without a name, and a value whose repr is no Python."""

    def inner(call: Any) -> Any:
        return call

    for bound in (partial(inner), partial(globals_of, "text"), partial(globals_of, text=object())):
        with pytest.raises(CannotExport):
            whole_script(SimpleNamespace(bind=bound))


def test_two_definitions_of_one_name_are_refused() -> None:
    """A script has one namespace: what two modules call the same would be mixed up."""
    exporter = Exporter()
    assert exporter.add("qualify.run.adapters.flash_attn", "bind")
    with pytest.raises(CannotExport, match="bind is defined in"):
        exporter.add("qualify.run.adapters.flashmla", "bind")


def test_the_names_that_a_text_reads() -> None:
    """Annotations are not evaluated, and locals, builtins and a class's own names are no globals."""
    text = (
        "class A(B):\n    c = 1\n    d = c\n\ndef f(x: Missing = y):\n    z = len(x)\n    return [z + g for z in x]\n"
    )
    assert ("B", "g", "y") == globals_of(text)


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
