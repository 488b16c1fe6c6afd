"""A hook of mkdocs: adds pages of the repository's root to the site, and replaces links to other files by their paths.

::

    CHANGELOG.md, CONTRIBUTING.md, SECURITY.md ── pages of the site
    link to a page of docs/ or of the root ────── link within the site
    link to any other file of the repository ──── its path, without a link

A site of static files does not know the address of the repository, so it has no links to it.
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
    """Add the pages of the repository's root to the site."""
    root = posixpath.dirname(config.docs_dir)
    for name in ROOT_PAGES:
        with open(posixpath.join(root, name), encoding="utf-8") as page:  # noqa: PTH123
            files.append(File.generated(config, name, content=page.read()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """The text of a page, with links that work within the site."""
    folder = "" if page.file.src_uri in ROOT_PAGES else "docs"
    here = posixpath.join(folder, posixpath.dirname(page.file.src_uri))
    return LINK.sub(lambda match: linked(match, here, page.file.src_uri), markdown)


def linked(match: re.Match[str], here: str, source: str) -> str:
    """A link as the site needs it.

    Args:
        here: folder of the page, relative to the repository's root.
        source: path of the page.
    """
    words, target, anchor = match[1], match[2], match[3] or ""
    path = posixpath.normpath(posixpath.join(here, target))
    inside = path.removeprefix("docs/")
    if inside == path and path not in ROOT_PAGES:
        return f"{words} (`{path}` in the repository)"
    return f"[{words}]({posixpath.relpath(inside, posixpath.dirname(source) or '.')}{anchor})"
