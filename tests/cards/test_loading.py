"""Names, folders and references: which card is loaded, and what is said where there is none."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from qualify import assets
from qualify.cards import load
from qualify.cards.folders import strangers
from qualify.cards.shadows import hidden_by_installed
from qualify.errors import CardError, UsageError

INCIDENT: dict[str, Any] = {
    "incident": "pytorch-195910",
    "issue": "pytorch/pytorch#195910",
    "title": "Rows saw the future.",
    "trigger": "causal",
    "shown_by": "suffix",
    "calls": [{"heads_q": 4, "head_dim": 64, "seqlens_q": 64}],
}


def problems(error: BaseException) -> list[str]:
    """Texts of a CardError without places."""
    assert isinstance(error, CardError)
    return [text for _, text in error.problems]


def own(kernel: Any, name: str = "my-kernel") -> dict[str, Any]:
    """A kernel card of a third party."""
    card: dict[str, Any] = kernel({"kernel": name, "adapter": "call", "entry": "my_pkg:attention"})
    return card


def test_shipped_kernel_by_name() -> None:
    """A shipped card is found under its name, with path and hash."""
    loaded = load.load_kernels()["tiled-torch"]
    assert ("tiled-torch", assets.shipped("kernels") / "tiled-torch.yaml") == (loaded.card.kernel, loaded.path)
    assert 64 == len(loaded.content_hash)


@pytest.mark.parametrize("name", ["my-kernel.yaml", "kernels/my-kernel.yaml"])
def test_extra_folder_adds_kernels(write: Any, kernel: Any, tmp_path: Path, name: str) -> None:
    """--cards DIR holds cards directly or in kernels/; the shipped ones stay."""
    write(own(kernel), name)
    names = list(load.load_kernels((tmp_path,)))
    assert names == load.kernel_names((tmp_path,)) == sorted(names)
    assert {"my-kernel", "tiled-torch"} <= set(names)


IN = "kernels/mistyped.yaml:1:1 is left out"
HOME = "a card in this folder has the key {} at its top level, but this file has"


def test_a_card_is_parsed_once_and_again_where_it_changed(write: Any, kernel: Any, tmp_path: Path) -> None:
    """Two commands in one process, or a service, see what the file says now; a text that stayed is the same card."""
    write(own(kernel), "my-kernel.yaml")
    first, again = (load.load_kernels((tmp_path,))["my-kernel"] for _ in range(2))
    assert first is again
    changed = own(kernel)
    changed["entry"] = "my_pkg:other"
    write(changed, "my-kernel.yaml")
    assert "my_pkg:other" == load.load_kernels((tmp_path,))["my-kernel"].card.entry


def test_a_model_is_parsed_once_and_again_where_it_changed(write: Any, model: Any, tmp_path: Path) -> None:
    """As the card of a kernel."""
    write(model({"hub": "me/first"}), "matrices/models/small.json")
    first, again = (load.load_model("small", (tmp_path,)) for _ in range(2))
    assert first is again
    write(model({"hub": "me/other"}), "matrices/models/small.json")
    assert "me/other" == load.load_model("small", (tmp_path,)).card.hub


def test_foreign_yaml_is_ignored(write: Any, tmp_path: Path) -> None:
    """Files without the key of a kernel card, and folders, are not cards, whatever they hold; both are told."""
    write("apiVersion: v1\n---\nkind: !x List\n", "pod.yaml")
    write("matrix: m\nexpect:\n  - kernel: x\n", "m.yaml")
    (tmp_path / "folder.yaml").mkdir()
    assert load.kernel_names() == list(load.load_kernels((tmp_path,)))
    assert [
        f"{tmp_path}/folder.yaml is left out: it is a folder",
        f"{tmp_path}/pod.yaml is left out: {HOME.format('kernel or matrix or canary')} the keys apiVersion, kind",
    ] == strangers((tmp_path,))


CARD_AS = {
    "UTF-16": (lambda text: text.encode("utf-16"), "is UTF-16; save it as UTF-8"),
    "UTF-32": (lambda text: text.encode("utf-32"), "save it as UTF-8"),
    "Latin-1": (lambda text: f"# é\n{text}".encode("latin-1"), "is not UTF-8: byte 0xe9"),
    "a zero byte": (lambda text: f"{text}\0".encode(), "holds a zero byte"),
    "a byte order mark": (lambda text: text.encode("utf-8-sig"), ""),
    "indented": (lambda text: "".join(f"  {line}" for line in text.splitlines(keepends=True)).encode(), ""),
    "after a marker": (lambda text: f"%YAML 1.2\n---\n\n# mine\n{text}".encode(), ""),
    "quoted": (lambda text: text.replace("kernel:", '"kernel" :', 1).encode(), ""),
    "a form feed": (lambda text: f"\x0c{text}".encode(), "a character that YAML forbids (0xc); remove it"),
    "a mark inside": (lambda text: f"\n\ufeff{text}".encode(), "my-kernel.yaml"),
}


@pytest.mark.parametrize("way", CARD_AS)
def test_no_card_vanishes(write: Any, kernel: Any, tmp_path: Path, way: str) -> None:
    """However an editor has saved a card, it is loaded, or it is an error that says what is wrong with it."""
    change, problem = CARD_AS[way]
    write(own(kernel), "my-kernel.yaml")
    path = tmp_path / "my-kernel.yaml"
    path.write_bytes(change(path.read_text()))
    if problem:
        with pytest.raises(CardError) as told:
            load.load_kernels((tmp_path,))
        assert problem in str(told.value)
    else:
        assert "my-kernel" in load.load_kernels((tmp_path,))


def test_a_pipe_in_the_folder_is_told(tmp_path: Path) -> None:
    """It is not opened, which could wait for ever, and not passed over."""
    os.mkfifo(tmp_path / "mine.yaml")
    with pytest.raises(CardError, match=r"mine\.yaml: is not a regular file \(a pipe\)"):
        load.load_kernels((tmp_path,))


def test_what_is_read_as_no_card_is_told(write: Any, kernel: Any, model: Any, tmp_path: Path) -> None:
    """A name that is not looked for, a mistyped key, a card in another kind's folder; but no file named by a path."""
    write(own(kernel), "kernels/mine.yml")
    write("kernle: x\n", "kernels/mistyped.yaml")
    write("matrix: m\n", "kernels/elsewhere.yaml")
    write("waivers: []\n", "matrices/waivers.yaml")
    write("traffic: t\n", "matrices/t.yaml")
    write({"models": 1}, "matrices/models/m.json")
    models = f"{tmp_path}/matrices/models"
    assert [
        f"{tmp_path}/kernels/elsewhere.yaml is left out: it is a matrix, and its place is the folder matrices",
        f"{tmp_path}/kernels/mine.yml is left out: the name of a card ends in .yaml, so call it mine.yaml",
        f"{tmp_path}/{IN}: {HOME.format('kernel')} the keys kernle; perhaps you meant kernel",
        f"{models}/m.json:2:2 is left out: {HOME.format('model')} the keys models; perhaps you meant model",
    ] == [line for line in strangers((tmp_path,)) if "/canaries/" not in line]


