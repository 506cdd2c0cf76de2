"""Hooks of mkdocs for the documentation site.

README.md is the home page and CHANGELOG.md the page of changes. The decisions in docs/adr are added to the navigation.
Links to files outside docs, such as examples, become links to the repository.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_GENERATED = {"index.md": "README.md", "changes.md": "CHANGELOG.md"}
"""Pages that are made of files in the root of the repository."""

_LINK = re.compile(r"(\]\(|src=\")([^)\s\"#]*)((?:#[^)\s\"]*)?[)\"])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = _slug
    decisions = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert config.nav is not None
    config.nav.append({"Decisions": [{_title(page): f"adr/{page.name}"} for page in decisions]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, source in _GENERATED.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt the links of a page to the site."""
    source = _GENERATED.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def adapted(found: re.Match[str]) -> str:
        before, link, after = found.groups()
        if not link or "://" in link or link.startswith("mailto:"):
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        inside = target.removeprefix("docs/")
        shown = next((name for name, source in _GENERATED.items() if source == target), inside)
        file = files.get_file_from_path(shown)
        if file is not None and file.inclusion.is_included():
            return f"{before}{posixpath.relpath(shown, posixpath.dirname(page.file.src_uri) or '.')}{after}"
        if not (ROOT / target).exists():
            raise PluginError(f"{source}: {link} does not exist")
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{before}{config.repo_url}/{kind}/main/{target}{after}"

    return _outside_code(_LINK, adapted, markdown)


def _outside_code(pattern: "re.Pattern[str]", replace: Any, markdown: str) -> str:
    """Replace in the text of a page, and leave its blocks of code as they are."""
    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if index % 2 else pattern.sub(replace, part) for index, part in enumerate(parts))


def _slug(title: str, separator: str) -> str:
    """Return the anchor of a title, as on the pages of the repository."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def _title(page: Path) -> str:
    return page.read_text().partition("\n")[0].lstrip("# ")
