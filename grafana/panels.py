"""Grafana's JSON from a few frozen values: a query, a panel, a section of panels laid out by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gpu_profile.regimes.palette import COLOURS
from gpu_profile.report.table import WHOSE_JOULES

Json = dict[str, Any]
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
#: The label of a query that is a text to show, such as “1 of 8”.
TEXT: Final = "text"
#: Colours of the regimes on every dashboard: legible on light and on dark ground.
REGIME_COLOURS: Final = {str(regime): colour.either for regime, colour in COLOURS.items()}


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression. `thin` draws a dashed line without a fill: a reading or a limit beside what matters."""

    expr: str
    legend: str
    thin: bool = False
    exemplars: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A way to another dashboard from a value. `variables` are its variables and Grafana's templates for their values.

    The range of time and the choice of clusters go with it.
    """

    title: str
    board: str
    variables: tuple[tuple[str, str], ...]

    def json(self) -> Json:
        """The link as Grafana stores it."""
        values = "".join(f"&var-{name}={value}" for name, value in self.variables)
        return {"title": self.title, "url": f"/d/{self.board}?${{__url_time_range}}&${{cluster:queryparam}}{values}"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the field as the query names it, its title and, for a number, its Grafana unit.

    `texts` replaces values, `limits` colours them: a value from which on the colour applies, and the colour.
    """

    field: str
    title: str
    unit: str = ""
    link: Link | None = None
    texts: tuple[tuple[str, str], ...] = ()
    limits: tuple[tuple[float, str], ...] = ()
    width: int = 0
    #: Growth of a counter is extrapolated, but nobody has had 2.02 errors.
    whole: bool = False

    def properties(self) -> list[Json]:
        """What an override of the field says."""
        properties: list[Json] = [{"id": "unit", "value": self.unit}] if self.unit else []
        if self.whole:
            properties.append({"id": "decimals", "value": 0})
        if self.width:
            properties.append({"id": "custom.width", "value": self.width})
        if self.link:
            properties.append({"id": "links", "value": [self.link.json()]})
        if self.texts:
            options = {value: {"text": text, "index": i} for i, (value, text) in enumerate(self.texts)}
            properties.append({"id": "mappings", "value": [{"type": "value", "options": options}]})
        if self.limits:
            steps = [{"value": None, "color": "text"}, *({"value": value, "color": c} for value, c in self.limits)]
            properties += [
                {"id": "thresholds", "value": {"mode": "absolute", "steps": steps}},
                {"id": "color", "value": {"mode": "thresholds"}},
                {"id": "custom.cellOptions", "value": {"type": "color-text"}},
            ]
        return properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `width` and `height` are in Grafana's grid of 24 columns. A long legend reads better at the right.

    `shows` explains the values, `conclude` how to read them, `do` the next step; `empty` is the text without data.
    A `count` shows the label `text`; `alarm` is its colour if it does not begin with “0 of”, or empty. `least_step` is
    the shortest step between points, for values that come in steps.
    """

    title: str
    shows: str
    conclude: str
    do: str
    empty: str
    unit: str = "none"
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat", "bargauge", "table", "count"] = "timeseries"
    width: int = 12
    height: int = 8
    stacked: bool = False
    logarithmic: bool = False
    legend: Literal["bottom", "right"] = "bottom"
    maximum: float | None = None
    columns: tuple[Column, ...] = ()
    matrix: tuple[str, str] | None = None
    sort: str = ""
    alarm: str = "red"
    link: Link | None = None
    regimes: bool = False
    thresholds: tuple[tuple[float | None, str], ...] = ((None, "green"),)
    least_step: str = ""

    @property
    def description(self) -> str:
        """The help text behind the panel's title, in Markdown. One of joules or watts says whose they are."""
        whose = f" {WHOSE_JOULES}." if self.unit in ("joule", "watt") else ""
        return f"{self.shows}{whose}\n\n**Conclude:** {self.conclude}\n\n**Do:** {self.do}"

    def json(self, identity: int, x: int, y: int) -> Json:
        """The panel as Grafana stores it, at a place of the grid."""
        panel: Json = {
            "id": identity,
            "type": "stat" if self.kind == "count" else self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": self._defaults(), "overrides": self._overrides()},
            "options": self._options(),
            **({"interval": self.least_step} if self.least_step else {}),
            "targets": [_target(query, _ref(i), self.kind) for i, query in enumerate(self.queries)],
        }
        if self.kind == "table":
            panel["transformations"] = self._transformations()
        return panel

    def _defaults(self) -> Json:
        defaults: Json = {"unit": self.unit, "noValue": self.empty}
        if self.link:
            defaults["links"] = [self.link.json()]
        if self.kind == "count":
            return defaults | {"mappings": _alarm(self.alarm) if self.alarm else []}
        # Rates and shares may touch 0; a temperature has no business to start its axis there, and a logarithm cannot.
        if self.unit not in ("celsius", "dateTimeAsIso") and not self.logarithmic:
            defaults["min"] = 0
        if self.maximum is not None:
            defaults["max"] = self.maximum
        steps = [{"value": value, "color": colour} for value, colour in self.thresholds]
        if self.kind != "timeseries":
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
            defaults["color"] = {"mode": "thresholds"}
            # Grafana's 150 pixels for a column make the reader scroll sideways.
            return defaults | ({"custom": {"minWidth": 70}} if self.kind == "table" else {})
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
        if self.regimes:
            cell = [{"id": "custom.cellOptions", "value": {"type": "color-text"}}] if self.kind == "table" else []
            overrides += [_coloured(name, colour, cell) for name, colour in REGIME_COLOURS.items()]
        if self.kind == "table":
            # The text of an empty panel is not that of an empty cell.
            cells: Json = {
                "matcher": {"id": "byRegexp", "options": "/.*/"},
                "properties": [{"id": "noValue", "value": "–"}],
            }
            overrides.append(cells)
        for column in self.columns:
            if properties := column.properties():
                overrides.append({"matcher": {"id": "byName", "options": column.title}, "properties": properties})
        return overrides

    def _options(self) -> Json:
        reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        if self.kind == "timeseries":
            return {
                "legend": {"showLegend": True, "displayMode": "list", "placement": self.legend, "calcs": []},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        if self.kind == "count":
            text = reduced | {"fields": f"/^{TEXT}$/"}
            colour = "background" if self.alarm else "none"
            return {"reduceOptions": text, "colorMode": colour, "graphMode": "none", "textMode": "value"}
        if self.kind == "stat":
            return {"reduceOptions": reduced, "colorMode": "value", "graphMode": "none", "textMode": "value"}
        if self.kind == "bargauge":
            return {"reduceOptions": reduced, "displayMode": "basic", "orientation": "horizontal"}
        first = self.matrix[0] if self.matrix else self.columns[0].title
        order = {"displayName": self.sort or first, "desc": bool(self.sort)}
        return {"showHeader": True, "cellHeight": "sm", "sortBy": [order]}

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
COUNT: Json = {"kind": "count", "width": 4, "height": 3}
BARS: Json = {"kind": "bargauge", "thresholds": ((None, "blue"),)}
SMALL: Json = {"width": 6, "height": 7}


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


def _alarm(colour: str) -> list[Json]:
    """Green for “0 of 8”, `colour` for “1 of 8”. Grafana tries them in order."""
    texts = (("/^0 of /", "green"), ("/ of /", colour))
    return [
        {"type": "regex", "options": {"pattern": pattern, "result": {"color": result, "index": i}}}
        for i, (pattern, result) in enumerate(texts)
    ]


def _coloured(name: str, colour: str, more: list[Json]) -> Json:
    fixed = {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}
    return {"matcher": {"id": "byName", "options": name}, "properties": [fixed, *more]}


def _target(query: Query, ref: str, kind: str) -> Json:
    instant = kind != "timeseries"
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "range": not instant,
        "instant": instant,
        "format": "table" if kind in ("table", "count") else "time_series",
        "exemplar": query.exemplars,
    }
