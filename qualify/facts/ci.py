"""The CI servers for which ``qualify init`` writes a file."""

from __future__ import annotations

from typing import Literal

Ci = Literal["github", "gitlab", "jenkins", "none"]
