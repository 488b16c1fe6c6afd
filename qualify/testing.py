"""For kernel authors: qualify one Python function in a test suite of one's own.

::

    from qualify.testing import qualify_kernel
    from mykernel import attend

    def test_attend():
        qualify_kernel(attend, head_dim=64, masks=["causal"])

The function takes one :class:`qualify.api.AttentionCall` and returns ``out``, or ``(out, lse)``. It runs as
``qualify run`` runs any kernel: in a process of its own, against the fp64 reference, through the same checks. A wrong
kernel is an ``AssertionError`` with the case, the check and the command that repeats it.

Importing this module needs no torch; to qualify a kernel does.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qualify.facts.case import Level
    from qualify.facts.outcome import Finding
    from qualify.facts.typed import Typed
    from qualify.judge.judged import Judged

__all__ = ["KernelNotQualified", "QualifiedKernel", "qualify_kernel"]

SHAPES: Mapping[str, Any] = {
    "prefill": {"batch": 2, "seqlen": 127},
    "chunked": {"chunk": 33, "context": 100},
    "varlen": {"lengths": [[1, 17, 128, 3]]},
    "decode": {"batch": 3, "context": 129},
}
"""phases of a matrix that is small and still has odd lengths, unequal ones and more keys than queries"""
PAGED = ("chunked", "decode")
"""phases in which keys may lie in pages"""
ARGUMENTS = (
    ("models[0].geometry.groups[0].heads_", "heads"),
    ("models[0].geometry.groups[0].head_dim", "head_dim"),
    ("models[0].geometry.groups[0].softcap", "softcap"),
    ("claims.head_dim", "head_dim"),
    ("claims.dtypes", "dtypes"),
    ("claims.features", "features"),
    ("claims.deterministic", "deterministic"),
    ("witness.must_match", "must_match"),
    ("policy.timeout_s", "timeout_s"),
    ("policy.compile_timeout_s", "timeout_s"),
)
"""beginnings of keys of the card and the matrix, each with the argument that the keys come from; a key that begins
otherwise has the name of its argument"""
SHOWN = 5
"""how many failures the message names; the report has all"""
REASONS = 3
"""how many checks the message names for each failure"""


@dataclass(frozen=True, kw_only=True, slots=True)
class QualifiedKernel:
    """What the checks said of a correct kernel."""

    kernel: str
    cases: tuple[str, ...]
    """ids of the cases that passed"""
    findings: tuple[Finding, ...]
    """what each check said of each case, notes included"""
    refused: tuple[str, ...]
    """cases that the claims leave out, each with the reason"""


class KernelNotQualified(AssertionError):
    """A kernel is wrong, or qualify could not decide whether it is right.

    The message has the failures; the evidence is kept.
    """

    def __init__(self, message: str, findings: tuple[Finding, ...], folder: Path) -> None:
        super().__init__(message)
        self.findings = findings
        """what each check said of each case"""
        self.folder = folder
        """where card, matrix, evidence and report lie"""


def qualify_kernel(
    function: Callable[..., Any],
    *,
    head_dim: int | Sequence[int] = 64,
    heads: tuple[int, int] = (4, 2),
    dtypes: Sequence[str] = ("bf16",),
    masks: Sequence[str] = ("causal",),
    layouts: Sequence[str] = ("packed",),
    features: Sequence[str] = ("gqa", "ragged"),
    softcap: float = 0.0,
    phases: Mapping[str, Any] | None = None,
    deterministic: bool = False,
    accuracy: Mapping[str, str] | None = None,
    must_match: Sequence[str] = (".+",),
    device: str = "auto",
    level: Level = "smoke",
    timeout_s: float = 60.0,
) -> QualifiedKernel:
    """Run the function on a small matrix and judge it.

    Args:
        function: takes one AttentionCall; stands at the top level of a module that another process can import.
        head_dim: elements of each query and key vector; several are all run.
        heads: query heads and KV heads; unequal ones need the feature gqa.
        dtypes: bf16, fp16, fp32, fp8_e4m3, …
        masks: full, causal, or a label with its size, such as window128.
        layouts: packed, paged or both.
        features: gqa, softcap, sinks, lse (it returns the log-sum-exp), ragged, empty, empty_batch, graph.
        softcap: where the kernel has the feature: scores become softcap * tanh(score / softcap).
        phases: the key ``phases`` of a matrix; None = four small ones.
        deterministic: equal inputs give equal bits.
        accuracy: accuracy class of each dtype, as on a card; None = the usual one of the dtype.
        must_match: regular expressions; one of them must be found in the name of the launched kernel.
        device: ``auto``, ``cpu`` or ``cuda``.
        level: ``smoke``, or ``full`` for more inputs and checks.
        timeout_s: limit of each stage of a case.

    Raises:
        KernelNotQualified: a case failed, or not everything could be decided.
        qualify.errors.QualifyError: an argument is wrong, or the device cannot be used.
    """
    __tracebackhide__ = True
    from qualify.errors import CardError, UsageError
    from qualify.fleet.probe import find_host

    _check_kinds(
        lists={"dtypes": dtypes, "masks": masks, "layouts": layouts, "features": features, "must_match": must_match},
        mappings={"phases": (phases, {"decode": SHAPES["decode"]}), "accuracy": (accuracy, {"bf16": "bf16"})},
        head_dim=head_dim,
    )
    _check_choices(device=device, level=level, layouts=layouts, heads=heads)
    module, roots = _place_of(function)
    name = re.sub(r"[^a-z0-9.-]+", "-", function.__name__.lower()).strip("-.") or "kernel"
    card = _card(
        kernel=name,
        entry=f"{module}:{function.__qualname__}",
        device=find_host(device).kind,
        claims=_claims(head_dim, dtypes, masks, layouts, features, deterministic=deterministic),
        accuracy=accuracy,
        must_match=must_match,
    )
    matrix = _matrix(name, head_dim, heads, softcap, "sinks" in features, dtypes, masks, layouts, phases, timeout_s)
    folder = Path(tempfile.mkdtemp(prefix=f"qualify-{name}-"))
    (folder / f"{name}.yaml").write_text(json.dumps(card))
    (folder / "matrix.yaml").write_text(json.dumps(matrix))
    try:
        judged, typed = _run(folder, roots, device, level)
    except CardError as error:
        shutil.rmtree(folder)
        raise UsageError("\n".join(dict.fromkeys(_as_argument(message) for _, message in error.problems))) from None
    return _concluded(name, judged, typed, folder)


def _check_kinds(
    *, lists: Mapping[str, object], mappings: Mapping[str, tuple[object, Mapping[str, Any]]], head_dim: object
) -> None:
    """Raise UsageError for an argument of another kind: the letters of a text would pass as a list.

    Args:
        lists: arguments that are lists.
        mappings: arguments that are None or mappings, each with an example.
        head_dim: the argument, a number or a list.
    """
    from qualify.errors import UsageError

    for name, value in lists.items():
        if isinstance(value, str):
            raise UsageError(f"{name}={value!r}: must be a list; write [{value!r}]")
        if not isinstance(value, Collection):
            raise UsageError(f"{name}: must be a list, but is {value!r}")
    for name, (value, example) in mappings.items():
        if value is not None and not isinstance(value, Mapping):
            raise UsageError(f"{name}: must be a mapping, such as {example}, but is {value!r}")
    dims = [head_dim] if isinstance(head_dim, int) else head_dim
    if not isinstance(dims, Sequence) or not dims or not all(isinstance(dim, int) for dim in dims):
        raise UsageError(f"head_dim: must be a whole number or a list of them, but is {head_dim!r}")


def _check_choices(*, device: str, level: str, layouts: Sequence[str], heads: tuple[int, int]) -> None:
    """Raise UsageError for a wrong argument that no card would refuse, or that it would refuse under another name."""
    from qualify.cards.problems import meant
    from qualify.errors import UsageError

    if not layouts:
        raise UsageError("layouts: must be packed, paged or both, but is an empty list")
    choices = [("device", device, ("auto", "cpu", "cuda")), ("level", level, ("smoke", "full"))]
    choices += [("layouts", layout, ("packed", "paged")) for layout in layouts]
    for name, value, known in choices:
        if value not in known:
            hint = meant(str(value), known)
            raise UsageError(f"{name}: must be one of {', '.join(known)}, but is {value!r}{hint}")
    if not isinstance(heads, Sequence) or len(heads) != 2:
        raise UsageError(f"heads: must be query heads and KV heads, such as (4, 2), but is {heads!r}")


def _as_argument(message: str) -> str:
    """What is wrong with a key of the card or the matrix, as a problem of the argument that it came from."""
    key, colon, rest = message.partition(": ")
    place, argument = next((pair for pair in ARGUMENTS if key.startswith(pair[0])), (key, key))
    entry = key.removeprefix(place)
    return f"{argument}{entry if entry.startswith('[') else ''}{colon}{rest}"


def _place_of(function: Callable[..., Any]) -> tuple[str, list[str]]:
    """The function's module, and the folders in which another process finds it and what it imports.

    They are its own, unless it is installed, and those that this process imports from and another one would not.
    """
    from qualify.errors import UsageError

    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not inspect.isfunction(function) or not name.isidentifier() or module == "__main__":
        raise UsageError(
            f"{function!r}: another process must import it, so it must be a function at the top level of a module. "
            "Move it there, out of other functions, classes and scripts."
        )
    held = sys.modules.get(module)
    file = getattr(held, "__file__", None)  # not the file of the code: a decorator's wrapper stands in another one
    if held is None or not file:
        raise UsageError(f"{module}.{name}: no file of that module is known; write it into one that can be imported")
    if getattr(held, name, None) is not function:
        raise UsageError(
            f"{function!r}: another process would import {module}.{name}, which is another object. "
            f"Give the kernel a name of its own in a module: def NAME(call)"
        )
    path = Path(file).resolve()
    depth = module.count(".") + (path.name == "__init__.py")
    found = _elsewhere(module, path.parents[depth])
    if found["origin"] and Path(found["origin"]).resolve() != path:
        raise UsageError(
            f"{module}.{name}: another process would import {module} from {found['origin']}, and not from {path}: what "
            "is installed, and what PYTHONPATH names, comes first there. Install your own in its place (pip install "
            "-e), or rename your module"
        )
    installed = {Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib", "stdlib")}
    own = [] if path.parents[depth] in installed else [str(path.parents[depth])]
    return module, own + found["added"]


def _elsewhere(module: str, root: Path) -> dict[str, Any]:
    """What a kernel's process would import as that module, and which folders it must be given beside the root."""
    import qualify
    from qualify.errors import UsageError
    from qualify.plan import elsewhere
    from qualify.text import one_line

    own = {Path(sysconfig.get_path("scripts")).resolve(), Path(qualify.__file__).resolve().parents[1]}
    folders = [path for each in sys.path if (path := Path(each).resolve()).is_dir() and path not in {root, *own}]
    asked = [sys.executable, "-P", elsewhere.__file__, module, *map(str, (root, *dict.fromkeys(folders)))]
    answer = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if answer.returncode:
        why = one_line(answer.stderr.strip().rpartition("\n")[2]) or f"it ended with {answer.returncode}"
        raise UsageError(f"{sys.executable} cannot say what another process would import as {module}: {why}")
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def _claims(
    head_dim: int | Sequence[int],
    dtypes: Sequence[str],
    masks: Sequence[str],
    layouts: Sequence[str],
    features: Sequence[str],
    *,
    deterministic: bool,
) -> dict[str, Any]:
    from qualify.errors import UsageError
    from qualify.masks import ASKABLE, EXAMPLES, parse

    unknown = [label for label in masks if not re.fullmatch(ASKABLE, str(label))]
    if unknown:
        raise UsageError(f"masks={unknown}: must be labels of masks with their size, like {', '.join(EXAMPLES)}")

    dims = _several(head_dim)
    return {
        "dtypes": list(dtypes),
        "head_dim": {"min": min(dims), "max": max(dims)},
        "layouts": list(layouts),
        "masks": list(dict.fromkeys(parse(label).kind for label in masks)),
        "features": list(features),
        "deterministic": deterministic,
        "empty_row": {"out": "any", "lse": "any"},
    }


