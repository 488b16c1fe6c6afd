"""The command line: exit codes, messages, what goes to stdout and what to stderr. Nothing here runs a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from cli_process import Ended, call, command, environment, write_cards, write_matrix

from qualify.assets import CHECKS
from qualify.store.store import Store

HELPLESS = [
    (["run"], "Missing argument 'MATRIX'. Try: qualify run --help"),
    (["run", "smoke", "--levl", "full"], "No such option: --levl"),
    (["run", "smoke", "--level", "huge"], "'huge' is not one of 'smoke', 'full'. Try: qualify run --help"),
    (["run", "smoke", "more"], "Got unexpected extra argument"),
    (["gate", "--format", "junitx"], "'junitx' is not one of"),
    (["bogus"], "No such command 'bogus'. Try: qualify --help"),
    (
        ["--db", "x.db", "run", "smoke"],
        "--db stands before the command, and options of a command come after it: qualify run … --db. Try: qualify run",
    ),
    (["canary", "--cards=k", "list"], "come after it: qualify canary list … --cards. Try: qualify canary list --help"),
    (["--cards", "k", "canary", "list"], "come after it: qualify canary list … --cards. Try: qualify canary list"),
    (["--levl", "full"], "No such option: --levl"),
]


def test_no_command_is_help_and_exit_2(tmp_path: Path) -> None:
    """`qualify` alone explains itself on stderr."""
    ended = call(cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    assert ended.err.startswith("Usage: qualify [OPTIONS] COMMAND")


def test_help_and_version_are_results(tmp_path: Path) -> None:
    """What was asked for goes to stdout."""
    help_, version = call("--help", cwd=tmp_path), call("--version", cwd=tmp_path)
    assert (0, "", 0, "") == (help_.code, help_.err, version.code, version.err)
    assert help_.out.startswith("Usage: qualify [OPTIONS] COMMAND")
    assert version.out.startswith("qualify 0.")


@pytest.mark.parametrize(("arguments", "message"), HELPLESS)
def test_a_wrong_command_line_is_exit_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    """The message says what is wrong and which help to read, on stderr only."""
    ended = call(*arguments, cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    assert ended.err.startswith("qualify: ")
    assert message in ended.err


MODELS = """\
models:
  - model: toy
    geometry: {groups: [{layers: [0], heads_q: 2, heads_kv: 2, head_dim: 32, mask: causal}]}
"""
WRONG = {
    "syntax": ('dtypes: ["fp32"]', 'dtypes: ["fp32"', ":8:1: "),
    "key": ("exclude:", "exclud:", ":9:1: exclud: unknown key; perhaps you meant exclude"),
    "kernel": (
        "tiled-torch",
        "tiled-troch",
        ":8:11: kernels[0]: no kernel matches tiled-troch; perhaps you meant tiled",
    ),
    "model": (MODELS, "models: [llama-3.1-8c]\n", ":2:10: models[0]"),
    "geometry": ("heads_kv: 2", "heads_kv: 3", ":4:"),
}
"""matrices: what to replace by what, and the beginning of the message after the file's name"""


def test_a_store_that_cannot_be_made_holds_nothing(tmp_path: Path) -> None:
    """No command is printed that would go on with a run that is stored nowhere."""
    write_matrix(tmp_path / "m.yaml")
    ended = call("run", "m.yaml", "--db", "/proc/none.db", cwd=tmp_path)
    assert (4, "") == (ended.code, ended.out)
    assert "evidence store /proc/none.db" in ended.err
    assert ended.err.rstrip().endswith("Nothing was measured.")
    assert "--resume" not in ended.err


@pytest.mark.parametrize("command", ["plan", "model", "waiver check", "gate --db", "db import", "plan smoke --cards"])
def test_a_name_that_no_file_can_have(tmp_path: Path, command: str) -> None:
    """It is not there, as any other that is mistyped."""
    assert call(*command.split(), "x" * 3000, cwd=tmp_path).code in {2, 4}


def test_a_card_that_is_read_as_none_is_told(tmp_path: Path) -> None:
    """On stderr, whatever the command; the result on stdout and the exit code stay what they are."""
    (tmp_path / "mine.yml").write_text("kernel: mine\n")
    path = write_matrix(tmp_path / "right.yaml")
    ended = call("plan", path, "--cards", tmp_path, cwd=tmp_path)
    assert 0 == ended.code
    assert f"note: {tmp_path}/mine.yml is left out: the name of a card ends in .yaml" in ended.err
    assert "mine.yml" not in ended.out


