from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click
import promql_parser
import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token
from support.names import resolve
from support.programs import environment, python, ran
from unit.exporter.settings import served

import gpu_profile
from gpu_profile.analysis.fleet.questions import BASES, QUESTIONS
from gpu_profile.catalogue import ATTRIBUTES, METRICS, SIGNALS, Instrument
from gpu_profile.catalogue.attributes import KERNEL_ATTRIBUTES, KERNEL_EVENT
from gpu_profile.catalogue.events import EVENT_ATTRIBUTES, EVENT_NAMES, REGIME_CHANGED
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.serving import REQUEST_ATTRIBUTES
from gpu_profile.cli import commands
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry.server_spans import VARIABLE, ServerSpanRule, parse_rule
from gpu_profile_exporter.cli import exporter
from gpu_profile_exporter.config import SETTINGS as EXPORTER_SETTINGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
PARSER = MarkdownIt("commonmark").enable("table")

SERIES = {
    metric.prometheus + part
    for metric in METRICS
    for part in (("", "_bucket", "_sum", "_count") if metric.instrument is Instrument.HISTOGRAM else ("",))
}
LABELS = {label(name) for metric in METRICS for name in metric.labels}
#: Values of labels.
VALUES = {value for row in SIGNALS for _, value in row.attributes}
#: `prometheus_client`'s own, of which the pages name some.
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
#: Another exporter, and a metric of a third.
OTHERS = {"nvidia_gpu_exporter", "process_info"}
#: Tables and views for questions in SQL.
VIEWS = {*BASES, *(question.view for question in QUESTIONS.values()), "gpu_profile_problems"}
#: Settings: of the pytest plugin, and of the exporter.
SETTINGS = {"gpu_profile_backend", "gpu_profile_untold", "process_names"}
#: What a web configuration file of the listener may have.
LISTENER = {"tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"}
#: The parts of a configuration of the OpenTelemetry Collector.
COLLECTOR = {"receivers", "exporters", "service"}
#: What a span has if the machine had the time to sample all of it; the pooled values stand in where it had not.
OWN_VALUES = {"gpu_profile.scope", "gpu_profile.coverage"}
#: Dotted names that are neither an attribute nor a metric nor Python, and the ones that the recipes add.
OTHER_NAMES = {"gpu_profile.drivers", "nvidia.gpu.power.source", "gpu_profile.kernels.render.markdown"}


#: Stands before a block of Python that the tests run. In the info string of the fence, mkdocs would not know the block.
MARK = "<!-- run -->"


class Block(NamedTuple):
    """A fenced block: where, its info string with `run` if `MARK` is before it, its text, and the block after it."""

    page: Path
    line: int
    info: str
    text: str
    following: Block | None = None


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tokens(page: Path) -> list[Token]:
    return PARSER.parse(page.read_text(encoding="utf-8"))


def blocks(*infos: str) -> list[Block]:
    """All blocks with one of these info strings."""
    found: list[Block] = []
    for page in PAGES:
        following = None
        for before, token in reversed([*pairwise([None, *tokens(page)])]):
            if token is None or token.type != "fence":
                continue
            marked = before is not None and before.type == "html_block" and before.content.strip() == MARK
            info = f"{token.info} run" if marked else token.info
            following = Block(page, (token.map or [0])[0] + 1, info, token.content, following)
            if info in infos:
                found.append(following)
    return found


def named(*infos: str) -> list[object]:
    return [pytest.param(block, id=f"{name_of(block.page)}:{block.line}") for block in blocks(*infos)]


