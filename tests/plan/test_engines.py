"""What an engine's name for a backend means here, and what the engine would refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qualify.cards.config.reading import read_model
from qualify.cards.load import load_kernels, load_matrix, load_model
from qualify.cards.model import PHASES, ModelCard
from qualify.cards.named import kernel_names
from qualify.facts.backends import ENGINES, engine_named
from qualify.facts.engines import PROMPTS, EngineName
from qualify.plan.checking import CHECKED, check_matrix
from qualify.plan.engines import Chosen, as_served, choose, how_served, not_checked, unserved
from qualify.plan.host import Host
from qualify.plan.plan import make_plan

CPU = Host(kind="cpu", name="a CPU", compute_capability="")
H100 = Host(kind="cuda", name="H100", compute_capability="9.0")
A100 = Host(kind="cuda", name="A100", compute_capability="8.0")
B200 = Host(kind="cuda", name="B200", compute_capability="10.0")


def chosen(engine: EngineName, backend: str, model: str, host: Host, dtype: str = "bf16") -> Chosen:
    known = engine_named(engine)
    found = known.backend(backend)
    assert found is not None
    return choose(known, found, load_model(model).card, dtype, host)


@pytest.mark.parametrize(
    ("engine", "backend", "model", "host", "cards"),
    [
        ("vllm", "FLASH_ATTN", "qwen3-8b", H100, ("flash-attn-3",)),
        ("vllm", "flash_attn", "qwen3-8b", A100, ("vllm-flash-attn-2",)),
        ("vllm", "FLASHINFER", "qwen3-8b", H100, ("flashinfer-fa3", "flashinfer-fa2")),
        ("vllm", "TRITON_ATTN", "gpt-oss-20b", A100, ("vllm-triton",)),
        ("vllm", "FLASHMLA", "deepseek-v3", H100, ("flashmla",)),
        ("sglang", "flashinfer", "deepseek-v3", H100, ("flashinfer-mla-fa3", "flashinfer-mla-fa2")),
        ("sglang", "flashinfer", "qwen3-8b", A100, ("flashinfer-fa2",)),
        ("transformers", "sdpa", "qwen3-8b", H100, ("torch-sdpa",)),
        ("transformers", "sdpa", "qwen3-8b", CPU, ("torch-cpu-flash", "torch-cpu-math")),
    ],
)
def test_a_backend_means_the_cards_of_that_device(
    engine: EngineName, backend: str, model: str, host: Host, cards: tuple[str, ...]
) -> None:
    """The names are read in any case of letters."""
    found = chosen(engine, backend, model, host)
    assert ((), cards) == (found.refused, found.cards)


@pytest.mark.parametrize(
    ("engine", "backend", "model", "host", "reason"),
    [
        ("vllm", "FLASH_ATTN", "qwen3-8b", CPU, "compute capability not supported (this machine has no GPU)"),
        ("vllm", "FLASHINFER", "phi-2", H100, "head_size not supported (head_dim 80)"),
        ("vllm", "FLASH_ATTN", "deepseek-v3", H100, "MLA not supported (the model has latent attention)"),
        ("vllm", "FLASHMLA", "qwen3-8b", H100, "non-MLA not supported (the model has no latent attention)"),
        ("vllm", "FLASH_ATTN", "gpt-oss-20b", A100, "sink not supported on compute capability < 9.0 (A100 (8.0))"),
        (
            "vllm",
            "FLEX_ATTENTION",
            "gpt-oss-20b",
            H100,
            "attention sinks not supported (the model has",
        ),
        (
            "vllm",
            "FLASHINFER",
            "gemma-3-27b",
            H100,
            "partial multimodal token full attention not supported (the tokens of an image see each other)",
        ),
        (
            "vllm",
            "FLASH_ATTN",
            "gemma-3-27b",
            A100,
            "requires FlashAttention v4, which does not resolve for this head_size (model_type gemma3)",
        ),
        ("vllm", "FLASHINFER", "bert-base", H100, "attention type not supported (the model is encoder_only)"),
        ("vllm", "FLASHINFER", "modernbert-base", H100, "attention type not supported (the model is encoder_only)"),
        ("vllm", "FLASHINFER", "whisper-large", H100, "attention type not supported (the model is encoder_decoder)"),
        (
            "vllm",
            "FLEX_ATTENTION",
            "whisper-large",
            H100,
            "attention type not supported (the model is encoder_decoder)",
        ),
        ("sglang", "fa3", "qwen3-8b", B200, "FlashAttention v3 Backend requires SM>=80 and SM<=90."),
        ("transformers", "sdpa", "gpt-oss-20b", H100, "does not support an attention implementation through torch.nn"),
        ("transformers", "flash_attention_2", "llama-4-scout", H100, "does not support Flash Attention yet"),
        ("transformers", "eager", "qwen3-8b", H100, "qualify has no kernel card for it (plain matrix products"),
    ],
)
def test_what_the_engine_refuses_is_refused_in_its_words(
    engine: EngineName, backend: str, model: str, host: Host, reason: str
) -> None:
    """With the value of this model or device; no card is left to run."""
    found = chosen(engine, backend, model, host)
    assert () == found.cards
    assert any(reason in text for text in found.refused), found.refused


@pytest.mark.parametrize(
    ("engine", "backend", "model", "host", "elsewhere"),
    [
        ("vllm", "FLASH_ATTN", "qwen3-8b", CPU, True),
        ("vllm", "TRITON_ATTN", "qwen3-8b", CPU, True),
        ("vllm", "FLASHMLA", "deepseek-v3", A100, True),
        ("sglang", "fa3", "qwen3-8b", B200, True),
        ("vllm", "FLASHINFER", "phi-2", CPU, False),
        ("vllm", "TRITON_MLA", "deepseek-v3", CPU, False),
        ("sglang", "flashmla", "qwen3-8b", CPU, False),
        ("transformers", "sdpa", "gpt-oss-20b", CPU, False),
        ("transformers", "sdpa", "qwen3-8b", CPU, False),
    ],
)
def test_only_a_refusal_of_the_device_sends_people_to_another_machine(
    engine: EngineName, backend: str, model: str, host: Host, elsewhere: bool
) -> None:
    """What the engine refuses about the model, it refuses on every machine."""
    assert elsewhere == chosen(engine, backend, model, host).elsewhere


PALIGEMMA = {
    "model_type": "paligemma",
    "text_config": {"model_type": "gemma", "num_hidden_layers": 18, "hidden_size": 2048, "head_dim": 256}
    | {"num_attention_heads": 8, "num_key_value_heads": 1},
}
MINICPM3 = {
    "model_type": "minicpm3",
    "num_hidden_layers": 62,
    "hidden_size": 2560,
    "num_attention_heads": 40,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
}


GEMMA4 = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "hidden_size": 2560,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 512,
}


def described(folder: Path, config: dict[str, object]) -> ModelCard:
    """The model of a config.json that has no card."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return read_model(str(path)).card