def test_a_canary_whose_key_is_mistyped_is_no_matrix(write: Any, tmp_path: Path) -> None:
    """It has the key of a matrix, as every canary has, and stands where canaries stand."""
    write("matrix: smoke\ncanery: mine\n", "canaries/mine.yaml")
    home = "a card in this folder has the key canary at its top level, but this file has the keys matrix, canery"
    told = f"{tmp_path}/canaries/mine.yaml:2:1 is left out: {home}; perhaps you meant canary"
    assert [told] == strangers((tmp_path,))


def test_files_of_other_tools_are_not_to_be_renamed(write: Any, model: Any, tmp_path: Path) -> None:
    """What is hidden, and what ends in .yml and has no key of a card; a card keeps the name of its kind's files."""
    for name in (".gitlab-ci.yml", ".pre-commit-config.yaml", "docker-compose.yml", "mkdocs.yml"):
        write("services: {}\nmodels: {}\n", name)
    write("waivers: []\n", "accepted.yml")
    write("kernle: x\n", "mistyped.yml")
    write(model({}), "models/m.JSON")
    assert [
        f"{tmp_path}/mistyped.yml is left out: the name of a card ends in .yaml, so call it mistyped.yaml",
        f"{tmp_path}/models/m.JSON is left out: the name of a card ends in .json, so call it m.json",
    ] == strangers((tmp_path,))


