"""Short names of device kernels for people. The raw name remains the evidence, and pages show it beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from qualify.text import clipped, visible

LONGEST = 64
"""most characters of a short name; a longer one is cut and ends in an ellipsis"""

PATH_PARTS = 4
"""least number of parts between slashes, as in the id of a case, for a text that may be broken after its slashes"""

FEWEST = 2
"""least number of ids for which common parts are looked for"""

LONG_WORD = 20
"""Most characters of a word that is never broken. A longer word, such as the name of a kernel, may be broken between
its parts. The narrowest column of sentences has room for so many characters."""

_WRAPPER = re.compile(r"^(?:cutlass::(?:device_kernel|Kernel2?)|[\w:]*enable_sm\w+)<")
_PREFIX = re.compile(r"^(?:void |__global__ )|\(anonymous namespace\)::|<unnamed>::")
_BETWEEN_PARTS = re.compile(r"(?<=::|._)(?=[^\s_])|(?<=[<,])(?=\S)")
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


def without_common(ids: Sequence[str]) -> tuple[list[str], str]:
    """Ids without the parts that all of them share, for a drawing with little room; and the shared parts as text."""
    parts = [name.split("/") for name in ids]
    if len(parts) < FEWEST or len({len(it) for it in parts}) > 1:
        return list(ids), ""
    common = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    short = ["/".join(it for it, same in zip(one, common, strict=True) if not same) for one in parts]
    return short, ", ".join(it for it, same in zip(parts[0], common, strict=True) if same)


def parted(text: str) -> str:
    """The text for HTML, with places where a browser may break it into lines.

    A path, such as the id of a case, may be broken after each slash. A long name, such as that of a kernel, may be
    broken after each ``::``, ``<``, comma and underscore. A reader who copies the text gets it unchanged.
    """
    shown = visible(text)
    parts = shown.split("/")
    if len(parts) >= PATH_PARTS:
        return Markup("/<wbr>").join(parts)
    if len(shown) <= LONG_WORD:
        return text
    words = re.split(r"(\s+)", shown)
    if any(len(word) > LONG_WORD for word in words):
        return Markup().join(_broken(word) if len(word) > LONG_WORD else word for word in words)
    return text


def _broken(word: str) -> str:
    return Markup("<wbr>").join(_BETWEEN_PARTS.split(word))
