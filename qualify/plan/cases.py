"""A matrix as cases: the product of its axes and the calls of its incidents, each case with why it is refused."""

from __future__ import annotations

import fnmatch
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from qualify.cards.load import LoadedKernel, LoadedMatrix
from qualify.facts.case import INCIDENTS, Case, Workload
from qualify.facts.dtypes import Dtype
from qualify.facts.environment import kernel_in
from qualify.plan.geometry import Geometry, digest_of, expand_geometries
from qualify.plan.host import Host, machine_refusals
from qualify.plan.interpreter import Interpreter
from qualify.plan.refusals import dtype_refusals, geometry_refusals, length_refusals, shape_refusals
from qualify.plan.shapes import Shape, against, bucket_shapes, expand_shapes, with_images
from qualify.plan.workloads import descaled, geometry_of, shape_of


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cell:
    """One call of the plan: everything of a case but its kernel."""

    id: str
    geometry: Geometry
    shape: Shape
    lengths: str
    dtype: Dtype
    line: int
    kernels: tuple[str, ...]


def _product(matrix: LoadedMatrix, kernels: Iterable[str]) -> Iterator[_Cell]:
    """The production shapes: models x phases x shapes x dtypes x masks."""
    card, names = matrix.card, tuple(kernels)
    shapes = _shapes(matrix)
    common = [(shape, matrix.line(shape.where), _lengths(shape)) for shape in shapes]
    for geometry in expand_geometries(card, matrix.models):
        own = common
        if geometry.cross_keys or geometry.image_tokens:
            own = [(shape, matrix.line(shape.where), _lengths(shape)) for shape in _own_shapes(geometry, shapes)]
        for shape, line, lengths in own:
            if not geometry.has(shape.phase):
                continue
            for dtype in card.dtypes:
                yield _Cell(
                    id=f"{geometry.model}/{shape.phase}/{shape.label}/{dtype}/{geometry.label}",
                    geometry=geometry,
                    shape=shape,
                    lengths=lengths,
                    dtype=dtype,
                    line=line,
                    kernels=names,
                )


def _shapes(matrix: LoadedMatrix) -> list[Shape]:
    """The shapes of the phases, then those that only the traffic has, each once."""
    of_phases = expand_shapes(matrix.card.phases) if matrix.card.phases else ()
    of_traffic = bucket_shapes(matrix.traffic) if matrix.traffic else ()
    found: dict[tuple[object, ...], Shape] = {}
    for shape in chain(of_phases, of_traffic):
        found.setdefault((shape.phase, shape.seqlens_q, shape.seqlens_k, shape.page_size), shape)
    return list(found.values())


def _own_shapes(geometry: Geometry, shapes: list[Shape]) -> list[Shape]:
    """The shapes of prompts that hold an image; or those of cross-attention, which do not depend on contexts."""
    if geometry.image_tokens:
        return [found for shape in shapes if (found := with_images(shape, geometry.image_tokens))]
    crossing = (against(shape, geometry.cross_keys) for shape in shapes)
    return list({(shape.phase, shape.label): shape for shape in crossing}.values())


def _incidents(matrix: LoadedMatrix, kernels: Iterable[str]) -> Iterator[_Cell]:
    """The calls of the incidents, each for the kernels that it names."""
    names = list(kernels)
    for number, incident in enumerate(matrix.card.incidents):
        globs = incident.kernels
        chosen = tuple(name for name in names if any(fnmatch.fnmatchcase(kernel_in(name), glob) for glob in globs))
        calls = [
            (geometry_of(call), shape_of(*call.lengths, call.page_size, where=("incidents", number, "calls", index)))
            for index, call in enumerate(incident.calls)
        ]
        named = Counter((shape.label, geometry.label) for geometry, shape in calls)
        for known, shape in calls:
            geometry = known
            if named[shape.label, known.label] > 1:  # they differ in what the label does not print
                geometry = replace(known, label=f"{known.label}.x{digest_of(known.canonical)}")
            for dtype in incident.dtypes:
                yield _Cell(
                    id=f"{INCIDENTS}/{incident.incident}/{shape.label}/{dtype}/{geometry.label}",
                    geometry=geometry,
                    shape=shape,
                    lengths=_lengths(shape),
                    dtype=dtype,
                    line=matrix.line(shape.where),
                    kernels=chosen,
                )


