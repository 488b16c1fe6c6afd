"""Takes exported runs into a store: each one once, and only if nothing changed since it was sealed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qualify.errors import UsageError
from qualify.facts.fleet import FINAL, INTERIM
from qualify.files import is_folder
from qualify.judge.edits import refuse_edited
from qualify.seal.keys import PublicKey
from qualify.seal.sealed import check_seal
from qualify.store.archive import Archive, Moved
from qualify.store.store import Store
from qualify.text import shell_word


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The files that somebody names, and those that are not taken in."""

    files: tuple[Path, ...]
    unfinished: tuple[Path, ...]
    """interim files: their node may still write them, and what they hold is no evidence of the whole"""


def files_of(places: Iterable[Path], *, interim: bool = False) -> Given:
    """The files of some places, each once: a file stands for itself, a folder for the exported runs in it.

    Args:
        interim: take interim files too, where the file of the whole run is not among the others.

    Raises:
        UsageError: a folder holds no exported run.
    """
    found: dict[Path, None] = {}
    for place in places:
        inside = sorted(place.glob(f"*{FINAL}")) if is_folder(place) else [place]
        if not inside:
            raise UsageError(
                f"{place}: no exported run is in this folder (*{FINAL}). `qualify node --out` writes them."
            )
        found |= dict.fromkeys(inside)
    whole = tuple(path for path in found if not path.name.endswith(INTERIM))
    parts = tuple(path for path in found if path.name.endswith(INTERIM) and _whole_name(path) not in found)
    return Given(files=whole + parts, unfinished=()) if interim else Given(files=whole, unfinished=parts)


def _whole_name(interim: Path) -> Path:
    return interim.with_name(interim.name.removesuffix(INTERIM) + FINAL)


def ingest(store: Store, path: Path, keys: Sequence[PublicKey] = ()) -> Moved:
    """Add the run of a file; one that is there already stays as it is, and an unfinished one gets the rest.

    Args:
        keys: one of these must have sealed it; empty = a seal must fit, and a run without one is taken too.

    Raises:
        UsageError: the file is damaged, its seal does not fit, the run contradicts itself, a duel says what its times
            do not give, or the store has the run with other content. Nothing was added.
    """

    def vouch(given: Archive, sha256: str) -> None:
        refuse_edited(path, given)
        if given.seal is None and not keys:
            return
        checked = check_seal(given.seal, given.lines, given.id, keys, what=given.what, sha256=sha256)
        if checked.why_not:
            raise UsageError(
                f"{path}: {checked.why_not}. Nothing was imported. Take the file from the node that made it; what "
                f"differs: qualify verify {shell_word(str(path))}"
            )

    return store.import_run(path, vouch)
