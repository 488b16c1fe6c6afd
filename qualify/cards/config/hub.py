"""``hf://organisation/name@revision``: only config.json, only at a pinned commit, through huggingface_hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from qualify.errors import InfrastructureError, UsageError

SCHEME = "hf://"
FILE = "config.json"
REFERENCE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>.*))?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
INSTALL = "pip install 'attn-qualify[models]'"


@dataclass(frozen=True, kw_only=True, slots=True)
class HubConfig:
    """A downloaded config.json."""

    repository: str
    """organisation/name"""
    revision: str
    """40 hex digits"""
    path: Path
    """in the cache of huggingface_hub"""


def is_hub(config: str) -> bool:
    """Whether the argument means the hub."""
    return config.startswith(SCHEME)


def fetch(reference: str) -> HubConfig:
    """Download or find in the cache. The endpoint is ``HF_ENDPOINT``; ``HF_HUB_OFFLINE=1`` asks the cache only.

    Raises:
        UsageError: not of the form ``hf://organisation/name@<40 hex digits>``, or huggingface_hub is not installed.
        InfrastructureError: no such repository, revision or file, no access, no network, or not in the cache.
    """
    repository, revision = _parsed(reference)
    # Read when the library is imported; with telemetry it would ask the endpoint for more than the file.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import constants, hf_hub_download  # noqa: PLC0415  # optional: extra `models`
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415  # likewise
    except ImportError as error:
        raise UsageError(f"{reference}: huggingface_hub is not installed ({error}). Next: {INSTALL}") from None
    where = "the cache (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else constants.ENDPOINT
    try:
        path = Path(hf_hub_download(repository, FILE, revision=revision))
    except LocalEntryNotFoundError as error:
        offline = constants.HF_HUB_OFFLINE
        cause = "; unset HF_HUB_OFFLINE to download it" if offline else f": {_first(error.__cause__)}"
        message = f"{reference}: {FILE} is neither in the cache nor to be had from {where}{cause}"
        raise InfrastructureError(message) from None
    except HfHubHTTPError as error:
        raise InfrastructureError(f"{reference}: {where} says: {_first(error)}. {_next(error)}") from None
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"{reference}: cannot be had from {where}: {_first(error)}") from None
    if path.parent.name != revision:
        raise InfrastructureError(f"{reference}: {where} answered with commit {path.parent.name}; nothing was read")
    return HubConfig(repository=repository, revision=revision, path=path)


def _parsed(reference: str) -> tuple[str, str]:
    match = REFERENCE.fullmatch(reference.removeprefix(SCHEME))
    form = f"write {SCHEME}organisation/name@REVISION with the 40 hex digits of a commit"
    if match is None:
        raise UsageError(f"{reference}: is no model on the hub; {form}")
    revision = match["revision"]
    if not revision:
        raise UsageError(f"{reference}: has no revision, so tomorrow it may be another model; {form}")
    if not COMMIT.fullmatch(revision):
        raise UsageError(
            f"{reference}: {revision!r} is no commit but a branch, a tag or a short hash, which can move; {form} (the "
            f"history of {match['repository']} on the hub shows them, in lower case)"
        )
    return match["repository"], revision


def _first(error: BaseException | None) -> str:
    """The first line of what a library said."""
    text = str(error or "no reason given").strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def _next(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in {401, 403}:
        return "Is the name right? A gated or private model needs HF_TOKEN, or a login with `hf auth login`"
    if status == 404:
        return "Check the name and the commit on the hub"
    return "Try again later, or give the path of a config.json"