def test_broken_kernel_card_is_reported(write: Any, tmp_path: Path) -> None:
    """A card with a syntax error is an error, not a foreign file."""
    write("kernel: x\n  a: [\n", "x.yaml")
    with pytest.raises(CardError, match="is not valid YAML"):
        load.load_kernels((tmp_path,))


def test_problems_of_all_kernels_at_once(write: Any, kernel: Any, tmp_path: Path) -> None:
    """Two wrong cards are reported together."""
    write(own(kernel) | {"generation": "x"}, "my-kernel.yaml")
    write(own(kernel, "b") | {"claims": 1}, "b.yaml")
    with pytest.raises(CardError) as caught:
        load.load_kernels((tmp_path,))
    assert {"b.yaml", "my-kernel.yaml"} == {Path(place.path).name for place, _ in caught.value.problems}


def test_no_silent_shadowing(write: Any, kernel: Any, tmp_path: Path) -> None:
    """A card named like a shipped one is an error that names both files."""
    path = write(own(kernel, "tiled-torch"), "tiled-torch.yaml")
    with pytest.raises(CardError) as caught:
        load.load_kernels((tmp_path,))
    first = assets.shipped("kernels") / "tiled-torch.yaml"
    assert f"{path}: kernel tiled-torch exists already in {first}; give this one another name" == str(caught.value)


def test_two_extra_folders_may_not_clash(write: Any, kernel: Any, tmp_path: Path) -> None:
    """Neither of two user folders wins; the same folder given twice is one."""
    write(own(kernel), "a/my-kernel.yaml")
    write(own(kernel), "b/my-kernel.yaml")
    assert "my-kernel" in load.load_kernels((tmp_path / "a", tmp_path / "a"))
    with pytest.raises(CardError, match="kernel my-kernel exists already in"):
        load.load_kernels((tmp_path / "a", tmp_path / "b"))


def functions(write: Any, kernel: Any, files: dict[str, str]) -> None:
    """Cards of functions, ``FOLDER/NAME.yaml`` with its entry, and the modules beside them with their text."""
    for name, text in files.items():
        called = {"kernel": Path(name).stem, "adapter": "call", "entry": text, "options": ..., "shipped_by": ...}
        write(kernel(called) if name.endswith(".yaml") else text, name)


@pytest.mark.parametrize(
    ("files", "name", "file"),
    [
        pytest.param({"a/x.py": "1", "b/x.py": "2"}, "x", "x.py", id="module"),
        pytest.param({"a/x/__init__.py": "", "b/x/__init__.py": ""}, "x", "x/__init__.py", id="package"),
        pytest.param({"a/h.py": "1", "b/x.py": "import h", "b/h.py": "2"}, "h", "h.py", id="helper"),
        pytest.param(
            {"a/h.py": "1", "b/x/__init__.py": "", "b/x/y.py": "from h import z", "b/h.py": "2"},
            "h",
            "h.py",
            id="helper of a package",
        ),
        pytest.param(
            {"a/h.py": "1", "b/x.py": 'import h\nPATTERN = "\\d"', "b/h.py": "2"},
            "h",
            "h.py",
            id="an escape that Python warns of",
        ),
    ],
)
def test_code_that_would_never_run(
    write: Any, kernel: Any, tmp_path: Path, files: dict[str, str], name: str, file: str
) -> None:
    """Two folders have a module of one name: Python takes the first, so the other card's kernel would go untested."""
    functions(write, kernel, {"b/second.yaml": "x:attention", **files})
    first, second = tmp_path / "a", tmp_path / "b"
    assert "second" in load.load_kernels((second, first, second))
    with pytest.raises(CardError) as caught:
        load.load_kernels((first, second))
    ((place, message),) = caught.value.problems
    assert (str(second / "second.yaml"), True) == (place.path, place.line > 0)
    assert (
        f"entry: {second / file} would never run: Python finds {name} in {first / file}, whose --cards folder comes "
        "first; rename one of the two, or give each folder to a run of its own"
    ) == message


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"a/x.py": "1", "b/x.py": "1"}, id="a copy"),
        pytest.param({"a/setup.py": "1", "b/x.py": "from . import setup", "b/setup.py": "2"}, id="not imported"),
        pytest.param({"a/x/z.py": "1", "b/x/y.py": "2"}, id="parts of one package"),
        pytest.param({"a/x.py": "1"}, id="in the other folder alone"),
        pytest.param({"a/h.py": "1", "b/x.py": "import h (", "b/h.py": "2"}, id="a syntax error"),
        pytest.param({"a/h.py": "1", "b/x.py": f"import h\nx = {100_000 * '-'}1", "b/h.py": "2"}, id="too deep"),
    ],
)
def test_code_that_does_run(write: Any, kernel: Any, tmp_path: Path, files: dict[str, str]) -> None:
    """Folders may share names as long as what a kernel imports is what stands beside its card."""
    functions(write, kernel, {"b/second.yaml": "x.y:attention", "b/third.yaml": "y:attention", **files})
    assert {"second", "third"} <= set(load.load_kernels((tmp_path / "a", tmp_path / "b")))


