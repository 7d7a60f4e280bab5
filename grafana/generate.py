"""Writes the dashboard, the alerts and the recording rules from the catalogue.

    python grafana/generate.py [--output DIR]

The files are committed, so that nobody needs to run this to use them; a test holds that they are up to date.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import alerts
import faults
import gpus
import recordings
import regions
import rulefiles
import trust
from panels import DATASOURCE, Json, lay_out
from queries import by, of_regions, series, with_slice

from gpu_profile.catalogue.metrics import DEVICE_INFO, REGION_CALLS


def dashboard() -> Json:
    """The dashboard as Grafana stores it."""
    return {
        "uid": "gpu-profile",
        "title": "GPUs and the code that uses them",
        "description": "What the GPUs do, what they cost, and which regions of which programs that goes to.",
        "tags": ["gpu", "gpu-profile"],
        "schemaVersion": 41,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": variables()},
        "panels": lay_out((*gpus.SECTIONS, *faults.SECTIONS, *regions.SECTIONS, *trust.SECTIONS)),
    }


def variables() -> list[Json]:
    """What the reader can choose: data source, nodes, their GPUs, services and regions that ran on those GPUs."""
    devices = by("hw_id, hw_name, index, instance", series(DEVICE_INFO, scope='instance=~"$instance"'), "max")
    # Grafana takes a variable's text and value out of the answer's text: one label must hold all that is to be read.
    readable = f'label_join({with_slice(devices)}, "title", " ", "index", "hw_name", "instance", "slice")'
    named = of_regions(REGION_CALLS).replace('region=~"$region", ', "")
    calls = named.replace('service_name=~"$service", ', "")
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {"text": "Prometheus", "value": "prometheus"},
            "hide": 0,
        },
        _choice("instance", "Node", f"label_values({DEVICE_INFO.prometheus}, instance)"),
        _choice("gpu", "GPU", f"query_result({readable})", '/hw_id="(?<value>[^"]+)".*title="(?<text>[^"]+)"/'),
        # Regions that a program counts itself have no service: all are chosen by what also matches none.
        _choice("service", "Service", f"label_values({calls}, service_name)") | {"allValue": ".*"},
        _choice("region", "Region", f"label_values({named}, region)"),
    ]


def _choice(name: str, label: str, query: str, regex: str = "") -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "regex": regex,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "sort": 1,
        "hide": 0,
    }


def files() -> dict[str, str]:
    """The text of every generated file by its path below `grafana/`."""
    made = {"dashboards/gpu-profile.json": json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"}
    made |= {f"alerts/{name}": rulefiles.yaml(groups) for name, groups in alerts.FILES.items()}
    made |= {f"rules/{name}": rulefiles.yaml(groups) for name, groups in recordings.FILES.items()}
    return made


def main() -> None:
    """Write every file."""
    parser = argparse.ArgumentParser(description="Write the dashboard, alerts and recording rules.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="where to write (default: here)")
    output: Path = parser.parse_args().output
    for name, text in files().items():
        path = output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
