"""The model card, and the shipped geometries against values checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from qualify.cards.load import load_model
from qualify.cards.model import LayerGroup, ModelCard
from qualify.cards.named import model_names
from qualify.cards.problems import validate
from qualify.cards.source import read
from qualify.errors import CardError


def load(path: Any) -> ModelCard:
    """The card in a file."""
    return validate(read(path), ModelCard)


def facts(group: LayerGroup) -> tuple[object, ...]:
    """Everything of a group but its layers, and what few groups have."""
    heads = (group.heads_q, group.heads_kv, group.head_dim, group.head_dim_v)
    return (*heads, group.mask, group.window, group.softcap, group.sinks, group.scale, group.positions)


RARE = ("chunk", "cross_keys", "image_tokens", "stack", "phases", "latent")
"""what few groups have"""


def rare(group: LayerGroup) -> dict[str, object]:
    """Those of them that are not as usual."""
    usual = LayerGroup(layers=(0,), heads_q=1, heads_kv=1, head_dim=1, mask="full")
    return {name: getattr(group, name) for name in RARE if getattr(group, name) != getattr(usual, name)}


WHOLE = ("prefill", "varlen")
PROMPT = ("prefill", "chunked", "varlen")


def plain(layers: Any, heads: tuple[int, int], dim: int, mask: str = "causal", **more: Any) -> tuple[Any, ...]:
    """A group as most are: its layers, all other facts, and those that are rare."""
    scale = more.pop("scale", 1 / math.sqrt(dim))
    values = (*heads, dim, more.pop("dim_v", dim), mask, more.pop("window", None))
    values += (more.pop("softcap", 0.0), more.pop("sinks", False), scale, more.pop("positions", "rope"))
    return tuple(layers), values, more


def but(every: int, layers: int, first: int | None = None) -> list[int]:
    """The layers without every so many-th, which is the last of its turn, or the first."""
    skipped = every - 1 if first is None else first
    return [layer for layer in range(layers) if layer % every != skipped]


DEEPSEEK = 192**-0.5 * (1 + 0.1 * math.log(40)) ** 2
"""1 / sqrt(192), and what YaRN with a factor of 40 and mscale_all_dim 1 makes of it"""

# model, hub, type, layers, groups; worked out by hand from the figures that each config.json has
GEOMETRIES: list[tuple[str, str, str, int, list[tuple[Any, ...]]]] = [
    ("llama-2-7b", "meta-llama/Llama-2-7b-hf", "llama", 32, [plain(range(32), (32, 32), 128)]),
    ("llama-2-70b", "meta-llama/Llama-2-70b-hf", "llama", 80, [plain(range(80), (64, 8), 128)]),
    ("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "llama", 32, [plain(range(32), (32, 8), 128)]),
    ("llama-3.1-405b", "meta-llama/Llama-3.1-405B", "llama", 126, [plain(range(126), (128, 8), 128)]),
    ("llama-3.2-1b", "meta-llama/Llama-3.2-1B", "llama", 16, [plain(range(16), (32, 8), 64)]),
    ("llama-3.2-3b", "meta-llama/Llama-3.2-3B", "llama", 28, [plain(range(28), (24, 8), 128)]),
    ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", "llama", 80, [plain(range(80), (64, 8), 128)]),
    (
        "llama-4-scout", "meta-llama/Llama-4-Scout-17B-16E", "llama4", 48,
        [
            plain(but(4, 48), (40, 8), 128, "chunked", chunk=8192),
            plain(range(3, 48, 4), (40, 8), 128, positions="none"),
        ],
    ),
    ("mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1", "mistral", 32,
        [plain(range(32), (32, 8), 128, "window", window=4096)]),
    ("mistral-7b-v0.3", "mistralai/Mistral-7B-v0.3", "mistral", 32, [plain(range(32), (32, 8), 128)]),
    ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", "mixtral", 32, [plain(range(32), (32, 8), 128)]),
    ("mixtral-8x22b", "mistralai/Mixtral-8x22B-v0.1", "mixtral", 56, [plain(range(56), (48, 8), 128)]),
    ("phi-2", "microsoft/phi-2", "phi", 32, [plain(range(32), (32, 32), 80)]),
    ("phi-4", "microsoft/phi-4", "phi3", 40, [plain(range(40), (40, 10), 128)]),
    ("qwen2.5-7b", "Qwen/Qwen2.5-7B", "qwen2", 28, [plain(range(28), (28, 4), 128)]),
    ("qwen2.5-72b", "Qwen/Qwen2.5-72B", "qwen2", 80, [plain(range(80), (64, 8), 128)]),
    (
        "qwen2.5-vl-7b", "Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl", 28,
        [
            plain(range(28), (28, 4), 128, positions="mrope"),
            plain(range(32), (16, 16), 80, "full", stack="vision", phases=WHOLE),
        ],
    ),
    ("qwen3-0.6b", "Qwen/Qwen3-0.6B", "qwen3", 28, [plain(range(28), (16, 8), 128)]),
    ("qwen3-8b", "Qwen/Qwen3-8B", "qwen3", 36, [plain(range(36), (32, 8), 128)]),
    ("qwen3-32b", "Qwen/Qwen3-32B", "qwen3", 64, [plain(range(64), (64, 8), 128)]),
    ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", "qwen3_moe", 48, [plain(range(48), (32, 4), 128)]),
    ("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", "qwen3_moe", 94, [plain(range(94), (64, 4), 128)]),
    ("gemma-2b", "google/gemma-2b", "gemma", 18, [plain(range(18), (8, 1), 256)]),
    ("gemma-7b", "google/gemma-7b", "gemma", 28, [plain(range(28), (16, 16), 256)]),
    (
        "gemma-2-9b", "google/gemma-2-9b", "gemma2", 42,
        [
            plain(range(0, 42, 2), (16, 8), 256, "window", window=4096, softcap=50.0),
            plain(range(1, 42, 2), (16, 8), 256, softcap=50.0),
        ],
    ),
    (
        "gemma-2-27b", "google/gemma-2-27b", "gemma2", 46,
        [
            plain(range(0, 46, 2), (32, 16), 128, "window", window=4096, softcap=50.0, scale=1 / 12),
            plain(range(1, 46, 2), (32, 16), 128, softcap=50.0, scale=1 / 12),
        ],
    ),
    (
        "gemma-3-1b", "google/gemma-3-1b-it", "gemma3_text", 26,
        [
            plain(but(6, 26), (4, 1), 256, "window", window=512),
            plain([5, 11, 17, 23], (4, 1), 256),
        ],
    ),
    (
        "gemma-3-27b", "google/gemma-3-27b-it", "gemma3", 62,
        [
            plain(but(6, 62), (32, 16), 128, "window", window=1024, scale=168**-0.5, image_tokens=256),
            plain([5, 11, 17, 23, 29, 35, 41, 47, 53, 59], (32, 16), 128, scale=168**-0.5, image_tokens=256),
        ],
    ),
    ("falcon-7b", "tiiuae/falcon-7b", "falcon", 32, [plain(range(32), (71, 1), 64)]),
    ("falcon-40b", "tiiuae/falcon-40b", "falcon", 60, [plain(range(60), (128, 8), 64)]),
    ("pythia-6.9b", "EleutherAI/pythia-6.9b", "gpt_neox", 32, [plain(range(32), (32, 32), 128)]),
    ("command-r", "CohereLabs/c4ai-command-r-v01", "cohere", 40, [plain(range(40), (64, 64), 128)]),
    (
        "command-r7b", "CohereLabs/c4ai-command-r7b-12-2024", "cohere2", 32,
        [
            plain([i for i in range(32) if i % 4 != 3], (32, 8), 128, mask="window", window=4096),
            plain(range(3, 32, 4), (32, 8), 128, positions="none"),
        ],
    ),
    (
        "starcoder2-7b", "bigcode/starcoder2-7b", "starcoder2", 32,
        [plain(range(32), (36, 4), 128, mask="window", window=4096)],
    ),
    (
        "starcoder2-15b", "bigcode/starcoder2-15b", "starcoder2", 40,
        [plain(range(40), (48, 4), 128, mask="window", window=4096)],
    ),
    ("olmo-7b", "allenai/OLMo-7B-hf", "olmo", 32, [plain(range(32), (32, 32), 128)]),
    ("olmo-2-13b", "allenai/OLMo-2-1124-13B", "olmo2", 40, [plain(range(40), (40, 40), 128)]),
    ("granite-4.1-8b", "ibm-granite/granite-4.1-8b", "granite", 40, [plain(range(40), (32, 8), 128, scale=1 / 128)]),
    (
        "deepseek-v3", "deepseek-ai/DeepSeek-V3", "deepseek_v3", 61,
        [
            plain(range(61), (128, 128), 192, dim_v=128, scale=DEEPSEEK, phases=PROMPT),
            plain(range(61), (128, 1), 576, dim_v=512, scale=DEEPSEEK, phases=("decode", "verify"), latent=True),
        ],
    ),
    (
        "gpt-oss-20b", "openai/gpt-oss-20b", "gpt_oss", 24,
        [
            plain(range(0, 24, 2), (64, 8), 64, "window", window=128, sinks=True),
            plain(range(1, 24, 2), (64, 8), 64, sinks=True),
        ],
    ),
    (
        "gpt-oss-120b", "openai/gpt-oss-120b", "gpt_oss", 36,
        [
            plain(range(0, 36, 2), (64, 8), 64, "window", window=128, sinks=True),
            plain(range(1, 36, 2), (64, 8), 64, sinks=True),
        ],
    ),
    ("glm-4-9b", "THUDM/glm-4-9b-chat-hf", "glm", 40, [plain(range(40), (32, 2), 128)]),
    (
        "bert-base", "google-bert/bert-base-uncased", "bert", 12,
        [plain(range(12), (12, 12), 64, "full", positions="none", phases=WHOLE)],
    ),
    (
        "modernbert-base", "answerdotai/ModernBERT-base", "modernbert", 22,
        [
            plain(range(0, 22, 3), (12, 12), 64, "full", phases=WHOLE),
            plain(but(3, 22, first=0), (12, 12), 64, "band", window=129, phases=WHOLE),
        ],
    ),
    (
        "whisper-large", "openai/whisper-large", "whisper", 32,
        [
            plain(range(32), (20, 20), 64, positions="none"),
            plain(range(32), (20, 20), 64, "cross", positions="none", cross_keys=1500),
            plain(range(32), (20, 20), 64, "full", positions="none", stack="encoder", phases=WHOLE),
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "hub", "kind", "layers", "groups"), GEOMETRIES, ids=[row[0] for row in GEOMETRIES])
def test_shipped_geometry(name: str, hub: str, kind: str, layers: int, groups: list[Any]) -> None:
    """Each shipped model has the geometry of its public config.json."""
    card = load_model(name).card
    assert (name, hub, kind, layers) == (card.model, card.hub, card.model_type, card.layers)
    for (numbers, values, more), group in zip(groups, card.groups, strict=True):
        assert (numbers, more) == (group.layers, rare(group))
        assert tuple(pytest.approx(each, rel=1e-12) if isinstance(each, float) else each for each in values) == facts(
            group
        )


def test_every_shipped_model_is_checked_by_hand() -> None:
    """At least 25, none without a row above."""
    assert sorted(row[0] for row in GEOMETRIES) == model_names()
    assert len(GEOMETRIES) >= 25


def test_a_usual_scale_is_written_to_its_last_digit() -> None:
    """Else the same call of two models is two cases, which both run."""
    for name in model_names():
        for group in load_model(name).card.groups:
            usual = 1 / math.sqrt(group.head_dim)
            assert group.scale == usual or abs(group.scale - usual) > 1e-9, name


def test_defaults(write: Any, model: Any) -> None:
    """What a group leaves out: head_dim_v as head_dim, scale 1 / sqrt(head_dim), nothing special."""
    group = load(write(model({"groups.0.head_dim": 128}))).groups[0]
    assert (8, 2, 128, 128, "causal", None, 0.0, False, 1 / math.sqrt(128), "none") == facts(group)


def test_explicit_values_win(write: Any, model: Any) -> None:
    """head_dim_v and scale are used as written."""
    group = load(write(model({"groups.0.head_dim_v": 32, "groups.0.scale": 1}))).groups[0]
    assert (32, 1.0) == (group.head_dim_v, group.scale)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"groups.0.heads_kv": 3}, "groups[0].heads_kv: is 3 and does not divide heads_q = 8"),
        ({"groups.0.mask": "window"}, "groups[0].mask: is window, so window must say how many keys"),
        ({"groups.0.window": 4096}, "groups[0].window: is used only with mask: window or band, and the mask is causal"),
        ({"groups.0.mask": "local"}, "groups[0].mask: must be one of full, causal, window"),
        ({"groups.0.head_dim": ...}, "groups[0].head_dim: is missing (elements per query and key vector); add it"),
        ({"groups.0.scale": 0}, "groups[0].scale: must be more than 0, but is 0"),
        ({"groups.0.softcap": -1}, "groups[0].softcap: must be at least 0, but is -1"),
        ({"groups.0.latent": True}, "groups[0].latent: is true, so head_dim_v = 64 must be less than head_dim = 64"),
        ({"groups.0.layers": [0, 0]}, "groups[0].layers[1]: repeats entry 0 of the list"),
        ({"groups.0.layers": [-1]}, "groups[0].layers[0]: must be at least 0, but is -1"),
        ({"groups": []}, "groups: must hold at least 1 value, but is a list of 0"),
        ({"layers": 3}, "groups: leave out layers 1, 2 of 3"),
        ({"layers": 2**31 - 1}, "groups: leave out layers 1, 2, 3, 4, 5 … of 2147483647"),
        ({"groups.0.layers": [0, 4]}, "groups[0].layers[1]: is layer 4, but the layers are 0 to 0"),
        ({"layrs": 3}, "layrs: unknown key; perhaps you meant layers"),
    ],
)
def test_refusals(write: Any, model: Any, changes: dict[str, Any], expected: str) -> None:
    """A geometry that is wrong or incomplete is refused with the value."""
    with pytest.raises(CardError) as caught:
        load(write(model(changes), "small.json"))
    assert expected in str(caught.value)


def test_groups_share_no_layer(write: Any, model: Any) -> None:
    """A layer that two groups have is reported at its second place."""
    group = model()["groups"][0]
    path = write(model({"groups": [group, {**group, "layers": [1, 0]}], "layers": 2}))
    with pytest.raises(CardError) as caught:
        load(path)
    ((place, text),) = caught.value.problems
    assert "groups[1].layers[1]: is layer 0, which groups[0] has already" == text
    assert "0" == path.read_text().splitlines()[place.line - 1].strip()


def test_content_hash_ignores_notation(write: Any, model: Any) -> None:
    """Writing a default out does not change the hash, another value does."""
    plain = load(write(model())).content_hash
    assert plain == load(write(model({"groups.0.scale": 0.125}))).content_hash
    assert plain == load(write(model({"groups.0.latent": False}))).content_hash
    assert plain != load(write(model({"groups.0.scale": 0.25}))).content_hash
    values = {"groups.0.head_dim_v": 32}
    hashes = {load(write(model({**values, "groups.0.latent": latent}))).content_hash for latent in (False, True)}
    assert 2 == len(hashes)
    assert 64 == len(plain)
