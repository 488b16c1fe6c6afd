"""The matrix card: normal form, defaults and refusals."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from qualify.cards.matrix import MatrixCard
from qualify.cards.problems import validate
from qualify.cards.source import read
from qualify.errors import CardError

FULL = """\
matrix: llama-3.1-8b-serving
models:
  - llama-3.1-8b
  - {model: gemma-2-9b, tensor_parallel: [1, 8]}
  - {model: my-model, geometry: {groups: [{layers: [0], heads_q: 8, heads_kv: 2, head_dim: 64, mask: causal}]}}
phases:
  prefill:  {batch: [1, 4], seqlen: [128, 1024]}
  chunked:  {chunk: 2048, context: [6144, 30720], batch: 1}
  varlen:   {lengths: [[1, 17, 1024, 3, 0, 4096]]}
  decode:   {batch: [1, 32], context: [1024, 8192], page_size: [contiguous, 16, 64]}
dtypes: [bf16, fp16]
masks: [model, window4096]
kernels: ["*"]
expect:
  - {select: "*/prefill/*/bf16/*", kernel: flash-attn-3, fallback: forbid}
exclude: ["*.tp8/prefill/*/flash-attn-2"]
policy: {reference: fp32, timeout_s: 0.5, compile_timeout_s: 10, fallback: record, claims: ignore, limit_cases: 7,
  drift: {kernels: fail}}