def expand_cases(matrix: LoadedMatrix, refusals: CaseRefusals) -> Iterator[tuple[Case, tuple[str, ...]]]:
    """Every case with its reasons for refusal; claims are looked up once per axis, not once per case."""
    ignore = matrix.card.policy.claims == "ignore"
    kernels = refusals.kernels
    cells = list(chain(_product(matrix, kernels), _incidents(matrix, kernels)))  # kept alive: refusals go by their ids
    for cell in cells:
        geometry, shape, call = cell.geometry, cell.shape, cell.geometry.canonical
        workload = _workload(geometry, shape, cell.dtype)
        for name in cell.kernels:
            claims = refusals.claims(name, geometry, shape, cell.dtype)
            always = (*geometry.refusals, *refusals.machine[name])
            content = f"{call}|{cell.lengths}|{cell.dtype}|{kernels[name].content_hash}"
            case = Case(
                id=f"{cell.id}/{name}",
                model=geometry.model,
                phase=shape.phase,
                shape=shape.label,
                dtype=cell.dtype,
                mask=geometry.label,
                kernel=name,
                layers=geometry.layers,
                line=cell.line,
                content_hash=hashlib.sha256(content.encode()).hexdigest(),
                unclaimed=claims if ignore and not always else (),
                workload=descaled(workload, kernels[name].card),
            )
            yield case, always if ignore else (*always, *claims)


class CaseRefusals:
    """Reasons by kernel, each found once for each value of the axis that it depends on."""

    def __init__(
        self, kernels: dict[str, LoadedKernel], host: Host | None, interpreters: Mapping[str, Interpreter]
    ) -> None:
        self.kernels = kernels
        self.cards = {name: kernel.card for name, kernel in kernels.items()}
        self.machine = {
            name: () if host is None else tuple(machine_refusals(card, host, interpreters))
            for name, card in self.cards.items()
        }
        self.parts: dict[tuple[str, object], list[str]] = {}

    def claims(self, name: str, geometry: Geometry, shape: Shape, dtype: Dtype) -> tuple[str, ...]:
        """What the card does not claim about the case."""
        card = self.cards[name]
        parts = self.parts
        if (name, id(geometry)) not in parts:
            parts[name, id(geometry)] = geometry_refusals(card, geometry)
        if (name, id(shape)) not in parts:
            parts[name, id(shape)] = shape_refusals(card, shape)
        if (name, dtype) not in parts:
            parts[name, dtype] = dtype_refusals(card, dtype)
        reasons = (*parts[name, id(geometry)], *parts[name, id(shape)], *parts[name, dtype])
        claims = card.claims
        if claims.alignment == "bottom_right" and claims.longer_queries is None and claims.elements is None:
            return reasons
        return (*reasons, *length_refusals(card, geometry, shape))


def _lengths(shape: Shape) -> str:
    """Lengths for the content hash; runs of equal pairs are counted, so a large batch stays short."""
    pairs = list(zip(shape.seqlens_q, shape.seqlens_k, strict=True))
    runs: list[tuple[tuple[int, int], int]] = []
    for pair in pairs:
        if runs and runs[-1][0] == pair:
            runs[-1] = (pair, runs[-1][1] + 1)
        else:
            runs.append((pair, 1))
    images = f"s{shape.spans}" if shape.spans else ""
    return f"{runs}p{shape.page_size}{images}"


def _workload(geometry: Geometry, shape: Shape, dtype: Dtype) -> Workload:
    return Workload(
        heads_q=geometry.heads_q,
        heads_kv=geometry.heads_kv,
        head_dim=geometry.head_dim,
        head_dim_v=geometry.head_dim_v,
        dtype=dtype,
        mask=geometry.mask,
        softcap=geometry.softcap,
        sinks=geometry.sinks,
        scale=geometry.scale,
        seqlens_q=shape.seqlens_q,
        seqlens_k=shape.seqlens_k,
        page_size=shape.page_size,
        spans=shape.spans,
        latent=geometry.latent,
    )
