"""What the probe says of the interpreter in which it runs; here that is the interpreter of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qualify.plan import probe


def distribution(folder: Path, name: str, version: str, title: str = "", **files: str) -> Path:
    """A distribution in a folder of the path; ``title`` is its name as it writes it."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {title or name}\nVersion: {version}\n")
    for file, text in files.items():
        (info / file.replace("_DOT_", ".")).write_text(text)
    return info


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders at the beginning of the path, `first` before `second`."""
    for name in ("second", "first"):
        (tmp_path / name).mkdir()
        monkeypatch.syspath_prepend(str(tmp_path / name))
    return tmp_path


def test_of_two_installations_the_first_on_the_path_counts(path: Path) -> None:
    """As for an import; a name has one spelling, and what pip is replacing is left out."""
    distribution(path / "second", "fast_attn", "2.0")
    distribution(path / "first", "fast_attn", "1.0", "Fast__Attn")
    distribution(path / "second", "other", "3.0", "Other.-_Thing")
    (path / "first" / "gone-1.dist-info").mkdir()
    found = probe.distributions()
    assert {"fast-attn": "1.0", "other-thing": "3.0"} == {
        name: found.get(name) for name in ("fast-attn", "other-thing")
    }
    assert not {"gone", "Fast__Attn", "Other.-_Thing", "fast_attn"} & set(found)


def test_a_distribution_says_what_pip_wrote(path: Path) -> None:
    """Its version, folder, RECORD and where it was installed from; empty where it has no such file."""
    distribution(path / "first", "one", "1.0", RECORD="one.py,,\n", direct_url_DOT_json='{"url": "file:///x"}')
    distribution(path / "first", "two", "2.0")
    root = str(path / "first")
    told = [{**record, "root": record["root"].rstrip("/")} for name in ("one", "two") for record in probe.records(name)]
    assert [
        {"version": "1.0", "root": root, "record": "one.py,,\n", "direct_url": '{"url": "file:///x"}'},
        {"version": "2.0", "root": root, "record": "", "direct_url": "{}"},
    ] == told
    assert [] == probe.records("never-was-such")


def test_modules_and_packages_say_where_they_stand(path: Path) -> None:
    """A module has a file, a package its folders too, one without an __init__.py folders only, a built-in nothing."""
    (path / "first" / "single.py").write_text("raise ImportError('nobody may import it')\n")
    (path / "first" / "pack").mkdir()
    (path / "first" / "pack" / "__init__.py").write_text("raise ImportError('nobody may import it')\n")
    for folder in ("first", "second"):
        (path / folder / "spread").mkdir()
    first = path / "first"
    assert [{"origin": str(first / "single.py"), "places": None}] == probe.modules("single")
    assert [{"origin": str(first / "pack" / "__init__.py"), "places": [str(first / "pack")]}] == probe.modules("pack")
    both = [str(path / folder / "spread") for folder in ("first", "second")]
    assert [{"origin": None, "places": both}] == probe.modules("spread")
    assert [{"origin": None, "places": None}] == probe.modules("sys")
    assert [] == probe.modules("never_was_such")


def test_adapters_are_those_of_the_group(path: Path) -> None:
    """By the name that a card writes, with the distribution that offers it."""
    distribution(path / "first", "right", "1", entry_points_DOT_txt="[a.group]\nfast = right:create\n")
    distribution(path / "first", "other", "1", entry_points_DOT_txt="[another.group]\nslow = other:create\n")
    assert [{"fast": "right"}, {}] == [probe.adapters(group) for group in ("a.group", "no.group")]


def test_it_answers_what_it_was_asked_and_imports_nothing_of_its_folder(path: Path) -> None:
    """Its folder has modules that are named like Python's own; the last line of its answer is one JSON object."""
    offered = "[qualify.adapters]\nfast = one:create\n[console_scripts]\nslow = one:main\n"
    distribution(path / "first", "one", "1.0", entry_points_DOT_txt=offered)
    (path / "first" / "mine.py").write_text("raise ImportError('nobody may import it')\n")
    asked = {"distributions": ["one", "absent"], "modules": ["mine", "absent", "cases"], "group": "qualify.adapters"}
    command = [sys.executable, str(Path(probe.__file__)), json.dumps(asked)]
    variables = os.environ | {"PYTHONPATH": str(path / "first")}
    done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True, timeout=60)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (["one"], ["mine"]) == (list(answer["records"]), list(answer["modules"]))
    assert {"fast": "one"} == answer["adapters"]
    assert ("1.0", True) == (answer["distributions"]["one"], answer["python"].startswith("3."))
    assert {"python", "platform", "torch", "distributions", "records", "modules", "adapters"} == set(answer)


def test_without_torch_nothing_is_said_of_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where it is absent, nor where a single file has its name."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (path / "first" / "torch.py").write_text("x = 1\n")
    assert probe.torch() is None
    monkeypatch.setattr(sys, "path", [])
    assert probe.torch() is None
