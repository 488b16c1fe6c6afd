"""The code behind a kernel: which files count, how a change is named, and that digests are remembered safely."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import stored_runs

from qualify.cards.kernel import KernelCard
from qualify.errors import InfrastructureError
from qualify.facts.code import Code, code_change
from qualify.plan import digests
from qualify.plan.code import CodeHere
from qualify.plan.digests import digests_of
from qualify.run.process.folder import remove_folder

OLD_S = 60
NESTED = "[" * 100_000
"""JSON that nobody can read"""


def sha256(text: str) -> str:
    """The digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def card(**changes: Any) -> KernelCard:
    """A shipped kernel's card, changed."""
    data = stored_runs.shipped_kernels()["tiled-torch"].card.model_dump(mode="json", exclude_unset=True)
    return KernelCard.model_validate({name: value for name, value in {**data, **changes}.items() if value})


def third_party(entry: str) -> KernelCard:
    """The card of a function."""
    return card(adapter="call", entry=entry, shipped_by=[])


def write(folder: Path, **files: str) -> None:
    """Files whose names have _SL_ for / and _DOT_ for a dot."""
    for name, text in files.items():
        path = folder / name.replace("_SL_", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def code(tmp_path: Path) -> Callable[..., Code | None]:
    """The code of a card, with the folder `cards` as --cards."""

    def found(of: KernelCard, *, every: bool = True) -> Code | None:
        here = CodeHere(folders=(str(tmp_path / "cards"),), cache=tmp_path / "cache" / "sha256.json", every=every)
        return here.of([of]).get(of.kernel)

    return found


def test_the_folder_of_a_function_counts(tmp_path: Path, code: Callable[..., Any]) -> None:
    """Sources and binaries in the --cards folder and below; no card, no report, no cache, no virtual environment."""
    write(tmp_path / "cards", mine_DOT_py="1", csrc_SL_a_DOT_cu="2", lib_SL_b_DOT_so="3", lib_SL_c_DOT_so_DOT_1="4")
    write(
        tmp_path / "cards",
        card_DOT_yaml="5",
        out_SL_report_DOT_json="6",
        venv_SL_pyvenv_DOT_cfg="",
        venv_SL_x_DOT_py="7",
    )
    write(tmp_path / "cards", __pycache___SL_mine_DOT_py="8", _DOT_git_SL_hook_DOT_py="9")
    found = code(third_party("mine:attend"))
    own = {name: digest for name, digest in found.items() if not name.startswith("qualify/")}
    assert {"mine.py": sha256("1"), "csrc/a.cu": sha256("2"), "lib/b.so": sha256("3"), "lib/c.so.1": sha256("4")} == own
    assert "qualify/run/adapters/interface.py" in found


def test_what_others_installed_beside_a_function_is_not_its_code(tmp_path: Path, code: Callable[..., Any]) -> None:
    """An upgrade of a tool there would make all evidence old."""
    for folder in ("node_modules", "lib/site-packages", "lib/.venv"):
        (tmp_path / "cards" / folder).mkdir(parents=True)
        (tmp_path / "cards" / folder / "x.py").write_text("1")
    write(tmp_path / "cards", mine_DOT_py="1")
    assert {"mine.py"} == {name for name in code(third_party("mine:attend")) if not name.startswith("qualify/")}


def test_a_package_of_several_folders_counts_with_all(
    tmp_path: Path, code: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an __init__.py its parts may lie apart: a change in either makes evidence old."""
    for site in ("one", "two"):
        write(tmp_path / site, **{f"spread_SL_{site}_DOT_py": site})
        monkeypatch.syspath_prepend(str(tmp_path / site))
    monkeypatch.syspath_prepend(str(tmp_path))  # stands for the folder of the command's script
    names = {name for name in code(third_party("spread.one:f")) if not name.startswith("qualify/")}
    assert {"spread/one.py", "spread/two.py"} == names


def test_folders_in_folders_without_end_are_no_error(
    tmp_path: Path, code: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel can make them beside its source; what lies deeper than a path is long, Python cannot import."""
    write(tmp_path / "cards", mine_DOT_py="1", a_SL_near_DOT_py="2")
    with monkeypatch.context() as there:
        there.chdir(tmp_path / "cards")
        for _ in range(2500):
            os.mkdir("d")  # noqa: PTH102 - a path would be too long
            os.chdir("d")
        Path("deepest.py").touch()
    try:
        names = {name for name in code(third_party("mine:f")) if not name.startswith("qualify/")}
    finally:
        remove_folder(tmp_path / "cards" / "d")  # pytest could not
    assert {"mine.py", "a/near.py"} == names


def test_an_adapter_counts_with_what_it_imports(code: Callable[..., Any]) -> None:
    """Also what that imports in turn, and nothing of other adapters: their change says nothing of this kernel."""
    own = {name for name in code(card()) if name.startswith("qualify/")}
    adapters = "qualify/run/adapters"
    assert {f"{adapters}/tiled_torch.py", f"{adapters}/interface.py", "qualify/masks.py"} == own


def test_a_package_on_the_path_counts_alone(
    tmp_path: Path, code: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a package its own folder; of a module in site-packages only its file; another machine's are not compared."""
    write(tmp_path / "site", pack_SL___init___DOT_py="1", pack_SL_deep_SL_a_DOT_py="2", other_DOT_py="3")
    write(tmp_path / "site", other_SL_METADATA="")
    (tmp_path / "site" / "x-1.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path))  # stands for the folder of the command's script
    names = {name for name in code(third_party("pack.deep.a:f")) if not name.startswith("qualify/")}
    assert {"pack/__init__.py", "pack/deep/a.py"} == names
    assert {"other.py"} == {name for name in code(third_party("other:f")) if not name.startswith("qualify/")}
    assert code(third_party("pack:f"), every=False) is None
    assert code(third_party("nowhere_to_be_found:f")) is None


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with two files, as pip installs it."""
    site = tmp_path / "site"
    write(site, attn_SL___init___DOT_py="x = 1", attn_SL_k_DOT_so="binary")
    promised = {
        path: base64.urlsafe_b64encode(hashlib.sha256((site / path).read_bytes()).digest()).decode().rstrip("=")
        for path in ("attn/__init__.py", "attn/k.so")
    }
    info = site / "fast_attn-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fast-attn\nVersion: 1.5\n")
    lines = [f"{path},sha256={digest},1" for path, digest in promised.items()]
    (info / "RECORD").write_text(
        "\n".join([*lines, "../../bin/tool,sha256=AAAA,1", "fast_attn-1.5.dist-info/INSTALLER,sha256=AAAA,4"])
    )
    monkeypatch.syspath_prepend(str(site))
    return site


def test_a_distribution_is_one_until_a_file_is_not_as_promised(installed: Path, code: Callable[..., Any]) -> None:
    """Its name, version and one digest; an edited or lost file is named beside it, and so in the change."""
    shipped = card(shipped_by=["fast-attn>=1"])
    before = code(shipped)
    assert ["fast-attn 1.5"] == [name for name in before if not name.startswith("qualify/")]
    (installed / "attn" / "__init__.py").write_text("x = 2")
    (installed / "attn" / "k.so").unlink()
    after = code(shipped)
    assert ("its code changed since: attn/__init__.py, attn/k.so", sha256("x = 2"), "") == (
        code_change(before, after),
        after["attn/__init__.py"],
        after["attn/k.so"],
    )


def test_what_a_record_promises_nothing_of_counts(installed: Path, code: Callable[..., Any]) -> None:
    """Some installers write no hash: then what runs is looked at where it lies; notes and bytecode are not."""
    record = installed / "fast_attn-1.5.dist-info" / "RECORD"
    record.write_text("attn/__init__.py,,\nattn/k.so,,\nattn/notes.md,,\nattn/__pycache__/k.cpython-311.pyc,,\n")
    shipped = card(shipped_by=["fast-attn>=1"])
    before = code(shipped)
    assert (sha256("binary"), False) == (before["attn/k.so"], "attn/notes.md" in before)
    (installed / "attn" / "k.so").write_text("BINARY")
    assert "its code changed since: attn/k.so" == code_change(before, code(shipped))


@pytest.mark.parametrize(
    "line", ["", "attn/k.so", "attn/k.so,sha256=A", "attn/k.so,sha256=\u00e4,3", "attn/k.so,md5=AAAA,3"], ids=ascii
)
def test_a_damaged_record_ends_no_gate(installed: Path, code: Callable[..., Any], line: str) -> None:
    """What promises nothing that can be read is looked at where it lies."""
    record = installed / "fast_attn-1.5.dist-info" / "RECORD"
    kept = [row for row in record.read_text().splitlines() if not row.startswith("attn/k.so")]
    record.write_text("\n".join([line, *kept, "attn/k.so,,", ""]))
    shipped = card(shipped_by=["fast-attn>=1"])
    before = code(shipped)
    (installed / "attn" / "k.so").write_text("BINARY")
    assert "its code changed since: attn/k.so" == code_change(before, code(shipped))


@pytest.mark.parametrize(
    "text", ["{", "[]", NESTED, '{"dir_info": null}', '{"dir_info": {"editable": true}, "url": "file://["}']
)
def test_a_damaged_note_of_an_editable_installation_is_told(
    installed: Path, code: Callable[..., Any], text: str
) -> None:
    """Nobody knows where its sources lie: to leave them out would take their changes for none."""
    note = installed / "fast_attn-1.5.dist-info" / "direct_url.json"
    note.write_text(text)
    with pytest.raises(InfrastructureError) as caught:
        code(card(shipped_by=["fast-attn>=1"]))
    told = str(caught.value)
    assert told.startswith(f"fast-attn 1.5 in {installed}: its direct_url.json is damaged (")
    assert told.endswith("), so its sources cannot be found. Install it again.")


def test_an_editable_installation_counts_with_its_sources(
    installed: Path, tmp_path: Path, code: Callable[..., Any]
) -> None:
    """`pip install -e` promises nothing of the sources: they are looked at where they lie."""
    write(tmp_path / "my project", attn_SL_a_DOT_py="1")
    described = {"url": (tmp_path / "my project").as_uri(), "dir_info": {"editable": True}}
    (installed / "fast_attn-1.5.dist-info" / "direct_url.json").write_text(json.dumps(described))
    before = code(card(shipped_by=["fast-attn>=1"]))
    assert sha256("1") == before["attn/a.py"]


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [("file", {"dir_info": {}}), ("file", {"vcs_info": {}}), ("ssh", {"dir_info": {"editable": True}})],
    ids=["a folder", "a repository", "another machine"],
)
def test_an_installation_that_is_no_editable_one_counts_without_its_sources(
    installed: Path, tmp_path: Path, code: Callable[..., Any], scheme: str, changes: dict[str, Any]
) -> None:
    """Pip copied the files: what somebody does to the sources afterwards is no change of the kernel."""
    write(tmp_path / "project", attn_SL_a_DOT_py="1")
    described = {"url": f"{scheme}://{tmp_path}/project", **changes}
    (installed / "fast_attn-1.5.dist-info" / "direct_url.json").write_text(json.dumps(described))
    assert "attn/a.py" not in code(card(shipped_by=["fast-attn>=1"]))


def test_an_adapter_of_another_distribution_counts(installed: Path, code: Callable[..., Any]) -> None:
    """The distribution that offers the adapter, beside the one that ships the kernel."""
    (installed / "fast_attn-1.5.dist-info" / "entry_points.txt").write_text("[qualify.adapters]\nfast = attn:create\n")
    found = code(card(adapter="fast"))
    assert ["fast-attn", "torch"] == sorted(name.partition(" ")[0] for name in found)


def test_what_is_not_here_has_no_code(code: Callable[..., Any]) -> None:
    """A kernel whose distribution is not installed."""
    assert code(card(shipped_by=["never-was-such>=1"])) is None


def test_a_change_is_named_and_counted() -> None:
    """Equal is no change; of many files three are named."""
    one = {f"{name}.py": "a" for name in "abcde"}
    assert "" == code_change(one, dict(one))
    assert "its code changed since: a.py, b.py, c.py and 2 more" == code_change(one, {})


def test_remembered_digests_follow_every_change(tmp_path: Path) -> None:
    """Same size and the same time of change, but other content: the inode or the status change tells."""
    cache, path = tmp_path / "c" / "sha256.json", tmp_path / "a.py"
    path.write_text("aaaa")
    past = time.time() - OLD_S
    os.utime(path, (past, past))
    time.sleep(2.1)
    assert {str(path): sha256("aaaa")} == digests_of([str(path)], cache) == digests_of([str(path)], cache)
    assert str(path) in json.loads(cache.read_text())
    path.write_text("bbbb")
    os.utime(path, (past, past))
    assert {str(path): sha256("bbbb")} == digests_of([str(path)], cache)


@pytest.mark.parametrize(
    "content", ["{broken", "[]", NESTED, '{"PATH": 1}', '{"PATH": ["MARK", "short"]}', '{"PATH": [1, 2]}'], ids=len
)
def test_a_damaged_cache_is_computed_again(tmp_path: Path, content: str) -> None:
    """Whatever stands in the file, the digests are right."""
    cache, path = tmp_path / "sha256.json", tmp_path / "a.py"
    path.write_text("aaaa")
    seen = path.stat()
    mark = f"{seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns} {seen.st_ino}"
    cache.write_text(content.replace("PATH", str(path)).replace("MARK", mark))
    assert {str(path): sha256("aaaa")} == digests_of([str(path)], cache)


def test_many_writers_leave_a_whole_cache(tmp_path: Path) -> None:
    """Whoever writes at the same time, the file can be read and no digest is wrong."""
    cache = tmp_path / "sha256.json"
    paths = [tmp_path / f"{number}.py" for number in range(40)]
    for path in paths:
        path.write_text(path.name)
    time.sleep(2.1)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: digests_of([str(path)], cache), paths))
    known = json.loads(cache.read_text())
    assert {path: sha256(Path(path).name) for path in known} == {path: digest for path, (_, digest) in known.items()}
    assert [cache] == sorted(tmp_path.glob("sha256*"))


def test_a_pipe_is_left_out(tmp_path: Path) -> None:
    """To open one would wait for a writer; Python could not import it either."""
    os.mkfifo(tmp_path / "attend.py")
    assert {} == digests_of([str(tmp_path / "attend.py")], tmp_path / "cache.json")


def test_a_file_that_has_gone_is_left_out(tmp_path: Path) -> None:
    """While pip replaces files, one may vanish between the list and the look."""
    assert {} == digests_of([str(tmp_path / "gone.so")], tmp_path / "sha256.json")


LONG_THERE = [json.__file__, os.__file__]
"""files that nobody has changed lately"""


def true_digest(path: str) -> str:
    """The digest of a file as it is."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path) -> None:
    """It may change once more within one tick of the clock and look the same: its digest would hide the change."""
    cache, new, unpacked = (tmp_path / name for name in ("sha256.json", "new.py", "unpacked.py"))
    for path in (new, unpacked):
        path.write_text("aaaa")
    past = time.time() - OLD_S
    os.utime(unpacked, (past, past))  # as pip does, with the time that the wheel says
    expected = {str(new): sha256("aaaa"), str(unpacked): sha256("aaaa"), LONG_THERE[0]: true_digest(LONG_THERE[0])}
    assert expected == digests_of(list(expected), cache)
    assert [LONG_THERE[0]] == list(json.loads(cache.read_text()))


def test_only_a_look_without_a_memory_reads_every_file(tmp_path: Path) -> None:
    """Level full and canaries do: whoever can write the memory cannot make them believe it."""
    cache, (first, second) = tmp_path / "sha256.json", LONG_THERE
    digests_of([first], cache)
    known = json.loads(cache.read_text())
    cache.write_text(json.dumps({first: [known[first][0], "f" * 64], second: ["another mark", "f" * 64]}))
    expected = {path: true_digest(path) for path in LONG_THERE}
    assert {first: "f" * 64, second: expected[second]} == digests_of(LONG_THERE, cache)
    assert expected == digests_of(LONG_THERE, None)


def test_files_that_have_gone_are_forgotten(tmp_path: Path) -> None:
    """A virtual environment for each job would fill the memory with thousands of files that are never seen again."""
    cache, gone = tmp_path / "sha256.json", str(tmp_path / "removed" / "libtorch.so")
    cache.write_text(json.dumps({gone: ["a mark", "f" * 64], LONG_THERE[0]: ["another mark", "f" * 64]}))
    digests_of([LONG_THERE[1]], cache)
    assert LONG_THERE == list(json.loads(cache.read_text()))


def test_what_others_remembered_stays_until_it_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second library does not make the first one slow again; the file does not grow for ever."""
    cache = tmp_path / "sha256.json"
    for path in LONG_THERE:
        digests_of([path], cache)
    assert LONG_THERE == list(json.loads(cache.read_text()))
    monkeypatch.setattr(digests, "LARGEST", 2)
    digests_of([json.decoder.__file__], cache)
    assert [json.decoder.__file__] == list(json.loads(cache.read_text()))


def test_a_memory_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    """A file where its folder should be, and a folder where it should be: the digests are right, nothing is left."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for cache in (tmp_path / "file" / "sha256.json", tmp_path / "folder"):
        assert {LONG_THERE[0]: true_digest(LONG_THERE[0])} == digests_of(LONG_THERE[:1], cache)
    assert ["file", "folder"] == sorted(path.name for path in tmp_path.iterdir())
