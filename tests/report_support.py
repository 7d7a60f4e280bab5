"""Reading back what the page's timeline was packed into, and recordings that are hard to draw."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
from analysis_support import GPU, MS, T0, Run

from gpu_profile.catalogue.samples import Event
from gpu_profile.recording import Recording

TYPES = {"t0": "<u4", "t1": "<u4", "low": "<u2", "mean": "<u2", "high": "<u2", "gaps": "<u4"} | {
    "lane": "u1",
    "region": "<u2",
    "n": "<u4",
    "fill": "u1",
}
EVIL = "</script><script>alert(1)</script><b>\"'&\x1b[31m\ud800\n"
#: A stretch without samples, in ns from the recording's start.
GAP = 5_000 * MS, 9_000 * MS


def unpacked(columns: dict[str, Any], key: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(columns[key]), TYPES[key])


def drawn(page: str) -> dict[str, Any]:
    """The data that the page's script draws."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


class Page(HTMLParser):
    """What a page asks for from elsewhere, the tags that it has, and whether all that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [f"{tag} {key}={value}" for key, value in attrs if key in ("src", "href", "srcset", "action")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def with_gap(run: Run) -> Recording:
    """The run as if nothing had been sampled for a while, and then the GPU had told an error."""
    recording = run.recording()
    first, last = T0 + GAP[0], T0 + GAP[1]
    columns = {}
    for key, column in recording.samples[GPU.uuid].items():
        keep = (column.t_end <= first) | (column.t_end > last)
        columns[key] = type(column)(*(each[keep] for each in column))
    event = Event(GPU.uuid, first, "xid", 79, "GPU has fallen off the bus")
    return replace(recording, samples={GPU.uuid: columns}, events=(event,))


def hostile(run: Run) -> Recording:
    """The run with names that would like to break out of wherever they are put."""
    run.spans = [span._replace(name=EVIL if span.name == "load" else span.name) for span in run.spans]
    recording = run.recording()
    return replace(recording, devices=(replace(recording.devices[0], name="<b>\x07"),))
