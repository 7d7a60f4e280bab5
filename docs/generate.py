"""Writes the tables of the pages in docs/, and docker/gpu-profile-exporter.toml, from code and accepted benchmarks.

    python docs/generate.py           write them
    python docs/generate.py --check   write nothing; name the files that are out of date and exit with 1

A table is between `<!-- generated: NAME -->` and `<!-- end -->`. The rest of a page is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Final

import click

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in (".", "grafana", "tests")]

import alerts
from benchmarks import fleet_needs
from docs.exporter_settings import exporter, exporter_file
from docs.markdown_table import code, table

from gpu_profile import configure
from gpu_profile.catalogue import ATTRIBUTES, DEFAULT_GROUPS, GROUPS, METRICS, SIGNALS, Group, Metric, Signal, Tier
from gpu_profile.catalogue.allocation import ALLOCATION_METRICS
from gpu_profile.catalogue.attributes import KERNEL_ATTRIBUTES, Attribute
from gpu_profile.catalogue.http import HTTP_METRICS
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.metrics import REGION_METRICS
from gpu_profile.catalogue.push import PUSH_METRICS
from gpu_profile.catalogue.receive import RECEIVE_METRICS
from gpu_profile.catalogue.self_metrics import SELF_METRICS
from gpu_profile.catalogue.serving import REQUEST_ATTRIBUTES, SERVING_METRICS, UNALLOCATED_REASONS
from gpu_profile.catalogue.signals import INTEGRATED, THROTTLES_SEEN
from gpu_profile.cli import commands as command_line
from gpu_profile.driver.grammar import BACKEND_VARIABLE
from gpu_profile.driver.node.table import VARIABLE as TIMELINE_VARIABLE
from gpu_profile.regimes import BEST_CONFIDENCE, DEFAULT_THRESHOLDS, RULES, Regime, Thresholds
from gpu_profile.regions.session.process import DISABLED_VARIABLE
from gpu_profile.regions.session.recorder import SAMPLED_VARIABLE
from gpu_profile.regions.session.session import RECORD_VARIABLE
from gpu_profile.regions.telemetry.server_spans import VARIABLE as SPANS_VARIABLE
from gpu_profile.serving.vllm import ADDRESS as SERVING_VARIABLE
from gpu_profile.units import si
from gpu_profile.user_cache import VARIABLE as CACHE_VARIABLE
from gpu_profile_exporter.naming.dcgm_renamed import RENAMED

TIERS: Final = {
    Tier.FAST: "every interval",
    Tier.SLOW: "every second",
    Tier.RARE: "every 10 s",
    Tier.GPM: "every 105 ms",
}
#: The number of a link in a signal's key.
LINK: Final = re.compile(r"(?<=_)\d+(?=_)")


#: The metrics of the exporter's own reading; XID errors belong to the devices.
READING: Final = tuple(metric for metric in SELF_METRICS if metric.otel.startswith("gpu_profile."))
_ELSEWHERE: Final = frozenset(
    (*REGION_METRICS, *READING, *ALLOCATION_METRICS, *HTTP_METRICS, *PUSH_METRICS, *RECEIVE_METRICS, *SERVING_METRICS)
)


def metrics(rows: Sequence[Metric]) -> str:
    """Metrics with their names, units, labels and signals."""
    of_signals = any(m.signals for m in rows)
    columns = ("Prometheus", "OpenTelemetry", "unit", "kind", "labels", *(["from"] * of_signals), "description")
    return table(
        columns,
        (
            (
                code(m.prometheus),
                code(m.otel),
                code(m.unit),
                m.instrument.value,
                ", ".join(code(label(name)) for name in m.labels),
                *([", ".join(dict.fromkeys(code(_key(signal)) for signal in m.signals))] * of_signals),
                m.brief,
            )
            for m in rows
        ),
    )


def signals() -> str:
    """Every signal that a driver may read. Links that differ only by their number share a line."""
    columns = (
        *("signal", "group", "unit", "kind", "one step", "read", "looks back", "renewed", "MIG"),
        *("NVML source", "DCGM names"),
    )
    return table(columns, (_signal(row) for row in SIGNALS if int((LINK.search(row.key) or "0")[0]) == 0))


def groups() -> str:
    """Every group of signals that can be switched on."""
    columns = ("group", "on by default", "series", "description", "signals")
    rows = []
    for group, brief in GROUPS.items():
        keys = dict.fromkeys(code(_key(row)) for row in SIGNALS if row.group is group)
        rows.append((code(group), "yes" if group in DEFAULT_GROUPS else "", _series(group), brief, ", ".join(keys)))
    return table(columns, rows)


def _series(group: Group) -> str:
    """The series of a GPU that has every signal of a group. Quantities that the driver counts are not integrated."""
    counted = [row for row in SIGNALS if row.group is group and row not in THROTTLES_SEEN]
    links = [int(number[0]) for row in counted if (number := LINK.search(row.key))]
    integrals = 2 * sum(row in INTEGRATED for row in counted)
    parts = (str(len(counted) - len(links) + integrals or ""), f"{links.count(0)} a link" if links else "")
    return " and ".join(filter(None, parts))


def _key(row: Signal) -> str:
    """A signal's key, with N for the number of a link."""
    return LINK.sub("N", row.key)


