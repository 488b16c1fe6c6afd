"""The matrix of ``qualify check``: a few shapes of each phase, sized for two minutes of a GPU or one of a CPU.

::

    model card + device ── shapes ── YAML ── qualify plan, qualify run

The text is a matrix like any other: whoever keeps it can change the shapes and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qualify.assets import again_line
from qualify.cards.config.writing import geometry_text, mask_sizes, name_of, phases_of
from qualify.cards.kernel import KernelCard
from qualify.cards.model import LayerGroup, ModelCard
from qualify.cards.phases import CONTIGUOUS
from qualify.errors import UsageError
from qualify.facts.case import Phase
from qualify.facts.devices import HOST, KINDS
from qualify.facts.dtypes import Dtype
from qualify.plan.host import Host, machine_refusals

CHECKED: tuple[Phase, ...] = ("prefill", "chunked", "varlen", "decode")
"""phases of a check; speculative decoding is left to a matrix of one's own"""
LATENT_PAGE = 64
"""keys per page for which kernels of latent attention are written"""
PARALLEL = (4, 2, 1)
"""degrees of tensor parallelism that a CPU may take to have fewer heads"""

TEXT = """\
# {header}
# Change the shapes to those that you serve; docs/cards.md says what may stand here.
matrix: {matrix}
models:
  - model: {model}
    tensor_parallel: [{parallel}]
{geometry}phases:
{phases}
dtypes: [{dtype}]
kernels: [{kernels}]
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Lengths of the shapes, in tokens, on one scale of device."""

    words: str
    seqlen: int
    """tokens of a prompt; twice the largest window or chunk where that is longer, up to ``longest``"""
    longest: int
    chunk: int
    ragged: tuple[int, ...]
    batches: tuple[int, ...]
    """sequences of a decode step"""
    pages: tuple[int, ...]
    """keys per page of the cache, beside a contiguous one"""


LARGE = Size(
    words="shapes for about two minutes of a GPU",
    seqlen=4096,
    longest=16384,
    chunk=512,
    ragged=(1, 17, 300, 1024),
    batches=(1, 32),
    pages=(16, 256),
)
SMALL = Size(
    words="reduced shapes for a CPU, which prove nothing about a GPU",
    seqlen=128,
    longest=512,
    chunk=33,
    ragged=(1, 17, 60),
    batches=(2,),
    pages=(16,),
)


def check_matrix(
    card: ModelCard,
    *,
    shipped: bool,
    host: Host,
    dtype: Dtype,
    kernels: Sequence[KernelCard],
    parallel: int | None,
    phases: Sequence[Phase] = CHECKED,
    others: Sequence[str] = (),
    unserved: Mapping[str, Sequence[Phase]] | None = None,
    again: Sequence[str] = (),
) -> str:
    """The YAML of the matrix.

    Args:
        shipped: whether the model has a card that the matrix can name; else its geometry stands in the matrix.
        kernels: cards that shall run; empty = every one that the device can run. The page sizes are those that cards
            which can run here claim. Otherwise a shape could lack a kernel only because a library is not installed.
        phases: those that shall be checked, where the model has them.
        parallel: GPUs that share the heads; None = one on a GPU, and as many as leave a CPU little to do.
        others: all other kernels. On a CPU the matrix takes every kernel but these: it stands in for a GPU, where the
            engine uses others, and a gate or a report then says so.
        unserved: phases in which the engine does not take one of the kernels, by its name.
        again: the arguments of the `qualify check` that checks the same on another machine.
    """
    size, stands_in = _size(host), bool(kernels and others) and host.kind == HOST
    header = f"What `qualify check` runs of {card.model} on {host}: {size.words}."
    if line := again_line(again):
        header += f"\n{line}"
    if idle := idle_masks(card, host):
        header += f"\n# Not tested: {idle}."
    text = _text(
        card,
        size,
        header=header,
        matrix=f"check-{card.model}",
        shipped=shipped,
        dtype=dtype,
        kernels=[] if stands_in else kernels,
        serving=[kernel for kernel in kernels if not machine_refusals(kernel, host, {})] or kernels,
        parallel=parallel or (most_parallel(card) if size is SMALL else 1),
        phases=phases,
    )
    left_out = [] if kernels or size is SMALL else _costly(card, host)
    left_out += [f'  - "*/{name}"' for name in others if stands_in]
    asked = [phase for phase in CHECKED if phase in phases_of(card) and phase in phases]
    for name, never in (unserved or {}).items():
        left_out += [
            f'  - "*/{phase}/*/{name}"   # the engine takes another kernel' for phase in asked if phase in never
        ]
    return text + _excluded(left_out)


def _size(host: Host) -> Size:
    return SMALL if host.kind == HOST or KINDS[host.kind].scale == "small" else LARGE


def idle_masks(card: ModelCard, host: Host) -> str:
    """Which windows and chunks no shape of a check on that device reaches, in words; empty where there is none.

    A kernel that ignores such a mask computes the right numbers.
    """
    longest = prompt_length(card, _size(host))
    sizes = {group.window or group.chunk or 0 for group in card.groups if _reach(group) >= longest}
    idle = ", ".join(f"{size:,}" for size in sorted(sizes))
    if not idle:
        return ""
    return (
        f"a window or chunk of {idle} keys, which hides nothing at these shapes: the longest sequence has {longest:,} "
        "keys"
    )


