"""A Sigstore instance on this machine, and the seal that it gave once.

The instance is `seal/sigstore_instance.mjs`. It needs node and a folder in which `npm install @sigstore/mock` was done;
QUALIFY_TEST_SIGSTORE names that folder. The recorded seal needs neither. This records it again:

    QUALIFY_TEST_SIGSTORE=FOLDER python tests/keyless.py
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qualify.facts.seal import Seal
from qualify.seal.keyless import TRUST_CONFIG
from qualify.seal.keys import PUBLIC_KEY, SIGNING_KEY, signing_key
from qualify.seal.parts import digest_of, parts_of
from qualify.seal.sealed import make_seal

FOLDER = os.environ.get("QUALIFY_TEST_SIGSTORE", "")
INSTANCE = Path(__file__).parent / "seal" / "sigstore_instance.mjs"
RECORDED = Path(__file__).parent / "seal" / "recorded_keyless.json"
ME = {"identity": "https://ci.example/runner", "issuer": "https://issuer.example"}
"""whom a token of the instance names unless asked for another"""
LINES: list[dict[str, Any]] = [{"case": {"id": "c"}}, {"of": 0, "outcome": {"latency_us": 2.5}}, {"run": {"id": "r"}}]


@contextmanager
def instance(trust: Path) -> Iterator[str]:
    """Serves; gives the address, and writes the client's trust configuration to that file."""
    command = ["node", str(INSTANCE), str(trust)]
    with subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def as_a_job(patch: pytest.MonkeyPatch, url: str, trust: Path, identity: Path) -> None:
    """This process signs as a job of GitHub Actions, whose tokens come from the instance."""
    identity.write_text(json.dumps(ME))
    patch.setenv("GITHUB_ACTIONS", "true")
    patch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of the job")
    patch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{url}/token")
    patch.setenv(TRUST_CONFIG, str(trust))
    patch.setenv(SIGNING_KEY, "sigstore:")
    patch.setenv(PUBLIC_KEY, str(identity))


def new_seal() -> Seal:
    """The lines, sealed by the key that the environment names."""
    key = signing_key()
    assert key
    return make_seal("r", "completed", digest_of(LINES), parts_of(LINES), key)


def record(folder: Path) -> None:
    """Writes what an instance of now gives."""
    trust = folder / "trust.json"
    with instance(trust) as url, pytest.MonkeyPatch.context() as patch:
        as_a_job(patch, url, trust, folder / "me.json")
        seal = new_seal()
    data = {"trust": json.loads(trust.read_text()), "envelope": seal.envelope, "parts": seal.parts}
    RECORDED.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        record(Path(made))
