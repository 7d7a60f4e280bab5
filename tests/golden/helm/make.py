"""Writes the manifests of the Helm chart beside this file: `python tests/golden/helm/make.py`, with `helm` on the PATH.

`chart.sha256` is the hash of the rendered chart. Contents of dashboards and rules are left out: other tests check them.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).parent
CHART: Final = HERE.parents[2] / "docker" / "helm" / "gpu-profile-exporter"
#: The cases by name: their values.
CASES: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "attribution": {"attribution": {"enabled": True}},
    "timeline": {"timeline": {"enabled": True, "directory": "/run/other"}},
    "web": {
        "web": {"secret": "exporter-web", "tls": True},
        "podMonitor": {"enabled": True, "endpoint": {"basicAuth": {"username": {"name": "scraper", "key": "user"}}}},
    },
    "everything": {
        "image": {"repository": "registry.example/gpu-profile-exporter", "tag": "0.2.0"},
        "imagePullSecrets": [{"name": "registry"}],
        "args": ["--names=both"],
        "env": [{"name": "GPU_PROFILE_EXPORTER_LOG_LEVEL", "value": "debug"}],
        "spans": {"enabled": True, "forward": "http://collector.observability:4318"},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}, "examplePrices": True},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "GPUs"}},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-node-critical",
        "podAnnotations": {"example.org/owner": "ml"},
        "podLabels": {"team": "ml"},
        "resources": {"limits": {"memory": "768Mi"}},
    },
}


def chart_hash() -> str:
    """The hash of the chart's own files."""
    files = [CHART / "Chart.yaml", CHART / "values.yaml", CHART / "values.schema.json", *CHART.glob("templates/*")]
    parts = [f"{path.name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sorted(files)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def documents(manifest: str) -> list[dict[str, Any]]:
    """The documents of a rendered chart in a fixed order, without the contents of dashboards and rules."""
    found = [document for document in yaml.safe_load_all(manifest) if document]
    for document in found:
        if document["kind"] == "PrometheusRule":
            document["spec"] = {"groups": [group["name"] for group in document["spec"]["groups"]]}
        elif "-dashboard-" in document["metadata"]["name"]:
            document["data"] = {name: json.loads(text)["uid"] for name, text in document["data"].items()}
    return sorted(found, key=lambda each: (each["kind"], each["metadata"]["name"]))


def rendered(values: dict[str, Any]) -> str:
    """The chart with these values, by `helm template`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        command = [
            "helm",
            "template",
            "gpu-profile-exporter",
            str(CHART),
            "--namespace",
            "gpu-profile",
            "--values",
            file.name,
        ]
        return str(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def write(name: str, manifest: str) -> None:
    """Write the golden file of a case."""
    (HERE / f"{name}.yaml").write_text(yaml.safe_dump_all(documents(manifest), sort_keys=True, width=120))


if __name__ == "__main__":
    for name, values in CASES.items():
        write(name, rendered(values))
    (HERE / "chart.sha256").write_text(f"{chart_hash()}\n")
