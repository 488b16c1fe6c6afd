"""Short, human names of device kernels; the raw name stays the evidence and stands beside them."""

from __future__ import annotations

import re

LONGEST = 64
"""characters of a short name; longer ones end in an ellipsis"""

_WRAPPER = re.compile(r"^(?:cutlass::(?:device_kernel|Kernel2?)|[\w:]*enable_sm\w+)<")
_PREFIX = re.compile(r"^(?:void |__global__ )|\(anonymous namespace\)::|<unnamed>::")
_CUTE_CLASS = re.compile(r"(FlashAttention\w*?Sm\d+)")
_CUDNN_TUNING = re.compile(r"_knob_\w+$")
_CUDNN_GENERATOR = re.compile(r"^cudnn_generated_fort_native_")


def short_name(raw: str) -> str:
    """What a person calls a kernel: no return type, no wrapper template, no arguments.

    ``void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<…`` is
    ``flash::FlashAttnFwdSm90``. A name that has no such form is only clipped.
    """
    if raw.startswith("kernel_cutlass_") and (found := _CUTE_CLASS.search(raw)):
        return found.group(1)
    name = _PREFIX.sub("", raw)
    while (wrapper := _WRAPPER.match(name)) is not None:
        name = name[wrapper.end() :]
    head = re.split(r"[<(]", name, maxsplit=1)[0].strip()
    head = _CUDNN_GENERATOR.sub("cudnn ", _CUDNN_TUNING.sub("", head))
    return clipped(head or name, LONGEST)


def clipped(text: str, length: int) -> str:
    """The text, cut to ``length`` characters with an ellipsis where it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
