"""Damaged input of every kind: no traceback, no internal error, nothing above 1 GB or 10 s of a processor.

A few inputs of each kind are tried with the other tests, many by ``make fuzz``. Each begins from a shipped file or from
a stored run, and is damaged in one to four places. What fails is shown with its edits, which are few.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mutations
import pytest
from attack import TOTALS, attack
from corpus import CONFIGS, EVERYTHING, KERNELS, LOGS, MATRICES, MODELS, ROOT, export_lines
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from shares import PARTS, inputs_of
from stored_runs import MATRIX

EVERY = list(HealthCheck)


def many(request: pytest.FixtureRequest, kind: str, *parts: st.SearchStrategy[Any]) -> Callable[[Any], None]:
    """Runs a function on as many inputs as are asked for; the same ones each time where they are few."""
    asked = bool(request.config.getoption("inputs"))
    chosen = settings(
        max_examples=inputs_of(request.config, kind),
        deadline=None,
        database=None,
        derandomize=not asked,
        suppress_health_check=EVERY,
        phases=[Phase.generate],
    )

    def run(tried: Callable[..., None]) -> None:
        def counted(drawn: tuple[Any, ...]) -> None:
            TOTALS.inputs[kind] += 1
            tried(*drawn)

        chosen(given(st.tuples(*parts))(counted))()

    return run


def text_of(path: Path) -> str:
    """A shipped file."""
    return path.read_text(encoding="utf-8")


def damaged(seeds: list[str]) -> st.SearchStrategy[bytes]:
    """A file that begins as one of the seeds."""
    return st.builds(
        lambda seed, text, some: mutations.edit_bytes(mutations.to_bytes(mutations.edit_text(seed, text)), some),
        st.sampled_from(seeds),
        mutations.TEXT_EDITS,
        mutations.BYTE_EDITS,
    )


def test_matrices(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """`plan` of a matrix."""
    seeds = [EVERYTHING, MATRIX, *(text_of(ROOT / "matrices" / f"{name}.yaml") for name in MATRICES)]

    def tried(content: bytes) -> None:
        (tmp_path / "matrix.yaml").write_bytes(content)
        attack(["plan", "matrix.yaml"], tmp_path)

    many(request, "matrix", damaged(seeds))(tried)


def test_kernel_cards(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A card in a folder of --cards; of a model too."""
    seeds = [text_of(ROOT / "kernels" / f"{name}.yaml").replace(name, "mine") for name in KERNELS]
    models = [text_of(ROOT / "matrices" / "models" / f"{name}.json").replace(name, "own") for name in MODELS]
    (tmp_path / "cards" / "models").mkdir(parents=True)
    matrix = EVERYTHING.replace("llama-3.1-8b", "own").partition("expect:")[0]
    (tmp_path / "matrix.yaml").write_text(matrix.replace('["*/fp16/full/*"]', "[]"))
    kernel, model = tmp_path / "cards" / "mine.yaml", tmp_path / "cards" / "models" / "own.json"

    def tried(content: bytes, other: bytes) -> None:
        kernel.write_bytes(content)
        model.write_bytes(other)
        attack(["plan", "matrix.yaml", "--cards", "cards", "--json"], tmp_path)

    many(request, "kernel", damaged(seeds), st.sampled_from([*map(str.encode, models)]) | damaged(models))(tried)


