"""The container image that this process runs in. The first of these sources that answers counts.

::

    QUALIFY_IMAGE with a digest     taken as it is
    /run/.containerenv              podman writes the image's id there
    the pod's status                Kubernetes, where the service account may read its own pod
    QUALIFY_IMAGE with a tag        the last resort, because a tag can be moved to another image

Docker and containerd do not tell a process which image it runs in, so there the deployment must set QUALIFY_IMAGE.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import urllib.request
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

IMAGE = "QUALIFY_IMAGE"
"""variable in which a deployment names the image"""
CONTAINER = "QUALIFY_CONTAINER"
"""variable that names the container of the pod, where it has several"""
PODMAN = Path("/run/.containerenv")
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ASK_S = 3.0
"""most seconds to wait for the cluster's answer"""
ANSWER_BYTES = 4 << 20
_DIGEST = re.compile(r"@?sha256:[0-9a-f]{64}$")
_PODMAN = re.compile(r'^(image|imageid)="([^"]*)"$', re.MULTILINE)


def image() -> str:
    """Name and digest of the image; empty where no source names one."""
    said = os.environ.get(IMAGE, "")
    return said if _DIGEST.search(said) else _running() or said


@cache
def _running() -> str:
    """The image that the runtime names. It is read once, because a process never changes its image."""
    return from_podman(PODMAN) or from_kubernetes(os.environ, ACCOUNT)


def from_podman(path: Path) -> str:
    """``NAME@sha256:ID`` from podman's file; empty where the file is missing or empty."""
    try:
        told = dict(_PODMAN.findall(path.read_text()))
    except (OSError, UnicodeDecodeError):
        return ""
    identity = told.get("imageid", "").removeprefix("sha256:")
    return f"{told.get('image', '')}@sha256:{identity}" if identity else ""


def from_kubernetes(variables: Mapping[str, str], account: Path) -> str:
    """The image of this container from the status of its pod; empty where the cluster does not tell.

    Args:
        variables: environment variables of the process.
        account: folder with token, certificate authority and namespace of the service account.
    """
    host, pod = variables.get("KUBERNETES_SERVICE_HOST", ""), variables.get("HOSTNAME", "")
    if not host or not pod:
        return ""
    port = variables.get("KUBERNETES_SERVICE_PORT_HTTPS", "443")
    try:
        namespace, token = ((account / name).read_text().strip() for name in ("namespace", "token"))
        named = f"[{host}]" if ":" in host else host
        address = f"https://{named}:{port}/api/v1/namespaces/{namespace}/pods/{pod}"
        request = urllib.request.Request(address, headers={"authorization": f"Bearer {token}"})
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
        # A proxy would not reach the cluster's internal address.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=ASK_S) as answer:
            status = json.loads(answer.read(ANSWER_BYTES))["status"]["containerStatuses"]
        return _image_of(status, variables.get(CONTAINER, ""))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""


def _image_of(statuses: list[Any], container: str) -> str:
    """The digest of the named container, or of the only one."""
    chosen = [item for item in statuses if item["name"] == container] if container else statuses
    if len(chosen) != 1:
        return ""
    identity = str(chosen[0]["imageID"]).partition("://")[2] or str(chosen[0]["imageID"])
    return identity if _DIGEST.search(identity) else ""
