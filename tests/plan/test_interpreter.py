"""What another interpreter has: real virtual environments, and files that are no Python."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_card
from cli_process import gone
from environments import install, make_environment, script, site_of
from stored_runs import DEVICE

from qualify.cards.kernel import KernelCard
from qualify.errors import UsageError
from qualify.facts.stack import Component, Stack
from qualify.plan import interpreter as module
from qualify.plan import probe
from qualify.plan.code import CodeHere
from qualify.plan.host import Host, install_refusals, installed_version, machine_refusals, shipped_version
from qualify.plan.interpreter import Interpreter, ask, environment_change, interpreter

CPU = Host(kind="cpu", name="test CPU", compute_capability="")
H100 = Host(kind="cuda", name="NVIDIA H100", compute_capability="9.0")


@pytest.fixture(autouse=True)
def ask_anew() -> Iterator[None]:
    """What one test found is nothing to the next."""
    yield
    interpreter.cache_clear()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with another torch and a small distribution."""
    return make_environment(tmp_path_factory.mktemp("next") / "env", torch="2.99.1+cu131", fake_attn="1.5.0.dev7")


def there(name: str, **changes: object) -> KernelCard:
    """A card in the environment ``next``."""
    return make_card(**changes).model_copy(update={"kernel": f"{name}@next"})


def test_it_says_what_it_has(python: Path) -> None:
    """Versions of Python, torch, CUDA and every distribution, under any spelling of a name; torch is not imported."""
    found = interpreter("next", str(python))
    assert ("2.99.1+cu131", "13.1", "1.5.0.dev7") == (found.torch, found.cuda, found.installed("Fake.Attn"))
    assert found.version.startswith("3.")
    assert "Linux" in found.platform
    assert ["", "1.5.0.dev7"] == [installed_version(name, found) for name in ("numpy", "fake_attn")]
    assert [] == found.refusals()


def test_it_is_asked_once(python: Path) -> None:
    """What was found stands for this process."""
    assert interpreter("next", str(python)) is interpreter("next", str(python))


def test_the_oldest_python_that_can_run_a_kernel(python: Path) -> None:
    """3.11 does, whatever stands behind it; 3.9 and 2.7 do not."""
    found = interpreter("next", str(python))
    refused = [bool(replace(found, version=version).refusals()) for version in ("3.11.0", "3.12.1rc1", "3.9.18", "2.7")]
    assert [False, False, True, True] == refused


@pytest.mark.parametrize(
    ("shipped_by", "expected"),
    [
        (["fake-attn>=1.5.0.dev1"], []),
        (["fake-attn>=2"], ["fake-attn 1.5.0.dev7 is installed in environment next, under-test@next needs >=2"]),
        (["numpy"], ["not installed in environment next ({python} -m pip install 'numpy')"]),
    ],
)
def test_what_carries_a_kernel_must_be_installed_there(
    python: Path, shipped_by: list[str], expected: list[str]
) -> None:
    """What this interpreter has does not count."""
    found, card = interpreter("next", str(python)), there("under-test", shipped_by=shipped_by)
    assert [text.format(python=python) for text in expected] == install_refusals(card, found)
    assert install_refusals(card, found) == machine_refusals(card, CPU, {"next": found})


def test_the_version_there_is_told(python: Path) -> None:
    """The first distribution of the card's list that is installed there."""
    card = there("under-test", shipped_by=["numpy", "fake-attn"])
    assert "fake-attn 1.5.0.dev7" == shipped_version(card, interpreter("next", str(python)))


def test_an_environment_that_can_run_nothing_says_why(python: Path) -> None:
    """No torch, a Python that is too old, or a torch without CUDA where the device is a GPU."""
    found, card = interpreter("next", str(python)), there("under-test", shipped_by=["fake-attn"])

    def why(host: Host, **changes: str) -> list[str]:
        changed: Interpreter = replace(found, **changes)  # type: ignore[arg-type]
        return machine_refusals(card, host, {"next": changed})

    assert [] == why(H100)
    assert [f"torch is not installed in environment next ({python} -m pip install torch)"] == why(CPU, torch="")
    old = f"environment next has Python 3.10.9, and a host needs 3.11 or newer ({python})"
    assert [old] == why(CPU, version="3.10.9")
    assert [] == why(CPU, cuda="")
    assert [
        "torch 2.99.1+cu131 of environment next was built without CUDA, and the device is NVIDIA H100 (9.0)"
    ] == why(H100, cuda="")