def test_a_prompt_seen_whole_is_refused_where_the_tokens_of_an_image_are(tmp_path: Path) -> None:
    """PaliGemma is no encoder, and vLLM asks FlashInfer and FlashAttention the same as for Gemma 3."""
    model = described(tmp_path, PALIGEMMA)
    vllm = engine_named("vllm")
    refused = {each.name: choose(vllm, each, model, "bf16", H100).refused for each in vllm.backends if each.served}
    assert ("partial multimodal token full attention not supported (prompts are seen whole)",) == refused["FLASHINFER"]
    assert "mm_prefix (PrefixLM bidirectional attention) requires" in refused["FLASH_ATTN"][0]
    assert ((), ()) == (refused["TRITON_ATTN"], refused["FLEX_ATTENTION"])


def test_vllm_takes_flash_attention_4_for_all_layers_of_gemma_4(tmp_path: Path) -> None:
    """Its global heads have 512 elements: too many for FlashAttention-3, and for FlashAttention-2 on Ampere."""
    model, vllm = described(tmp_path, GEMMA4), engine_named("vllm")
    backend = next(each for each in vllm.backends if each.name == "FLASH_ATTN")
    hopper, ampere = (choose(vllm, backend, model, "bf16", host) for host in (H100, A100))
    assert (("flash-attn-4",), ("flash-attn-4",), ()) == (hopper.cards, hopper.other_builds, hopper.refused)
    assert (("head_size not supported (head_dim 512)",), True) == (ampere.refused, ampere.elsewhere)
    (quantized,) = choose(vllm, backend, model, "fp8_e4m3", H100).refused
    assert "no kernel card for FlashAttention-4 with that (head_dim 512)" in quantized