def _reach(group: LayerGroup) -> int:
    """Keys on one side that a query of the group sees under its window or chunk, its own included; 0 = all of them."""
    size = group.window or group.chunk or 0
    return size // 2 + 1 if group.mask == "band" else size


def first_matrix(card: ModelCard, *, shipped: bool, dtype: Dtype, name: str, waivers: str) -> str:
    """The YAML of a matrix to start a project with: shapes for a GPU, every kernel, and a file of waivers.

    Args:
        name: of the matrix.
        waivers: path of the waivers, from the matrix's own folder.
    """
    header = f"What must hold before a release of {card.model}: every shape needs a correct kernel."
    text = _text(card, LARGE, header=header, matrix=name, shipped=shipped, dtype=dtype)
    return f"{text}{_excluded(_costly(card, None))}waivers: {waivers}\n"


def _text(
    card: ModelCard,
    size: Size,
    *,
    header: str,
    matrix: str,
    shipped: bool,
    dtype: Dtype,
    kernels: Sequence[KernelCard] = (),
    serving: Sequence[KernelCard] = (),
    parallel: int = 1,
    phases: Sequence[Phase] = CHECKED,
) -> str:
    return TEXT.format(
        header=header,
        matrix=matrix,
        model=name_of(card),
        parallel=parallel,
        geometry="" if shipped else f"{geometry_text(card)}\n",
        phases="\n".join(_phases(card, size, serving, phases)),
        dtype=dtype,
        kernels=", ".join(kernel.kernel for kernel in kernels) or '"*"',
    )


def _excluded(globs: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in ("exclude:", *globs)) if globs else ""


def most_parallel(card: ModelCard) -> int:
    """The most GPUs of a few that can share the heads of all layers."""
    return next(count for count in PARALLEL if can_share(card, count))


def can_share(card: ModelCard, count: int) -> bool:
    """Whether so many GPUs can share the heads of all layers."""
    return all(
        group.heads_q % count == 0 and (group.heads_kv % count == 0 or count % group.heads_kv == 0)
        for group in card.groups
    )


def check_parallel(card: ModelCard, parallel: int | None) -> None:
    """Raises UsageError where so many GPUs cannot share the heads of the model."""
    if parallel is None or can_share(card, parallel):
        return
    most = max(group.heads_q for group in card.groups)
    possible = ", ".join(str(count) for count in range(1, most + 1) if can_share(card, count))
    heads = "; ".join(dict.fromkeys(f"{group.heads_q} query heads on {group.heads_kv}" for group in card.groups))
    raise UsageError(
        f"--tensor-parallel {parallel}: cannot share the heads of {card.model}, {heads}; give one of {possible}"
    )


def prompt_length(card: ModelCard, size: Size) -> int:
    """Tokens of the longest prompt: long enough that every window and chunk matters, if the device can hold it."""
    return max(size.seqlen, *(min(2 * each, size.longest) for each in mask_sizes(card)), 0)


def _phases(card: ModelCard, size: Size, kernels: Sequence[KernelCard], asked: Sequence[Phase]) -> list[str]:
    longest = prompt_length(card, size)
    latent = any(group.latent for group in card.groups)
    usual = _claimed((CONTIGUOUS, *size.pages), kernels)
    pages = ", ".join(_claimed((CONTIGUOUS, LATENT_PAGE), kernels) if latent else usual)
    first_pages = ", ".join(usual[:2])
    # With several kinds of layers each shape becomes several calls, so the shorter prompt is left out.
    prompts = [longest] if len(card.groups) > 1 else [longest // 4, longest]
    lines = {
        "prefill": f"{{batch: [1], seqlen: {prompts}}}",
        "chunked": f"{{chunk: {size.chunk}, context: [{longest - size.chunk}], page_size: [{first_pages}]}}",
        "varlen": f"{{lengths: [{list(size.ragged)}]}}",
        "decode": f"{{batch: {list(size.batches)}, context: [{longest}], page_size: [{pages}]}}",
    }
    return [f"  {phase}: {lines[phase]}" for phase in CHECKED if phase in phases_of(card) and phase in asked]


def _claimed(pages: Sequence[int | str], kernels: Sequence[KernelCard]) -> list[str]:
    """The page sizes that at least one of the kernels claims; all of them where every kernel may run."""
    claimed = [page for page in pages if not kernels or any(_claims(kernel, page) for kernel in kernels)]
    return [str(page) for page in claimed or [CONTIGUOUS]]


def _claims(kernel: KernelCard, page: int | str) -> bool:
    if isinstance(page, str):
        return "packed" in kernel.claims.layouts
    claim = kernel.claims.page_size
    if "paged" not in kernel.claims.layouts or claim is None:
        return "paged" in kernel.claims.layouts
    return claim.min <= page <= (claim.max or page) and page % claim.multiple_of == 0


def _costly(card: ModelCard, host: Host | None) -> list[str]:
    """Exclusions of kernels that would take as long as all others together, each with its reason."""
    lines = [
        f'  - "*/{phase}/*/flex-attention"   # each of its shapes takes seconds to compile'
        for phase in CHECKED[1:]
        if phase in phases_of(card)
    ]
    if host and host.compute_capability.startswith("9."):
        lines.append('  - "*/vllm-flash-attn-2"   # it has no code for Hopper: the driver compiles it for minutes')
    return lines
