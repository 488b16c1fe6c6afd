"""A baseline as one file, so that it moves between stores: machines, branches and pipelines.

The file is a ZIP of two members, neither compressed again: ``baseline.json``, which says who accepted what and why, and
``run.jsonl.gz``, the run as ``qualify db export`` writes it. Equal baselines give equal bytes.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from qualify.errors import InfrastructureError, NoVerdict, UsageError
from qualify.facts import codec
from qualify.facts.baseline import Baseline
from qualify.facts.clock import is_future
from qualify.facts.run import Run
from qualify.facts.typed import PLAIN, Typed
from qualify.files import kind_of, open_regular, replacing
from qualify.judge.baselines import current_of
from qualify.judge.edits import contradiction, contradictions_in, refuse_contradicting
from qualify.store.archive import Archive, RunArchive
from qualify.store.store import Store

FORMAT = "qualify.baseline/1"
ABOUT = "baseline.json"
RUN = "run.jsonl.gz"
LONGEST = 1 << 20
"""bytes of ``baseline.json`` that are read"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """What became of a file."""

    baseline: Baseline
    new: bool
    """False where the store has it already, or a later one of its matrix, variant and name"""
    current: Baseline
    """the baseline that is current after the import"""


def send(store: Store, matrix: str, variant: str, name: str, path: Path, typed: Typed = PLAIN) -> Baseline:
    """Writes the current baseline of a matrix on a device model under that name.

    Raises:
        NoVerdict: there is none, or its run contradicts itself.
        UsageError: the glob matches several device models.
        InfrastructureError: the file cannot be written.
    """
    found = [item for item in current_of(store, matrix, variant, typed) if item.name == name]
    if not found:
        told = f"for {name}" if name else "without a name"
        see = typed.command("baseline", "list")
        raise NoVerdict(f"no baseline of {matrix} {told} in {store.where}: `{see}` shows what there is")
    if len(found) > 1:
        models = ", ".join(item.variant for item in found)
        raise UsageError(f"baselines of {matrix} on several device models: {models}. Choose one with --variant.")
    (baseline,) = found
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / RUN
        store.export_run(baseline.run_id, run, vouch=partial(refuse_contradicting, typed=typed))
        about = codec.to_json({"format": FORMAT, "baseline": _told(baseline)})
        _write(path, {ABOUT: about.encode(), RUN: run.read_bytes()})
    return baseline


def receive(store: Store, path: Path, *, now: datetime) -> Received:
    """Adds the run and its acceptance, unless the store has them, or a later acceptance.

    Raises:
        UsageError: it is no such file, is damaged, does not agree with its run, or this run contradicts itself. Or one
            of both is dated in the future. Nothing was accepted.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_file = Path(folder) / RUN
        baseline = _read(path, run_file)
        try:
            store.import_run(run_file, lambda given, _: _vouch(path, baseline, given, now))
        except UsageError as error:
            raise UsageError(str(error).replace(str(run_file), str(path))) from error
    current = store.baseline(baseline.matrix, baseline.variant, baseline.name)
    if current and current.accepted_at >= baseline.accepted_at:
        its_run = store.runs_of([current.run_id]).get(current.run_id)
        if not _ahead(current, its_run, now):
            return Received(baseline=baseline, new=False, current=current)
    store.accept(baseline)
    return Received(baseline=baseline, new=True, current=baseline)


def _vouch(path: Path, baseline: Baseline, given: Archive, now: datetime) -> None:
    """Raises UsageError where the file does not hold the run that its acceptance is about."""
    if not isinstance(given, RunArchive):
        raise _refused(path, f"it holds {given.what} {given.id}, and an exported baseline holds its run alone")
    if found := contradictions_in(given):
        raise _refused(path, f"{contradiction('its run', given.id, found)}. It was probably edited")
    run = given.run
    its = (run.id, run.matrix, run.stack.device.variant if run.stack else "")
    if its != (baseline.run_id, baseline.matrix, baseline.variant) or run.state != "completed" or run.narrowed:
        raise _refused(path, f"its acceptance is not of its run {run.id} ({run.state})")
    if ahead := _ahead(baseline, run, now):
        raise _refused(path, f"{ahead}: a clock is wrong")


def _ahead(baseline: Baseline, run: Run | None, now: datetime) -> str:
    """Which part of a baseline is dated in the future, so that no store believes it; empty where none is.

    Args:
        run: its run; None where somebody deleted it by hand.
    """
    for what, dated in (("acceptance", baseline.accepted_at), ("run", run.started_at if run else None)):
        if dated and is_future(dated, now):
            return f"its {what} is dated in the future ({dated:%Y-%m-%d %H:%M} UTC)"
    return ""


def _told(baseline: Baseline) -> dict[str, Any]:
    """The acceptance as the file has it. How the person is known stays here: to another store a file proves nothing."""
    told: dict[str, Any] = codec.to_data(baseline)
    del told["how"]
    return told


def _write(path: Path, members: dict[str, bytes]) -> None:
    """Writes the file, which gets its name only when it is complete. It holds neither times nor owners."""
    if kind := kind_of(path):
        raise InfrastructureError(f"--out {path} is {kind}, which qualify does not replace. Give the name of a file.")
    try:
        with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as packed:
            for name, data in members.items():
                packed.writestr(zipfile.ZipInfo(name), data)
    except OSError as error:
        raise InfrastructureError(
            f"--out {path}: the baseline cannot be written there ({error.strerror or error}). It is still in the "
            "store: give another file, in a folder that exists."
        ) from error


def _read(path: Path, run: Path) -> Baseline:
    """The acceptance; the run is written into a file of its own."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as packed:
            members = {item.filename: item for item in packed.infolist()}
            about, evidence = members[ABOUT], members[RUN]
            if about.file_size > LONGEST or {about.compress_type, evidence.compress_type} != {zipfile.ZIP_STORED}:
                raise _refused(path, "its members are compressed or too large")
            data: Any = json.loads(packed.read(about))
            run.write_bytes(packed.read(evidence))
        if data["format"] != FORMAT:
            raise _refused(path, f"it has the format {data['format']}, and this qualify reads {FORMAT}")
        found: Baseline = codec.from_data(Baseline, data["baseline"])
        return replace(found, how="")
    # zipfile raises a RuntimeError where a member is encrypted, json one of its kinds where brackets nest too deep
    except (zipfile.BadZipFile, ValidationError, ValueError, KeyError, TypeError, EOFError, RuntimeError) as error:
        raise _refused(path, f"it is no exported baseline, or it was damaged ({error})") from error
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error


def _refused(path: Path, happened: str) -> UsageError:
    return UsageError(f"{path}: {happened}. No baseline was imported. Make it again: qualify baseline export MATRIX")
