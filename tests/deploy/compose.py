"""The services of docker-compose.yml as processes of this machine: real commands, real environment, other places."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli_process import Begun, Ended, call, environment
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = YAML(typ="safe").load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DEFAULT = re.compile(r"\$\{[A-Z_]+:-([^}]*)\}")


class Machine:
    """Runs services in a folder, with what the containers would find elsewhere replaced."""

    def __init__(self, folder: Path, places: Mapping[str, str]) -> None:
        self.folder = folder
        self._places = places
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def words(self, service: str, given: list[str]) -> list[str]:
        """A command of the service as this machine runs it: Python, or the arguments of qualify.

        Without ``CMD`` they are those of what the images' entry point names.
        """
        words = [self._here(word) for word in given]
        if words[0] == "CMD":
            words = words[1:]
            if words[0] == "python":
                return [sys.executable, *words[1:]]
            assert words[0] == "qualify", f"{service}: {words[0]} is not in the image"
            words = words[1:]
        return words

    def environment(self, service: str) -> dict[str, str]:
        """That of the compose file."""
        given = {name: self._here(value) for name, value in SERVICES[service]["environment"].items()}
        return environment(**given, HOOK_KEY=os.environ.get("HOOK_KEY", ""))

    def call(self, service: str, given: list[str]) -> Ended:
        """One command of the service, to its end."""
        words, env = self.words(service, given), self.environment(service)
        if words[0] != sys.executable:
            return call(*words, cwd=self.folder, env=env)
        done = subprocess.run(words, env=env, cwd=self.folder, capture_output=True, text=True, check=False)
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr)

    def start(self, service: str) -> None:
        """The service's own command."""
        log = (self.folder / f"{service}.log").open("w")
        with log:
            self.processes[service] = Begun(
                *self.words(service, SERVICES[service]["command"]),
                env=self.environment(service),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                text=True,
            )

    def healthy(self, service: str) -> bool:
        """What the service's health check says."""
        return 0 == self.call(service, SERVICES[service]["healthcheck"]["test"]).code

    def log(self, service: str) -> str:
        """What it said."""
        return (self.folder / f"{service}.log").read_text()

    def stop(self) -> dict[str, int]:
        """Ends every service as the engine does, and says how each ended."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        try:
            return {name: process.wait(60) for name, process in self.processes.items()}
        finally:
            for process in self.processes.values():
                process.kill()

    def _here(self, text: str) -> str:
        text = DEFAULT.sub(r"\1", text)
        for there, here in self._places.items():
            text = text.replace(there, here)
        return text