def _card(
    *,
    kernel: str,
    entry: str,
    device: str,
    claims: dict[str, Any],
    accuracy: Mapping[str, str] | None,
    must_match: Sequence[str],
) -> dict[str, Any]:
    from qualify.facts.dtypes import DTYPES

    usual = {name: facts.usual_class for name, facts in DTYPES.items()}
    return {
        "kernel": kernel,
        "generation": "portable",
        "adapter": "call",
        "entry": entry,
        "requires": {"device": device},
        "claims": claims,
        "accuracy": dict(accuracy or {dtype: usual[dtype] for dtype in claims["dtypes"] if dtype in usual}),
        "witness": {"must_match": list(must_match)},
    }


def _matrix(
    name: str,
    head_dim: int | Sequence[int],
    heads: tuple[int, int],
    softcap: float,
    sinks: bool,
    dtypes: Sequence[str],
    masks: Sequence[str],
    layouts: Sequence[str],
    phases: Mapping[str, Any] | None,
    timeout_s: float,
) -> dict[str, Any]:
    group = {"heads_q": heads[0], "heads_kv": heads[1], "mask": "causal", "softcap": softcap, "sinks": sinks}
    groups = [{"layers": [layer], "head_dim": dim, **group} for layer, dim in enumerate(_several(head_dim))]
    pages = [page for layout, page in (("packed", "contiguous"), ("paged", 16)) if layout in layouts]
    shapes = {phase: {**shape, "page_size": pages} if phase in PAGED else shape for phase, shape in SHAPES.items()}
    return {
        "matrix": f"test-of-{name}",
        "models": [{"model": "call", "geometry": {"groups": groups}}],
        "phases": dict(phases or shapes),
        "dtypes": list(dtypes),
        "masks": list(masks),
        "kernels": [name],
        "policy": {"timeout_s": timeout_s, "compile_timeout_s": timeout_s},
    }


