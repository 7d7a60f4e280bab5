"""Writes the dashboards, the alerts and the recording rules from the catalogue.

    python grafana/generate.py [--output DIR] [--grafana URL] [--runbook URL]

The files are committed, so that nobody needs to run this to use them; a test holds that they are up to date.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

import alerts
import fleet
import node
import one_gpu
import recordings
import regions
import rulefiles
import serving
import training
import trust

#: In the order in which a reader goes from the question to its cause.
BOARDS: Final = (fleet.BOARD, node.BOARD, one_gpu.BOARD, regions.BOARD, training.BOARD, serving.BOARD, trust.BOARD)


def files(sites: rulefiles.Sites) -> dict[str, str]:
    """The text of every generated file by its path below `grafana/`."""
    made = {f"dashboards/{each.name}.json": json.dumps(each.json(), indent=1, ensure_ascii=False) for each in BOARDS}
    made = {name: text + "\n" for name, text in made.items()}
    made |= {f"alerts/{name}": rulefiles.yaml(groups, sites) for name, groups in alerts.FILES.items()}
    made |= {f"rules/{name}": rulefiles.yaml(groups, sites) for name, groups in recordings.FILES.items()}
    return made


def main() -> None:
    """Write every file."""
    parser = argparse.ArgumentParser(description="Write the dashboards, alerts and recording rules.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="where to write (default: here)")
    parser.add_argument("--grafana", default="", metavar="URL", help="Grafana's address for the alerts' links")
    parser.add_argument("--runbook", default=rulefiles.Sites().runbook, metavar="URL", help="the runbook's address")
    options = parser.parse_args()
    sites = rulefiles.Sites(options.grafana.rstrip("/"), options.runbook)
    for name, text in files(sites).items():
        path = options.output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