def test_configs(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """`model` of a config.json, and `plan` of the matrix that it writes."""
    structured = st.builds(mutations.edit_data, st.sampled_from(CONFIGS), mutations.DATA_EDITS).map(mutations.dumped)
    contents = structured.map(mutations.to_bytes) | damaged([json.dumps(config, indent=1) for config in CONFIGS])
    out = tmp_path / "out.yaml"

    def tried(content: bytes) -> None:
        (tmp_path / "config.json").write_bytes(content)
        out.unlink(missing_ok=True)
        if attack(["model", "config.json", "--matrix", "out.yaml"], tmp_path).code == 0:
            planned = attack(["plan", "out.yaml"], tmp_path)
            assert planned.code in {0, 3} or "limit" in planned.text or "more than" in planned.text, planned.text[:2000]

    many(request, "config", contents)(tried)


def test_waivers(request: pytest.FixtureRequest, tmp_path: Path, evidence: Path) -> None:
    """`waiver check` of a file, and the gate with it."""
    seeds = [text_of(evidence / "waivers.yaml")]

    def tried(content: bytes, gate: bool) -> None:
        (tmp_path / "waivers.yaml").write_bytes(content)
        attack(["waiver", "check", "waivers.yaml"], tmp_path)
        if gate:
            attack(["gate", "--db", str(evidence / "evidence.db"), "--waivers", "waivers.yaml"], tmp_path)

    many(request, "waivers", damaged(seeds), st.booleans())(tried)


def test_canaries(request: pytest.FixtureRequest, tmp_path: Path, evidence: Path) -> None:
    """`canary list` of a card."""
    seeds = [text_of(path).replace(path.stem, "mine") for path in sorted((ROOT / "canaries").glob("*.yaml"))]
    db = shutil.copy(evidence / "evidence.db", tmp_path / "evidence.db")
    (tmp_path / "cards").mkdir()

    def tried(content: bytes) -> None:
        (tmp_path / "cards" / "mine.yaml").write_bytes(content)
        attack(["canary", "explain", "mine", "--cards", "cards", "--db", str(db)], tmp_path)

    many(request, "canary", damaged(seeds))(tried)


def test_logs_of_requests(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """`traffic import` of a log."""
    cases = [damaged([text]).map(lambda content, name=name: (name, content)) for name, text in LOGS.items()]

    def tried(case: tuple[str, bytes]) -> None:
        name, content = case
        (tmp_path / name).write_bytes(content)
        (tmp_path / "out.yaml").unlink(missing_ok=True)
        attack(["traffic", "import", name, "--out", "out.yaml", "--json"], tmp_path)

    many(request, "log", st.one_of(cases))(tried)


def test_traffic(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """`plan` of a matrix with a file of traffic."""
    seeds = [text_of(path) for path in sorted((ROOT / "traffic").glob("*.yaml"))]
    matrix = "matrix: m\nmodels: [llama-3.1-8b]\ntraffic: t.yaml\ndtypes: bf16\nkernels: [tiled-torch]\n"
    (tmp_path / "matrix.yaml").write_text(matrix)

    def tried(content: bytes) -> None:
        (tmp_path / "t.yaml").write_bytes(content)
        attack(["plan", "matrix.yaml"], tmp_path)

    many(request, "traffic", damaged(seeds))(tried)


def test_exports(request: pytest.FixtureRequest, tmp_path: Path, evidence: Path) -> None:
    """`db import` of damaged records, of which every second one has the right digest, and the gate on what came in."""
    seed = export_lines(evidence / "run.jsonl.gz")
    empty = tmp_path / "empty.db"
    attack(["db", "upgrade", "--db", str(empty)], tmp_path)

    def tried(edits: list[Any], some: list[Any], signed: bool, then: list[str]) -> None:
        lines = mutations.edit_data(seed, edits)
        body = "".join(f"{json.dumps(line)}\n" for line in lines) if isinstance(lines, list) else json.dumps(lines)
        digest = hashlib.sha256(body.encode() if signed else b"").hexdigest()
        packed = gzip.compress(f'{body}{{"sha256":"{digest}"}}\n'.encode(), 1)
        (tmp_path / "run.jsonl.gz").write_bytes(mutations.edit_bytes(packed, some))
        db = shutil.copy(empty, tmp_path / "target.db")
        if attack(["db", "import", "run.jsonl.gz", "--db", str(db)], tmp_path).code == 0:
            attack([*then, "--db", str(db)], tmp_path)
            attack(["verify", "run.jsonl.gz"], tmp_path)

    few, then = st.just([]) | mutations.BYTE_EDITS, st.sampled_from(ON_STORES[:5])
    many(request, "export", mutations.DATA_EDITS, few, st.booleans(), then)(tried)


ON_STORES = (
    ["gate", "--format", "markdown"],
    ["gate", "--matrix", "serving.yaml", "--max-age", "9999d"],
    ["gate", "--against", "baseline"],
    ["report", "latest"],
    ["db", "export", "latest", "--out", "out.gz"],
    ["db", "export", "--duel", "latest", "--out", "out.gz"],
    ["verify", "latest"],
    ["verify", "duel-"],
    ["diff", "baseline", "latest"],
    ["baseline", "show", "serving"],
    ["canary", "list"],
    ["db", "prune", "--keep-days", "1", "--dry-run"],
)


def test_stores(request: pytest.FixtureRequest, tmp_path: Path, evidence: Path) -> None:
    """What reads evidence, on an SQLite file with other values, tables or bytes; the file is left as it is."""
    db = tmp_path / "evidence.db"
    shutil.copy(evidence / "serving.yaml", tmp_path)

    def tried(edits: list[Any], command: list[str]) -> None:
        for path in tmp_path.glob("evidence.db*"):
            path.unlink()
        shutil.copy(evidence / "evidence.db", db)
        mutations.edit_database(db, edits)
        before = db.read_bytes()
        attack([*command, "--db", "evidence.db"], tmp_path)
        assert before == db.read_bytes() or command[0] == "canary", f"{command} wrote into a damaged store"

    many(request, "database", mutations.DATABASE_EDITS, st.sampled_from(ON_STORES))(tried)


@pytest.mark.parametrize("value", [None, 7, -1.5, "x"], ids=repr)
def test_every_column_of_a_store(
    request: pytest.FixtureRequest, tmp_path: Path, evidence: Path, value: Any, part: int
) -> None:
    """One column after another has another value in all rows; with few inputs, NULL in every eighth, for a report."""
    asked = bool(request.config.getoption("inputs"))
    if not asked and value is not None:
        pytest.skip("make fuzz tries more values than NULL")
    db = tmp_path / "evidence.db"
    shutil.copy(evidence / "serving.yaml", tmp_path)
    for table, column in mutations.columns_of(evidence / "evidence.db")[part::PARTS]:
        shutil.copy(evidence / "evidence.db", db)
        mutations.edit_database(db, [("cell", table, column, value)])
        for command in ON_STORES if asked else (["report", "latest"],):
            attack([*command, "--db", "evidence.db"], tmp_path)


WORDS = (
    "plan", "gate", "report", "diff", "model", "schema", "db", "upgrade", "export", "import", "prune", "waiver",
    "check", "baseline", "accept", "list", "show", "traffic", "canary", "explain", "health", "smoke",
    "everything.yaml", "latest", "--db", "--json", "--cards", "--out", "--select", "--kernel", "--matrix", "--run",
    "--format", "--max-age", "--against", "--waivers", "--environment", "--stack", "--level", "--subject", "--name",
    "--batch", "--page-size", "--keep-days", "--by", "--reason", "--dry-run", "--version", "--help", "evidence.db",
    "run.jsonl.gz", "waivers.yaml", "pipe.yaml", "socket.yaml", "folder.yaml", "/dev/zero", "/dev/stdin", ".", "/",
    "-", "--", "=", "here", "junit", "24h", "9" * 30 + "d", "x=/bin/true", "x=", "a@sha256:" + "0" * 64, "nightly",
    "kernel", "matrix", "1", "-1", "postgresql:/u:secret@h/d", "sqlite://", "postgresql://u:secret@127.0.0.1:1/d",
    "verify", "--duel", "duel-", "nosuch://x", "hf://a/b@c", "*/decode/*", "[", "no/such/file",
)  # fmt: skip
STARTS = (
    ["plan", "everything.yaml"], ["gate", "--db", "evidence.db"], ["report", "latest", "--db", "evidence.db"],
    ["diff"], ["model"], ["waiver", "check"], ["db"], ["baseline"], ["traffic", "import"], ["canary"], ["schema"], [],
)  # fmt: skip


def test_command_lines(request: pytest.FixtureRequest, tmp_path: Path, evidence: Path) -> None:
    """Words of the command line in any order; none is a command that runs kernels or serves."""
    words = st.lists(st.sampled_from(WORDS) | st.sampled_from(mutations.WORDS) | st.text(max_size=8), max_size=6)
    (tmp_path / "everything.yaml").write_text(EVERYTHING)
    for name in ("evidence.db", "run.jsonl.gz", "waivers.yaml"):
        shutil.copy(evidence / name, tmp_path)
    for name in ("pipe.yaml", "socket.yaml", "folder.yaml"):
        (tmp_path / name).symlink_to(evidence / name)

    def tried(start: list[str], more: list[str]) -> None:
        arguments = [word.replace("\0", "").encode("utf-8", "replace").decode() for word in (*start, *more)]
        answer = attack(arguments, tmp_path)
        assert "secret" not in answer.text, answer.text[:2000]

    many(request, "command", st.sampled_from(STARTS), words)(tried)
