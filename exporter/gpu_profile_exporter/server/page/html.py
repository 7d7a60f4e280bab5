"""The landing page as text: `index.html` with the current values, so that it needs no scripts.

The page's script requests the page again every 2 s and takes over the changed elements.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from gpu_profile_exporter.server.page.devices import DeviceData, PageData

_GIB = 1 << 30


def render(data: PageData) -> str:
    """The whole page."""
    return _template().substitute(
        version=escape(data["version"]),
        driver=escape(f"{data['driver']} {data['driver_version']}".strip()),
        simulated="" if data["simulated"] else "hidden",
        reason=escape(data["reason"]),
        rows="".join(map(_row, data["devices"])),
    )


@cache
def _template() -> Template:
    return Template(files(__package__).joinpath("index.html").read_text(encoding="utf-8"))


def _row(device: DeviceData) -> str:
    cells = "".join(f"<td>{escape(text)}</td>" for text in _cells(device))
    return f'<tr class="{device["status"]}" title="{escape(device["reason"])}">{cells}</tr>'


def _cells(device: DeviceData) -> tuple[str, ...]:
    busy, power, age = device["busy"], device["power_w"], device["age_s"]
    used, total, heat = device["memory_used_bytes"], device["memory_bytes"], device["temperature_c"]
    of_total = "" if total is None else f" / {total / _GIB:.1f}"
    return (
        "" if device["index"] is None else str(device["index"]),
        device["name"],
        "-" if busy is None else f"{busy * 100:.0f} %",
        "-" if power is None else f"{power:.0f} W",
        "-" if used is None else f"{used / _GIB:.1f}{of_total} GiB",
        "-" if heat is None else f"{heat:.0f} °C",
        device["status"],
        "-" if age is None else f"{age:.1f} s ago",
        device["uuid"],
    )
