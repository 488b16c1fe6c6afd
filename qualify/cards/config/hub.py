"""``hf://organisation/name@revision``: only config.json, only at a pinned commit, through huggingface_hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qualify.errors import InfrastructureError, UsageError
from qualify.text import first_line, one_line

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

SCHEME = "hf://"
FILE = "config.json"
PART = r"\w(?:[\w.-]*\w)?"
"""the organisation or the name: the hub allows no dot or dash at their ends, which a path such as ``./model`` has"""
REFERENCE = re.compile(rf"(?P<repository>{PART}/{PART})(@(?P<revision>.*))?", re.ASCII)
ADDRESS = re.compile(r"https?://[^/]+/(?P<repository>[\w.-]+/[\w.-]+)([/?#].*)?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
OFFLINE = "the cache (HF_HUB_OFFLINE is set)"
LONGEST = 200
"""characters of the hub's own message that are shown"""
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
        UsageError: not of the form ``hf://organisation/name@<40 hex digits>``.
        InfrastructureError: no such repository, revision or file, no access, no network, not in the cache, or no
            huggingface_hub.
    """
    repository, revision = _parsed(reference)
    path = _download(reference, repository, revision)
    if path.parent.name != revision:
        where = _endpoint(reference)
        raise InfrastructureError(f"{reference}: {where} answered with commit {path.parent.name}; nothing was read")
    return HubConfig(repository=repository, revision=revision, path=path)


def is_repository(typed: str) -> bool:
    """Whether it is written like a repository of the hub: organisation/name, or organisation/name@revision.

    What ends in ``.json`` is the path of a config.
    """
    return not typed.endswith(".json") and bool(REFERENCE.fullmatch(typed.removeprefix(SCHEME)))


def repository_at(address: str) -> str:
    """organisation/name of a model whose page on the hub has that web address; empty where it is no such address."""
    match = ADDRESS.fullmatch(address)
    return match["repository"] if match else ""


def latest(typed: str) -> tuple[HubConfig, bool]:
    """The commit that a branch or tag means now, ``main`` where none is given; and whether the hub itself said so.

    Without an answer of the hub the cache says which commit that name meant when it was last downloaded.

    Raises:
        UsageError: not of the form ``organisation/name`` or ``organisation/name@revision``.
        InfrastructureError: no such repository, revision or file, no access, neither network nor cache, or no
            huggingface_hub.
    """
    match = REFERENCE.fullmatch(typed.removeprefix(SCHEME))
    if match is None:
        raise UsageError(f"{typed}: is no model on the hub; write organisation/name, or organisation/name@revision")
    repository, revision = match["repository"], match["revision"] or "main"
    offline = _endpoint(typed) == OFFLINE
    try:
        path, asked = _download(typed, repository, revision, anew=not offline), not offline
    except _Unreachable as failed:
        path, asked = _cached(typed, repository, revision, failed), False
    return HubConfig(repository=repository, revision=path.parent.name, path=path), asked


class _Unreachable(InfrastructureError):
    """The hub does not answer, is too busy, or has a fault; the cache may have its earlier answer."""


def _cached(typed: str, repository: str, revision: str, failed: _Unreachable) -> Path:
    """The file as the cache has it. Where the cache has nothing, raises the error of the hub."""
    try:
        return _download(typed, repository, revision, cached=True)
    except _Unreachable:
        raise failed from None


def _endpoint(reference: str) -> str:
    """The address of the hub, or what stands in its place.

    Raises:
        InfrastructureError: huggingface_hub is not installed.
    """
    # The library reads this when it is imported. With telemetry it would ask the endpoint for more than the file.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import constants  # noqa: PLC0415  # optional: extra `models`
    except ImportError as error:
        raise InfrastructureError(f"{reference}: huggingface_hub is not installed ({error}). Next: {INSTALL}") from None
    return OFFLINE if constants.HF_HUB_OFFLINE else constants.ENDPOINT


def _download(reference: str, repository: str, revision: str, *, anew: bool = False, cached: bool = False) -> Path:
    """The file in the cache.

    Args:
        anew: ask the hub, whatever the cache has.
        cached: ask the cache only.
    """
    where = _endpoint(reference)
    from huggingface_hub import hf_hub_download  # noqa: PLC0415  # optional: extra `models`

    try:
        return Path(hf_hub_download(repository, FILE, revision=revision, force_download=anew, local_files_only=cached))
    except (OSError, ValueError) as error:  # the library's errors are of these kinds, and a full disk is one, too
        raise _refused(reference, where, error) from None


def _refused(reference: str, where: str, error: Exception) -> InfrastructureError:
    """What an error of the library means: the answer of the hub where there was one, else that nobody answered."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415  # optional, as above

    causes = (error, error.__cause__)
    answer = next((each for each in causes if isinstance(each, HfHubHTTPError)), None)
    if answer is not None:
        status = answer.response.status_code
        told = f"{reference}: {where} says: {_said(answer, status)}. {_next(answer, status)}"
        return _Unreachable(told) if status == 429 or status >= 500 else InfrastructureError(told)
    if where == OFFLINE:
        told = f"{FILE} is not in the cache, and HF_HUB_OFFLINE forbids a download. Unset HF_HUB_OFFLINE, or give the"
        return _Unreachable(f"{reference}: {told} path of a {FILE}")
    if isinstance(error, LocalEntryNotFoundError) or error.__cause__:
        told = f"{FILE} is neither in the cache nor available from {where}: {_first(error.__cause__)}"
        return _Unreachable(f"{reference}: {told}. This machine is probably offline; the path of a {FILE} needs no hub")
    return _Unreachable(f"{reference}: cannot be downloaded from {where}: {_first(error)}")


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
    return first_line(error).rstrip(".") if error else "no reason given"


def _said(answer: HfHubHTTPError, status: int) -> str:
    """The status of an answer in words, and the hub's own message where it gave one."""
    words = f"{status} {one_line(answer.response.reason_phrase)[:LONGEST]}".rstrip()
    own = one_line(answer.server_message or "")[:LONGEST].rstrip(".")
    return f"{words}: {own}" if own else words


def _next(answer: HfHubHTTPError, status: int) -> str:
    """What to do after an answer of the hub that brought no file."""
    if status in {401, 403}:
        return "Is the name right? A gated or private model needs HF_TOKEN, or a login with `hf auth login`"
    if status == 404 and answer.response.headers.get("X-Error-Code") == "EntryNotFound":
        return f"The repository has no {FILE}: probably it holds adapters or quantized weights. Name its base model"
    if status == 404:
        return "Check the name and the revision on the hub"
    if status == 429:
        return "The hub limits how often this address may ask. Try again in some minutes, or set HF_TOKEN"
    if status >= 500:
        return f"The hub has a fault. Try again later, or give the path of a {FILE}"
    return f"Give the path of a {FILE}"