def test_sglang_takes_few_backends_for_gemma_4(tmp_path: Path) -> None:
    """Its own list has FlashAttention-4, and no other that qualify has a card for."""
    model, sglang = described(tmp_path, GEMMA4), engine_named("sglang")
    each = {it.name: choose(sglang, it, model, "bf16", H100) for it in sglang.backends}
    assert {"fa4": ("flash-attn-4",)} == {name: it.cards for name, it in each.items() if it.cards}
    assert "Gemma4 only supports trtllm_mha, triton, fa4, " in each["fa3"].refused[0]


@pytest.mark.parametrize("model", ["gemma-3-27b", "bert-base"])
def test_a_backend_that_takes_images_and_encoders_stays(model: str) -> None:
    """The Triton kernel of vLLM and FlexAttention serve what FlashInfer does not."""
    assert ((), ()) == tuple(chosen("vllm", each, model, H100).refused for each in ("TRITON_ATTN", "FLEX_ATTENTION"))


def test_the_text_model_of_gemma_3_runs_on_flashinfer() -> None:
    """No image, no refusal: the 1B model has text alone."""
    assert ((), ()) == tuple(chosen("vllm", each, "gemma-3-1b", H100).refused for each in ("FLASHINFER", "FLASH_ATTN"))


@pytest.mark.parametrize(
    ("engine", "backend", "dtype", "host", "cards"),
    [
        ("vllm", "FLASH_ATTN", "fp8_e4m3", H100, ("flash-attn-3-fp8",)),
        ("vllm", "TRITON_ATTN", "fp8_e4m3", H100, ("vllm-triton-fp8",)),
        ("vllm", "FLASHINFER", "fp8_e4m3", H100, ("flashinfer-fa3-fp8",)),
        ("vllm", "FLASHINFER", "bf16_kv_fp8_e4m3", A100, ("flashinfer-fa2-fp8kv",)),
        ("vllm", "FLASHINFER", "fp16_kv_fp8_e4m3", A100, ("flashinfer-fa2-fp8kv",)),
        ("sglang", "fa3", "fp8_e4m3", H100, ("flash-attn-3-fp8",)),
        ("sglang", "flashinfer", "bf16_kv_fp8_e4m3", H100, ("flashinfer-fa2-fp8kv",)),
    ],
)
def test_a_cache_in_fp8_has_cards_of_its_own(
    engine: EngineName, backend: str, dtype: str, host: Host, cards: tuple[str, ...]
) -> None:
    """The model is in 16 bits, so no rule on its dtype refuses it; the card computes in what the kernel gets."""
    found = chosen(engine, backend, "qwen3-8b", host, dtype)
    assert ((), cards) == (found.refused, found.cards)


