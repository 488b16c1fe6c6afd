"""Environments: each kernel that a matrix selects appears once more in each of them, under a name of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import stored_runs
from builders import make_card, make_kernel

from qualify.cards.environments import parse_environments
from qualify.cards.kernel import KernelCard
from qualify.cards.load import LoadedMatrix, in_environments, load_kernels, load_matrix
from qualify.errors import CardError, UsageError
from qualify.plan.host import Host
from qualify.plan.plan import Plan, Selection, make_plan

MATRIX = """\
matrix: example
models: [llama-3.1-8b]
phases: {{prefill: {{seqlen: 128}}}}
dtypes: [bf16]
kernels: {kernels}
environments: {environments}
expect: {expect}
"""
NEXT = "{next: {python: envs/next/bin/python}}"
CELL = "llama-3.1-8b.tp1/prefill/b1.q128.k128/bf16/causal"


def matrix(folder: Path, *, kernels: str = "[tiled-torch]", environments: str = NEXT, expect: str = "[]") -> Path:
    """A matrix of one production shape."""
    path = folder / "example.yaml"
    path.write_text(MATRIX.format(kernels=kernels, environments=environments, expect=expect))
    return path


def plan(loaded: LoadedMatrix, **selection: str) -> Plan:
    """Its plan for any machine."""
    return make_plan(loaded, stored_runs.shipped_kernels(), selection=Selection(**selection))


def kernels_of(found: Plan) -> list[str]:
    """The kernels of its cases, in their order."""
    return [case.kernel for case in found.cases]


@pytest.mark.parametrize("written", ["~/envs/next/bin/python", "~/envs/../envs/next/bin/python"])
def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    """As on the command line; the message that nothing is there names the path that was looked at."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = matrix(tmp_path, environments=f'{{next: {{python: "{written}"}}}}')
    whole = f"{tmp_path}/home/envs/next/bin/python"
    loaded = load_matrix(str(path))
    assert {"next": whole} == dict(loaded.environments)
    with pytest.raises(CardError, match=f"environment next, {whole}: no such file"):
        make_plan(loaded, stored_runs.shipped_kernels(), host=Host(kind="cpu", name="a CPU", compute_capability=""))


def test_each_kernel_appears_once_more(tmp_path: Path) -> None:
    """After the kernels of this interpreter, in their order; case ids and hashes are other ones."""
    loaded = load_matrix(str(matrix(tmp_path, kernels="[tiled-torch, flash-attn-3]")))
    found = plan(loaded)
    names = ["tiled-torch", "flash-attn-3", "tiled-torch@next", "flash-attn-3@next"]
    assert names == kernels_of(found)
    assert [f"{CELL}/{name}" for name in names] == [case.id for case in found.cases]
    assert ["", "", "next", "next"] == [case.environment for case in found.cases]
    assert 4 == found.calls
    assert {CELL} == {case.cell for case in found.cases}
    assert {"next": str(tmp_path / "envs" / "next" / "bin" / "python")} == loaded.environments


def test_the_command_line_adds_and_replaces(tmp_path: Path) -> None:
    """An environment of the command line stands beside those of the file, or instead of the one of its name."""
    given = parse_environments(["next=/opt/b/bin/python", "old=bin/python"])
    loaded = load_matrix(str(matrix(tmp_path)), (), given)
    assert {"next": "/opt/b/bin/python", "old": str(Path.cwd() / "bin" / "python")} == loaded.environments
    assert ["tiled-torch", "tiled-torch@next", "tiled-torch@old"] == kernels_of(plan(loaded))


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("tiled-torch", ["tiled-torch"]),
        ("tiled-torch@next", ["tiled-torch@next"]),
        ("*@next", ["tiled-torch@next", "flash-attn-3@next"]),
        ("tiled*", ["tiled-torch", "tiled-torch@next"]),
    ],
)
def test_selectors_take_the_names_as_they_are(tmp_path: Path, kernel: str, expected: list[str]) -> None:
    """A kernel's name means this interpreter; a glob meets every name that it matches."""
    loaded = load_matrix(str(matrix(tmp_path, kernels="[tiled-torch, flash-attn-3]")))
    assert expected == kernels_of(plan(loaded, kernel=kernel))
    assert expected == kernels_of(plan(loaded, select=f"*/{kernel}"))


def test_an_environment_that_is_not_there_is_named(tmp_path: Path) -> None:
    """``--kernel '*@next'`` without any environment says how to give one."""
    loaded = load_matrix(str(matrix(tmp_path, environments="{}")))
    with pytest.raises(UsageError, match=r"matrix example has no environment\. Give it one: --environment NAME=PYTHON"):
        plan(loaded, kernel="*@next")