def test_a_pipe_among_the_modules_holds_nobody_up(write: Any, kernel: Any, tmp_path: Path) -> None:
    """Who opens it would wait for a writer for ever."""
    functions(write, kernel, {"b/second.yaml": "x.y:attention", "b/x/__init__.py": "", "a/h.py": "1"})
    os.mkfifo(tmp_path / "b" / "x" / "pipe.py")
    assert "second" in load.load_kernels((tmp_path / "a", tmp_path / "b"))


@pytest.mark.parametrize(("installed", "told"), [("1", True), ("2", False)])
def test_an_installed_module_that_runs_instead_is_told(
    write: Any, kernel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str, told: bool
) -> None:
    """It comes before the one beside the card, which the author perhaps edits; a copy of it is the same."""
    functions(write, kernel, {"own/mine.yaml": "x:attention", "own/x.py": "2", "site/x.py": installed})
    monkeypatch.setattr("sys.path", [str(tmp_path), str(tmp_path / "site")])
    own, site = tmp_path / "own" / "x.py", tmp_path / "site" / "x.py"
    cards = [(one.card, one.path) for one in load.load_kernels((own.parent,)).values()]
    line = f"{own} does not run for mine: Python finds x in {site} before --cards"
    assert [line] * told == hidden_by_installed(cards, [own.parent])


def test_shipped_folder_as_extra_folder() -> None:
    """Giving the shipped folder itself changes nothing."""
    assert load.kernel_names() == load.kernel_names((assets.shipped("kernels").parent,))


def test_name_and_file_agree(write: Any, kernel: Any, tmp_path: Path) -> None:
    """A card must be called like its file, because it is found by its file."""
    write(own(kernel), "other.yaml")
    with pytest.raises(CardError) as caught:
        load.load_kernels((tmp_path,))
    assert ["kernel: is my-kernel, but the file is other.yaml; call the file my-kernel.yaml"] == problems(caught.value)


def test_models_by_name(write: Any, model: Any, tmp_path: Path) -> None:
    """Model cards come from the shipped folder and from models/ in an extra folder."""
    write(model(), "matrices/models/small.json")
    assert "small" == load.load_model("small", (tmp_path,)).card.model
    loaded = load.load_models((tmp_path,))
    assert {"small", "llama-3.1-8b", "qwen3-8b"} <= set(loaded)
    assert loaded["small"].content_hash == loaded["small"].card.content_hash


def test_unknown_model_name() -> None:
    """An unknown model gives the near name, all names and a command."""
    with pytest.raises(UsageError) as caught:
        load.load_model("gema-2-9b")
    text = str(caught.value)
    assert text.startswith("no model is called 'gema-2-9b'; perhaps you meant gemma-2-9b. There are: ")
    assert "docs/cards.md" in text


def test_unknown_matrix_name(write: Any, matrix: Any, tmp_path: Path) -> None:
    """An unknown matrix gives the near name; a path that is none says so."""
    write(matrix(), "example.yaml")
    assert "example" in load.matrix_names((tmp_path,))
    with pytest.raises(UsageError, match="no matrix is called 'exampel'; perhaps you meant example"):
        load.load_matrix("exampel", (tmp_path,))
    with pytest.raises(CardError, match="no such file"):
        load.load_matrix(str(tmp_path / "none.yaml"))