def _several(value: int | Sequence[int]) -> list[int]:
    return [value] if isinstance(value, int) else list(value)


def _run(folder: Path, roots: Sequence[str], device: str, level: Level) -> tuple[Judged, Typed]:
    """Execute the matrix of the folder and judge it; the report lies beside it."""
    from qualify.facts.typed import Typed
    from qualify.fleet.local import execute, new_run
    from qualify.fleet.request import Asked, make_request
    from qualify.judge.judged import judge
    from qualify.report.beside import beside_of
    from qualify.report.files import write_report
    from qualify.store.store import Store

    database = str(folder / "evidence.db")
    places = (str(folder), *roots)
    typed = Typed(cards=places, db=database)
    asked = Asked(matrix=str(folder / "matrix.yaml"), cards=(folder,), level=level, device=device, typed=typed)
    request = replace(make_request(asked), import_paths=places)
    run = new_run(request)
    with Store.open(database, create=True) as store:
        execute(request, store, run, lambda _: None)
        judged = judge(store, run.id, request.kernels, now=datetime.now(UTC), typed=typed)
    write_report(folder, judged.run, judged.records, judged.conclusion, beside_of(judged))
    return judged, typed


def _concluded(name: str, judged: Judged, typed: Typed, folder: Path) -> QualifiedKernel:
    """What the checks said; the folder goes where the kernel is right."""
    __tracebackhide__ = True
    from qualify.facts.outcome import Refused, findings_of

    findings = tuple(finding for record in judged.records for finding in findings_of(record.outcome))
    verdicts = {each.case_id: each for each in judged.conclusion.judgements}
    if judged.conclusion.verdict != "PASS":
        raise KernelNotQualified(_message(name, judged, typed, folder), findings, folder)
    shutil.rmtree(folder)
    refused = [record for record in judged.records if isinstance(record.outcome, Refused)]
    return QualifiedKernel(
        kernel=name,
        cases=tuple(case_id for case_id, each in verdicts.items() if each.verdict == "PASS"),
        findings=findings,
        refused=tuple(f"{record.case.id}: {'; '.join(verdicts[record.case.id].reasons)}" for record in refused),
    )


