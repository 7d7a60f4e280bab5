"""The pages of migration: every name in their column "here" exists, with its labels, groups, options and arguments."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import promql_parser
import pytest
from markdown_it import MarkdownIt
from support.names import resolve

from gpu_profile.catalogue import DEFAULT_GROUPS, GROUPS, METRICS, Metric
from gpu_profile.catalogue.metric import label
from gpu_profile.cli import commands
from gpu_profile_exporter.cli import exporter

FOLDER = Path(__file__).parents[2] / "docs" / "migration"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "index.md")
PARSER = MarkdownIt("commonmark").enable("table")
OF_SERIES = {metric.prometheus: metric for metric in METRICS}
#: Words that both tools have: a label, words of `backend=`, the end of a file's name.
WORDS = {
    "region",
    "simulated",
    "replay:DIR",
    "node",
    ".pftrace",
    "device",
    "interval_s",
    "backend",
    "strict",
    "sync_fn",
}
WORDS |= {"warmup_s", "report", "return_profile"}


def rows(page: Path) -> Iterator[tuple[str, list[str], str]]:
    """Of each row: the cell of the other tool, the pieces of code in ours, and the group."""
    cells: list[list[str]] = []
    for before, token in zip([None, *(tokens := PARSER.parse(page.read_text(encoding="utf-8")))], tokens, strict=False):
        if token.type == "tr_open":
            cells.append([])
        elif token.type == "inline" and before is not None and before.type == "td_open":
            cells[-1] += [token.content]
    for cell in filter(None, cells):
        yield cell[0], re.findall(r"`([^`]+)`", cell[1]), "".join(cell[2:]).strip("`")


def check_command(line: str) -> None:
    """The subcommand and its options exist."""
    words = shlex.split(line)[1:]
    command = commands.get_command(click.Context(commands), words[0]) or commands.commands["run"]
    options = {name for row in command.params for name in (*row.opts, *row.secondary_opts)}
    given = words[: words.index("--")] if "--" in words else words
    assert {word for word in given if word.startswith("-")} <= options, line


def check_option(option: str) -> None:
    assert option == "--collect GROUP" or option in {name for row in exporter.params for name in row.opts}, option


def check_python(text: str) -> None:
    """The object can be imported, and takes the arguments."""
    tree = ast.parse(text, mode="eval").body
    name, keywords = text, []
    if isinstance(tree, ast.Call):
        name = ast.unparse(tree.func)
        keywords = [word.arg or "" for word in tree.keywords]
    found = resolve(name)
    if keywords and callable(found):
        assert set(keywords) <= set(inspect.signature(found).parameters), text


def series(query: str) -> Iterator[tuple[Metric, dict[str, str]]]:
    """The metrics of a query, with the selected labels."""
    promql_parser.parse(query)
    for name, selectors in re.findall(r"\b([a-z_]+_[a-z_]+)\b(?:\{([^}]*)\})?", re.sub(r"\[\w+\]", "", query)):
        yield OF_SERIES[name], dict(re.findall(r'(\w+)="([^"]*)"', selectors))


def check_series(query: str, group: str) -> None:
    """The labels exist, some signal has them, and it is in the group; without one in a group that is on."""
    for metric, selected in series(query):
        assert selected.keys() <= {label(name) for name in metric.labels}, query
        if not metric.signals:
            continue
        signals = [
            row
            for row in metric.signals
            if selected.items() <= {label(key): value for key, value in row.attributes}.items()
        ]
        assert signals, query
        groups = {row.group for row in signals}
        assert groups & DEFAULT_GROUPS if not group else {str(each) for each in groups} == {group}, (query, groups)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_in_the_column_here_exists(page: Path) -> None:
    checked = 0
    for _, pieces, group in rows(page):
        assert not group or group in {str(each) for each in GROUPS}
        for piece in pieces:
            checked += 1
            if piece.startswith("gpu-profile "):
                check_command(piece)
            elif piece.startswith("--"):
                check_option(piece)
            elif piece.startswith("gpu_profile."):
                check_python(piece)
            elif piece not in WORDS:
                check_series(piece, group)
    assert checked >= 9


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_one_table_and_a_name_there_has_one_row(page: Path) -> None:
    tokens = PARSER.parse(page.read_text(encoding="utf-8"))
    assert sum(token.type == "table_open" for token in tokens) == 1
    there = [name for cell, _, _ in rows(page) for name in re.findall(r"`([^`]+)`", cell)]
    assert len(there) == len(set(there)) or page.stem == "gmp"


def test_a_name_that_does_not_exist_is_found() -> None:
    with pytest.raises(KeyError):
        check_series("gpu_profile_bussy_seconds_total", "")
    with pytest.raises(AssertionError):
        check_series('nvidia_gpu_clock_hertz{nvidia_gpu_clock_domain="video"}', "")
    with pytest.raises(LookupError):
        check_python("gpu_profile.GpuMonitors")
    with pytest.raises(AssertionError):
        check_python("gpu_profile.GpuMonitor(devices=0)")
    with pytest.raises(AssertionError):
        check_command("gpu-profile kernels --no-such")
