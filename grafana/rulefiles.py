"""Prometheus's rule files: an alert, a recording rule, and the YAML of a file of them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HEADER = "# Written by grafana/generate.py from the catalogue: change it there.\n"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule. `wait` is how long the expression must hold, as Prometheus writes durations."""

    name: str
    severity: str
    wait: str
    expr: str
    summary: str
    description: str
    runbook: str

    def lines(self) -> Iterable[str]:
        """The rule's YAML, without indentation."""
        yield f"- alert: {self.name}"
        yield "  expr: |-"
        yield from textwrap.indent(self.expr, "    ").splitlines()
        yield f"  for: {self.wait}"
        yield "  labels:"
        yield f"    severity: {self.severity}"
        yield "  annotations:"
        for key in ("summary", "description", "runbook"):
            yield f"    {key}: >-"
            yield from _wrapped(getattr(self, key), " " * 6)


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule. `brief` becomes a comment."""

    name: str
    expr: str
    brief: str

    def lines(self) -> Iterable[str]:
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


def yaml(groups: Sequence[Group]) -> str:
    """A rule file."""
    lines = ["groups:"]
    for group in groups:
        lines += [f"  - name: {group.name}", "    rules:"]
        for rule in group.rules:
            lines += ["      " + line for line in rule.lines()]
    return HEADER + "\n".join(lines) + "\n"


def _wrapped(text: str, prefix: str) -> list[str]:
    # A folded scalar reads a line's end as a space, so lines may only break where there is one: never at a hyphen.
    return textwrap.wrap(
        text, 110, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False, break_long_words=False
    )
