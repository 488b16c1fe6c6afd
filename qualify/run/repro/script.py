"""A standalone script of a failure: the recorded inputs, the kernel's call, and one claim about what is wrong.

The script imports only torch and the kernel's library. It prints what the kernel returned and what it should have
returned. It exits 1 while the two differ, and 0 once they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch

from qualify.run.adapters.interface import Prepared, Scripted
from qualify.run.repro import standalone
from qualify.run.repro.export import CannotExport, Exporter, call_of
from qualify.run.repro.standalone import Claimed


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What is wrong, and the launches that show it."""

    shows: Callable[..., Claimed]
    """function of ``standalone`` that asserts the claim"""
    given: tuple[str, ...]
    """its positional arguments: names of the program"""
    launches: tuple[int, ...]
    """numbers of all launches that the script repeats, in order"""
    values: Mapping[str, object]
    """its keyword arguments, as plain values"""

    launched: bool = True
    """False where the claim itself launches the last call, so that the program must not launch it before"""


def render(
    *, title: str, text: str, device: torch.device, bind: partial[Prepared], program: Sequence[str], claim: Claim
) -> str:
    """The text of the script.

    Args:
        title: one line with check and case.
        text: what the check found, and how to repeat the case with qualify.
        device: device on which the script makes the inputs.
        bind: the adapter's function that prepares a call, with its keywords.
        program: lines that make the inputs and launch the kernel.
        claim: what the script asserts at its end.

    Raises:
        CannotExport: the adapter's function has no source that a script can hold.
    """
    exporter = Exporter(copied=(bind.func.__module__,))
    kernel = f"kernel = {export_kernel(exporter, bind)}\n"
    where = f'"{device.type}"' if device.index is None else f'"{device.type}", {device.index}'
    place = f"device = torch.device({where})\n"
    launched = "\n".join(program)
    finished = f"finish(*{call_of(claim.shows.__name__, *claim.given, **claim.values)})\n"
    exporter.add_names_of(f"kernel = None\n{place}\n{launched}\n{finished}", standalone.__name__)
    return exporter.script(
        title=title,
        text=text,
        body=f"# The kernel, called as qualify calls it.\n\n{place}{kernel}\n"
        f"# The inputs, as the check made them, and the launches.\n\n{launched}\n\n"
        f"# What came back, beside what should have.\n\n{finished}",
    )


def rendered(
    adapter: object, *, title: str, text: str, device: torch.device, program: Sequence[str], claim: Claim
) -> str:
    """:func:`render` for an adapter; empty where the source of its function cannot be exported."""
    if not isinstance(adapter, Scripted):
        return ""
    try:
        return render(title=title, text=text, device=device, bind=adapter.bind, program=program, claim=claim)
    except CannotExport:
        return ""


def export_kernel(exporter: Exporter, bind: partial[Prepared]) -> str:
    """Add the adapter's function to the script; returns the expression by which the script calls it.

    Raises:
        CannotExport: the function has positional arguments, or no source that a script can hold.
    """
    module, name = bind.func.__module__, bind.func.__name__
    if bind.args:
        raise CannotExport(f"{module}.{name} is given {len(bind.args)} arguments without a name")
    if not bind.keywords:
        exporter.add_names_of(name, module)
        return name
    libraries = [f"import {value.__name__}" for value in bind.keywords.values() if isinstance(value, ModuleType)]
    imports = [*libraries, "from functools import partial"]
    for text in imports:
        exporter.add_import(text)
    kernel = call_of("partial", name, **bind.keywords)
    exporter.add_names_of("\n".join([*imports, kernel]), module)
    return kernel
