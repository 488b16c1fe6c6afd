"""What the attention backends of vLLM refuse, and where its sources say so: parts of the table in vllm_backends."""

from __future__ import annotations

from qualify.facts.engines import FP8, HALF, Dropped, Quote, Rule

V = "vllm/v1/attention/backends"
VLLM_MIXED = Quote(file="vllm/v1/attention/backend.py", text='invalid_reasons.append("MLA not supported")')
VLLM_ONLY = Quote(file="vllm/v1/attention/backend.py", text='invalid_reasons.append("non-MLA not supported")')
VLLM_DTYPE = Quote(file="vllm/v1/attention/backend.py", text='invalid_reasons.append("dtype not supported")')
NO_LATENT = Rule(about="latent", most=0, says="MLA not supported", quote=VLLM_MIXED)
ONLY_LATENT = Rule(about="latent", least=1, says="non-MLA not supported", quote=VLLM_ONLY)
NO_IMAGES = Rule(
    about="images",
    most=0,
    says="partial multimodal token full attention not supported",
    quote=Quote(
        file="vllm/v1/attention/backend.py",
        text='invalid_reasons.append( "partial multimodal token full attention not supported" )',
    ),
)
PREFIX_MODELS = ("gemma3", "paligemma")
"""models of vLLM's MM_PREFIX_LM_MODELS that qualify reads"""
DTYPE = Rule(about="dtype", among=HALF, says="dtype not supported", quote=VLLM_DTYPE)


def fp8_queries(file: str, text: str) -> Rule:
    """Beside a cache in fp8 vLLM quantizes the queries, too, where a backend says that it takes them so."""
    return Rule(
        about="queries",
        among=FP8,
        says="vLLM quantizes the queries too where its cache is in fp8: ask for --dtype fp8_e4m3",
        quote=Quote(file=file, text=text),
    )


def no_encoders_in_fp8(file: str, says: str) -> Rule:
    """A backend takes no encoder with a cache in fp8, and says so in a text of its file."""
    return Rule(
        about="attention_type",
        never=("encoder_only",),
        with_fp8=True,
        says=says,
        quote=Quote(file=file, text=f'"{says}"'),
    )


def attention_types(among: tuple[str, ...], file: str, text: str) -> Rule:
    """A backend takes these types of attention alone, as that text of its file says."""
    return Rule(
        about="attention_type",
        among=among,
        says="attention type not supported",
        quote=Quote(file=file, text=text),
    )


DECODERS = attention_types(("decoder",), "vllm/v1/attention/backend.py", "return attn_type == AttentionType.DECODER")
XQA = Quote(
    file=f"{V}/flashinfer.py",
    text="if current_platform.is_device_capability( 90 ) or current_platform.is_device_capability_family(120): return "
    "FlashInferDecodeKernel.XQA",
)
"""FlashInfer's decode kernel on Hopper, for heads of 16 to 256 elements"""
FA4 = Quote(
    file=f"{V}/fa_utils.py",
    text='if head_size is not None and head_size > 256: upgrade_reason = f"FA3 does not support '
    'head_size={head_size} on SM90"',
)
FA4_ALL = Quote(
    file="vllm/model_executor/models/config.py",
    text='vllm_config.attention_config.flash_attn_version = 4 logger.info( "Gemma4 model has heterogeneous head '
    'dimensions %s. Using FA4 " "for all layers to avoid mixed FA3/FA4 penalty."',
)


def registered(name: str, place: str) -> Quote:
    """The entry of a backend in vLLM's list, with the place of its class."""
    return Quote(file=f"{V}/registry.py", text=f"{name} = {place}")


REGISTRY = "vllm/model_executor/models/registry.py"
"""where vLLM lists the architectures that it has, and those that it had"""
FALLS_BACK = ("aya_vision", "bamba", "dots1", "ernie", "phi4_multimodal")
"""families whose own code vLLM dropped, and for which it takes that of transformers: its backends do their attention"""


def _dropped(architecture: str, until: str, *model_types: str, says: str = "is not supported anymore") -> Dropped:
    """An architecture of vLLM's list of those that it had, with the last release that had it."""
    return Dropped(
        model_types=model_types,
        architecture=architecture,
        says=f"Model architecture {architecture} was supported in vLLM until v{until}, and {says}",
        quote=Quote(file=REGISTRY, text=f'"{architecture}": "{until}",'),
    )


DROPPED = (
    _dropped("QWenLMHeadModel", "0.23.0", "qwen"),
    _dropped("InternLMForCausalLM", "0.23.0", "internlm"),
    _dropped("BaichuanForCausalLM", "0.23.0", "baichuan"),
    _dropped("MPTForCausalLM", "0.28.0", "mpt"),
    _dropped("RWForCausalLM", "0.28.0", "RefinedWeb", "RefinedWebModel"),
    _dropped("StableLMEpochForCausalLM", "0.28.0", "stablelm_epoch"),
    _dropped(
        "MllamaForConditionalGeneration",
        "0.10.2",
        "mllama",
        says="vLLM cannot run the code of transformers instead, which does not count its image tokens",
    ),
)
