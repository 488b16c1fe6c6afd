"""Changed code makes evidence stale: the same rule for the gate, for what a run takes over, and for a resume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_process import ROOT, Begun, call, environment, write_cards, write_matrix

from qualify.store.store import Store

BROKEN = 'raise SystemError("broken")\n'
RUN = ("run", "mine.yaml", "--cards", "mykernels", "--db", "evidence.db", "--device", "cpu")
GATE = ("gate", "--matrix", "mine.yaml", "--cards", "mykernels", "--db", "evidence.db")
HERE = ("--max-age", "24h", "--stack", "here")


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a third party's function and a shipped kernel have passed."""
    folder = tmp_path_factory.mktemp("passed")
    write_cards(folder / "mykernels", "correct")
    (folder / "mykernels" / "helper.py").write_text("TILE = 64\n")
    write_matrix(folder / "mine.yaml", "correct", "tiled-torch", seqlens=(8, 9))
    ended = call(*RUN, cwd=folder)
    assert 0 == ended.code, ended.err + ended.out
    return folder


@pytest.fixture
def folder(passed: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed; the times of the files stay."""
    return Path(shutil.copytree(passed, tmp_path / "work"))


def gate(folder: Path, *more: str, env: Any = None) -> Any:
    """The gate on the matrix."""
    return call(*GATE, *more, cwd=folder, env=env)


def test_unchanged_code_keeps_its_evidence(folder: Path) -> None:
    """In another folder, with other times of the files, and beside a new card and a report, nothing is stale."""
    for path in (folder / "mykernels").iterdir():
        os.utime(path)
    (folder / "mykernels" / "notes.yaml").write_text("text: something\n")
    assert [0, 0] == [gate(folder, *more).code for more in (HERE, ())]
    assert 0 == call("gate", "--cards", "mykernels", "--db", "evidence.db", cwd=folder).code


@pytest.mark.parametrize(
    ("name", "more"), [("third_party.py", HERE), ("helper.py", HERE), ("new.cu", HERE), ("helper.py", ())]
)
def test_a_changed_function_is_not_qualified(folder: Path, name: str, more: tuple[str, ...]) -> None:
    """Its module, a module beside it, a source that was not there: exit 5, with kernel, file and what to type."""
    (folder / "mykernels" / name).write_text(BROKEN)
    ended = gate(folder, *more)
    assert 5 == ended.code
    assert f"its code changed since: {name} (run " in ended.out
    assert "2 of 4 cases have no evidence that counts; the newest run that does not count: correct: its" in ended.out
    assert "make fresh evidence on that stack: qualify run " in ended.out
    reasons = {case["id"]: case["reasons"] for case in gate(folder, "--json").data["cases"]}
    stale = {name for name, reasons in reasons.items() if any("its code changed" in reason for reason in reasons)}
    assert {name for name in reasons if name.endswith("/correct")} == stale


def test_a_run_of_changed_code_is_no_verdict(folder: Path) -> None:
    """`gate --run` says which kernel, which file, and exit 5; without the folder there is nothing to compare."""
    (folder / "mykernels" / "third_party.py").write_text(BROKEN)
    ended = call("gate", "--cards", "mykernels", "--db", "evidence.db", cwd=folder)
    assert 5 == ended.code
    assert "and the evidence is stale" in ended.out
    assert "note: correct must run again: its code changed since: third_party.py" in ended.out
    assert 0 == call("gate", "--db", "evidence.db", cwd=folder).code
    (folder / "mykernels" / "third_party.py").unlink()
    assert 0 == call("gate", "--cards", "mykernels", "--db", "evidence.db", cwd=folder).code


def test_a_run_under_another_card_is_no_verdict(folder: Path) -> None:
    """Its evidence was judged by other promises, as the gate on the matrix says: key, both values, exit 5."""
    card = folder / "mykernels" / "correct.yaml"
    assert "deterministic: true" in card.read_text()
    card.write_text(card.read_text().replace("deterministic: true", "deterministic: false"))
    run = ("gate", "--run", "latest", "--db", "evidence.db")
    ended = call(*run, "--cards", "mykernels", "--json", cwd=folder)
    assert (5, True) == (ended.code, ended.data["stale"])
    why = "its card changed since: claims.deterministic was true, and is false"
    assert f"correct must run again: {why}" in ended.data["notes"]
    assert [5, 0] == [gate(folder).code, call(*run, cwd=folder).code]
    (folder / "access.yaml").write_text("access: site\nsigners:\n  - {name: jane, roles: [release]}\n")
    said = ("latest", "--by", "jane", "--reason", "release", "--cards", "mykernels", "--db", "evidence.db")
    signing = ("signoff", "--role", "release", "--access", "access.yaml")
    for command, what in ((("baseline", "accept"), "become a baseline"), (signing, "be signed")):
        done = call(*command, *said, cwd=folder)
        assert (5, "") == (done.code, done.out)
        assert f"cannot {what}: correct must run again: {why}. See: qualify gate --run " in done.err


def test_a_function_that_is_gone_is_stale_here(folder: Path) -> None:
    """Where it was asked about this machine and the function is not on it, its evidence says nothing."""
    (folder / "mykernels" / "third_party.py").unlink()
    ended = gate(folder, *HERE)
    assert 5 == ended.code
    assert "correct: its code is not on this machine (run " in ended.out


def test_evidence_of_unknown_code_is_stale(folder: Path) -> None:
    """Evidence that an older qualify made does not say by which code."""
    with Store.open(str(folder / "evidence.db")) as store, store._database.writing() as connection:
        connection.exec_driver_sql("UPDATE runs SET code = NULL")
    ended = gate(folder, *HERE)
    assert 5 == ended.code
    assert "an older qualify made the evidence, and did not note the code of the kernel (run " in ended.out


@pytest.fixture
def checkout(folder: Path) -> dict[str, str]:
    """An environment with a qualify of its own, to be broken."""
    copied = folder / "checkout"
    for name in ("qualify", "kernels", "matrices", "reports", "canaries", "traffic"):
        shutil.copytree(ROOT / name, copied / name)
    return {**environment(), "PYTHONPATH": str(copied)}


def test_a_changed_adapter_is_run_again_and_not_qualified(folder: Path, checkout: dict[str, str]) -> None:
    """What a shipped kernel passed under another adapter is neither believed by the gate nor taken over by a run."""
    adapter = folder / "checkout" / "qualify" / "run" / "adapters" / "tiled_torch.py"
    adapter.write_text(f"{adapter.read_text()}\n{BROKEN}")
    ended = gate(folder, *HERE, "--json", env=checkout)
    assert 5 == ended.code
    reasons = {case["id"]: " ".join(case["reasons"]) for case in ended.data["cases"]}
    stale = {name for name, text in reasons.items() if "its code changed" in text}
    assert {name for name in reasons if name.endswith("/tiled-torch")} == stale
    assert all("its code changed since: qualify/run/adapters/tiled_torch.py (run " in reasons[name] for name in stale)
    again = call(*RUN, "--kernel", "tiled-torch", "--json", cwd=folder, env=checkout)
    assert 1 == again.code
    assert ["crashed", "crashed"] == [case["outcome"] for case in again.data["cases"]]


def test_a_resume_does_not_mix_two_versions(tmp_path: Path) -> None:
    """A run that was ended and whose function was edited since is not gone on with."""
    write_cards(tmp_path / "mykernels", "slow")
    write_matrix(tmp_path / "mine.yaml", "slow", seqlens=tuple(range(8, 20)))
    begun = Begun(*RUN, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run_id = _until_one_is_done(tmp_path / "evidence.db")
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    module = tmp_path / "mykernels" / "third_party.py"
    module.write_text(module.read_text() + "\n# edited\n")
    ended = call(*RUN, "--resume", run_id, cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    assert f"--resume {run_id}: slow: its code changed since: third_party.py. Evidence of two versions" in ended.err
    assert "took " not in ended.err
    assert "Start a new run: leave out --resume." in ended.err


def _until_one_is_done(path: Path) -> str:
    from time import monotonic, sleep

    until = monotonic() + 120
    while monotonic() < until:
        if path.exists():
            with Store.open(str(path)) as store:
                for run in store.runs():
                    if store.done(run.id):
                        return run.id
        sleep(0.1)
    raise AssertionError("no case within two minutes")


def test_the_code_of_a_run_is_stored_by_file(passed: Path) -> None:
    """Names are the same on every machine: no folder of this one is among them."""
    with Store.open(str(passed / "evidence.db")) as store:
        code = store.runs()[0].code
    assert code is not None
    assert {"third_party.py", "helper.py", "qualify/run/adapters/interface.py"} <= set(code["correct"])
    assert {"qualify/run/adapters/tiled_torch.py", "qualify/masks.py"} <= set(code["tiled-torch"])
    assert [True] == [name.startswith("torch ") for name in code["tiled-torch"] if "/" not in name]
    assert str(passed) not in json.dumps(code)
