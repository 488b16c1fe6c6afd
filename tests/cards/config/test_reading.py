"""What can be wrong with a config, what is found in it, and what is written from it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from builders import make_kernel
from cli_process import ROOT, call

from qualify.cards.config.reading import canonical_hash, read_model
from qualify.cards.config.writing import matrix_text, to_data, to_lines, write_matrix
from qualify.cards.load import load_matrix
from qualify.errors import CardError, InfrastructureError, UsageError
from qualify.plan.plan import make_plan

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}


def problem(read: Any, data: Any) -> str:
    """What reading it says."""
    with pytest.raises(CardError) as caught:
        read(data)
    return str(caught.value)


def test_an_unknown_family_is_an_error_that_names_what_was_looked_for(read: Any) -> None:
    """Never a guess, though every usual key is there; the way out is named, with a file, a line and a column."""
    text = problem(read, LLAMA | {"model_type": "lama"})
    assert 'config.json:2:16: model_type: is "lama", a family that qualify does not know; perhaps you meant' in text
    for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window"):
        assert key in text
    assert "the file has num_hidden_layers = 2, num_attention_heads = 8, num_key_value_heads = 2" in text
    assert "geometry: {groups: [{layers:" in text
    assert "perhaps you meant llama, if that is a misspelling; never write another family's name there" in text


def test_a_config_without_a_family(read: Any) -> None:
    """An empty mapping, a wrapper that is not known, and something else than a mapping."""
    assert "model_type: is missing. Of the keys that most families have (num_hidden_layers" in problem(read, {})
    text = problem(read, {"model_type": "my_vl", "text_config": LLAMA})
    assert 'model_type: is "my_vl"' in text
    assert 'text_config is "llama"' in text
    assert "must be a mapping of keys and values, as a config.json is" in problem(read, [1])


def test_a_model_card_of_qualify_is_no_config() -> None:
    """Whoever gives one gets the name to type, and no list of keys that it lacks."""
    with pytest.raises(CardError, match=r"qwen3-8b.json:1:1: is a model card .* Take it by its name: qwen3-8b"):
        read_model(str(ROOT / "matrices" / "models" / "qwen3-8b.json"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"num_attention_heads": None}, "num_attention_heads: is null. Write what is meant, or give the geometry"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: must be a whole number of at least 1, but is 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers: must be a whole number of at least 1, but is true"),
        ({"num_hidden_layers": "2"}, 'num_hidden_layers: must be a whole number of at least 1, but is "2"'),
        ({"num_attention_heads": 8.0}, "num_attention_heads: must be a whole number of at least 1, but is 8.0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 KV heads do not divide 8 query heads"),
        ({"hidden_size": 500}, "hidden_size: is 500, which 8 heads do not divide, and no head_dim is given"),
        ({"layer_types": ["full_attention"]}, "layer_types: has 1 entries for 2 layers"),
        ({"layer_types": ["linear_attention"] * 2}, 'layer_types: holds "linear_attention", which is not read here'),
        ({"layer_types": "full_attention"}, "layer_types: must be a list"),
        ({"model_type": "cohere2", "sliding_window": None}, "sliding_window: is null. Write what is meant, or"),
        ({"is_causal": False}, "is_causal: is false, and this family is read as causal"),
        *(
            ({"model_type": kind, "use_bidirectional_attention": True}, "use_bidirectional_attention: is true: only of")
            for kind in ("llama", "gemma", "gemma2")
        ),
        (
            {"model_type": "hunyuan", "head_dim": 128, "attention_head_dim": 64},
            "attention_head_dim: is 64, but head_dim",
        ),
        (
            {"model_type": "gptj", "n_layer": 2, "n_head": 8, "n_embd": 256},
            "hidden_size: is 512, but n_embd, another name of the same number, is 256; make them agree",
        ),
        ({"model_type": "distilbert", "dim": 768}, "hidden_size: is 512, but dim, another name of the same number, is"),
        ({"model_type": 3}, "model_type: must be text, but is 3"),
        ({"model_type": "gemma3"}, "text_config: is missing, and gemma3 has the keys of its text model there"),
        (
            {"model_type": "gemma3", "text_config": {"use_bidirectional_attention": True, "hidden_size": 512}},
            "text_config.use_bidirectional_attention: is true, which makes an encoder of the text model",
        ),
        ({"model_type": "gemma3", "text_config": 4}, "text_config: must be a mapping of keys and values, but is 4"),
        ({"model_type": "qwen2", "use_sliding_window": 1}, "use_sliding_window: must be true or false, but is 1"),
        ({"model_type": "granitemoe", "attention_multiplier": None}, "attention_multiplier: is null, but the scale is"),
        ({"model_type": "granite", "attention_multiplier": -1}, "attention_multiplier: must be a number above 0"),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 2]}, "no_rope_layers: must be a list of 0 and 1"),
        ({"model_type": "llama4_text", "no_rope_layers": [1]}, "no_rope_layers: has 1 entries for 2 layers"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type: is relative_key"),
        (
            {"model_type": "deepseek_v3", "index_topk": 2048},
            "index_topk: is 2048 and changes which keys a query sees, but deepseek_v3 is read without it",
        ),
        (
            {"model_type": "deepseek_v3"},
            "kv_lora_rank: is missing",
        ),
    ],
    ids=str,
)
def test_wrong_and_missing_values(read: Any, change: dict[str, Any], expected: str) -> None:
    """Each with its key and value, at its place."""
    text = problem(read, LLAMA | change)
    assert expected in text
    assert "config.json:" in text


def test_all_problems_are_reported_at_once(read: Any) -> None:
    """Not one for each attempt."""
    text = problem(read, {"model_type": "llama"})
    missing = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    assert [f"{name}: is missing" in text for name in missing] == [True] * 3


def test_a_wrong_value_has_no_consequences(read: Any) -> None:
    """What stands for it does not divide others, and that is no second problem."""
    text = problem(read, LLAMA | {"num_attention_heads": -8, "hidden_size": math.nan})
    assert 2 == len(text.splitlines())
    assert "divide" not in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": ["llama"]}, "model_type: must be text, but is a list of 1"),
        ({"model_type": "llava", "text_config": "llama"}, "text_config: must be a mapping of keys and values"),
        ({"model_type": "llava", "text_config": {"model_type": 3}}, "text_config.model_type: must be text, but is 3"),
        (
            {"model_type": "llava", "text_config": {**LLAMA, "text_config": {**LLAMA, "num_attention_heads": 4}}},
            "text_config.text_config.num_attention_heads: is 4, but llama is read from the keys around text_config",
        ),
        (
            {"llm_config": {**LLAMA, "head_dim": 32}},
            "llm_config.head_dim: is 32, but llama is read from the keys around llm_config, where it is missing",
        ),
        (
            {"model_type": "llava", "text_config": {"model_type": "mistral3", "text_config": LLAMA}},
            "text_config.model_type: is mistral3, a model of several parts, inside another one, which is not read",
        ),
        (
            {"model_type": "mistral3", "text_config": {"model_type": "mistral3"}},
            "text_config.model_type: is mistral3, a model of several parts, inside another one, which is not read",
        ),
    ],
    ids=str,
)
def test_a_wrong_family_is_one_problem(read: Any, change: dict[str, Any], expected: str) -> None:
    """What is there, and is no family, is not said to be missing as well."""
    text = problem(read, LLAMA | change)
    assert expected in text
    assert 1 == len(text.splitlines())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 3, "num_hidden_layers": 1}
            | {"hidden_size": 512, "num_attention_heads": 8},
            "config.json:4:18: num_kv_heads: 3 KV heads do not divide 8 query heads",
        ),
        (
            {"model_type": "chatglm", "num_layers": 1, "num_attention_heads": 8, "kv_channels": 64}
            | {"multi_query_attention": True, "multi_query_group_num": 3},
            "multi_query_group_num: 3 KV heads do not divide 8 query heads",
        ),
        (
            {"model_type": "dbrx", "d_model": 512, "n_heads": 8, "n_layers": 1, "attn_config": {"kv_n_heads": 3}},
            "attn_config.kv_n_heads: 3 KV heads do not divide 8 query heads",
        ),
        (
            {"model_type": "bloom", "n_embed": 500, "n_head": 8, "n_layer": 1},
            "n_embed: is 500, which 8 heads do not divide",
        ),
        (
            {"model_type": "gptj", "hidden_size": 500, "n_head": 8, "n_layer": 1},
            "hidden_size: is 500, which 8 heads do not divide",
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_a_division_names_the_key_that_the_config_has(read: Any, config: dict[str, Any], expected: str) -> None:
    """Families call the same number differently."""
    assert expected in problem(read, config)


@pytest.mark.parametrize("all_dim", [1e200, 1e308])
def test_a_scale_that_is_no_number_is_a_problem(read: Any, all_dim: float) -> None:
    """YaRN multiplies the scale with the square of a number that the config gives."""
    dims = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    scaling = {"type": "yarn", "factor": 40, "mscale_all_dim": all_dim}
    text = problem(read, LLAMA | dims | {"model_type": "deepseek_v3", "rope_scaling": scaling})
    assert f"rope_scaling.mscale_all_dim: is {all_dim:g} with factor 40: queries and keys would grow" in text


@pytest.mark.parametrize("name", ["qk_nope_head_dim", "kv_lora_rank"])
def test_a_sum_that_no_kernel_counts_is_a_problem(read: Any, name: str) -> None:
    """Each number can be counted in 32 bits, and what they make together cannot."""
    dims = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    text = problem(read, LLAMA | dims | {"model_type": "deepseek_v3", name: 2**31 - 1})
    assert f"{name}: gives 2147483655 elements of a" in text
    assert "at most 2147483647 are possible" in text


def test_an_emoji_in_two_escapes_is_read(read: Any, tmp_path: Path) -> None:
    """As transformers writes the labels of a classifier."""
    labels = {"id2label": {"0": "\U0001f60d", "\U0001f680": "1"}}
    assert "\\ud83d" in json.dumps(labels)
    assert read(LLAMA | labels).card.groups == read(LLAMA).card.groups


def test_a_config_is_json_whatever_it_is_called(tmp_path: Path) -> None:
    """YAML is no config."""
    path = tmp_path / "config"
    path.write_text(json.dumps(LLAMA))
    assert "config" == read_model(str(path)).card.model
    path.write_text("model_type: llama\n")
    with pytest.raises(CardError, match="is not valid JSON"):
        read_model(str(path))


def test_a_place_that_holds_no_config(tmp_path: Path) -> None:
    """A file that is not there, and an empty folder, say the path."""
    with pytest.raises(CardError, match=r"none\.json: no such file"):
        read_model(str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match=rf"^{tmp_path}: the folder has no config\.json\. Give the folder of a model"):
        read_model(str(tmp_path))


def test_weights_and_adapters_are_no_config(tmp_path: Path) -> None:
    """Who has only these is told where the attention stands: in the config beside, or in the one of the base model."""
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "meta-llama/Llama-3.1-8B"}')
    base = "its base model, here meta-llama/Llama-3.1-8B: qualify check meta-llama/Llama-3.1-8B"
    for typed in (tmp_path, tmp_path / "adapter_config.json"):
        with pytest.raises(UsageError) as caught:
            read_model(str(typed))
        assert str(caught.value).endswith(base)
    weights = tmp_path / "model.Q4_K_M.gguf"
    weights.write_bytes(b"GGUF" + bytes(2 << 20))
    with pytest.raises(UsageError, match=r"holds weights, .* Give the config\.json of the model that they are of$"):
        read_model(str(weights))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(UsageError, match=rf"Give the config\.json beside it: {tmp_path}/config\.json$"):
        read_model(str(weights))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"base_model_name_or_path": 3}', "[" * 10_000])
def test_an_adapter_that_names_no_model_is_a_folder_without_config(tmp_path: Path, content: str) -> None:
    """Whatever stands in the file."""
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(UsageError, match=r"the folder has no config\.json\. Give the folder of a model, or the path"):
        read_model(str(tmp_path))


def test_a_folder_stands_for_its_config(read: Any, tmp_path: Path) -> None:
    """As a download leaves it; the model is named after the folder."""
    folder = tmp_path / "Some Model_V2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert "some-model-v2" == read_model(str(folder)).card.model
    assert "asked" == read_model(str(folder), "asked").card.model
    told = "--name A b: write small letters, digits, . and -, such as a-b; at most 100 characters"
    with pytest.raises(UsageError, match=re.escape(told)):
        read_model(str(folder), "A b")
    (folder / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 1}))
    first, second = to_lines(read_model(str(folder)))
    assert (True, True) == (" llama, 1 layer, " in first, second.startswith("  layer 0 "))


def test_a_name_that_has_a_card_gets_the_hash_appended(tmp_path: Path) -> None:
    """So that the matrix of it does not collide with the shipped card."""
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(LLAMA))
    read = read_model(str(path), "", ["llama"])
    assert read.card.pin is not None
    assert f"llama-{read.card.pin.config_sha256[:8]}" == read.card.model


def test_the_content_hash_is_of_the_values(tmp_path: Path) -> None:
    """Order and white space do not matter, any value does; the hash of a known text is its sha256."""
    assert "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" == canonical_hash({})
    assert canonical_hash({"a": 1, "b": [1.5, "é"]}) == canonical_hash({"b": [1.5, "é"], "a": 1})
    assert canonical_hash({"a": 1}) != canonical_hash({"a": 1.0})
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(json.dumps(LLAMA))
    other.write_text(json.dumps(dict(reversed(LLAMA.items())), indent=3))
    assert read_model(str(one)).card.pin == read_model(str(other)).card.pin


def test_a_matrix_in_place_of_a_model_is_told(tmp_path: Path) -> None:
    """With the command that takes a matrix."""
    path = tmp_path / "my mine.yaml"
    path.write_text("matrix: mine\nmodels: [llama]\n")
    with pytest.raises(
        UsageError, match=rf"^{path}: is a matrix, and no config of a model. `qualify run '{path}'` runs it"
    ):
        read_model(str(path))


SUSPICIOUS = [
    ({"auto_map": {"AutoModel": "modeling_x.Model"}}, "auto_map"),
    ({"_attn_implementation": "org/kernels:attend"}, "_attn_implementation"),
    ({"attn_implementation": "eager"}, "attn_implementation"),
    ({"_attn_implementation_internal": "sdpa"}, "_attn_implementation_internal"),
    ({"_experts_implementation": "x"}, "_experts_implementation"),
    ({"attn_config": {"attn_impl": "triton"}}, "attn_config.attn_impl"),
    ({"text_config": {"auto_map": {"AutoModel": "m.Model"}}}, "text_config.auto_map"),
    ({"a": [{"b": {"trust_remote_code": True}}]}, "a[0].b.trust_remote_code"),
    ({"custom_pipelines": {"x": {"impl": "pipe.Pipe"}}}, "custom_pipelines"),
    ({"code_revision": "main"}, "code_revision"),
    ({"hidden_act": "org/repo--module.Class"}, "hidden_act"),
    ({"hidden_act": "org/repo@main:function"}, "hidden_act"),
    ({"loader": "weights.pkl"}, "loader"),
    ({"plugin": "plugin.py"}, "plugin"),
    ({"note": "__import__('os').system('id')"}, "note"),
    ({"__class__": "x"}, "__class__"),
    ({"attention_kernel": "x"}, "attention_kernel"),
    ({"cache_implementation": "org/kernels:cache"}, "cache_implementation"),
    ({"cache_implementation": ["hybrid"]}, "cache_implementation"),
]


@pytest.mark.parametrize(("more", "where"), SUSPICIOUS, ids=[where for _, where in SUSPICIOUS])
def test_keys_that_name_code_are_findings(read: Any, more: dict[str, Any], where: str) -> None:
    """At any depth; the geometry is read all the same, and nothing is imported."""
    found = read(LLAMA | more)
    assert [("names-code", where)] == [(each.kind, each.where) for each in found.findings]
    assert read(LLAMA).card.groups == found.card.groups
    assert any(f"finding: {where}:" in line for line in to_lines(found))


def test_usual_keys_are_no_findings(read: Any) -> None:
    """What every published config has."""
    usual = {
        "architectures": ["LlamaForCausalLM"],
        "_name_or_path": "meta-llama/Llama-3.1-8B",
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0.dev0",
        "hidden_act": "silu",
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
        "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "fp8"},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "cache_implementation": "hybrid",
        "id2label": {"0": "LABEL_0"},
        "auto_map": None,
        "text_config": {"auto_map": {}, "custom_pipelines": {}},
    }
    assert () == read(LLAMA | usual).findings


def test_an_unknown_tower_is_said_and_left_out(read: Any) -> None:
    """The text model is still there."""
    config = {"model_type": "mistral3", "text_config": LLAMA, "vision_config": {"model_type": "new_vit", "depth": 3}}
    found = read(config)
    assert [("unread", "vision_config.model_type")] == [(each.kind, each.where) for each in found.findings]
    assert ["main"] == [group.stack for group in found.card.groups]


def test_a_window_that_hides_nothing_is_said(read: Any) -> None:
    """Phi-4-mini has a window of 262144 keys and 131072 positions."""
    config = LLAMA | {"model_type": "phi3", "sliding_window": 262144, "max_position_embeddings": 131072}
    found = read(config)
    assert [("no-effect", "sliding_window")] == [(each.kind, each.where) for each in found.findings]
    assert [("window", 262144)] == [(group.mask, group.window) for group in found.card.groups]


def test_a_window_around_a_query_hides_keys_beyond_half_of_it(read: Any) -> None:
    """Of an embedding model with as many positions: half of its window lies on each side."""
    positions = {"sliding_window": 512, "max_position_embeddings": 512}
    found = read(LLAMA | positions | {"model_type": "gemma3_text", "use_bidirectional_attention": True})
    assert () == found.findings
    assert "band" in {group.mask for group in found.card.groups}


MATRICES: dict[str, dict[str, Any]] = {
    "causal": LLAMA,
    "window": LLAMA | {"model_type": "mistral", "sliding_window": 4096},
    "chunked": LLAMA | {"model_type": "llama4_text", "attention_chunk_size": 64, "no_rope_layers": [1, 0]},
    "encoder": LLAMA | {"model_type": "bert", "num_key_value_heads": None},
    "cross": {"model_type": "whisper", "d_model": 128, "encoder_layers": 1, "decoder_layers": 1}
    | {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_source_positions": 1500},
    "latent": LLAMA
    | {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    | {"v_head_dim": 128},
}


@pytest.mark.parametrize("config", MATRICES.values(), ids=MATRICES)
def test_the_written_matrix_is_planned(read: Any, config: dict[str, Any], tmp_path: Path) -> None:
    """It loads without a change, has the same groups and pin, and no call of it is refused by a kernel of all."""
    found = read(config)
    made = found.card
    path = tmp_path / "out.yaml"
    write_matrix(found, path)
    loaded = load_matrix(str(path))
    (card,) = loaded.models.values()
    assert (made.model, made.groups, made.pin) == (card.model, card.groups, card.pin)
    plan = make_plan(loaded, {"under-test": make_kernel(head_dim={"max": 1024})})
    assert [] == [reasons for _, reasons in plan.refused]
    assert {mask for case in plan.cases for mask in [case.mask]}
    assert made.pin is not None
    assert made.pin.config_sha256 in matrix_text(found)


@pytest.mark.parametrize(("window", "longest"), [(128, 2048), (4096, 8192), (16384, 32768), (65536, 2048)])
def test_a_chunk_of_the_written_matrix_has_keys_that_its_window_hides(read: Any, window: int, longest: int) -> None:
    """A part of a prompt after a cache that is longer than the window: where masks go wrong most often."""
    text = matrix_text(read(LLAMA | {"model_type": "mistral", "sliding_window": window}))
    context = [1536, longest - 512] if longest > 2048 else [1536]
    assert f"  chunked: {{chunk: 512, context: {context}, page_size: [contiguous, 16]}}\n" in text


@pytest.mark.parametrize(
    ("keys", "dtype", "told"),
    [
        ({}, "bf16", ""),
        ({"torch_dtype": None}, "bf16", ""),
        ({"torch_dtype": "bfloat16"}, "bf16", ""),
        ({"torch_dtype": "float16"}, "fp16", ""),
        ({"torch_dtype": "torch.half"}, "fp16", ""),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, "fp16", ""),
        (
            {"torch_dtype": "float32"},
            "bf16",
            'torch_dtype: is "float32", and the model is planned in bf16 unless `qualify',
        ),
        ({"dtype": 5}, "bf16", "dtype: is 5, and the model is planned in bf16 unless `qualify check --dtype`"),
        ({"dtype": "float8_e4m3fn"}, "bf16", 'dtype: is "float8_e4m3fn", and the model is planned in bf16'),
    ],
)
def test_a_matrix_has_the_dtype_of_the_config(read: Any, keys: dict[str, Any], dtype: str, told: str) -> None:
    """Of 16 bits, as an engine serves it; where the config says something else, a finding says what is planned."""
    for found in (read(LLAMA | keys), read({"model_type": "llava", "text_config": LLAMA | keys})):
        assert f"\ndtypes: [{dtype}]\n" in matrix_text(found)
        lines = [f"{each.where}: {each.detail}".removeprefix("text_config.") for each in found.findings]
        assert (bool(told), True) == (bool(lines), all(line.startswith(told) for line in lines))


@pytest.mark.parametrize("key", ["kv_cache_scheme", "kv_cache_quant_algo"])
def test_a_quantized_cache_is_said(read: Any, key: str) -> None:
    """An engine may take it from the checkpoint, and the matrix has none: the finding names what plans one."""
    quantized = {"torch_dtype": "float16", "quantization_config": {"quant_method": "compressed-tensors", key: "FP8"}}
    for found in (read(LLAMA | quantized), read({"model_type": "llava", "text_config": LLAMA} | quantized)):
        (note,) = found.findings
        assert ("no-effect", f"quantization_config.{key}") == (note.kind, note.where)
        assert "is planned with a cache in fp16 unless `qualify check --dtype fp16_kv_fp8_e4m3` " in note.detail
    assert () == read(LLAMA | {"quantization_config": {key: None}}).findings


@pytest.mark.parametrize(
    ("quantized", "where"),
    [
        ({"quantization_config": {"quantization": {"kv_cache_quant_algo": "FP8"}}}, "quantization_config.quantization"),
        ({"compression_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, "compression_config"),
        ({"quantization_config": {"export": {"kv_cache_group": ["*k_proj"]}}}, "quantization_config.export"),
        ({"quantization_config": {"kv_cache_quant_config": {"*k_proj": {}}}}, "quantization_config"),
    ],
)
def test_a_quantized_cache_is_said_where_other_versions_write_it(read: Any, quantized: Any, where: str) -> None:
    """ModelOpt has a mapping of its own in between, compressed-tensors had another key, and Quark has two names."""
    (note,) = read(LLAMA | quantized).findings
    assert note.where.startswith(f"{where}.kv_cache_")


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "qwen3_moe", "qwen2_5_vl"])
def test_a_switched_window_of_null_is_none(read: Any, kind: str) -> None:
    """The code of transformers takes the window away: with null there is nothing to switch on."""
    switched = {"model_type": kind, "use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}
    assert ["causal"] == [each.mask for each in read(LLAMA | switched).card.groups]


def test_a_number_that_is_too_large_is_called_that(read: Any) -> None:
    """It is a whole number of at least 1, so nobody is told to write one."""
    with pytest.raises(CardError, match="hidden_size: is 1000000000000, but at most 2147483647 is possible"):
        read(LLAMA | {"hidden_size": 10**12})


@pytest.mark.parametrize(("named", "dtype"), [({}, "bf16"), ({"torch_dtype": "float16"}, "fp16")])
def test_the_json_has_the_dtype(read: Any, named: dict[str, str], dtype: str) -> None:
    """As the matrix that is written: who reads the JSON need not guess in which one the model is served."""
    found = read(LLAMA | named)
    assert dtype == to_data(found)["dtype"]
    assert f" layers, {dtype}, config sha256 " in to_lines(found)[0]
    assert f"dtypes: [{dtype}]" in matrix_text(found)


@pytest.mark.parametrize("name", ["1", "1e5", "0x1f", "null", "true", "7.0", "model", "a"])
def test_a_matrix_of_any_name_is_planned(tmp_path: Path, name: str) -> None:
    """YAML takes some names for numbers or for nothing, so they are quoted."""
    config, out = tmp_path / "config.json", tmp_path / "out.yaml"
    config.write_text(json.dumps(LLAMA))
    write_matrix(read_model(str(config), name), out)
    assert name == load_matrix(str(out)).card.matrix


def test_a_matrix_is_not_named_like_a_model_card(tmp_path: Path) -> None:
    """`plan` could not tell the two apart: it is said before the file is written."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    ended = call("model", "config.json", "--name", "llama-3.1-8b", "--matrix", "out.yaml", cwd=tmp_path)
    assert (2, False) == (ended.code, (tmp_path / "out.yaml").exists())
    assert "--name llama-3.1-8b: a model card has that name" in ended.err


def test_a_matrix_is_never_overwritten(read: Any, tmp_path: Path) -> None:
    """What stands there may have been changed by hand."""
    path = tmp_path / "out.yaml"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        write_matrix(read(LLAMA), path)
    with pytest.raises(InfrastructureError, match="cannot be written"):
        write_matrix(read(LLAMA), tmp_path / "none" / "out.yaml")
    assert "mine" == path.read_text()


@pytest.mark.parametrize(
    "command", ["model config.json --matrix", "check config.json --save", "traffic import log.csv --out"]
)
def test_what_would_be_read_as_json_is_not_written(command: str, tmp_path: Path) -> None:
    """A matrix and a traffic file are YAML; the name .json would make every command read them as JSON."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "log.csv").write_text("prompt_tokens,completion_tokens\n8,2\n")
    ended = call(*command.split(), "new.json", cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    told = "new.json: the file will be YAML, and .json would be read as JSON; call it new.yaml"
    assert f"qualify: {told}" == ended.err.splitlines()[-1]
    assert not (tmp_path / "new.json").exists()