def _signal(row: Signal) -> tuple[str, ...]:
    return (
        code(_key(row)),
        code(row.group),
        code(row.unit),
        row.kind.value,
        f"{row.quantum:,.0f}" if row.quantum >= 1 else f"{row.quantum:g}",
        TIERS[row.tier],
        si(row.window_ns / 1e9, "s") if row.window_ns else "",
        si(row.refresh_ns / 1e9, "s") if row.refresh_ns else "",
        "yes" if row.mig else "",
        row.source.replace("link 0", "link N"),
        # Also the name since DCGM 4.6, if that is another.
        ", ".join(map(code, dict.fromkeys((name := row.dcgm.name, RENAMED.get(name, name))))) if row.dcgm else "",
    )


def attributes() -> str:
    """Every attribute of a span."""
    return _attributes(ATTRIBUTES)


def kernel_attributes() -> str:
    """Every attribute of the kernel events."""
    return _attributes(KERNEL_ATTRIBUTES)


def request_attributes() -> str:
    """Every attribute of a span of an LLM server's request."""
    return _attributes(REQUEST_ATTRIBUTES)


def unallocated_reasons() -> str:
    """Every reason of an LLM server's energy that is no tenant's."""
    columns = ("`reason` of unallocated energy", "meaning", "remedy")
    return table(columns, ((code(reason), *text) for reason, text in UNALLOCATED_REASONS.items()))


def _attributes(rows: Iterable[Attribute]) -> str:
    columns = ("attribute", "type", "unit", "description")
    return table(columns, ((code(a.name), a.type, code(a.unit), a.brief) for a in rows))


def regimes() -> str:
    """Every regime."""
    return table(("regime", "description"), ((code(str(regime)), regime.value) for regime in Regime))


def rules() -> str:
    """The rules in the order in which they are tried."""
    rows = (
        (str(number), code(rule.name), code(str(rule.regime)), ", ".join(sorted(rule.bases)))
        for number, rule in enumerate(RULES, start=1)
    )
    return table(("", "rule", "regime", "evidence"), rows)


def thresholds() -> str:
    """The numbers in the rules, with the sources that their docstring gives."""
    sources = threshold_sources()
    rows = ((code(f.name), f"{getattr(DEFAULT_THRESHOLDS, f.name):g}", sources[f.name]) for f in fields(Thresholds))
    return table(("threshold", "default", "meaning and source"), rows)


def threshold_sources() -> Mapping[str, str]:
    """The docstring's text of each threshold: sentences that begin with "`name`:" or "`name`, `name`:"."""
    text = " ".join((Thresholds.__doc__ or "").split())
    sources: dict[str, str] = {}
    names = r"`\w+`(?:, `\w+`)*"
    for match in re.finditer(rf"({names}): (.*?)(?=(?:\. {names}: )|\.?$)", text):
        sources |= dict.fromkeys(re.findall(r"\w+", match[1]), match[2])
    return sources


