"""hf:// against a real server that has the hub's routes, in a process of its own: the endpoint is read at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hub_server import Hub, serve

from qualify.cards.config.hub import fetch
from qualify.errors import InfrastructureError, UsageError

ROOT = Path(__file__).resolve().parents[3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}


def run(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``qualify model`` with a cache of its own and nothing of the caller's settings for the hub."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    own = {"PYTHONPATH": str(ROOT), "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-m", "qualify", "model", *arguments]
    return subprocess.run(
        command, env=kept | own | environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def hub() -> Any:
    """A hub with one model."""
    with serve(Hub(files={("organisation/Some-Model", COMMIT): json.dumps(CONFIG).encode()})) as served:
        yield served


def test_a_config_is_downloaded_pinned_and_then_found_offline(hub: Hub, tmp_path: Path) -> None:
    """Only config.json of that commit is asked for; the second time the server is not needed."""
    reference = f"hf://organisation/Some-Model@{COMMIT}"
    done = run(tmp_path, reference, "--json", HF_ENDPOINT=hub.url)
    assert 0 == done.returncode, done.stderr
    first = json.loads(done.stdout)
    assert ("some-model", "organisation/Some-Model", COMMIT, 2) == (
        first["model"],
        first["hub"],
        first["revision"],
        first["layers"],
    )
    path = f"/organisation/Some-Model/resolve/{COMMIT}/config.json"
    assert {f"HEAD {path}", f"GET {path}"} == set(hub.asked)
    hub.asked.clear()
    again = run(tmp_path, reference, "--json", HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert (0, first, []) == (again.returncode, json.loads(again.stdout), hub.asked)


def test_the_matrix_of_a_hub_model_is_pinned(hub: Hub, tmp_path: Path) -> None:
    """Repository, commit and hash stand in the matrix."""
    out = tmp_path / "out.yaml"
    done = run(tmp_path, f"hf://organisation/Some-Model@{COMMIT}", "--matrix", str(out), "--json", HF_ENDPOINT=hub.url)
    text = out.read_text()
    assert all(part in text for part in ("organisation/Some-Model", COMMIT, json.loads(done.stdout)["content_hash"]))


def test_offline_without_a_cached_config_says_so(tmp_path: Path) -> None:
    """The cache was asked, and what would help is named."""
    done = run(tmp_path, f"hf://organisation/Some-Model@{COMMIT}", HF_HUB_OFFLINE="1")
    assert (4, "") == (done.returncode, done.stdout)
    told = "config.json is not in the cache, and HF_HUB_OFFLINE forbids a download. Unset HF_HUB_OFFLINE, or give the"
    assert f"{told} path of a config.json\n" in done.stderr


@pytest.mark.slow
def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    """The endpoint is named after the library's retries (some 20 s), without a traceback."""
    done = run(tmp_path, f"hf://organisation/Some-Model@{COMMIT}", HF_ENDPOINT="http://127.0.0.1:9")
    last = done.stderr.strip().splitlines()[-1]
    assert (4, "", False) == (done.returncode, done.stdout, "Traceback" in done.stderr)
    assert "config.json is neither in the cache nor available from http://127.0.0.1:9" in last


@pytest.mark.parametrize(
    ("name", "commit", "status", "expected"),
    [
        ("organisation/Some-Model", "f" * 40, 200, "Check the name and the revision on the hub"),
        ("organisation/Other", COMMIT, 200, "Check the name and the revision on the hub"),
        ("organisation/Some-Model", COMMIT, 403, "HF_TOKEN"),
        ("organisation/Some-Model", COMMIT, 500, "Try again later"),
    ],
)
def test_what_the_hub_refuses(hub: Hub, tmp_path: Path, name: str, commit: str, status: int, expected: str) -> None:
    """An unknown commit or repository, a gated one, and a broken hub: one line, with what to do next."""
    hub.status = status
    done = run(tmp_path, f"hf://{name}@{commit}", HF_ENDPOINT=hub.url)
    assert (4, "") == (done.returncode, done.stdout)
    assert f"hf://{name}@{commit}" in done.stderr
    assert expected in done.stderr
    assert 1 == len(done.stderr.strip().splitlines()), done.stderr


def test_without_its_library_the_machine_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 4, as wherever something must be installed, and the command that does it."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InfrastructureError, match=r"not installed .* pip install 'attn-qualify\[models\]'"):
        fetch(f"hf://acme/llama@{40 * '0'}")


def test_another_commit_than_the_asked_one_is_not_read(hub: Hub, tmp_path: Path) -> None:
    """A server that answers with its newest commit instead."""
    hub.answers_with = "e" * 40
    done = run(tmp_path, f"hf://organisation/Some-Model@{COMMIT}", HF_ENDPOINT=hub.url)
    assert (4, "") == (done.returncode, done.stdout)
    assert f"answered with commit {'e' * 40}; nothing was read" in done.stderr


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("hf://organisation/name@main", "'main' is no commit but a branch, a tag or a short hash, which can move"),
        ("hf://organisation/name@v1.0", "'v1.0' is no commit"),
        (f"hf://organisation/name@{COMMIT[:12]}", "is no commit"),
        (f"hf://organisation/name@{COMMIT.upper()}", "is no commit"),
        (f"hf://organisation/name@{COMMIT}0", "is no commit"),
        (f"hf://organisation/name@{COMMIT}\n", "is no model on the hub"),
        ("hf://organisation/name", "has no revision, so tomorrow it may be another model"),
        ("hf://organisation/name@", "has no revision"),
        (f"hf://name@{COMMIT}", "is no model on the hub"),
        (f"hf://a/b/c@{COMMIT}", "is no model on the hub"),
        (f"hf://../etc@{COMMIT}", "is no model on the hub"),
        ("hf://", "is no model on the hub"),
    ],
)
def test_references_that_are_not_pinned_are_refused(reference: str, expected: str) -> None:
    """Before anything is asked, and with the form that is right."""
    with pytest.raises(UsageError) as caught:
        fetch(reference)
    assert expected in str(caught.value)
    assert "write hf://organisation/name@REVISION with the 40 hex digits of a commit" in str(caught.value)
