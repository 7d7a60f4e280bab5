"""The site of the documentation: what mkdocs.yml lists, and that both of its tools build it without a warning."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token
from support.programs import python

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PARSER = MarkdownIt("commonmark").enable("table")


class Configuration(yaml.SafeLoader):
    """YAML whose own tags, for variables and functions, are None."""


Configuration.add_multi_constructor("!", lambda *_: None)
Configuration.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


@cache
def tokens(page: Path) -> list[Token]:
    return PARSER.parse(page.read_text(encoding="utf-8"))


def configuration() -> dict[str, Any]:
    found = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Configuration)  # noqa: S506 - a safe loader
    assert isinstance(found, dict)
    return found


def listed(entry: object) -> Iterator[str]:
    """The pages of an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict | list):
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from listed(each)


def test_the_navigation_lists_every_page_once() -> None:
    assert sorted(listed(configuration()["nav"])) == [name_of(page) for page in PAGES]


def test_the_site_needs_no_plugin_but_the_search_and_no_font_of_another_host() -> None:
    assert configuration()["plugins"] == ["search"]
    assert configuration()["theme"]["font"] is False


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_stays_within_the_site(page: Path) -> None:
    hrefs = [
        str(child.attrs.get("href", child.attrs.get("src", "#")))
        for token in tokens(page)
        for child in token.children or []
    ]
    paths = [href.partition("#")[0] for href in hrefs if not re.match(r"[a-z]+:", href)]
    assert [path for path in paths if not (page.parent / path).resolve().is_relative_to(DOCS)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_anchor_of_a_page_is_unique(page: Path) -> None:
    """For the second of two equal headings GitHub and the site make different anchors."""
    parsed = tokens(page)
    titles = [parsed[i + 1].content.lower() for i, token in enumerate(parsed) if token.type == "heading_open"]
    assert len(set(titles)) == len(titles)


def test_every_page_begins_with_its_title() -> None:
    assert all(page.read_text(encoding="utf-8").startswith("# ") for page in PAGES)


def parts(html: str) -> dict[str, int]:
    """How many of each kind of block a page has."""
    return {tag: len(re.findall(rf"<{tag}[ >]", html)) for tag in ("li", "pre", "table", "h2", "h3", "img")}


@pytest.mark.parametrize("tool", ["mkdocs", "zensical"])
def test_the_site_is_built_without_a_warning_and_shows_the_blocks_that_github_shows(tool: str, tmp_path: Path) -> None:
    pytest.importorskip("material" if tool == "mkdocs" else tool)
    shutil.copytree(DOCS, tmp_path / "docs")
    for name in ("mkdocs.yml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "site" / "0.0.9").mkdir(parents=True)
    done = python(tmp_path / "docs" / "build_site.py", "--with", tool, "--version", "0.0.10", NO_COLOR="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    site = tmp_path / "site"
    assert [row["version"] for row in json.loads((site / "versions.json").read_text())] == ["0.0.10", "0.0.9"]
    assert "url=0.0.10/" in (site / "index.html").read_text()
    assert not (site / "0.0.10" / "dashboard_pictures").exists()
    for page in PAGES:
        path = page.relative_to(DOCS).with_suffix("")
        built = site / "0.0.10" / (path.parent if path.name == "index" else path) / "index.html"
        (article,) = re.findall(r"<article.*</article>", built.read_text(encoding="utf-8"), re.DOTALL)
        assert parts(article) == parts(PARSER.renderer.render(tokens(page), PARSER.options, {})), name_of(page)