def test_cards_that_nobody_can_read_are_told_with_the_reason(tmp_path: Path) -> None:
    """A loop of links and a pipe are no wrong encoding; a name with a line break makes no second line."""
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "a\nb.yml").write_text("kernel: mine\n")
    (tmp_path / "latin.yaml").write_bytes("kernel: é".encode("latin-1"))
    ended = call("kernels", "--cards", tmp_path, cwd=tmp_path)
    assert 2 == ended.code
    notes = [line for line in ended.err.splitlines() if line.startswith("note: ")]
    assert [
        f"{tmp_path}/a b.yml is left out: the name of a card ends in .yaml, so call it a b.yaml",
        f"{tmp_path}/latin.yaml is left out: it cannot be read as text in UTF-8, so save it as that",
        f"{tmp_path}/loop.yaml is left out: it cannot be read: Too many levels of symbolic links",
        f"{tmp_path}/pipe.yaml is left out: it cannot be read: it is a pipe, and only a regular file is read",
    ] == [line.removeprefix("note: ") for line in notes]
    assert len(notes) + 3 == len(ended.err.splitlines())
    assert f"{tmp_path}/loop.yaml: cannot be read: Too many levels of symbolic links" in ended.err


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_matrix_is_exit_2(tmp_path: Path, name: str) -> None:
    """The message begins with file, line and column; nothing is made on disk."""
    right, wrong, message = WRONG[name]
    path = write_matrix(tmp_path / "wrong.yaml")
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong))
    ended = call("run", "wrong.yaml", cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    assert ended.err.startswith(f"qualify: wrong.yaml{message}")
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["node", "empty.json"], 2, "empty.json:1:1: is not valid JSON: Expecting value: the file is empty"),
        (["node", "other.json"], 2, "other.json: matrix: is missing. The fields of a plan: matrix, "),
        (["node", "mistyped.json"], 2, "mistyped.json: expekted is no field of a plan; perhaps you meant expected. "),
        (["node", "plan.json", "--fleet", "a\nb"], 2, "the name of the fleet, 'a\\nb': must be one line of characters"),
        (["node", "plan.json", "--name", "a\x1bb"], 2, "the name of the node, 'a\\x1bb': must be one line of"),
        (["collect", "plan.json", "--fleet", "a\nb"], 2, "the name of the fleet, 'a\\nb': must be one line of"),
        (["collect", "a\nb"], 2, "a\\nb: give the plan, the file of JSON"),
        (["kernels", "--cards=a\nb"], 2, "--cards a\\nb: no such folder"),
        (["schema", "a\nb"], 2, "'access', 'gate'. Try: qualify schema --help"),
        (["node", "listed.json"], 2, "listed.json: a plan is an object, and this file holds a list. The fields of a "),
        (["run", "smok"], 2, "no matrix is called 'smok'; perhaps you meant smoke. There are: "),
        (["run", "none.yaml"], 2, "none.yaml: no such file"),
        (["run", "smoke", "--kernel", "tiled-troch"], 2, "perhaps you meant tiled-torch. It has flash-attn-2, "),
        (["run", "smoke", "--select", "llama*"], 4, "--out"),
        (["run", "smoke", "--select", "nothing*"], 3, "no case of smoke matches --select 'nothing*'."),
        (["plan", "smoke", "--select", "nothing*"], 3, "`qualify plan smoke` lists them"),
        (["run", "smoke", "--cards", "none"], 2, "--cards none: no such folder"),
        (["run", "smoke", "--db", "none/x.db"], 4, "the folder none does not exist"),
        (["run", "smoke", "--db", "text.db"], 4, "the file is not an SQLite database"),
        (["run", "smoke", "--db", "nosuch://x"], 4, "not a usable database URL"),
        (["run", "smoke", "--db", "mysql://x/y"], 4, "qualify stores evidence in SQLite or PostgreSQL"),
        (["run", "smoke", "--resume", "x"], 4, "evidence store .qualify/evidence.db: no such file"),
        (["run", "smoke", "--cards", "text.db"], 2, "--cards text.db: is a file. Give the folder"),
        (["gate", "--matrix", "smok"], 2, "no matrix is called 'smok'; perhaps you meant smoke"),
        (["gate", "--matrix", "text.db"], 2, "text.db:1:1: "),
        (["gate"], 4, "evidence store .qualify/evidence.db: no such file. Evidence comes from `qualify run`"),
        (["gate", "--db", "empty.db"], 5, "no run in empty.db yet: `qualify run` with a matrix makes one"),
        (["report", "--db", "empty.db"], 5, "no run in empty.db yet"),
        (["gate", "--db", "zero.db"], 4, "it is empty"),
        (["gate", "--db", ":memory:"], 4, "evidence store :memory:: an in-memory database keeps no evidence"),
        (["gate", "--db", "sqlite:///empty.db?timeout=foo"], 2, "the parameter timeout=foo is none that qualify takes"),
        (["gate", "--db", "sqlite:///empty.db?mode=ro"], 2, "Leave it out: --db empty.db"),
        (["gate", "--db", "sqlite:///empty.db?nope=1"], 2, "the parameter nope=1 is none that qualify takes"),
        (["gate", "--db", "sqlite:///empty.db?timeout=5"], 5, "no run in empty.db yet"),
        (["kernels", "--cards", "strange"], 2, "strange/a\\nb.yaml:1:10: "),
        (["gate", "--db", "text.db"], 4, "the file is not an SQLite database"),
    ],
)
def test_what_cannot_be_done_has_its_exit_code(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    """One line on stderr says what, the value, and what to do; with --json stdout has it as an object, too."""
    (tmp_path / "text.db").write_text("not a database, but long enough to have a header of one hundred bytes" * 3)
    (tmp_path / "zero.db").touch()
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "a\nb.yaml").write_text("kernel: [")
    (tmp_path / "empty.json").touch()
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "mistyped.json").write_text('{"matrix": "smoke", "device": "cpu:1", "expekted": ["GPU-1"]}')
    (tmp_path / "plan.json").write_text('{"matrix": "smoke", "device": "cpu:1", "shards": 1}')
    (tmp_path / "listed.json").write_text("[]")
    Store.open(str(tmp_path / "empty.db")).close()
    if message == "--out":
        (tmp_path / "out").touch()
    ended = call(*arguments, *([] if arguments[0] == "report" else ["--json"]), cwd=tmp_path)
    assert ended.err.startswith("qualify: ")
    assert message in ended.err
    assert 1 == len(ended.err.splitlines())
    told = {"schema": "qualify.error/1", "error": ended.err.removeprefix("qualify: ").strip(), "exit_code": code}
    assert (code, "" if arguments[0] == "report" else json.dumps(told)) == (ended.code, ended.out.strip())
    assert not (tmp_path / ".qualify").exists()