def test_a_model_in_place_of_a_matrix_is_told(tmp_path: Path) -> None:
    """With the command that takes a model: for a config.json, a model card, and a repository of the hub."""
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "hidden_size": 64}')
    with pytest.raises(
        UsageError, match=rf"^{config}: is the config of a model, and no matrix. `qualify check {config}`"
    ):
        load.load_matrix(str(config))
    with pytest.raises(UsageError, match=r"\. It is a model card: `qualify check qwen3-8b` checks it\.$"):
        load.load_matrix("qwen3-8b")
    with pytest.raises(UsageError, match=r"^Qwen/Qwen3-8B: no such file; .*`qualify check Qwen/Qwen3-8B` checks it\.$"):
        load.load_matrix("Qwen/Qwen3-8B")


def test_a_folder_is_no_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in the working directory is meant, where no matrix has the name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(CardError, match="mine: is a folder; give a file"):
        load.load_matrix("mine")


def test_matrix_by_path_and_by_name(write: Any, matrix: Any, tmp_path: Path) -> None:
    """A path and a name in an extra folder load the same; the hash is that of the text."""
    path = write(matrix(), "example.yaml")
    loaded = load.load_matrix(str(path))
    assert loaded == load.load_matrix("example", (tmp_path,))
    assert (path.read_text(), path) == (loaded.source, loaded.path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == loaded.content_hash


def test_a_matrix_is_parsed_once_and_again_where_it_changed(write: Any, matrix: Any) -> None:
    """A run is judged by the card that it was planned with; a changed file is another card."""
    path = write(matrix(), "example.yaml")
    first = load.load_matrix(str(path))
    assert first.card is load.parse_matrix(first.source, str(first.path))
    write(matrix({"dtypes": ["fp16"]}), "example.yaml")
    second = load.load_matrix(str(path))
    assert [("bf16",), ("fp16",)] == [tuple(loaded.card.dtypes) for loaded in (first, second)]
    assert first.content_hash != second.content_hash


def test_lines_of_a_matrix(write: Any) -> None:
    """line() gives the line of a value, or of what encloses a value that is not in the file."""
    path = write(
        "matrix: m\nmodels: [llama-3.1-8b]\nphases:\n  prefill:\n    seqlen:\n      - 1\n      - 2\n"
        "dtypes: bf16\nkernels: tiled-torch\n",
        "m.yaml",
    )
    loaded = load.load_matrix(str(path))
    assert 7 == loaded.line(("phases", "prefill", "seqlen", 1))
    assert 8 == loaded.line(("dtypes", 0))
    assert 5 == loaded.line(("phases", "prefill", "batch", 0))
    assert 1 == loaded.line(("policy", "timeout_s"))


def test_models_of_a_matrix(write: Any, matrix: Any) -> None:
    """A loaded matrix has the geometry of every model that it names."""
    group = {"layers": [0, 1], "heads_q": 8, "heads_kv": 2, "head_dim": 64, "mask": "full"}
    models = ["gpt-oss-20b", {"model": "mine", "geometry": {"groups": [group]}}]
    loaded = load.load_matrix(str(write(matrix({"models": models}))))
    assert {"gpt-oss-20b": 24, "mine": 2} == {name: card.layers for name, card in loaded.models.items()}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"models": ["llama-3.1-8"]},
            "models[0]: unknown model llama-3.1-8; perhaps you meant llama-3.1-8b. There are",
        ),
        (
            {"kernels": ["tiled-*", "tiled-toch"]},
            "kernels[1]: no kernel matches tiled-toch; perhaps you meant tiled-torch",
        ),
        ({"kernels": ["nothing*"]}, "kernels[0]: no kernel matches nothing*; `qualify kernels` lists them"),
        ({"kernels": ["my-attention"]}, "If it is one of your own, name its folder: --cards DIR"),
        ({"expect": [{"select": "*", "kernel": "tiled-toch"}]}, "expect[0].kernel: unknown kernel tiled-toch; perhaps"),
        (
            {"expect": [{"select": "*", "kernel": "tiled-torch", "fallback": "forbd"}]},
            "expect[0].fallback: must be forbid, record or a kernel, but is forbd; perhaps you meant forbid",
        ),
    ],
)
def test_unknown_references(write: Any, matrix: Any, changes: dict[str, Any], expected: str) -> None:
    """A model or kernel that does not exist is an error with its place and the near name."""
    with pytest.raises(CardError) as caught:
        load.load_matrix(str(write(matrix(changes))))
    assert 1 == len(caught.value.problems)
    assert expected in problems(caught.value)[0]
    assert caught.value.problems[0][0].line > 1