#: The environment variables of the library and its command, with their effect. The exporter's are in its settings.
VARIABLES: Final[Mapping[str, tuple[str, str]]] = {
    BACKEND_VARIABLE: ("`auto`", "the [driver](installation.md#choice-of-driver) that reads the GPUs"),
    CACHE_VARIABLE: ("`~/.cache/gpu-profile`", "the directory of calibrations and measured ceilings"),
    DISABLED_VARIABLE: ("", "with `1` every region is a plain call, without spans and samples"),
    RECORD_VARIABLE: ("", "the directory that a process [records](recording-format.md) its samples and regions into"),
    SAMPLED_VARIABLE: ("", "set by `gpu-profile run` and `record`: the driver that samples for their processes"),
    SERVING_VARIABLE: (
        "",
        "where vLLM's plug-in sends the iterations of the engine: `unix://PATH` or ZeroMQ's address",
    ),
    SPANS_VARIABLE: (
        "`server,consumer,regions`",
        "the [spans](opentelemetry.md#spans-of-other-libraries) that get GPU attributes besides those of regions",
    ),
    TIMELINE_VARIABLE: (
        "`/run/gpu-profile`",
        "the directory of the [node's timeline](node-timeline.md) for `node` and `auto`",
    ),
}


def variables() -> str:
    """The environment variables of the library."""
    rows = ((code(name), default, brief) for name, (default, brief) in sorted(VARIABLES.items()))
    return table(("variable", "default", "effect"), rows)


def settings() -> str:
    """The parameters of `configure`."""
    parameters = inspect.signature(configure).parameters
    text = " ".join((inspect.getdoc(configure) or "").partition(" Raises ")[0].split()).partition(" Raises ")[0]
    parts = re.split(rf"`({'|'.join(parameters)})`: ", text)
    briefs = dict(zip(parts[1::2], parts[2::2], strict=True))
    rows = ((code(name), code(_default(each)), briefs[name].strip()) for name, each in parameters.items())
    return table(("parameter", "default", "meaning"), rows)


def _default(parameter: inspect.Parameter) -> str:
    return repr(parameter.default) if isinstance(parameter.default, bool | int | float | str | None) else ""


def commands() -> str:
    """Every command of `gpu-profile` with its options."""
    return "\n\n".join(_command("gpu-profile", command_line))


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    rows = [
        (
            ", ".join(map(code, (*option.opts, *option.secondary_opts))) + _value(option, context),
            ", ".join(map(code, [option.envvar] if isinstance(option.envvar, str) else option.envvar or ())),
            " ".join((option.help or "").split()),
        )
        for option in command.get_params(context)
        if isinstance(option, click.Option) and not option.hidden and "--help" not in option.opts
    ]
    brief = command.get_short_help_str(limit=200)
    yield f"### `{name}`\n\n{brief}" + (f"\n\n{table(('option', 'variable', 'effect'), rows)}" if rows else "")
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            if inner is not None and not inner.hidden:
                yield from _command(f"{name} {each}", inner)


def _value(option: click.Option, context: click.Context) -> str:
    return "" if option.is_flag or option.count else f" {code(option.make_metavar(context))}"


def bases() -> str:
    """The bases of verdicts."""
    rows = ((code(basis), f"{most:g}") for basis, most in BEST_CONFIDENCE.items())
    return table(("basis", "highest confidence"), rows)


_ROOT: Final = Path(__file__).parents[1]


def packages(folder: str, contract: str) -> str:
    """Every package in `folder`, and the modules beside them, by the floors of an import contract."""
    root = _ROOT / folder
    contracts = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = (row["layers"] for row in contracts if row["id"] == contract)
    floors = {name: -number for number, layer in enumerate(layers) for name in re.findall(r"\w+", layer)}
    rows = []
    for path in (*root.rglob("__init__.py"), *(path for path in root.glob("*.py") if path.stem in floors)):
        parts = (path.parent if path.name == "__init__.py" else path.with_suffix("")).relative_to(root).parts
        if parts:
            docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            floor = floors[parts[0]]
            rows.append((-floor, parts, str(floor + len(layers)), " ".join(docstring.partition("\n\n")[0].split())))
    return table(
        ("floor", "package", "contents"), ((at, code("/".join(name)), text) for _, name, at, text in sorted(rows))
    )