@pytest.mark.parametrize(
    ("engine", "backend", "dtype", "host", "reason", "elsewhere"),
    [
        ("vllm", "FLASH_ATTN", "bf16_kv_fp8_e4m3", H100, "the queries too where its cache is in fp8: ask for", False),
        ("vllm", "TRITON_ATTN", "fp16_kv_fp8_e4m3", H100, "ask for --dtype fp8_e4m3 (dtype fp16_kv_fp8_e4m3)", False),
        ("vllm", "FLASHINFER", "bf16_kv_fp8_e4m3", H100, "It decodes with XQA, and qualify has no kernel card", True),
        ("vllm", "FLASHINFER", "fp8_e4m3", A100, "model's dtype here: ask for --dtype bf16_kv_fp8_e4m3", True),
        ("vllm", "FLASH_ATTN", "fp8_e4m3", A100, "FP8 KV cache requires FA3 on SM90, FA4 with", True),
        ("vllm", "TRITON_ATTN", "fp8_e4m3", A100, "native FP8 requires SM89+ (A100 (8.0))", True),
        ("vllm", "FLEX_ATTENTION", "fp8_e4m3", H100, "kv_cache_dtype not supported (dtype fp8_e4m3)", False),
        ("vllm", "FLASH_ATTN", "fp32", H100, "dtype not supported (dtype fp32)", False),
        ("sglang", "fa3", "bf16_kv_fp8_e4m3", H100, "casts the queries too where its cache is in fp8: ask for", False),
        ("sglang", "flashinfer", "fp8_e4m3", H100, "with FlashInfer: ask for --dtype bf16_kv_fp8_e4m3", False),
        ("sglang", "torch_native", "bf16_kv_fp8_e4m3", H100, "ask for --dtype bf16 (dtype bf16_kv_fp8_e4m3)", False),
        ("sglang", "fa4", "fp8_e4m3", H100, "qualify has no kernel card for it in fp8_e4m3", False),
        ("transformers", "sdpa", "bf16_kv_fp8_e4m3", H100, "has no kernel card for it in bf16_kv_fp8_e4m3", False),
    ],
)
def test_another_dtype_than_the_engine_computes_in_is_refused_with_what_to_ask(
    engine: EngineName, backend: str, dtype: str, host: Host, reason: str, elsewhere: bool
) -> None:
    """Whether queries are quantised beside such a cache is the engine's choice, for each backend and device."""
    found = chosen(engine, backend, "qwen3-8b", host, dtype)
    assert ((), elsewhere) == (found.cards, found.elsewhere)
    assert any(reason in text for text in found.refused), found.refused


@pytest.mark.parametrize(("backend", "reason"), [("FLASH_ATTN", "quantization is"), ("TRITON_ATTN", "KV cache is")])
def test_an_encoder_has_no_cache_in_fp8(backend: str, reason: str) -> None:
    """Both backends of vLLM raise while they serve; in 16 bits they take the encoder."""
    (refused,) = chosen("vllm", backend, "bert-base", H100, "fp8_e4m3").refused
    assert f"{reason} not supported for encoder attention (the model is encoder_only)" in refused
    assert () == chosen("vllm", backend, "bert-base", H100).refused


def test_every_hint_names_a_dtype_that_the_backend_takes_somewhere() -> None:
    """A reason that sends its reader to the next refusal would be no help."""
    for engine, backend in ((each, backend) for each in ENGINES for backend in each.backends):
        hints = [re.search(r"--dtype (\w+)", rule.says) for rule in backend.rules]
        for hint in (each[1] for each in hints if each):
            taken = [choose(engine, backend, load_model("qwen3-8b").card, hint, host) for host in (H100, A100)]
            assert any(each.cards for each in taken), (backend.name, hint)


def test_vllm_decodes_with_another_kernel_of_flashinfer_on_hopper() -> None:
    """XQA has no card, so only prompts are checked there, and the answer says so; Ampere decodes with fa2."""
    hopper, ampere = (chosen("vllm", "FLASHINFER", "qwen3-8b", host) for host in (H100, A100))
    assert (PROMPTS, PHASES) == (hopper.phases, ampere.phases)
    told = "decode with FLASHINFER, where vLLM makes calls for which qualify has no card"
    assert ((told,), ()) == tuple(not_checked([each], CHECKED) for each in (hopper, ampere))
    mla = chosen("vllm", "FLASHMLA", "deepseek-v3", H100)
    assert ("prefill with FLASHMLA, where vLLM takes another backend",) == not_checked([mla], ("prefill", "decode"))