def _message(name: str, judged: Judged, typed: Typed, folder: Path) -> str:
    """What is wrong, where first, and what to type next."""
    from qualify.facts.outcome import Refused
    from qualify.report.troubles import troubles
    from qualify.text import one_line

    found = [trouble for trouble in troubles(judged) if trouble.is_case] or troubles(judged)
    bad = [each for each in judged.conclusion.judgements if each.verdict in {"FAIL", "INCONCLUSIVE"}]
    wrong = any(each.verdict == "FAIL" for each in bad)
    total = f"of {len(judged.records)} cases"
    lines = [f"{name} {'is not correct' if wrong else 'is not proven to be correct'}: {len(bad)} {total}"]
    left_out = 0 if bad else sum(isinstance(record.outcome, Refused) for record in judged.records)
    if left_out:
        lines = [f"{name} is not proven to be correct: the arguments leave out {left_out} {total}"]
    for trouble in found[:SHOWN]:
        lines += [f"  {trouble.first}", *(f"    {one_line(reason)}" for reason in trouble.reasons[:REASONS])]
        lines += [f"    and {len(trouble.more)} more like this"] if trouble.more else []
    case = next((trouble.first for trouble in found if trouble.is_case), "")
    lines += [f"repeat it: {typed.command('repro', case, '--run', judged.run.id)}"] if case else []
    lines += ["claim all that the kernel can do (features=…), or name other shapes (phases=…)"] if left_out else []
    return "\n".join([*lines, f"report: {folder / 'report.html'}"])