waivers: known/waivers.yaml
"""


def load(path: Any) -> MatrixCard:
    """The card in a file."""
    return validate(read(path), MatrixCard)


def test_full_example(write: Any) -> None:
    """Every key of the format arrives, scalars as tuples and a contiguous cache as page size 0."""
    card = load(write(FULL))
    assert ["llama-3.1-8b", "gemma-2-9b", "my-model"] == [entry.model for entry in card.models]
    assert [(1,), (1, 8), (1,)] == [entry.tensor_parallel for entry in card.models]
    phases = card.phases
    assert phases.prefill
    assert phases.chunked
    assert phases.varlen
    assert phases.decode
    assert ((1, 4), (128, 1024)) == (phases.prefill.batch, phases.prefill.seqlen)
    assert ((2048,), (6144, 30720), (1,)) == (phases.chunked.chunk, phases.chunked.context, phases.chunked.batch)
    assert ((1, 17, 1024, 3, 0, 4096),) == phases.varlen.lengths
    assert ((1, 32), (1024, 8192), (0, 16, 64)) == (phases.decode.batch, phases.decode.context, phases.decode.page_size)
    assert (("bf16", "fp16"), ("model", "window4096"), ("*",)) == (card.dtypes, card.masks, card.kernels)
    assert ("*/prefill/*/bf16/*", "flash-attn-3", "forbid") == tuple(dict(card.expect[0]).values())
    assert ("*.tp8/prefill/*/flash-attn-2",) == card.exclude
    assert ("fp32", 0.5, 10, "record", "ignore", 7) == tuple(dict(card.policy).values())[:6]
    assert ("fail", "report", "known/waivers.yaml") == (
        card.policy.drift.kernels,
        card.policy.drift.numbers,
        card.waivers,
    )


def test_defaults(write: Any, matrix: Any) -> None:
    """What a matrix leaves out has the documented value."""
    card = load(write(matrix({"phases": {"decode": {"context": 5}, "prefill": {"seqlen": 3}}})))
    assert card.phases.decode
    assert card.phases.prefill
    assert ((1,), (0,), (1,)) == (card.phases.decode.batch, card.phases.decode.page_size, card.phases.prefill.batch)
    assert (("model",), (), (), None) == (card.masks, card.expect, card.exclude, card.phases.chunked)
    assert ("fp64", 60, 600, "forbid", "enforce", 200000) == tuple(dict(card.policy).values())[:6]
    assert ("report", "report", None) == (card.policy.drift.kernels, card.policy.drift.numbers, card.waivers)


def test_explicit_geometry_becomes_a_model(write: Any) -> None:
    """A geometry in the matrix is a model card with as many layers as it names."""
    entries = load(write(FULL)).models
    assert (None, None) == (entries[0].card(), entries[1].card())
    card = entries[2].card()
    assert card is not None
    assert ("my-model", 1, 0.125) == (card.model, card.layers, card.groups[0].scale)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"models": []}, "models: must hold at least 1 value"),
        ({"models": [5]}, "models[0]: must be a mapping of keys and values, but is 5"),
        ({"models": ["Llama"]}, 'models[0]: must match ^[a-z0-9][a-z0-9.-]*$, but is "Llama"'),
        ({"models": ["meta-llama/Llama-3.1_8B"]}, "; write small letters, digits, . and -, such as llama-3.1-8b"),
        ({"models": ["§"]}, "; write small letters, digits, . and -, such as my-kernel"),
        (
            {"phases.prefill.64": None},
            "phases.prefill.64: unknown key; a list needs brackets. Allowed here: batch, seq",
        ),
        (
            {"expect": {"select": "*"}},
            "expect: must be a list, but is a mapping of 1 keys; begin each entry with a dash",
        ),
        (
            {"expect": [{"select": "*", "kernel": "torch-*"}]},
            'kernel: must match ^[a-z0-9][a-z0-9.-]*$, but is "torch-*"; name one kernel: this key takes no glob',
        ),
        ({"environments": ["next"]}, "environments: must be a mapping of keys and values, but is a list of 1"),
        ({"policy": {"drift": "fail"}}, 'values, but is "fail"; its keys are kernels, numbers, times'),
        ({"models": ["a", "b", {"model": "a"}]}, "models[2]: names a again, after models[0]; keep one"),
        ({"models": [{"model": "a", "tensor_paralel": 1}]}, "unknown key; perhaps you meant tensor_parallel"),
        ({"models": [{"model": "a", "tensor_parallel": 0}]}, "models[0].tensor_parallel: must be at least 1, but is 0"),
        ({"phases": {}}, "phases: has no phase; give at least one of prefill, chunked, varlen, decode"),
        ({"phases.prefill": None}, "phases: has no phase"),
        ({"dtypes": ["bfloat16"]}, 'but is "bfloat16"; perhaps you meant bf16'),
        ({"models": None}, "models: must be a list, but is empty; write one line with a dash for each entry"),
        ({"phases.prefil": {}}, "phases.prefil: unknown key; perhaps you meant prefill"),
        ({"phases.draft": {}}, "phases.draft: unknown key. Allowed here: prefill, chunked, varlen, decode, verify"),
        ({"phases.prefill.seqlen": 0}, "phases.prefill.seqlen: must be at least 1, but is 0"),
        ({"phases.prefill.seqlen": [4, 2**31]}, "phases.prefill.seqlen[1]: must be at most 2147483647"),
        ({"phases.prefill.seqlen": [4, 4]}, "phases.prefill.seqlen[1]: repeats entry 0"),
        ({"phases.prefill.batch": [1, "4"]}, 'phases.prefill.batch[1]: must be a whole number, but is "4"; write it'),
        ({"phases.prefill.batch": 1.5}, "phases.prefill.batch: must be a whole number, but is 1.5"),
        ({"phases.prefill.page_size": 16}, "phases.prefill.page_size: unknown key. Allowed here: batch, seqlen"),
        ({"phases.varlen": {"lengths": [1, 2]}}, "phases.varlen.lengths: must be a list of lists"),
        ({"phases.varlen": {"lengths": [[0, 0]]}}, "phases.varlen.lengths[0]: must add up to 1 to 2147483647 tokens"),
        ({"phases.varlen": {"lengths": [[2**31 - 1, 1]]}}, "and the sum is 2147483648"),
        ({"phases.varlen": {"lengths": [[1, -1]]}}, "phases.varlen.lengths[0][1]: must be at least 0, but is -1"),
        ({"phases.varlen": {"lengths": [[1, 2], [1, 2]]}}, "phases.varlen.lengths[1]: repeats entry 0"),
        ({"phases.varlen": {"lengths": "x"}}, 'phases.varlen.lengths: must be a list, but is "x"'),
        ({"phases.decode": {"context": 0}}, "phases.decode.context: must be at least 1, but is 0"),
        ({"phases.decode": {"context": 4, "page_size": [16, -3]}}, "phases.decode.page_size[1]: must be contiguous or"),
        ({"phases.decode": {"context": 4, "page_size": 0}}, "phases.decode.page_size: must be contiguous or the keys"),
        ({"phases.decode": {"context": 4, "page_size": "contigous"}}, "; perhaps you meant contiguous"),
        ({"phases.chunked": {"chunk": 4}}, "phases.chunked.context: is missing (tokens that are in the cache already)"),
        (
            {"phases.chunked": {"chunk": 4, "context": 5, "ragged": [{"chunk": [1, 2], "context": [3]}]}},
            "phases.chunked.ragged[0].context: has 1 sequences, and chunk has 2; give each sequence one entry in both",
        ),
        (
            {"phases.chunked": {"chunk": 4, "context": 5, "ragged": [{"chunk": [2, 2], "context": [3, 3]}]}},
            "phases.chunked.ragged[0]: is a batch of equal sequences; write it above, chunk: 2, context: 3, batch: 2",
        ),
        (
            {"phases.chunked": {"chunk": 4, "context": 5, "ragged": [{"chunk": [0, 0], "context": [3, 4]}]}},
            "phases.chunked.ragged[0].chunk: must add up to 1 to 2147483647 tokens, and the sum is 0",
        ),
        (
            {
                "phases.verify": {
                    "draft": 4,
                    "context": 5,
                    "ragged": [
                        {"draft": [1, 2], "context": [3, 3], "page_size": [16, 64]},
                        {"draft": [1, 2], "context": [3, 3], "page_size": [32, 64]},
                    ],
                }
            },
            "phases.verify.ragged[1]: has a call of ragged[0]; keep one of them",
        ),
        (
            {"phases.verify": {"draft": 4, "context": 5, "ragged": [{"draft": [1, 2], "context": [3, 0]}]}},
            "phases.verify.ragged[0].context[1]: must be at least 1, but is 0",
        ),
        (
            {"dtypes": ["fp8"]},
            "dtypes[0]: must be one of bf16, fp16, fp32, fp8_e4m3, bf16_kv_fp8_e4m3, fp16_kv_fp8_e4m3, but",
        ),
        ({"masks": "windw"}, "; perhaps you meant window4096"),
        ({"masks": "causal\n"}, "masks: must be model or the label of a mask with its size"),
        (
            {"masks": "window0"},
            "masks: must be model or the label of a mask with its size, like full, causal, window4096",
        ),
        ({"kernels": ...}, "kernels: is missing (names of kernel cards, or globs); add it"),
        ({"exclude": ""}, "exclude: must not be empty"),
        ({"expect": [{"select": "*"}]}, "expect[0].kernel: is missing"),
        ({"policy": {"timeout_s": 0}}, "policy.timeout_s: must be more than 0, but is 0"),
        ({"policy": {"timeout_s": 1e9}}, "policy.timeout_s: must be at most 86400"),
        ({"policy": {"reference": "fp65"}}, "policy.reference: must be one of fp64, fp32"),
        ({"policy": {"drift": {"times": "report"}}}, "policy.drift.times: must be one of warn, fail"),
        ({"policy": {"drift": {"clocks": "fail"}}}, "policy.drift.clocks: unknown key. Allowed here: kernels, numbers"),
        ({"policy": {"forbid_weaker": "no"}}, "policy.forbid_weaker: must be true or false"),
        ({"policy": {"waivers": {"max_days": 91}}}, "policy.waivers.max_days: must be at most 90"),
        ({"policy": {"waivers": {"stars": "no"}}}, "policy.waivers.stars: must be one of allow, forbid"),
        ({"policy": {"speed": {}}}, "policy.speed: unknown key"),
        ({"policy": {"performance": {"require": "run"}}}, "policy.performance.require: must be one of nothing, duel"),
        (
            {"policy": {"performance": {"budgets": [{"of": "p98", "percent": 3}]}}},
            "policy.performance.budgets[0].of: must be one of cell, mean, p50, p95, p99",
        ),
        ({"traffic": ""}, "traffic: must not be empty"),
        ({"waivers": ""}, "waivers: must not be empty"),
        ({"matrix": "a b"}, "matrix: must match"),
    ],
)
def test_refusals(write: Any, matrix: Any, changes: dict[str, Any], expected: str) -> None:
    """Each wrong value gives exactly one problem, which names path, rule and value."""
    with pytest.raises(CardError) as caught:
        load(write(matrix(changes)))
    assert 1 == len(caught.value.problems), str(caught.value)
    assert expected in str(caught.value)
    assert caught.value.problems[0][0].line >= 1


def test_the_place_is_that_of_the_value(write: Any) -> None:
    """A problem points at the value, at an unknown key, or at the mapping that lacks a key."""
    text = FULL.replace("16, 64", "16, x").replace("dtypes:", "elements:").replace("select: ", "selct: ")
    column = text.splitlines()[9].index("x]") + 1
    with pytest.raises(CardError) as caught:
        load(write(text))
    assert [(1, 1), (10, column), (11, 1), (15, 6)] == [(p.line, p.column) for p, _ in caught.value.problems]


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
WAYS = ["matrix", "models", "models.0", "phases", "phases.prefill", "phases.prefill.seqlen", "dtypes", "kernels"]
OPTIONAL = ["masks", "expect", "exclude", "policy", "phases.decode", "phases.varlen", "phases.prefill.batch"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(st.sampled_from(WAYS + OPTIONAL), JSON_LIKE)
def test_any_value_anywhere_is_accepted_or_refused(tmp_path: Path, matrix: Any, way: str, value: object) -> None:
    """Whatever stands at a key, the answer is a card or problems that have a line."""
    path = tmp_path / "any.yaml"
    path.write_text(json.dumps(matrix({way: value})))
    try:
        load(path)
    except CardError as error:
        assert error.problems
        assert all(place.line >= 1 for place, _ in error.problems)


def _keys(value: object, way: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to every key of a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*way, key)
            yield from _keys(inner, (*way, key))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _keys(inner, (*way, index))


EVERY_KEY = """\
matrix: every-key
models:
  - {model: llama-3.1-8b, tensor_parallel: [1, 8]}
  - model: own
    geometry:
      hub: someone/own
      groups:
        - {layers: [0], heads_q: 8, heads_kv: 2, head_dim: 64, head_dim_v: 64, mask: window, window: 16, softcap: 30.0,
           sinks: true, scale: 0.1, positions: rope, stack: main, phases: [prefill, decode]}
        - {layers: [1], heads_q: 8, heads_kv: 2, head_dim: 64, mask: causal, image_tokens: 4}