def without_gpu() -> dict[str, str]:
    """An environment in which no GPU is visible."""
    return environment(CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "--device cuda: no NVIDIA GPU is visible here"),
        (["--kernel", "torch-sdpa-flash"], "device=cpu (torch-sdpa-flash requires cuda). `qualify plan smoke --here`"),
    ],
)
def test_a_matrix_that_cannot_run_here_is_exit_4(tmp_path: Path, arguments: list[str], message: str) -> None:
    """A missing GPU is the machine's fault, and no verdict on the kernels: nothing is stored."""
    ended = call("run", "smoke", *arguments, cwd=tmp_path, env=without_gpu())
    assert (4, "") == (ended.code, ended.out)
    assert message in ended.err
    assert [] == list(tmp_path.iterdir())


def test_a_server_that_is_not_there_is_exit_4(tmp_path: Path) -> None:
    """PostgreSQL on a closed port: the password stays out of the message."""
    pytest.importorskip("psycopg", reason="the extra `service` is not installed")
    ended = call("gate", "--db", "postgresql+psycopg://user:secret@127.0.0.1:1/evidence", cwd=tmp_path)
    assert (4, "") == (ended.code, ended.out)
    assert "the database server cannot be reached" in ended.err
    assert "secret" not in ended.err


@pytest.fixture
def read_only(tmp_path: Path):
    """A folder in which nothing can be written, by root neither."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"root may not mount here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "smoke"),
        ("run", "smoke", "--device", "cpu:all", "--spread", "repeat"),
        ("node", "smoke"),
        ("fleet", "smoke"),
        ("canary", "fire", "nightly"),
        ("check", "qwen3-0.6b"),
        ("selftest",),
        ("cliffs", "smoke"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_file_in_place_of_the_folder_is_exit_4(words: tuple[str, ...], tmp_path: Path) -> None:
    """It is told before anything runs, in the same words by every command; no store is made."""
    (tmp_path / "taken").touch()
    ended = call(*words, "--out", "taken", cwd=tmp_path)
    assert 4 == ended.code
    told = ended.err.splitlines()[-1]
    assert told.startswith("qualify: --out taken: nothing can be written there: ")
    assert told.endswith("Choose another folder with --out DIR.")
    assert not (tmp_path / ".qualify" / "evidence.db").exists()


def test_a_read_only_working_folder_is_exit_4(read_only: Path, tmp_path: Path) -> None:
    """Neither the report nor the evidence has a place there, and the message says which."""
    reports = call("run", "smoke", cwd=read_only)
    evidence = call("run", "smoke", "--out", tmp_path / "out", cwd=read_only)
    assert (4, "", 4, "") == (reports.code, reports.out, evidence.code, evidence.out)
    assert reports.err.startswith("qualify: --out out: nothing can be written there: ")
    assert evidence.err.startswith("qualify: evidence store .qualify: the folder cannot be created")
    assert "--db" in evidence.err


def test_plan_separates_result_and_log(tmp_path: Path) -> None:
    """Ids and refusals on stdout, the count on stderr; with --json one object with both."""
    write_matrix(tmp_path / "m.yaml", "tiled-torch", "flash-attn-2", seqlens=(8, 9))
    text, data = call("plan", "m.yaml", cwd=tmp_path), call("plan", "m.yaml", "--json", cwd=tmp_path)
    assert (0, "m: 2 cases, 2 refused\n", 0, "") == (text.code, text.err, data.code, data.err)
    ids = [
        f"toy.tp1/prefill/b1.q{n}.k{n}/fp32/causal/{name}" for name in ("tiled-torch", "flash-attn-2") for n in (8, 9)
    ]
    assert ids == [line.split()[0] for line in text.out.splitlines()]
    assert ids[:2] == data.data["cases"]
    assert ids[2:] == [item["id"] for item in data.data["refused"]]
    assert {"cases": 2, "calls": 2, "refused": 2} == data.data["counts"]
    assert ["dtype=fp32 (flash-attn-2 claims bf16, fp16)"] == data.data["refused"][0]["reasons"]
    assert ("m", "qualify.plan/1") == (data.data["matrix"], data.data["schema"])


def test_kernels_lists_own_cards_too(tmp_path: Path) -> None:
    """A line for each card, with the reasons of those that cannot run; with --json the fields of the contract."""
    cards = write_cards(tmp_path / "cards", "correct")
    text = call("kernels", "--cards", cards, cwd=tmp_path, env=without_gpu())
    data = call("kernels", "--cards", cards, "--json", cwd=tmp_path, env=without_gpu()).data["kernels"]
    assert (0, "") == (text.code, text.err)
    assert [item["kernel"] for item in data] == [line.split()[0] for line in text.out.splitlines()]
    by_name = {item["kernel"]: item for item in data}
    assert {"kernel", "available", "environment", "reasons", "version", "claims"} == set(by_name["correct"])
    assert (True, [], "third_party:correct") == tuple(
        by_name["correct"][key] for key in ("available", "reasons", "version")
    )
    assert "device=cpu (torch-sdpa-flash requires cuda)" in by_name["torch-sdpa-flash"]["reasons"]


def test_doctor_describes_the_stack(tmp_path: Path) -> None:
    """The stack and the concerns are the result; without a GPU that is a note and no error."""
    text = call("doctor", cwd=tmp_path, env=without_gpu())
    data = call("doctor", "--json", cwd=tmp_path, env=without_gpu() | {"QUALIFY_IMAGE": f"x@sha256:{'a' * 64}"})
    assert (0, "", 0, "") == (text.code, text.err, data.code, data.err)
    assert "no GPU: only CPU kernels can run here" in text.out
    assert "container image: unknown. In a container set QUALIFY_IMAGE=NAME@sha256:DIGEST" in text.out
    assert ["note"] == [item["severity"] for item in data.data["concerns"]]
    assert "torch" in {part["name"] for part in data.data["stack"]["components"]}


def test_schema_is_json(tmp_path: Path) -> None:
    """A JSON Schema on stdout."""
    ended = call("schema", "matrix", cwd=tmp_path)
    assert (0, "") == (ended.code, ended.err)
    assert "phases" in ended.data["properties"]


def test_db_upgrade_makes_and_keeps(tmp_path: Path) -> None:
    """It makes a missing store, leaves a present one, and says where it is."""
    first, second = call("db", "upgrade", cwd=tmp_path), call("db", "upgrade", "--json", cwd=tmp_path)
    assert (0, ".qualify/evidence.db is up to date\n", "") == (first.code, first.out, first.err)
    assert {"schema": "qualify.db/1", "store": ".qualify/evidence.db"} == second.data


def test_a_reader_that_leaves_is_silent(tmp_path: Path) -> None:
    """`qualify plan smoke | head -1` complains about nothing and keeps its exit code."""
    line = f"{subprocess.list2cmdline(command('plan', 'smoke'))} | head -1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    first, code = ended.stdout.splitlines()
    assert first.startswith("llama-3.1-8b.tp4/")
    assert "0" == code
    assert "smoke: " in ended.stderr
    assert "Error" not in ended.stderr


@pytest.mark.parametrize("words", [("plan", "smoke"), ("--help",), ("gate", "--help"), ("--version",)])
def test_a_full_stdout_is_exit_4(words: tuple[str, ...], tmp_path: Path) -> None:
    """A result that cannot be written is not silently lost, and neither are the help and the version."""
    env = environment()
    env.pop("PYTHONUNBUFFERED", None)
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command(*words), cwd=tmp_path, env=env, stdout=full, stderr=subprocess.PIPE, check=False)
    assert 4 == ended.returncode
    assert ended.stderr.splitlines()[-1] == (
        b"qualify: the result cannot be written to stdout: No space left on device. What the command stored or wrote "
        b"by then is kept. If it only reads, type it again with another place for its output"
    )
    assert b"Traceback" not in ended.stderr


CONFIG = {"model_type": "llama", "num_hidden_layers": 40, "hidden_size": 64, "num_attention_heads": 2}
NEW_FILES = {
    "init": ("init", "--model", "qwen3-8b", "--yes"),
    "model": ("model", "config.json", "--matrix", "new.yaml"),
    "check": ("check", "qwen3-0.6b", "--save", "new.yaml", "--device", "cpu"),
    "check again": ("check", "qwen3-0.6b", "--device", "cpu"),
    "traffic": ("traffic", "import", "log.csv", "--out", "new.yaml"),
}


@pytest.mark.parametrize("words", NEW_FILES.values(), ids=NEW_FILES)
def test_a_disk_that_is_full_leaves_no_part_of_a_new_file(words: tuple[str, ...], tmp_path: Path) -> None:
    """Exit 4, and the same command can be given again: nothing is in its way, and what was there is whole."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    lines = [f"{2**power},1\n" for power in range(20)]
    (tmp_path / "log.csv").write_text("".join(["prompt_tokens,completion_tokens\n", *lines]))
    before = CHECKS / "qwen3-0.6b.yaml"
    (tmp_path / before).parent.mkdir(parents=True)
    (tmp_path / before).write_text("of yesterday")
    there = {path for path in tmp_path.rglob("*") if path.is_file()}
    kib = 1 if words[0] == "init" else 0  # the first of its files fits
    ended = subprocess.run(
        ["bash", "-c", f'ulimit -f {kib}; exec "$@"', "-", *command(*words)],
        cwd=tmp_path,
        env=environment(PYTHONDONTWRITEBYTECODE="1"),  # Python would keep compiled modules that are cut off
        capture_output=True,
        text=True,
        check=False,
    )
    assert (4, "") == (ended.returncode, ended.stdout), ended.stderr
    assert "cannot be written: File too large" in ended.stderr.splitlines()[-1]
    assert there == {path for path in tmp_path.rglob("*") if path.is_file()}
    assert "of yesterday" == (tmp_path / before).read_text()


