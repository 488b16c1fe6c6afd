"""A hook of mkdocs: takes the pages of the repository's root into the site, and turns links to other files into names.

::

    CHANGELOG.md, CONTRIBUTING.md, SECURITY.md ── pages of the site
    link to a page of docs/ or of the root ────── link within the site
    link to any other file of the repository ──── its path, without a link

A site of static files does not know where the repository lies, so nothing links there.
"""

from __future__ import annotations

import posixpath
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root."""
    root = posixpath.dirname(config.docs_dir)
    for name in ROOT_PAGES:
        with open(posixpath.join(root, name), encoding="utf-8") as page:  # noqa: PTH123
            files.append(File.generated(config, name, content=page.read()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """The text of a page with links that hold within the site."""
    folder = "" if page.file.src_uri in ROOT_PAGES else "docs"
    here = posixpath.join(folder, posixpath.dirname(page.file.src_uri))
    return LINK.sub(lambda match: linked(match, here, page.file.src_uri), markdown)


def linked(match: re.Match[str], here: str, source: str) -> str:
    """A link of a page in the folder ``here``, counted from the repository's root, as the site needs it."""
    words, target, anchor = match[1], match[2], match[3] or ""
    path = posixpath.normpath(posixpath.join(here, target))
    inside = path.removeprefix("docs/")
    if inside == path and path not in ROOT_PAGES:
        return f"{words} (`{path}` in the repository)"
    return f"[{words}]({posixpath.relpath(inside, posixpath.dirname(source) or '.')}{anchor})"