def test_a_kernel_runs_only_in_the_phases_that_a_backend_gives_it(tmp_path: Path) -> None:
    """Beside FlashAttention, which decodes, the plan has no decode of FlashInfer's kernels."""
    all_ = [chosen("vllm", name, "qwen3-8b", H100) for name in ("FLASH_ATTN", "FLASHINFER")]
    never = unserved(all_)
    assert {"flashinfer-fa3": ("decode", "verify"), "flashinfer-fa2": ("decode", "verify")} == never
    kernels, path, model = load_kernels(), tmp_path / "check.yaml", load_model("qwen3-8b").card
    names = [name for each in all_ for name in each.cards]
    text = check_matrix(
        model,
        shipped=True,
        host=H100,
        dtype="bf16",
        kernels=[kernels[name].card for name in names],
        parallel=None,
        unserved=never,
    )
    path.write_text(text)
    cases = make_plan(load_matrix(str(path)), kernels).cases
    assert {"flash-attn-3"} == {case.kernel for case in cases if case.phase == "decode"}


def test_a_rule_about_sinks_says_nothing_of_a_model_without_them() -> None:
    """A model without sinks runs on Ampere."""
    assert () == chosen("vllm", "FLASH_ATTN", "qwen3-8b", A100).refused


def test_flash_attention_of_transformers_wants_16_bits() -> None:
    """fp32 is refused, bf16 is not."""
    wrong = chosen("transformers", "flash_attention_3", "qwen3-8b", H100, "fp32")
    assert ("Flash Attention only supports torch.float16 and torch.bfloat16 dtypes (dtype fp32)",) == wrong.refused
    assert ("flash-attn-3",) == chosen("transformers", "flash_attention_3", "qwen3-8b", H100).other_builds


def test_every_card_of_the_table_exists_and_fits_its_device() -> None:
    """A card that is renamed, or that needs another device than the table says, is found here."""
    kernels = load_kernels()
    for engine in ENGINES:
        for backend in engine.backends:
            for served in backend.served:
                assert served.card in kernel_names()
                assert kernels[served.card].card.requires.device in {served.device, "any"}


def test_an_engine_that_keeps_no_latent_decodes_with_keys_of_each_head(tmp_path: Path) -> None:
    """Transformers writes the keys and values of each head into its cache; the decode has a kernel there."""
    model = load_model("deepseek-v3").card
    card = as_served(engine_named("transformers"), model)
    assert [(128, 192, 128, False, ())] == [
        (it.heads_kv, it.head_dim, it.head_dim_v, it.latent, it.phases) for it in card.groups
    ]
    assert model is as_served(engine_named("vllm"), model)
    qwen = load_model("qwen3-8b").card
    assert qwen is as_served(engine_named("transformers"), qwen)

    kernels = load_kernels()
    path = tmp_path / "check.yaml"
    served = [kernels["torch-cpu-math"].card]
    path.write_text(check_matrix(card, shipped=False, host=CPU, dtype="bf16", kernels=served, parallel=None))
    plan = make_plan(load_matrix(str(path)), kernels, host=CPU)
    assert ({"prefill", "chunked", "varlen", "decode"}, ()) == ({case.phase for case in plan.cases}, plan.refused)