_SHORT: Final = " (**falls short**)"
_TESTS: Final = _ROOT / "tests"
_BENCHMARKS: Final = json.loads((_TESTS / "benchmarks/accepted.json").read_text("utf-8"))


def benchmarks(group: str) -> str:
    """The last accepted rows of a group of benchmarks."""
    rows = (
        (*(row[key] for key in ("name", "figure", "baseline", "ratio")), row["reach"] + _SHORT * (not row["ok"]))
        for row in _BENCHMARKS[group]
    )
    return table(("measurement", "figure", "baseline", "ratio", "target"), rows)


def sizes() -> str:
    """The accepted figures of processor time and memory that sizes.json names by group and row."""
    quantities = json.loads((_ROOT / "docs" / "sizes.json").read_text("utf-8"))
    figures = {group: {row["name"]: row["figure"] for row in rows} for group, rows in _BENCHMARKS.items()}
    rows = ((quantity, figures[group][name], name) for quantity, (group, name) in quantities.items())
    return table(("quantity", "figure", "measured as"), rows)


def simulator() -> str:
    """The simulator's constants beside the measured values."""
    from gpu.fit import table as fitted

    folder = _TESTS / "data" / "hardware" / "h100"
    return fitted(
        [json.loads((folder / name).read_text()) for name in ("record.json", "whole_run.json", "third_run.json")]
    )


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    maker.__name__.replace("_", " "): maker
    for maker in (
        *(signals, groups, attributes, kernel_attributes, request_attributes, unallocated_reasons),
        *(regimes, rules, thresholds, bases, simulator),
        *(variables, settings, commands, exporter, sizes, alerts.runbook),
    )
} | {
    "metrics": partial(metrics, tuple(metric for metric in METRICS if metric not in _ELSEWHERE)),
    "region metrics": partial(metrics, REGION_METRICS),
    "reading metrics": partial(metrics, READING),
    "allocation metrics": partial(metrics, ALLOCATION_METRICS),
    "http metrics": partial(metrics, HTTP_METRICS),
    "push metrics": partial(metrics, PUSH_METRICS),
    "receive metrics": partial(metrics, RECEIVE_METRICS),
    "serving metrics": partial(metrics, SERVING_METRICS),
    "fleets": lambda: table(*fleet_needs.cells(_BENCHMARKS["fleet-size"])),
    **{f"{group} benchmarks": partial(benchmarks, group) for group in _BENCHMARKS},
    "library packages": partial(packages, "instrumentation/gpu_profile", "floors"),
    "exporter packages": partial(packages, "exporter/gpu_profile_exporter", "exporter"),
}


def renewed(page: str) -> str:
    """The page with its current tables; KeyError for an unknown table."""
    return re.sub(
        r"(<!-- generated: ([\w -]+) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}",
        page,
        flags=re.DOTALL,
    )


def main() -> int:
    """Write or check the files; 1 if one of them is out of date."""
    parser = argparse.ArgumentParser(description="Write the tables of the documentation from the code.")
    parser.add_argument("directory", nargs="?", type=Path, default=Path(__file__).parent)
    parser.add_argument("--check", action="store_true", help="write nothing, name the files that are out of date")
    options = parser.parse_args()
    stale = 0
    files = {path: renewed(path.read_text("utf-8")) for path in sorted(options.directory.rglob("*.md"))}
    if options.directory == Path(__file__).parent:
        files[_ROOT / "docker" / "gpu-profile-exporter.toml"] = exporter_file()
    for path, made in files.items():
        if made != path.read_text("utf-8"):
            stale += 1
            sys.stdout.write(f"{path}: {'out of date; run python docs/generate.py' if options.check else 'written'}\n")
            if not options.check:
                path.write_text(made, encoding="utf-8")
    return int(options.check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