phases:
  prefill: {batch: 1, seqlen: 8}
  chunked: {batch: 1, chunk: 4, context: 8}
  varlen: {lengths: [[1, 2]]}
  decode: {batch: 1, context: 8, page_size: 16}
  verify: {batch: 1, draft: 2, context: 8, page_size: 16}
dtypes: [bf16]
masks: [model]
kernels: [torch-sdpa]
expect:
  - {select: "*", kernel: torch-sdpa, fallback: record}
exclude: ["*/none/*"]
policy:
  reference: fp64
  timeout_s: 60
  compile_timeout_s: 600
  fallback: forbid
  claims: enforce
  limit_cases: 1000
  drift: {kernels: report, numbers: report}
"""


def test_a_typo_in_every_key(tmp_path: Path) -> None:
    """Whichever key has its last letters swapped, the file is refused at its line, and the right key is named."""
    data = YAML(typ="safe").load(EVERY_KEY)
    path = tmp_path / "every-key.yaml"
    path.write_text(json.dumps(data))
    load(path)
    ways = [way for way in _keys(data) if isinstance(way[-1], str)]
    assert len(ways) > 60
    for way in ways:
        changed = copy.deepcopy(data)
        inner = changed
        for step in way[:-1]:
            inner = inner[step]
        key = str(way[-1])
        inner[f"{key}x"] = inner.pop(key)
        path.write_text(json.dumps(changed, indent=1))
        with pytest.raises(CardError) as caught:
            load(path)
        meant = [message for place, message in caught.value.problems if f"perhaps you meant {key}" in message]
        assert meant, (way, str(caught.value))
        assert all(place.line > 1 for place, message in caught.value.problems if message in meant)