ANSWER = json.dumps(
    {"python": "3.11.9", "platform": "Linux", "torch": None, "distributions": {}, "records": {}, "modules": {}}
    | {"adapters": {}}
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file. Give the path of a Python interpreter, for example DIR/bin/python"),
        ("#!/bin/sh\necho hello\n", "it does not answer as a Python does (exit 0; it said: hello)"),
        ("#!/bin/sh\necho broken >&2\nexit 3\n", "it does not answer as a Python does (exit 3; it said: broken)"),
        ("#!/bin/sh\n", "it does not answer as a Python does (exit 0; it said: nothing)"),
        (f"#!/bin/sh\necho '{ANSWER}'\nexit 3\n", "it does not answer as a Python does (exit 3; it said: {"),
        ("#!/bin/sh\necho '[1]'\n", "it does not answer as a Python does (exit 0; it said: [1])"),
        (
            "#!/bin/sh\nprintf '%100000s' | tr ' ' '['\n",
            "it does not answer as a Python does (exit 0; it said: [[[[",
        ),
        ("#!/nowhere/sh\n", "it cannot be started (No such file or directory)"),
        ("\x7fELF", "it cannot be started (Exec format error)"),
    ],
)
def test_what_is_no_python_is_told(tmp_path: Path, text: str | None, message: str) -> None:
    """The environment, the path, and what it did."""
    path = tmp_path / "python"
    if text is not None:
        script(path, text)
    with pytest.raises(UsageError) as error:
        interpreter("next", str(path))
    assert str(error.value).startswith(f"environment next, {path}: {message}")


def test_a_folder_is_no_interpreter(python: Path, tmp_path: Path) -> None:
    """The interpreter in it is named; a file that nobody may execute is told too."""
    with pytest.raises(UsageError, match=rf"it is a folder\. Perhaps you meant {python}\."):
        interpreter("next", str(python.parents[1]))
    with pytest.raises(UsageError, match=r"it is a folder\. Give the path of a Python interpreter"):
        interpreter("next", str(tmp_path))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"no such file \(a link whose target is gone\)\."):
        interpreter("next", str(tmp_path / "gone"))
    plain = tmp_path / "python"
    plain.write_text("")
    with pytest.raises(UsageError, match="it is not executable"):
        interpreter("next", str(plain))


def test_a_hang_ends_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the limit, and nothing of it is left behind."""
    monkeypatch.setattr(module, "TIMEOUT_S", 1.0)
    path = script(tmp_path / "python", f"#!/bin/sh\nsleep 300 &\necho $! > {tmp_path}/pid\nwait\n")
    with pytest.raises(UsageError, match="it did not answer within 1 s"):
        interpreter("next", str(path))
    child = int((tmp_path / "pid").read_text())
    assert gone([child], within_s=10)


def test_endless_output_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without an end costs neither memory nor time."""
    monkeypatch.setattr(module, "LARGEST_BYTES", 1 << 20)
    with pytest.raises(UsageError, match="it printed more than 1 MiB"):
        interpreter("next", str(script(tmp_path / "python", "#!/bin/sh\nyes\n")))


def test_what_a_start_prints_is_no_answer(tmp_path: Path) -> None:
    """Packages that talk when Python starts, and variables of this process, change nothing."""
    path = make_environment(tmp_path / "env", fake_attn="1.0")
    (site_of(tmp_path / "env") / "loud.pth").write_text("import sys; print('{}'); print('loud', file=sys.stderr)\n")
    os.environ["PYTHONHOME"] = "/nowhere"
    try:
        assert "1.0" == interpreter("next", str(path)).installed("fake-attn")
    finally:
        del os.environ["PYTHONHOME"]


def test_what_of_an_environment_changed_is_named(python: Path) -> None:
    """Python and distributions by version; what a stack does not say, and libraries beneath, are no change."""
    now = interpreter("next", str(python))

    def change(**versions: str) -> str:
        parts = [
            Component(kind="system" if name == "python" else "distribution", name=name, version=version, digest="")
            for name, version in versions.items()
        ]
        parts.append(Component(kind="binary", name="libcuda.so", version="575.1", digest="ab"))
        before = Stack(device=DEVICE, components=tuple(parts), environment={})
        return environment_change(before, "next", str(python))

    assert ["", ""] == [change(python=now.version, fake_attn="1.5.0.dev7"), change(python="", numpy="")]
    told = f"python 3.10.1 → {now.version}, fake_attn 1.4 → 1.5.0.dev7, numpy 2.0 → none"
    assert f"environment next changed since: {told}" == change(python="3.10.1", fake_attn="1.4", numpy="2.0")


def code_there(python: Path, card: KernelCard, tmp_path: Path, *folders: Path) -> dict[str, str] | None:
    """The code of a card in the environment."""
    here = CodeHere(
        folders=tuple(map(str, folders)), cache=tmp_path / "sha256.json", environments={"next": str(python)}
    )
    found = here.of([card])[card.kernel]
    return None if found is None else dict(found)


