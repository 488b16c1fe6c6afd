"""A geometry that was read, as text for people and as a matrix to start from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from qualify.cards.config.keys import ConfigNote
from qualify.cards.config.reading import ReadModel
from qualify.cards.model import PHASES, LayerGroup, ModelCard
from qualify.cards.plain_yaml import plain_scalar
from qualify.cards.source import check_new
from qualify.errors import InfrastructureError, UsageError
from qualify.facts.case import Phase
from qualify.files import TAKEN, write_new

USUAL = (128, 2048)
"""prompt lengths of a matrix to start from"""
CHUNK = 512
"""tokens of a chunk of a prompt, in a matrix to start from"""
LONGEST_MASK = 32768
"""largest window or chunk for which the matrix also has a prompt of twice its size"""

MATRIX = """\
# Attention of {model}, read from its config.json by `qualify model`. Change the shapes to those that you serve:
# docs/cards.md says what may stand here.
matrix: {name}
models:
  - model: {name}
    tensor_parallel: [1]
{geometry}
phases:
{phases}
dtypes: [{dtype}]
kernels: ["*"]
"""


def to_data(read: ReadModel) -> dict[str, object]:
    """What ``--json`` prints."""
    card = read.card
    assert card.pin is not None, "a card that was read is pinned"
    return {
        "model": card.model,
        "content_hash": card.pin.config_sha256,
        "hub": card.hub,
        "revision": card.pin.revision,
        "model_type": card.model_type,
        "dtype": read.dtype,
        "layers": card.layers,
        "without_attention": list(card.without_attention),
        "groups": [group.model_dump(mode="json") | {"latent": group.latent} for group in card.groups],
        "findings": findings_data(read.findings),
    }


def findings_data(findings: Iterable[ConfigNote]) -> list[dict[str, str]]:
    """Findings about a config, as JSON."""
    return [{"kind": each.kind, "where": each.where, "detail": each.detail} for each in findings]


def to_lines(read: ReadModel) -> list[str]:
    """The geometry in sentences, then the findings."""
    card = read.card
    assert card.pin is not None, "a card that was read is pinned"
    layers = f"{card.layers} layer{'' if card.layers == 1 else 's'}"
    known = f"{card.model_type}, {layers}, {read.dtype}, config sha256 {card.pin.config_sha256}"
    lines = [f"{card.model}: {known}"]
    lines += [f"  {_numbers(group.layers):23}  {described(group)}" for group in card.groups]
    if card.without_attention:
        lines.append(f"  {_numbers(card.without_attention):23}  no attention")
    return lines + [f"finding: {each.where}: {each.detail}" for each in read.findings]


def matrix_text(read: ReadModel) -> str:
    """A matrix of the model alone, that ``qualify plan`` accepts."""
    card = read.card
    return MATRIX.format(
        model=card.model,
        name=name_of(card),
        geometry=geometry_text(card),
        phases="\n".join(_phases(card)),
        dtype=read.dtype,
    )


def name_of(card: ModelCard) -> str:
    """The model's name as YAML: in quotes where it would be read as a number or a truth value."""
    return card.model if isinstance(plain_scalar(card.model), str) else json.dumps(card.model)


def geometry_text(card: ModelCard) -> str:
    """The key ``geometry`` of a model of a matrix, with its pin, in YAML."""
    lines = ["    geometry:"]
    lines += [f"      hub: {json.dumps(card.hub)}"] if card.hub else []
    if card.pin:
        lines.append(f"      pin: {json.dumps(card.pin.model_dump(mode='json', exclude_none=True))}")
    lines += [f"      without_attention: {list(card.without_attention)}"] if card.without_attention else []
    groups = [json.dumps(group.model_dump(mode="json", exclude_defaults=True)) for group in card.groups]
    return "\n".join([*lines, "      groups:", *(f"        - {group}" for group in groups)])


def write_matrix(read: ReadModel, path: Path) -> None:
    """Write it to a new file.

    Raises:
        UsageError: the file exists with another text, or would be read as JSON.
        InfrastructureError: it cannot be written.
    """
    check_new(path)
    try:
        write_new(path, matrix_text(read))
    except FileExistsError:
        raise UsageError(f"{path}: {TAKEN}") from None
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be written: {error.strerror}. Choose another folder") from None


def _phases(card: ModelCard) -> list[str]:
    """Shapes at which the masks of the model matter, for the phases that it has."""
    lengths = [*USUAL, *sorted({2 * size for size in mask_sizes(card) if size <= LONGEST_MASK} - set(USUAL))]
    contexts = sorted({keys - CHUNK for keys in (max(USUAL), max(lengths))})
    lines = {
        "prefill": f"{{batch: [1], seqlen: {lengths}}}",
        "chunked": f"{{chunk: {CHUNK}, context: {contexts}, page_size: [contiguous, 16]}}",
        "varlen": "{lengths: [[1, 17, 300, 1024]]}",
        "decode": f"{{batch: [1, 32], context: {lengths[1:]}, page_size: [contiguous, 16]}}",
        "verify": f"{{draft: [4], context: {lengths[-1:]}, page_size: [contiguous, 16]}}",
    }
    return [f"  {phase}: {shapes}" for phase, shapes in lines.items() if phase in phases_of(card)]


def mask_sizes(card: ModelCard) -> set[int]:
    """The windows and chunks of the model's masks, in keys."""
    return {size for group in card.groups for size in (group.window, group.chunk) if size}


def phases_of(card: ModelCard) -> set[Phase]:
    """The phases in which the model makes an attention call."""
    return {phase for group in card.groups for phase in group.phases or PHASES}


def described(group: LayerGroup) -> str:
    """One call in words, without its layers."""
    dims = str(group.head_dim) if group.head_dim == group.head_dim_v else f"{group.head_dim}/{group.head_dim_v}"
    size = group.window or group.chunk or group.cross_keys
    parts = [
        "" if group.stack == "main" else group.stack,
        f"{group.heads_q} heads on {group.heads_kv}",
        f"head_dim {dims}{', latent' if group.latent else ''}",
        f"{group.mask}{f' {size}' if size else ''}",
        f"images of {group.image_tokens} tokens" if group.image_tokens else "",
        f"softcap {group.softcap:g}" if group.softcap else "",
        "sinks" if group.sinks else "",
        f"scale {group.scale:.6g}",
        f"positions {group.positions}",
        f"in {', '.join(group.phases)}" if group.phases else "",
    ]
    return ", ".join(part for part in parts if part)


def _numbers(layers: Iterable[int]) -> str:
    """Layer numbers with runs written as such: 0-3, 5."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and runs[-1][-1] == layer - 1:
            runs[-1] = [runs[-1][0], layer]
        else:
            runs.append([layer])
    text = ", ".join("-".join(map(str, run)) for run in runs)
    return (
        f"layer{'' if text.isdecimal() else 's'} {text}"
        if len(text) <= 40
        else f"{sum(1 for _ in layers)} layers: {text[:40].rpartition(',')[0]}, …"
    )
