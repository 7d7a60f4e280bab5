"""Grafana's JSON from a few frozen values: a query, a panel, a section of panels laid out by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpu_profile.report.table import WHOSE_JOULES

Json = dict[str, Any]
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression. `thin` draws a dashed line without a fill: a reading or a limit beside what matters."""

    expr: str
    legend: str
    thin: bool = False
    exemplars: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the field as the query names it, its title and, for a number, its Grafana unit."""

    field: str
    title: str
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `width` and `height` are in Grafana's grid of 24 columns. A long legend reads better at the right."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat", "bargauge", "table"] = "timeseries"
    width: int = 12
    height: int = 8
    stacked: bool = False
    logarithmic: bool = False
    legend: Literal["bottom", "right"] = "bottom"
    maximum: float | None = None
    columns: tuple[Column, ...] = ()
    matrix: tuple[str, str] | None = None
    thresholds: tuple[tuple[float | None, str], ...] = ((None, "green"),)

    def json(self, identity: int, x: int, y: int) -> Json:
        """The panel as Grafana stores it, at a place of the grid."""
        instant = self.kind in ("table", "bargauge")
        targets = [_target(query, _ref(i), self.kind, instant) for i, query in enumerate(self.queries)]
        panel: Json = {
            "id": identity,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": self._defaults(), "overrides": self._overrides()},
            "options": self._options(),
            "targets": targets,
        }
        if self.kind == "table":
            panel["transformations"] = self._transformations()
        return panel

    def _defaults(self) -> Json:
        defaults: Json = {"unit": self.unit}
        # Rates and shares may touch 0; a temperature has no business to start its axis there, and a logarithm cannot.
        if self.unit != "celsius" and not self.logarithmic:
            defaults["min"] = 0
        if self.maximum is not None:
            defaults["max"] = self.maximum
        steps = [{"value": value, "color": colour} for value, colour in self.thresholds]
        if self.kind != "timeseries":
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
            defaults["color"] = {"mode": "thresholds"}
            return defaults
        defaults["color"] = {"mode": "palette-classic"}
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 2,
            "fillOpacity": 40 if self.stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "scaleDistribution": {"type": "log", "log": 10} if self.logarithmic else {"type": "linear"},
        }
        if self.unit == "percentunit" and self.maximum is None:
            # Without it the axis of a share that is 0 throughout goes to 10000 %.
            defaults["custom"]["axisSoftMax"] = 0.01
        return defaults

    def _overrides(self) -> list[Json]:
        thin = [
            {"id": "custom.lineWidth", "value": 1},
            {"id": "custom.fillOpacity", "value": 0},
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [4, 4]}},
        ]
        overrides = [
            {"matcher": {"id": "byFrameRefID", "options": _ref(i)}, "properties": thin}
            for i, query in enumerate(self.queries)
            if query.thin
        ]
        for column in self.columns:
            if column.unit:
                unit = [{"id": "unit", "value": column.unit}]
                overrides.append({"matcher": {"id": "byName", "options": column.title}, "properties": unit})
        return overrides

    def _options(self) -> Json:
        reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        if self.kind == "timeseries":
            return {
                "legend": {"showLegend": True, "displayMode": "list", "placement": self.legend, "calcs": []},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        if self.kind == "stat":
            return {"reduceOptions": reduced, "colorMode": "value", "graphMode": "area", "textMode": "value"}
        if self.kind == "bargauge":
            return {"reduceOptions": reduced, "displayMode": "basic", "orientation": "horizontal"}
        first = self.matrix[0] if self.matrix else self.columns[0].title
        return {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": first, "desc": False}]}

    def _transformations(self) -> list[Json]:
        if self.matrix:
            row, column = self.matrix
            grouping = {"rowField": row, "columnField": column, "valueField": "Value", "emptyValue": "null"}
            corner = {"renameByName": {f"{row}\\{column}": row}, "excludeByName": {}, "indexByName": {}}
            return [{"id": "groupingToMatrix", "options": grouping}, {"id": "organize", "options": corner}]
        titles = {column.field: column.title for column in self.columns}
        order = {column.field: i for i, column in enumerate(self.columns)}
        return [
            {"id": "merge", "options": {}},
            {"id": "filterFieldsByName", "options": {"include": {"names": list(titles)}}},
            {"id": "organize", "options": {"renameByName": titles, "excludeByName": {}, "indexByName": order}},
        ]


#: Shapes of panels that occur again and again.
STAT: Json = {"kind": "stat", "width": 4, "height": 4}
BARS: Json = {"kind": "bargauge", "thresholds": ((None, "blue"),)}
SMALL: Json = {"width": 6, "height": 7}


def panel(title: str, description: str, unit: str, *queries: Query, **shape: Any) -> Panel:
    """A panel of these queries; `shape` are its other fields. One of joules or watts says whose they are."""
    if unit in ("joule", "watt"):
        description += f" {WHOSE_JOULES}."
    return Panel(title=title, description=description, unit=unit, queries=queries, **shape)


@dataclass(frozen=True, slots=True)
class Section:
    """A titled row and the panels below it, in reading order."""

    title: str
    panels: tuple[Panel, ...]


def lay_out(sections: Sequence[Section]) -> list[Json]:
    """Numbered panels, placed left to right and wrapped at the last column, each section under its title."""
    placed: list[Json] = []
    y = 0
    for section in sections:
        where = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        row = {"id": len(placed) + 1, "type": "row", "title": section.title, "gridPos": where}
        placed.append({**row, "collapsed": False, "panels": []})
        x, y, tallest = 0, y + 1, 0
        for panel in section.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            placed.append(panel.json(len(placed) + 1, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return placed


def _ref(index: int) -> str:
    return chr(ord("A") + index)


def _target(query: Query, ref: str, kind: str, instant: bool) -> Json:
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "range": not instant,
        "instant": instant,
        "format": "table" if kind == "table" else "time_series",
        "exemplar": query.exemplars,
    }