def test_an_encoding_that_lacks_characters_is_no_error(tmp_path: Path) -> None:
    """A terminal that only knows ASCII gets other signs."""
    card = write_cards(tmp_path / "cards", "correct") / "correct.yaml"
    card.write_text(card.read_text().replace("max: 64", "max: 16"))
    write_matrix(tmp_path / "m.yaml", "correct")
    env = environment(PYTHONIOENCODING="ascii")
    ended = call("plan", "m.yaml", "--cards", "cards", cwd=tmp_path, env=env)
    assert 3 == ended.code
    assert "head_dim=32 > 16 (correct claims <= 16)" in ended.out


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    """The command line imports neither torch nor the database nor the card models before a command asks for them."""
    heavy = ("torch", "sqlalchemy", "alembic", "pydantic", "ruamel", "jinja2", "numpy")
    code = f"import sys, json, qualify.cli.entry; print(json.dumps(sorted(set({heavy!r}) & set(sys.modules))))"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert [] == json.loads(ended.stdout)


def test_a_gate_that_writes_no_page_imports_none(tmp_path: Path) -> None:
    """Text on stdout needs neither the report nor its templates, which take longer to import than 1,000 cases."""
    store_a_run(tmp_path)
    heavy = ("alembic", "jinja2", "numpy", "qualify.report.context", "torch")
    code = (
        "import sys, json, atexit; from qualify.cli import main\n"
        f"atexit.register(lambda: print(json.dumps(sorted(set({heavy!r}) & set(sys.modules))), file=sys.stderr))\n"
        "sys.argv[1:] = ['gate', '--db', 'evidence.db']; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.stdout
    assert [] == json.loads(ended.stderr)


def test_an_unknown_run_is_exit_2(tmp_path: Path) -> None:
    """Where there are runs, an unknown id is a wrong command line, and the near ones are named."""
    run_id = store_a_run(tmp_path)
    for arguments in (["gate", "--run", "20200101"], ["report", "20200101"], ["run", "smoke", "--resume", "20200101"]):
        ended = call(*arguments, "--db", "evidence.db", cwd=tmp_path)
        assert (2, "") == (ended.code, ended.out)
        assert f"no run '20200101' in evidence.db. It has {run_id}." in ended.err


def test_an_unfinished_run_never_qualifies(tmp_path: Path) -> None:
    """A run that stopped early is no verdict, and the line says so."""
    store_a_run(tmp_path)
    ended = call("gate", "--db", "evidence.db", cwd=tmp_path)
    data = call("gate", "--db", "evidence.db", "--json", cwd=tmp_path)
    assert (5, 5) == (ended.code, data.code)
    expected = "no verdict, and the run is not finished, in the selected part of the matrix (0 of "
    assert expected in ended.out.splitlines()[0]
    assert ("running", "INCONCLUSIVE", 5) == tuple(data.data[key] for key in ("state", "verdict", "exit_code"))


def test_report_names_its_page(tmp_path: Path) -> None:
    """The path of the page is the result; a folder that cannot be written is exit 4 and loses nothing."""
    run_id = store_a_run(tmp_path)
    text, data = (call("report", *more, "--db", "evidence.db", cwd=tmp_path) for more in ([], ["--json"]))
    assert (0, f"out/{run_id}/report.html\n", "") == (text.code, text.out, text.err)
    assert (run_id, f"out/{run_id}/report.html") == (data.data["run"], data.data["report"])
    (tmp_path / "file").touch()
    ended = call("report", "--db", "evidence.db", "--out", "file", cwd=tmp_path)
    assert (4, "") == (ended.code, ended.out)
    assert f"The evidence of run {run_id} is stored." in ended.err


def store_a_run(folder: Path) -> str:
    """A run of `smoke` that stored its plan and was killed then; returns its id."""
    from qualify.fleet.local import execute, new_run
    from qualify.fleet.request import Asked, make_request

    def stop(_: object) -> None:
        raise SystemExit

    request = make_request(Asked(matrix="smoke", kernel="tiled-torch", select="llama*/bf16/*", device="cpu"))
    run = new_run(request)
    with Store.open(str(folder / "evidence.db")) as store, suppress(SystemExit):
        execute(request, store, run, stop)
        raise AssertionError("the run was not stopped")
    with Store.open(str(folder / "evidence.db")) as store:
        store.resume(run.id)
    return run.id


def test_ended_is_strict() -> None:
    """The helper of these tests refuses what is not JSON."""
    with pytest.raises(AssertionError):
        _ = Ended(code=0, out='{"x": NaN}', err="").data
