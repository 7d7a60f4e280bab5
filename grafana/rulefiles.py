"""Prometheus's rule files: an alert, a recording rule, and the YAML of a file of them."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from links import uid
from queries import by

HEADER = "# Written by grafana/generate.py from the catalogue: change it there.\n"


class Urgency(StrEnum):
    """The label `severity` of an alert: the reaction that it needs."""

    PAGE = "page"  #: now, at any hour: work is lost or stands still
    TICKET = "ticket"  #: within days
    INFO = "info"  #: none; it explains other observations


class Sites(NamedTuple):
    """The addresses that alerts link to. `grafana` has no slash at its end; `runbook` is the runbook's page."""

    grafana: str = ""
    runbook: str = "docs/runbook.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule.

    `wait`: how long the expression must hold, as Prometheus writes durations. `summary` and `measured` are templates of
    Prometheus; `meaning`, `check` (first) and `remedy` are plain text, which the runbook shows too.

    An alert on a node or a GPU has only the labels in its summary, and its cluster. Then two scrape jobs of one
    exporter raise one alert, and an alert goes on when a pod or another label of its series changes.
    """

    name: str
    severity: Urgency
    wait: str
    expr: str
    summary: str
    meaning: str
    check: str
    remedy: str
    measured: str = ""

    @property
    def query(self) -> str:
        """The expression of the rule. That of a region keeps its job, which is a part of the region's name."""
        labels = dict.fromkeys(re.findall(r"\$labels\.(\w+)", self.summary))
        if "region" in labels:
            return self.expr
        return by(", ".join(("cluster", *labels)), f"\n{textwrap.indent(self.expr, '  ')}\n", "max")

    def lines(self, sites: Sites) -> Iterable[str]:
        """The rule's YAML, without indentation."""
        yield f"- alert: {self.name}"
        yield "  expr: |-"
        yield from textwrap.indent(self.query, "    ").splitlines()
        yield f"  for: {self.wait}"
        yield "  labels:"
        yield f"    severity: {self.severity}"
        yield "  annotations:"
        for key, text in self._annotations(sites):
            yield f"    {key}: >-"
            yield from _wrapped(text, " " * 6)

    def _annotations(self, sites: Sites) -> Iterable[tuple[str, str]]:
        yield "summary", self.summary
        yield "description", f"{self.meaning} {self.measured}".rstrip()
        yield "runbook", f"{self.check} {self.remedy}"
        yield "runbook_url", f"{sites.runbook}#{self.name.lower()}"
        yield "dashboard_url", f"{sites.grafana}/d/{self._dashboard()}"

    def _dashboard(self) -> str:
        """The dashboard of regions with the alert's region, that of a GPU with its node and GPU, or that of a node."""
        if "$labels.region" in self.summary:
            chosen = "var-job={{ $labels.job | urlquery }}&var-region={{ $labels.region | urlquery }}"
            for label, variable in (("namespace", "namespace"), ("service_name", "service")):
                chosen += f"{{{{ with $labels.{label} }}}}&var-{variable}={{{{ . | urlquery }}}}{{{{ end }}}}"
            return f"{uid('regions')}?{chosen}"
        node = "var-instance={{ $labels.instance | urlquery }}"
        if "$labels.hw_id" in self.summary:
            return f"{uid('gpu')}?{node}&var-gpu={{{{ $labels.hw_id }}}}"
        return f"{uid('node')}?{node}"


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule. `brief` becomes a comment."""

    name: str
    expr: str
    brief: str

    def lines(self, _: Sites) -> Iterable[str]:
        """The rule's YAML, without indentation."""
        yield from _wrapped(self.brief, "# ")
        yield f"- record: {json.dumps(self.name)}"
        yield "  expr: |-"
        yield from textwrap.indent(self.expr, "    ").splitlines()


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other."""

    name: str
    rules: Sequence[Alert | Recording]


def yaml(groups: Sequence[Group], sites: Sites) -> str:
    """A rule file."""
    lines = ["groups:"]
    for group in groups:
        lines += [f"  - name: {group.name}", "    rules:"]
        for rule in group.rules:
            lines += ["      " + line for line in rule.lines(sites)]
    return HEADER + "\n".join(lines) + "\n"


def _wrapped(text: str, prefix: str) -> list[str]:
    # A folded scalar reads a line's end as a space, so lines may only break where there is one: never at a hyphen.
    return textwrap.wrap(
        text, 110, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False, break_long_words=False
    )