def targets(page: Path) -> Iterator[str]:
    """Where the page's links and images lead."""
    for token in tokens(page):
        for child in token.children or []:
            for key in ("href", "src"):
                if key in child.attrs:
                    yield str(child.attrs[key])


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the page's headings."""
    parsed = tokens(page)
    titles = [parsed[i + 1].content for i, token in enumerate(parsed) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_and_image_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    broken = []
    for target in targets(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.is_file() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [PAGES[0]]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            found = ((page.parent / target.partition("#")[0]).resolve() for target in targets(page))
            waiting += [path for path in found if path.suffix == ".md" and path.is_file()]
    assert set(PAGES) <= reached


def test_the_readme_is_short_and_shows_one_picture() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) < 120
    assert sum(token.content.startswith("![") for token in tokens(PAGES[0]) if token.type == "inline") == 1


def test_every_picture_is_shown_somewhere() -> None:
    shown = {(page.parent / target).resolve() for page in PAGES for target in targets(page)}
    assert set((DOCS / "images").iterdir()) <= shown


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_fence_is_one_for_mkdocs_too(page: Path) -> None:
    """Python-Markdown takes a fence for prose if anything follows the language."""
    assert [
        token.info for token in tokens(page) if token.type == "fence" and not re.fullmatch(r"\w*", token.info)
    ] == []
    lines = page.read_text(encoding="utf-8").splitlines()
    marks = [number for number, line in enumerate(lines) if line.strip() == MARK]
    assert all(lines[number + 1 : number + 3] == ["", "```python"] for number in marks)


def test_marked_blocks_are_found() -> None:
    assert len(blocks("python run")) >= 20


def test_every_python_block_is_run_or_has_the_reason_why_not() -> None:
    """By a mark before it, or by one for all blocks of its page."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        marked = re.findall(r"(?:<!-- (run|run by \S+|not run: [^>]+) -->\n\n)?^```python$", text, re.MULTILINE)
        assert all(marked) or "<!-- blocks: " in text, name_of(page)
        for runner in re.findall(r"<!-- run by (\S+) -->", text):
            assert (ROOT / runner).is_file(), f"{name_of(page)}: {runner}"


@pytest.mark.parametrize("block", named("python", "python run"))
def test_every_python_block_is_python(block: Block) -> None:
    compile(block.text, f"{name_of(block.page)}:{block.line}", "exec")


@pytest.mark.parametrize("block", named("python run"))
def test_what_is_marked_to_run_runs_without_a_word_of_complaint(block: Block, tmp_path: Path) -> None:
    done = python("-W", "error", "-c", block.text, cwd=tmp_path, TMPDIR=os.fspath(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    shown = block.following
    if shown is not None and shown.info == "json":
        printed = json.loads(done.stdout)["attributes"]
        promised = json.loads("{" + shown.text + "}")
        assert promised.keys() <= printed.keys() | OWN_VALUES
        words = {key: value for key, value in promised.items() if isinstance(value, str) and key not in OWN_VALUES}
        assert words == {key: printed[key] for key in words}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_series_and_label_that_a_page_names_is_in_the_catalogue(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    series = re.findall(r"\b(?:gpu_profile|nvidia_gpu|process|hw)_[a-z0-9_]*[a-z0-9]\b(?!\.)(?!\*)", text)
    assert (
        set(series) - SERIES - LABELS - VALUES - PROCESS - SETTINGS - OTHERS - VIEWS - {"gpu_profile_exporter"} == set()
    )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_dotted_name_on_a_page_is_an_attribute_a_metric_or_importable(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = {a.name for a in (*ATTRIBUTES, *EVENT_ATTRIBUTES)} | {*EVENT_NAMES.values(), REGIME_CHANGED}
    known |= {a.name for a in (*KERNEL_ATTRIBUTES, *REQUEST_ATTRIBUTES)} | {KERNEL_EVENT}
    known |= {m.otel for m in METRICS} | {k for m in METRICS for k in m.labels}
    dotted = re.findall(r"\b((?:gpu_profile|nvidia\.gpu|hw)(?:\.[a-zA-Z_0-9]*[a-zA-Z0-9])+)(?!\.\*)", text)
    unknown = {name for name in dotted if name not in known | OTHER_NAMES and not importable(name)}
    assert unknown == set()


def importable(name: str) -> bool:
    try:
        resolve(name)
    except LookupError:
        return False
    return True


def queries(text: str) -> Iterator[str]:
    """The queries of a block: a line that is not indented begins the next."""
    query = ""
    for line in re.sub(r"#.*", "", text).splitlines():
        if not line.startswith(" ") and query.strip():
            yield query
            query = ""
        query += line + "\n"
    if query.strip():
        yield query


@pytest.mark.parametrize("block", named("promql"))
def test_every_query_is_promql(block: Block) -> None:
    found = list(queries(block.text))
    assert found
    for query in found:
        promql_parser.parse(query)


@pytest.mark.parametrize("block", named("promql"))
def test_no_query_divides_energy_or_busy_time_that_may_be_uncertain(block: Block) -> None:
    for query in queries(block.text):
        code = "\n".join(line for line in query.splitlines() if not line.startswith("#"))
        if "/" in code and re.search("region_(energy_joules|busy_seconds)_total", code):
            assert re.search("region_(energy_uncertain_joules|busy_uncertain_seconds)_total", code), code


@pytest.mark.parametrize("block", named("yaml"))
def test_every_yaml_block_is_yaml_of_prometheus_of_the_collector_or_of_our_listener(block: Block) -> None:
    keys = yaml.safe_load(block.text).keys()
    assert "scrape_configs" in keys or keys <= LISTENER or keys == COLLECTOR


@pytest.mark.parametrize("block", [block for block in blocks("toml") if block.page.stem.startswith("exporter")])
def test_every_toml_block_of_the_exporters_pages_is_settings_that_it_takes(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "exporter.toml"
    path.write_text(block.text, encoding="utf-8")
    served(["--config", str(path)])


@pytest.mark.debian
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
@pytest.mark.parametrize("block", [block for block in blocks("yaml") if "scrape_configs" in block.text])
def test_prometheus_takes_every_configuration(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(block.text)
    done = subprocess.run(["promtool", "check", "config", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def options(command: click.Command) -> set[str]:
    """Every option of the command; a switch's other half too."""
    of_parameters = (option for row in command.params for option in (*row.opts, *row.secondary_opts))
    return {"-h", "--help", *of_parameters}


def called(words: list[str]) -> click.Command | None:
    """The command that a line calls, as far as its options are checked here."""
    name, *rest = words
    if name == "gpu-profile" and rest[:1] == ["record"]:
        return commands.commands["record"]
    if name != "gpu-profile-exporter":
        return None
    named = exporter.get_command(click.Context(exporter), rest[0]) if rest else None
    return named or exporter


def code_lines() -> Iterator[tuple[str, str]]:
    """Every line of a shell block and every piece of code in a text that may be a command, with its page."""
    for page in PAGES:
        for token in tokens(page):
            if token.type == "fence" and token.info == "sh":
                yield from ((name_of(page), line) for line in token.content.splitlines())
            for child in token.children or []:
                if child.type == "code_inline":
                    yield name_of(page), child.content


def test_every_option_of_our_commands_that_a_page_uses_exists() -> None:
    checked = 0
    for page, written in code_lines():
        line = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", written)  # variables before the command
        words = shlex.split(line, comments=True) if line.startswith("gpu-profile") else []
        command = called(words) if words else None
        if command is None:
            continue
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        checked += len(used)
        assert used <= options(command), f"{page}: {line}"
    assert checked > 20


def test_every_option_that_the_exporters_pages_name_exists() -> None:
    known = {"--pid"} | options(exporter)  # Docker's
    for name in exporter.list_commands(click.Context(exporter)):
        known |= options(exporter.get_command(click.Context(exporter), name) or exporter)
    named = {
        (page, line.split()[0].partition("=")[0])
        for page, line in code_lines()
        if line.startswith("--") and page.removeprefix("docs/").startswith(("exporter", "dcgm", "otlp", "attribution"))
    }
    assert len(named) > 40
    assert {(page, option) for page, option in named if option not in known} == set()


def test_every_make_target_that_a_page_uses_exists() -> None:
    existing = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {line.split()[1] for _, line in code_lines() if re.match(r"make [a-z]", line)}
    assert used
    assert used <= existing


def test_the_generated_tables_are_what_the_code_says() -> None:
    done = python(DOCS / "generate.py", "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_table_that_was_changed_by_hand_is_found_and_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "metrics.md"
    right = (DOCS / "metrics.md").read_text(encoding="utf-8")
    page.write_text(right.replace("Power draw averaged", "Power draw, perhaps averaged"), encoding="utf-8")
    command = [sys.executable, os.fspath(DOCS / "generate.py"), os.fspath(tmp_path)]
    check = ran([*command, "--check"])
    assert check.returncode == 1
    assert "metrics.md: out of date" in check.stdout
    subprocess.run(command, capture_output=True, env=environment(), check=True)
    assert page.read_text(encoding="utf-8") == right


def test_every_metric_signal_attribute_and_threshold_has_its_row() -> None:
    metrics, regions = (DOCS / "metrics.md").read_text(), (DOCS / "regions.md").read_text()
    for metric in METRICS:
        assert f"| `{metric.prometheus}` | `{metric.otel}` |" in metrics
    for row in SIGNALS:
        key = re.sub(r"(?<=_)\d+(?=_)", "N", row.key)  # links share a line
        assert f"| `{key}` | `{row.group}` |" in metrics
    for attribute in ATTRIBUTES:
        assert f"| `{attribute.name}` |" in regions


def test_the_page_of_the_architecture_names_every_package_and_no_other() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| \d+ \| `([\w/]+)` \|", page, re.MULTILINE))
    roots = (ROOT / "instrumentation" / "gpu_profile", ROOT / "exporter" / "gpu_profile_exporter")
    existing = {path.parent.relative_to(root).as_posix() for root in roots for path in root.rglob("__init__.py")}
    modules = {path.stem for root in roots for path in root.glob("*.py")}
    assert existing - {"."} <= named <= existing | modules


def test_every_public_name_and_each_of_its_arguments_is_on_the_page_of_the_api() -> None:
    text = (DOCS / "api.md").read_text()
    for name in gpu_profile.__all__:
        assert re.search(rf"^## {name}$|^\| `{name}` \|", text, re.MULTILINE), name
    signatures = {
        "region": inspect.signature(gpu_profile.region),
        "configure": inspect.signature(gpu_profile.configure),
        "GpuSpanProcessor": inspect.signature(gpu_profile.GpuSpanProcessor),
        "serve_metrics": inspect.signature(gpu_profile.serve_metrics),
        "use_stream": inspect.signature(process.use_stream),
    }
    for name, signature in signatures.items():
        (section,) = re.findall(rf"^## {name}$(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
        for parameter in signature.parameters.values():
            if parameter.name != "self":
                assert re.search(rf"\b{parameter.name}\b", section), f"{name}({parameter.name})"


def test_every_setting_of_configure_is_explained_with_its_default() -> None:
    text = (DOCS / "regions.md").read_text()
    for parameter in inspect.signature(gpu_profile.configure).parameters.values():
        (row,) = re.findall(rf"^\| `{parameter.name}` \| (.*?) \|", text, re.MULTILINE)
        if isinstance(parameter.default, float):
            assert float(row) == parameter.default


def test_the_glossary_has_at_most_60_terms_each_once_and_in_order() -> None:
    tables = (DOCS / "glossary.md").read_text(encoding="utf-8").split("\n## ")[1:]
    terms = [re.findall(r"^\| (?!term \|)([^|]+) \|", table, re.MULTILINE) for table in tables]
    assert all(each == sorted(each, key=str.lower) for each in terms)
    found = [term for each in terms for term in each]
    assert len(found) == len(set(found)) <= 60


def test_the_page_of_settings_has_every_variable_of_the_code() -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    named = {
        name
        for root in ("instrumentation", "exporter")
        for path in (DOCS.parent / root).rglob("*.py")
        for name in re.findall(r'"(GPU_PROFILE_[A-Z_]+)"', path.read_text(encoding="utf-8"))
    }
    assert named - {"GPU_PROFILE_EXPORTER"} <= set(re.findall(r"`(GPU_PROFILE_[A-Z_]+)`", page))
    assert {row.flag for row in EXPORTER_SETTINGS} <= set(re.findall(r"`(--[a-z0-9-]+)`", page))


def test_the_documented_default_of_the_spans_is_the_rule_that_applies_without_the_variable() -> None:
    (default,) = re.findall(rf"\| `{VARIABLE}` \| `([^`]*)` \|", (DOCS / "settings.md").read_text())
    assert parse_rule(default) == ServerSpanRule()
    assert f"`{default}` is the default" in (DOCS / "opentelemetry.md").read_text()


def test_every_extra_has_its_row_on_the_page_of_the_installation() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = [row for row in (DOCS / "installation.md").read_text().splitlines() if row.startswith("| `")]
    assert [extra for extra in extras if not any(f"`{extra}`" in row.split("|")[1] for row in rows)] == []
