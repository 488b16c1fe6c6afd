"""`qualify check organisation/name` against a real server that speaks the hub's protocol, on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_process import Ended, call, environment
from hub_server import Hub, serve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "organisation/Some-Model"
CONFIG = json.dumps(
    {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 8}
).encode()
FOUND = f"model: {NAME}@{COMMIT}"
CACHED = f"{FOUND}, as the local cache has it: the hub gave no answer"


def serving(**changes: Any) -> Any:
    """A hub with one model, whose `main` is one commit."""
    return serve(Hub(files={(NAME, "main"): CONFIG, (NAME, COMMIT): CONFIG}, answers_with=COMMIT, **changes))


def check(folder: Path, url: str, model: str = NAME, **variables: str) -> Ended:
    """The check of a model. The backend has no kernel card, so that nothing runs once the model is found."""
    own = {
        "HF_HOME": str(folder / "hub"),
        "HF_ENDPOINT": url,
        "HF_TOKEN": "",
        "CUDA_VISIBLE_DEVICES": "",
        "NO_PROXY": "*",
    }
    words = ("check", model, "--engine", "transformers", "--backend", "eager")
    return call(*words, cwd=folder, env=environment(**own | variables))


@pytest.mark.parametrize("how", [{}, {"through_cache": True}, {"renamed": {"old/Some-Model": NAME}}])
def test_a_model_is_found_over_redirects(tmp_path: Path, how: dict[str, Any]) -> None:
    """Handed out by the hub, by the cache of the hub, and under a name that the model had before."""
    asked = next(iter(how["renamed"])) if "renamed" in how else NAME
    with serving(**how) as hub:
        ended = check(tmp_path, hub.url, asked)
    assert FOUND.replace(NAME, asked) == ended.err.splitlines()[0]
    assert all(line.endswith("config.json") for line in hub.asked)


def test_a_gated_model_needs_a_token(tmp_path: Path) -> None:
    """Without one the message says so, and with the wrong one; with the right one it is read. No message shows it."""
    with serving(token="hf_right") as hub:
        denied = [check(tmp_path, hub.url, HF_TOKEN=token) for token in ("", "hf_wrong")]
        taken = check(tmp_path, hub.url, HF_TOKEN="hf_right")
    for ended in denied:
        assert (4, "", 1) == (ended.code, ended.out, len(ended.err.splitlines()))
        assert "A gated or private model needs HF_TOKEN, or a login with `hf auth login`" in ended.err
        assert "hf_wrong" not in ended.err
    assert FOUND == taken.err.splitlines()[0]


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (401, "RepoNotFound", "Is the name right? A gated or private model needs HF_TOKEN"),
        (403, "", "Is the name right? A gated or private model needs HF_TOKEN"),
        (404, "RepoNotFound", "Check the name and the revision on the hub"),
        (404, "RevisionNotFound", "Check the name and the revision on the hub"),
        (404, "EntryNotFound", "The repository has no config.json: probably it holds adapters"),
        (429, "", "The hub limits how often this address may ask. Try again in some minutes, or set HF_TOKEN"),
        (500, "", "The hub has a fault. Try again later"),
        (503, "", "The hub has a fault. Try again later"),
    ],
)
def test_what_the_hub_refuses_is_one_line(tmp_path: Path, status: int, code: str, said: str) -> None:
    """Exit 4 with the model, the hub's address and status, and what to do; nothing is stored."""
    with serving(status=status, code=code) as hub:
        ended = check(tmp_path, hub.url)
        url = hub.url
    assert (4, "", 1) == (ended.code, ended.out, len(ended.err.splitlines())), ended.err
    assert ended.err.startswith(f"qualify: {NAME}: {url} says: ")
    assert f"{status}" in ended.err
    assert said in ended.err
    assert not (tmp_path / ".qualify").exists()


@pytest.mark.parametrize("status", [429, 503])
def test_the_cache_answers_for_a_hub_that_cannot(tmp_path: Path, status: int) -> None:
    """The commit of the last time, and the first line says so; a hub that refuses the model is believed instead."""
    with serving() as hub:
        check(tmp_path, hub.url)
        hub.status = status
        cached = check(tmp_path, hub.url)
        hub.status = 403
        refused = check(tmp_path, hub.url)
    assert CACHED == cached.err.splitlines()[0]
    assert (4, True) == (refused.code, "needs HF_TOKEN" in refused.err)


def test_a_commit_that_is_cached_needs_no_hub(tmp_path: Path) -> None:
    """`name@commit` is read offline; another one is not there, and the message says what helps."""
    with serving() as hub:
        check(tmp_path, hub.url, f"{NAME}@{COMMIT}")
    there = check(tmp_path, "http://127.0.0.1:9", f"{NAME}@{COMMIT}", HF_HUB_OFFLINE="1")
    absent = check(tmp_path, "http://127.0.0.1:9", f"{NAME}@{'f' * 40}", HF_HUB_OFFLINE="1")
    assert CACHED == there.err.splitlines()[0]
    assert (4, True) == (absent.code, "HF_HUB_OFFLINE forbids a download" in absent.err)
