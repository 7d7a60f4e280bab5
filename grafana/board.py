"""A dashboard: its variables, its links to the others, its annotations, and its sections of panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from links import uid
from panels import DATASOURCE, Json, Section, lay_out
from queries import by, named, series, with_slice

from gpu_profile.catalogue.metrics import DEVICE_INFO, REGION_CALLS, REGION_DURATION
from gpu_profile.catalogue.self_metrics import XID_LAST_TIME
from gpu_profile.catalogue.serving import SERVING_TOKENS

#: Grafana lists the dashboards with this tag in the menu of each of them.
TAG: Final = "gpu-profile"
SOURCE: Final[Json] = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "current": {"text": "Prometheus", "value": "prometheus"},
    "hide": 0,
}
_NODES: Final = 'cluster=~"$cluster", instance=~"$instance"'
_PROGRAMS: Final = 'cluster=~"$cluster", namespace=~"$namespace", job=~"$job"'
#: Variables with another name than their label: “service_name” is a long word for a menu.
_VARIABLE: Final = {"service_name": "service"}


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard. `name` is that of its file, `question` the one that it answers."""

    name: str
    title: str
    question: str
    variables: tuple[Json, ...]
    sections: Sequence[Section]
    annotations: tuple[Json, ...] = ()
    hours: int = 1

    @property
    def uid(self) -> str:
        """Its part of the address in Grafana."""
        return uid(self.name)

    def json(self) -> Json:
        """The dashboard as Grafana stores it."""
        return {
            "uid": self.uid,
            "title": f"GPUs: {self.title}",
            "description": self.question,
            "tags": [TAG],
            "schemaVersion": 41,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "timezone": "browser",
            "time": {"from": f"now-{self.hours}h", "to": "now"},
            "refresh": "30s",
            "annotations": {"list": list(self.annotations)},
            "links": [_MENU],
            "templating": {"list": [SOURCE, *self.variables]},
            "panels": lay_out(self.sections),
        }


def choice(name: str, label: str, query: str, *, regex: str = "", many: bool = True) -> Json:
    """A variable with the answers of a query. Its “All” also matches series without the label."""
    several: Json = {"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}} if many else {"current": {}}
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "regex": regex,
        "multi": many,
        "includeAll": many,
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        **several,
    }


def number(name: str, label: str, value: str) -> Json:
    """A variable that the reader types in."""
    return {
        "name": name,
        "label": label,
        "type": "textbox",
        "query": value,
        "current": {"text": value, "value": value},
        "hide": 0,
    }


def nodes(*, many: bool = True) -> tuple[Json, ...]:
    """Cluster and node."""
    cluster = choice("cluster", "Cluster", f"label_values({DEVICE_INFO.prometheus}, cluster)")
    matched = series(DEVICE_INFO, scope='cluster=~"$cluster"')
    return cluster, choice("instance", "Node", f"label_values({matched}, instance)", many=many)


def gpus(*, many: bool = True) -> Json:
    """The GPUs of the chosen nodes, with index, model and node as the text."""
    devices = by("hw_id, hw_name, index, instance", series(DEVICE_INFO, scope=_NODES), "max")
    # Grafana takes a variable's text and value out of the answer's text: one label must contain the whole text.
    readable = f'label_join({with_slice(devices)}, "title", " ", "index", "hw_name", "instance", "slice")'
    regex = '/hw_id="(?<value>[^"]+)".*title="(?<text>[^"]+)"/'
    return choice("gpu", "GPU", f"query_result({readable})", regex=regex, many=many)


def gpus_of_regions(*labels: str, all_of_them: bool = True) -> Json:
    """The GPUs that regions ran on, by UUID. `all_of_them`: “All” also matches regions on no known GPU."""
    variable = choice("gpu", "GPU", f"label_values({series(REGION_CALLS, scope=_matchers(labels))}, hw_id)")
    return variable if all_of_them else variable | {"allValue": ""}


def programs(*labels: str) -> tuple[Json, ...]:
    """Variables of programs, each narrowed by those before it: cluster, namespace, job, service, version, region."""
    calls = (series(REGION_DURATION, scope=_matchers(labels[:i]), part="_count") for i in range(len(labels)))
    named = ((_VARIABLE.get(name, name), query) for name, query in zip(labels, calls, strict=True))
    return tuple(
        choice(name, name.title(), f"label_values({query}, {label_})")
        for (name, query), label_ in zip(named, labels, strict=True)
    )


def engines() -> tuple[Json, ...]:
    """Cluster, exporter, engine and tenant of LLM servers."""
    labels = {"cluster": "Cluster", "instance": "Exporter", "engine": "Engine", "tenant": "Tenant"}
    chosen = [f'{name}=~"${name}"' for name in labels]
    asked = (series(SERVING_TOKENS, scope=", ".join(chosen[:i])) for i in range(len(labels)))
    return tuple(
        choice(name, title, f"label_values({query}, {name})")
        for (name, title), query in zip(labels.items(), asked, strict=True)
    )


def _matchers(labels: Sequence[str]) -> str:
    return ", ".join(f'{name}=~"${_VARIABLE.get(name, name)}"' for name in labels)


def _annotation(name: str, colour: str, expr: str, title: str, text: str) -> Json:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": expr,
        "step": "",
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": "",
        "useValueForTime": True,
    }


_MENU: Final[Json] = {
    "type": "dashboards",
    "title": "GPU dashboards",
    "tags": [TAG],
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "icon": "external link",
    "tooltip": "The other dashboards, with the same variables and range of time",
    "url": "",
}


def xids(scope: str = _NODES) -> Json:
    """Marks at XID errors of the GPUs in `scope`: the exporter says when the last one came."""
    last = by("cluster, instance, hw_id", series(XID_LAST_TIME, scope=scope), "max")
    where = "GPU {{index}} on {{instance}}; the row of incidents has the code"
    return _annotation("XID errors", "red", f"1000 * {named(last)}", "XID error", where)


def deploys() -> Json:
    """Marks at each start of a process that serves region metrics: a deployment, or a restart."""
    durations = series(REGION_DURATION, scope=_PROGRAMS, part="_count")
    started = f"1000 * process_start_time_seconds{{{_PROGRAMS}}} and on (job, instance) {durations}"
    where = "{{namespace}} {{job}} on {{instance}}"
    return _annotation("Deployments", "blue", started, "{{job}} {{version}} started", where)