def test_code_is_that_of_the_environment(tmp_path: Path) -> None:
    """Its distribution and version; an edited file and another version change it."""
    folder = tmp_path / "env"
    python, card = make_environment(folder, fake_attn="1.5"), there("under-test", shipped_by=["fake-attn", "numpy"])
    before = code_there(python, card, tmp_path)
    assert before is not None
    assert ["fake-attn 1.5"] == [name for name in before if not name.startswith("qualify/")]
    (site_of(folder) / "fake_attn.py").write_text("x = 2\n")
    edited = code_there(python, card, tmp_path)
    assert edited is not None
    assert {"fake_attn.py"} == {name for name in edited if edited[name] != before.get(name)}
    install(folder, "fake_attn", "1.6")
    newer = code_there(python, card, tmp_path)
    assert newer is not None
    assert "fake-attn 1.6" in newer


def test_code_of_a_function_is_found_there(tmp_path: Path) -> None:
    """A module of the environment, else one in the --cards folders; nothing where the environment is not known."""
    folder = tmp_path / "env"
    python = make_environment(folder, fake_attn="1.5")
    function = there("mine", adapter="call", entry="fake_attn:attend", shipped_by=...)
    found = code_there(python, function, tmp_path)
    assert found is not None
    assert "fake_attn.py" in found
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "mine.py").write_text("x = 1\n")
    own = there("mine", adapter="call", entry="mine:attend", shipped_by=...)
    found = code_there(python, own, tmp_path, tmp_path / "cards")
    assert found is not None
    assert "mine.py" in found
    assert code_there(python, own, tmp_path) is None
    unknown = CodeHere(folders=(), cache=tmp_path / "sha256.json")
    assert {"mine@next": None} == unknown.of([function])


def test_an_adapter_that_the_environment_offers_counts(tmp_path: Path) -> None:
    """With the distribution that offers it there; one that nobody offers, or a module without a file, has no code."""
    python = make_environment(tmp_path / "env", fake_attn="1.5")
    (info,) = site_of(tmp_path / "env").glob("fake_attn-*.dist-info")
    (info / "entry_points.txt").write_text("[qualify.adapters]\nfast = fake_attn:create\n")
    found = code_there(python, there("under-test", adapter="fast", shipped_by=["numpy"]), tmp_path)
    assert found is not None
    assert ["fake-attn 1.5"] == list(found)
    assert code_there(python, there("under-test", adapter="slow", shipped_by=["numpy"]), tmp_path) is None
    assert code_there(python, there("mine", adapter="call", entry="sys:exit", shipped_by=...), tmp_path) is None


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("__version__ = '2.99.1+cpu'\ncuda: Optional[str] = None\n", ("2.99.1+cpu", "")),
        ('from typing import Optional\n\n__version__ = "2.99.1"\ncuda = "12.8"\n', ("2.99.1", "12.8")),
        ("__version__ = '2.99.1'\n", ("2.99.1", "?")),
        ("from ._built import *\n", ("2.99", "?")),
        (None, ("2.99", "?")),
    ],
    ids=["for a CPU", "for CUDA", "without a word", "elsewhere", "no file"],
)
def test_what_a_torch_was_built_for_is_read_and_never_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str | None, told: tuple[str, str]
) -> None:
    """A torch for CPUs is refused on a GPU; one that does not tell is not. Where no version stands, pip knows it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('nobody may import it')\n")
    if written is not None:
        (tmp_path / "torch" / "version.py").write_text(written)
    (tmp_path / "torch-2.99.dist-info").mkdir()
    (tmp_path / "torch-2.99.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.99\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # the probe runs where nobody has imported it
    assert told == tuple((probe.torch() or {}).values())


def test_the_probe_answers_one_line(python: Path) -> None:
    """What it says of files is what pip wrote."""
    answer = ask("next", str(python), ["fake-attn", "absent"], ["fake_attn", "absent"])
    assert ["fake-attn"] == list(answer["records"])
    assert str(site_of(python.parents[1])) == answer["records"]["fake-attn"]["root"].rstrip("/")
    assert "fake_attn.py,sha256=" in answer["records"]["fake-attn"]["record"]
    assert ["fake_attn"] == list(answer["modules"])
    assert json.loads(answer["records"]["fake-attn"]["direct_url"]) == {}


def test_a_gate_elsewhere_does_not_need_the_interpreter(tmp_path: Path) -> None:
    """Functions of the --cards folders are compared with what is there; of an absent interpreter nothing is."""
    python = make_environment(tmp_path / "env", fake_attn="1.5")
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "mine.py").write_text("x = 1\n")
    own = there("mine", adapter="call", entry="mine:attend", shipped_by=["fake-attn"])

    def found(path: object) -> dict[str, object]:
        environments = {"next": str(path)}
        folders = (str(tmp_path / "cards"),)
        here = CodeHere(folders=folders, cache=tmp_path / "sha256.json", every=False, environments=environments)
        return dict(here.of([own]))

    assert found(python) == {"mine@next": code_there(python, own, tmp_path, tmp_path / "cards")}
    assert {} == found("/nowhere/python")