def test_a_card_in_a_file_of_another_name_is_named_and_not_the_matrix(
    write: Any, matrix: Any, kernel: Any, tmp_path: Path
) -> None:
    """Who names the folder of a card need not hear that no kernel has its name, but why it was not found."""
    write(own(kernel), "mine.yaml")
    path = write(matrix({"kernels": ["my-kernel"]}), "example.yaml")
    with pytest.raises(CardError) as caught:
        load.load_matrix(str(path), (tmp_path,))
    assert ["kernel: is my-kernel, but the file is mine.yaml; call the file my-kernel.yaml"] == problems(caught.value)


@pytest.mark.parametrize(("typed", "places"), [("kernl", [(2, 2)]), ("name", [(1, 1), (2, 2)])])
def test_a_file_that_lacks_only_the_key_of_a_card_is_named(
    write: Any, matrix: Any, kernel: Any, tmp_path: Path, typed: str, places: list[tuple[int, int]]
) -> None:
    """With file, line and column, before the name that nothing has. Files of other tools are not.

    A mistyped key is told once; where the name is another one, the key is missing, too.
    """
    card = own(kernel)
    write({typed: card.pop("kernel"), **card}, "my-kernel.yaml")
    write("kernels: [x]\nservices: {}\n", "other.yaml")
    path = write(matrix({"kernels": ["my-kernel"]}), "example.yaml")
    with pytest.raises(CardError) as caught:
        load.load_matrix(str(path), (tmp_path,))
    *missing, unknown, unmatched = map(str, problems(caught.value))
    assert ["kernel: is missing"] * (typed == "name") == [each.partition(" (")[0] for each in missing]
    assert unknown.startswith(f"{typed}: unknown key")
    assert unmatched.startswith("kernels[0]: no kernel matches my-kernel")
    mine = str(tmp_path / "my-kernel.yaml")
    assert [(mine, *place) for place in places] == [
        (it.path, it.line, it.column) for it, _ in caught.value.problems[:-1]
    ]


def test_a_model_that_lacks_only_its_key_is_named(write: Any, matrix: Any, model: Any, tmp_path: Path) -> None:
    """As the card of a kernel."""
    card = model({})
    write({"modl": card.pop("model"), **card}, "matrices/models/small.json")
    path = write(matrix({"models": ["small"]}), "example.yaml")
    with pytest.raises(CardError, match=r"small\.json:2:2: modl: unknown key; perhaps you meant model\."):
        load.load_matrix(str(path), (tmp_path,))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"phases.decode": None}, "phases.decode: is empty; give it a value, or remove the key"),
        ({"phases": None, "incidents": [INCIDENT]}, "phases: is empty"),
        ({"traffic": None}, "traffic: is empty"),
        ({"policy": {"waivers": {"max_cases": None}}}, "policy.waivers.max_cases: is empty"),
    ],
)
def test_an_empty_value_asks_for_nothing_and_is_refused(
    write: Any, matrix: Any, changes: dict[str, Any], expected: str
) -> None:
    """A phase whose lines were lost would silently drop out of the plan; what is stored can still be read."""
    path = write(matrix(changes), "example.yaml")
    with pytest.raises(CardError) as caught:
        load.load_matrix(str(path))
    assert 1 == len(caught.value.problems), str(caught.value)
    assert expected in str(caught.value)
    assert load.parse_matrix(path.read_text(), str(path))


