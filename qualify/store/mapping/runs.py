"""Runs, what they ran on, and the ceilings that they measured."""

from __future__ import annotations

from collections.abc import Iterable

from qualify.facts import codec
from qualify.facts.environment import Environment
from qualify.facts.placement import Placement
from qualify.facts.run import Run
from qualify.facts.stack import Ceilings, Component, Device, Stack
from qualify.store.failures import DamagedError
from qualify.store.mapping.row import Row, are_texts, fields, pick

_RUN = tuple(
    name for name in Run.__dataclass_fields__ if name not in ("stack", "ceilings", "environments", "placement")
)
_COMPONENT = tuple(Component.__dataclass_fields__)


def _nested(row: Row, name: str) -> None:
    """Raises DamagedError where a column is neither NULL nor a mapping from kernels to mappings from keys to texts."""
    value = row[name]
    if value is not None and not (type(value) is dict and all(map(are_texts, value.values()))):
        raise DamagedError(f"the {name} of a run is {value!r:.60}")


def stack_row(stack: Stack) -> Row:
    """The row of ``stacks``."""
    device = stack.device
    return {
        "fingerprint": stack.fingerprint,
        "device_kind": device.kind,
        "device_name": device.name,
        "compute_capability": device.compute_capability,
        "units": device.units,
        "memory_bytes": device.memory_bytes,
        "cache_bytes": device.cache_bytes,
    }


def component_rows(stack: Stack, stack_id: int) -> list[Row]:
    """The rows of ``components``; their order is part of the fingerprint."""
    return [
        {"stack_id": stack_id, "position": position, **fields(component, _COMPONENT)}
        for position, component in enumerate(stack.components)
    ]


def environment_rows(stack: Stack, stack_id: int) -> list[Row]:
    """The rows of ``stack_environment``."""
    return [{"stack_id": stack_id, "name": name, "value": value} for name, value in stack.environment.items()]


def stack_from(row: Row, components: Iterable[Row], environment: Iterable[Row], *, uuid: str) -> Stack:
    """The stack on the card ``uuid``. Its environment is sorted here, because databases sort text differently."""
    device = Device(
        kind=row["device_kind"],
        name=row["device_name"],
        uuid=uuid,
        compute_capability=row["compute_capability"],
        units=row["units"],
        memory_bytes=row["memory_bytes"],
        cache_bytes=row["cache_bytes"],
    )
    parts = tuple(Component(**pick(part, _COMPONENT)) for part in components)
    values = sorted((pair["name"], pair["value"]) for pair in environment)
    return Stack(device=device, components=parts, environment=dict(values))


def run_row(run: Run) -> Row:
    """The row of ``runs``, without its stack."""
    placement = codec.to_data(run.placement) if run.placement else None
    return {**fields(run, _RUN), "placement": placement}


def run_environment_rows(run: Run) -> list[Row]:
    """The rows of ``run_environments``, without their stacks."""
    return [{"run_id": run.id, "name": name, "python": one.python} for name, one in run.environments.items()]


def run_from(
    row: Row, stack: Stack | None, ceilings: Ceilings | None, environments: Iterable[tuple[Row, Stack | None]]
) -> Run:
    """The run. Its environments are sorted by name here, because databases sort text differently."""
    known = {part["name"]: Environment(python=part["python"], stack=there) for part, there in environments}
    _nested(row, "code")
    _nested(row, "terms")
    placement = None if row["placement"] is None else codec.from_data(Placement, row["placement"])
    return Run(
        **pick(row, _RUN),
        stack=stack,
        ceilings=ceilings,
        environments=dict(sorted(known.items())),
        placement=placement,
    )


def ceilings_row(ceilings: Ceilings, run_id: str) -> Row:
    """The row of ``ceilings``."""
    return {
        "run_id": run_id,
        "copy_bytes_per_s": ceilings.copy_bytes_per_s,
        "exps_per_s": ceilings.exps_per_s,
        "launch_us": ceilings.launch_us,
    }


def matmul_rows(ceilings: Ceilings, run_id: str) -> list[Row]:
    """The rows of ``matmul_ceilings``."""
    reached = ceilings.matmul_flops_per_s
    return [{"run_id": run_id, "dtype": dtype, "matmul_flops_per_s": value} for dtype, value in reached.items()]


def ceilings_from(row: Row, matmuls: Iterable[Row]) -> Ceilings:
    """The ceilings of a run."""
    return Ceilings(
        matmul_flops_per_s=dict(sorted((matmul["dtype"], matmul["matmul_flops_per_s"]) for matmul in matmuls)),
        copy_bytes_per_s=row["copy_bytes_per_s"],
        exps_per_s=row["exps_per_s"],
        launch_us=row["launch_us"],
    )