def test_incidents_run_in_environments_too() -> None:
    """The kernels of an incident are selected by their own names."""
    loaded = load_matrix("incidents", (), {"next": "/opt/next/bin/python"})
    chosen = {case.kernel for case in plan(loaded).cases if case.incident}
    own = {name for name in chosen if "@" not in name}
    assert own
    assert {f"{name}@next" for name in own} == chosen - own


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("[{select: '*', kernel: tiled-torch@next}]", ""),
        ("[{select: '*', kernel: tiled-torch, fallback: tiled-torch@next}]", ""),
        (
            "[{select: '*', kernel: tiled-torch@nxt}]",
            "expect[0].kernel: tiled-torch@nxt names the environment nxt, which is not there; perhaps you meant next",
        ),
        (
            "[{select: '*', kernel: tiled-torch, fallback: tiled-torch@old}]",
            "expect[0].fallback: tiled-torch@old names",
        ),
        ("[{select: '*', kernel: tiled@next}]", "expect[0].kernel: unknown kernel tiled"),
        ("[{select: '*', kernel: tiled-torch@}]", "expect[0].kernel: must name an environment after its @"),
    ],
)
def test_expectations_name_the_environment(tmp_path: Path, expect: str, message: str) -> None:
    """Without ``@NAME`` they mean this interpreter; an unknown environment is an error with its place."""
    path = matrix(tmp_path, expect=expect)
    if not message:
        assert 2 == len(plan(load_matrix(str(path))).cases)
        return
    with pytest.raises(CardError) as error:
        load_matrix(str(path))
    assert message in str(error.value)
    assert f"{path}:7:" in str(error.value)


@pytest.mark.parametrize(
    ("environments", "message"),
    [
        ("{a@b: {python: /p}}", 'environments."a@b": must be a name of letters, digits, -, _ and ., at most 40'),
        ("{next: {}}", "environments.next.python: is missing"),
        ("{next: {pyton: /p}}", "environments.next.pyton: unknown key; perhaps you meant python. Allowed here: python"),
        ("{next: {python: ''}}", "environments.next.python: must not be empty"),
        ("{next: /p}", 'environments.next: must be a mapping of keys and values, but is "/p"; its keys are python'),
    ],
)
def test_wrong_environments_of_a_matrix(tmp_path: Path, environments: str, message: str) -> None:
    """One clear message with its place."""
    with pytest.raises(CardError) as error:
        load_matrix(str(matrix(tmp_path, environments=environments)))
    assert message in str(error.value)


def test_an_interpreter_that_is_not_there_has_the_place_that_names_it(tmp_path: Path) -> None:
    """In the matrix; one of the command line has none."""
    path, kernels = str(matrix(tmp_path)), stored_runs.shipped_kernels()
    cpu = Host(kind="cpu", name="a CPU", compute_capability="")
    with pytest.raises(CardError) as error:
        make_plan(load_matrix(path), kernels, host=cpu)
    assert str(error.value).startswith(f"{path}:6:31: environment next, {tmp_path}/envs/next/bin/python: no such file.")
    with pytest.raises(UsageError, match=r"^environment next, /nowhere/python: no such file"):
        make_plan(load_matrix(path, (), {"next": "/nowhere/python"}), kernels, host=cpu)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["/opt/next/bin/python"], "has no interpreter"),
        (["next="], "has no interpreter"),
        (["=x"], "the name '' must be of letters, digits"),
        (["a@b=x"], "the name 'a@b' must be of letters, digits"),
        (["a/b=x"], "the name 'a/b' must be of letters, digits"),
        (["a=x", "a=y"], "a is given twice"),
    ],
)
def test_wrong_environments_of_the_command_line(texts: list[str], message: str) -> None:
    """What was typed, why it is wrong, and the form."""
    with pytest.raises(UsageError) as error:
        parse_environments(texts)
    assert str(error.value).startswith(f"--environment {texts[-1]}: ")
    assert message in str(error.value)


def test_a_card_file_names_no_environment(tmp_path: Path) -> None:
    """Neither in its name nor in a key of its own: ``--environment`` adds those kernels."""
    data = make_card(kernel="mine@next").model_dump_json(exclude_unset=True)
    (tmp_path / "mine@next.yaml").write_text(data)
    with pytest.raises(CardError, match=r"kernel: is mine@next, and @ names an environment; --environment NAME=PYTHON"):
        load_kernels((tmp_path,))


def test_a_kernel_of_an_environment_is_a_copy() -> None:
    """Its name and hash differ, its claims do not; the kernels of this interpreter keep their hashes."""
    own = {"under-test": make_kernel()}
    made = in_environments(own, ["next"])
    assert ["under-test", "under-test@next"] == list(made)
    assert own["under-test"] == made["under-test"]
    there = made["under-test@next"]
    assert ("under-test@next", "next") == (there.card.kernel, there.card.environment)
    assert own["under-test"].card.claims == there.card.claims
    assert own["under-test"].content_hash != there.content_hash
    assert made == in_environments(made, ["next"])


def test_it_crosses_a_process_like_any_card() -> None:
    """What a worker is sent is what it gets."""
    card = in_environments({"under-test": make_kernel()}, ["next"])["under-test@next"].card
    assert card == KernelCard.model_validate(card.model_dump(mode="json", exclude_unset=True))