def test_many_mistakes_of_a_kind_are_told_in_short(write: Any, matrix: Any) -> None:
    """The first of each kind and a count: what else is wrong in the file is not lost among 2,000 lines."""
    wrong = {"dtypes": [f"fp{number}" for number in range(1000, 3000)], "policy": {"claims": "perhaps"}}
    strange = {f"key-{chr(97 + number)}": 1 for number in range(20)}
    with pytest.raises(CardError) as caught:
        load.load_matrix(str(write(matrix({**wrong, **strange}))))
    assert 2000 + 1 + 20 == len(caught.value.problems)
    lines = str(caught.value).splitlines()
    kinds = {
        "dtypes[": 12,
        "policy.claims": 1,
        "unknown key": 12,
        "  and 1,988 more like this": 1,
        "  and 8 more like": 1,
    }
    assert kinds == {kind: sum(kind in line for line in lines) for kind in kinds}
    assert sum(kinds.values()) == len(lines)
    assert "  and 1,988 more like this" == lines[1 + max(at for at, line in enumerate(lines) if "dtypes[" in line)]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            "1,024",
            "example.yaml:3:31: phases.prefill.seqlen[1]: is written 024, which counts as 24; write 24, and thou",
        ),
        ("0100", "example.yaml:3:29: phases.prefill.seqlen[0]: is written 0100, which counts as 100; write 100, and t"),
    ],
)
def test_a_number_with_a_leading_zero_is_refused(write: Any, written: str, expected: str) -> None:
    """Thousands with a comma are two entries of a list, and other programs read 0100 as 64; what is stored is read."""
    text = "matrix: example\nmodels: [llama-3.1-8b]\nphases: {prefill: {seqlen: [SIZE]}}\ndtypes: bf16\nkernels: "
    text += "tiled-torch\n"
    path = write(text.replace("SIZE", written), "example.yaml")
    with pytest.raises(CardError) as caught:
        load.load_matrix(str(path))
    assert str(caught.value).startswith(f"{path.parent}/{expected}"), str(caught.value)
    assert load.parse_matrix(path.read_text(), str(path))
    path.write_text(text.replace("SIZE", "1024, 0x10"))
    assert load.load_matrix(str(path))


def test_an_empty_claim_is_refused(write: Any, kernel: Any, tmp_path: Path) -> None:
    """It would be read as no limit."""
    write(kernel({"kernel": "mine", "claims.batch": None}), "kernels/mine.yaml")
    with pytest.raises(CardError, match=r"claims\.batch: is empty; give it a value, or remove the key"):
        load.load_kernels((tmp_path,))


def test_traffic_needs_models(write: Any, matrix: Any) -> None:
    """Beside incidents alone no call of it would be planned."""
    changes = {"models": ..., "phases": ..., "dtypes": ..., "traffic": "chat.yaml", "incidents": [INCIDENT]}
    with pytest.raises(CardError, match="traffic: plans no call, because the matrix has no models"):
        load.load_matrix(str(write(matrix(changes), "example.yaml")))


def test_expected_kernel_must_be_in_the_matrix(write: Any, matrix: Any, kernel: Any, tmp_path: Path) -> None:
    """An expectation on a kernel that the matrix does not run could never be met."""
    write(own(kernel), "my-kernel.yaml")
    path = write(matrix({"expect": [{"select": "*", "kernel": "my-kernel"}]}), "example.yaml")
    with pytest.raises(CardError) as caught:
        load.load_matrix(str(path), (tmp_path,))
    expected = "expect[0].kernel: my-kernel is not among this matrix's kernels, so nothing can meet it"
    assert [expected] == problems(caught.value)


def test_fallback_to_a_known_kernel(write: Any, matrix: Any, kernel: Any, tmp_path: Path) -> None:
    """A fallback may name a kernel card."""
    write(own(kernel), "my-kernel.yaml")
    expect = [{"select": "*", "kernel": "tiled-torch", "fallback": "my-kernel"}]
    loaded = load.load_matrix(str(write(matrix({"expect": expect}))), (tmp_path,))
    assert "my-kernel" == loaded.card.expect[0].fallback


def test_geometry_may_not_shadow_a_model(write: Any, matrix: Any) -> None:
    """A name that has a model card cannot get another geometry."""
    group = {"layers": 0, "heads_q": 8, "heads_kv": 2, "head_dim": 64, "mask": "full"}
    path = write(matrix({"models": [{"model": "qwen3-8b", "geometry": {"groups": [group]}}]}))
    with pytest.raises(CardError, match="qwen3-8b has a card already"):
        load.load_matrix(str(path))


def test_missing_extra_folder(tmp_path: Path) -> None:
    """A --cards folder that does not exist is a usage error."""
    with pytest.raises(UsageError, match="no such folder"):
        load.load_kernels((tmp_path / "none",))


COMPILING = {"flash_attn_cute", "flashinfer", "flashinfer_mla", "flex_attention", "vllm_triton"}
"""adapters of libraries that compile a kernel when it is first called"""


def test_a_shipped_card_says_that_its_library_compiles() -> None:
    """Otherwise the first call has only ``timeout_s``: flashinfer-fa3-fp8 "timed out" while nvcc was at work."""
    silent = [
        name
        for name, loaded in load.load_kernels().items()
        if loaded.card.adapter in COMPILING and loaded.card.jit == "never"
    ]
    assert [] == silent
