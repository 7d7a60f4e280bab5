"""Writes the live page, with its validator and its content security policy. Loaded when somebody asks for it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from gpu_profile.regimes import Regime
from gpu_profile.report import page
from gpu_profile.report.devices import CHARTS
from gpu_profile.report.live.served_page import ANSWERS, LivePage

_HINTS: Final = (
    "<kbd>End</kbd> follows the newest samples, <kbd>n</kbd> <kbd>p</kbd> next and previous execution, "
    "<kbd>Space</kbd> pauses; <kbd>/</kbd> searches. Hatched: not measured. Triangles are events."
)

#: In this order: each one uses the ones before it.
_SCRIPTS: Final = ("rows.js", "asking.js", "live_tables.js", "cost_table.js", "live.js")
_REGIMES: Final = tuple(map(str, Regime))


@cache
def live_page(title: str, links: tuple[tuple[str, str], ...]) -> LivePage:
    """The page. `links`: addresses of the server's other answers, relative to the page's, with their texts."""
    charts = [{"key": chart.key, "label": chart.label, "unit": _unit(chart.key)} for chart in CHARTS]
    setting = json.dumps({"answers": ANSWERS, "charts": charts}, separators=(",", ":"))
    text = page.document(
        title,
        [_head(links), _timeline(), *_tables()],
        by="region",
        drawn=None,
        mark=' <span class="mark" id="simulated" hidden>SIMULATED</span>',
        style=page.asset(__package__, "live.css"),
        script="\n".join((*(page.asset(__package__, name) for name in _SCRIPTS), f"start({setting});")),
    )
    body = text.encode()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return LivePage(body, gzip.compress(body, mtime=0), etag, _policy(text))


def _unit(key: str) -> str:
    return {"busy": "1", "power": "W", "memory": "By", "clock": "Hz"}[key]


def _policy(text: str) -> str:
    """The page's own styles and scripts by their hashes, requests to its own server, and nothing else."""
    scripts = " ".join(_hashes(re.findall(r"<script>(.*?)</script>", text, re.DOTALL)))
    styles = " ".join(_hashes(re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL)))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hashes(parts: Iterable[str]) -> list[str]:
    digests = (hashlib.sha256(part.encode()).digest() for part in parts)
    return [f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests]


def _head(links: Iterable[tuple[str, str]]) -> str:
    shown = "".join(f'<a href="{page.escape(address)}">{page.escape(text)}</a>' for address, text in links)
    return (
        f'<nav>{shown}</nav><p id="source"></p>'
        '<div class="bar" id="state" data-state="wait"><b id="lamp" aria-hidden="true"></b>'
        '<span id="age">waiting for the first answer</span><button id="pause" aria-pressed="false">pause</button>'
        '<input type="search" id="search" placeholder="search" aria-label="show only GPUs, regions, tenants, '
        'processes and events with this text"></div><p id="trouble" role="status"></p>'
        f"<noscript><p>This page needs scripts. Without them: {shown}</p></noscript>"
    )


def _timeline() -> str:
    legend = page.legend(_REGIMES, _HINTS)
    return f'{page.TIMELINE}{page.toolbar("region")}<div id="groups"></div><p id="lanes-note"></p>{legend}'


def _tables() -> Iterable[str]:
    yield _section(
        "regions",
        "Regions",
        ("region", "GPU", "of the GPU", "power", "energy", "calls/s", "regime", "since", "next step"),
    )
    # Shown if answers have costs.
    yield _section(
        "costs",
        "Requests and tenants",
        (
            *("tenant", "engine", "requests", "prefill tokens", "decode tokens", "energy", "of the engine"),
            *("per 1,000 prefill", "per 1,000 decode", "GPU time", "remark"),
        ),
        hidden=True,
    )
    yield _section("users", "Processes and holders", ("user", "GPU", "kind", "memory", "busy"))
    yield _section("marks", "Events", ("event", "GPU", "at"))


def _section(name: str, title: str, columns: tuple[str, ...], *, hidden: bool = False) -> str:
    table = page.table(columns, ())
    mark = " hidden" if hidden else ""
    return f'<section id="{name}"{mark}><h2>{page.escape(title)}</h2><p class="note"></p>{table}</section>'