def test_vllm_caches_minicpm3_with_keys_of_each_head(tmp_path: Path) -> None:
    """It has no latent kernel for this family: every call has 40 KV heads, with values padded to the 96 of a key."""
    vllm = engine_named("vllm")
    found = described(tmp_path, MINICPM3)
    assert "caches the keys and values of each head" in how_served(vllm, found)[0]
    model = as_served(vllm, found)
    assert [(40, 40, 96, 96, False, ())] == [
        (it.heads_q, it.heads_kv, it.head_dim, it.head_dim_v, it.latent, it.phases) for it in model.groups
    ]
    each = {it.name: choose(vllm, it, model, "bf16", H100) for it in vllm.backends}
    assert (("flash-attn-3",), ("vllm-triton",)) == (each["FLASH_ATTN"].cards, each["TRITON_ATTN"].cards)
    assert ("head_size not supported (head_dim 96)",) == each["FLASHINFER"].refused
    assert ("non-MLA not supported (the model has no latent attention)",) == each["FLASHMLA"].refused


QWEN = {
    "model_type": "qwen",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "kv_channels": 128,
}


def test_vllm_refuses_what_it_no_longer_has_with_every_backend(tmp_path: Path) -> None:
    """Its own words, and nothing about the device; Aya Vision runs with the code of transformers."""
    model, vllm = described(tmp_path, QWEN), engine_named("vllm")
    told = "Model architecture QWenLMHeadModel was supported in vLLM until v0.23.0, and is not supported anymore"
    for host in (CPU, H100):
        each = [choose(vllm, it, model, "bf16", host) for it in vllm.backends]
        assert {(f"{told} (model_type qwen)",)} == {it.refused for it in each}
        assert not any(it.elsewhere for it in each)
    text = {"model_type": "cohere", "num_hidden_layers": 2, "hidden_size": 4096, "num_attention_heads": 32}
    aya = described(tmp_path, {"model_type": "aya_vision", "text_config": text})
    assert any(choose(vllm, it, aya, "bf16", H100).cards for it in vllm.backends)


def test_sglang_decodes_minicpm3_on_the_latent(tmp_path: Path) -> None:
    """What vLLM does with a family says nothing about another engine."""
    model = described(tmp_path, MINICPM3)
    assert model is as_served(engine_named("sglang"), model)


def test_vllm_gives_command_r7b_one_key_more_in_its_windows() -> None:
    """Its code adds 1 to sliding_window; the layers that see all keys stay, and so does every other model."""
    vllm, model = engine_named("vllm"), load_model("command-r7b").card
    served = as_served(vllm, model)
    assert ("command-r7b-window-plus-1", [4097, None]) == (served.model, [each.window for each in served.groups])
    assert [4096, None] == [each.window for each in as_served(engine_named("transformers"), model).groups]
    assert "shows one key more in the windows of this family" in how_served(vllm, model)[0]
    other = load_model("mistral-7b-v0.1").card
    assert (other, ()) == (as_served(vllm, other), how_served(vllm, other))


def test_sglang_gives_command_r7b_one_key_more_in_its_windows() -> None:
    """It passes sliding_window as the keys before a query; its FlexAttention is told of no window, for any model."""
    sglang, model = engine_named("sglang"), load_model("command-r7b").card
    served = as_served(sglang, model)
    assert [4097, None] == [each.window for each in served.groups]
    assert "SGLang shows one key more in the windows of this family" in how_served(sglang, model)[0]
    each = {it.name: choose(sglang, it, served, "bf16", H100) for it in sglang.backends}
    assert (("flash-attn-3",), ("torch-sdpa",)) == (each["fa3"].cards, each["torch_native"].cards)
    assert "so a decode sees every key; qualify does not plan that" in each["flashinfer"].refused[0]
    assert "tells FlexAttention of no window" in chosen("sglang", "flex_attention", "gemma-2-9b", H100).refused[0]
    assert () == chosen("sglang", "flex_attention", "qwen3-8b", H100).refused


def test_a_model_with_no_window_is_served_as_it_is() -> None:
    """Command R is of the same maker, and its layers see all keys."""
    model = load_model("command-r").card
    assert model is as_served(engine_named("vllm"), model)
