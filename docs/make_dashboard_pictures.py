"""Draws docs/images/dashboard-*.png: `python docs/make_dashboard_pictures.py [--minutes 6] [--only NAME]`.

Starts three simulated nodes, a service, a training job of four ranks, an LLM server, the exporters and Prometheus. Then
it draws each dashboard with Grafana's published UI packages in Chromium. Needs Debian's `prometheus` and `chromium`,
`node`, and `npm`, which installs the packages of `docs/dashboard_pictures` into a temporary directory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from gpu_profile.driver.simulated import create

HERE: Final = Path(__file__).parent
BOARDS: Final = HERE.parent / "grafana" / "dashboards"
RULES: Final = HERE.parent / "grafana" / "rules"
GPUS: Final = tuple(f"GPU-5eed0000-0000-4000-8000-00000000000{index}" for index in range(8))
#: Eight GPUs: four train, one of them has a memory error; another one is lost, and the others idle.
TRAINING_NODE: Final = "\n".join(
    ("noise = 0.02", *(f'[[device]]\nmodel = "H100 SXM"\nuuid = "{uuid}"' for uuid in GPUS))
)
LLM_NODE: Final = '[[device]]\nmodel = "H200 SXM"\nuuid = "GPU-5eed0000-0000-4000-8000-000000000010"\n'
FAULTS: Final = """
[[fault]]
kind = "gpu_lost"
device = 6
from_s = {lost}
[[fault]]
kind = "xid"
xid = 48
device = 2
from_s = {xid}
"""
#: Seconds that a rank's input takes: the last one is slow.
LOADS_S: Final = (0.02, 0.02, 0.02, 0.07)
NODE: Final = {"cluster": "berlin"}
#: The choice of the variables in the picture of each dashboard; all others are “All”.
CHOICES: Final[dict[str, dict[str, str]]] = {
    "fleet": {},
    "node": {"instance": "node-b:9400"},
    "gpu": {"instance": "node-b:9400", "gpu": GPUS[2]},
    "regions": {"job": "shop"},
    "training": {"job": "pretrain", "gpu": "GPU-5eed.*[0-3]"},
    "requests": {},
    "trust": {},
}


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ports(count: int) -> list[int]:
    """Different ports that nobody listens on."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[free_port()] = None
    return list(found)


@contextmanager
def running(log: Path, *command: str | Path) -> Iterator[None]:
    """A process until the block ends. Its output goes to `log`."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield
        finally:
            process.terminate()


def target(job: str, port: int, instance: str, **labels: str) -> dict[str, Any]:
    """A scrape job with one target, under a readable name."""
    return {
        "job_name": f"{job} {instance}",
        "static_configs": [
            {"targets": [f"127.0.0.1:{port}"], "labels": {**NODE, "job": job, "instance": instance, **labels}}
        ],
    }


def start(programs: ExitStack, server: ExitStack, here: Path, seconds: float) -> str:
    """Start all programs, and Prometheus, for a run of this length. Returns Prometheus' address."""
    shop = create(here / "node-a")
    faults = {"lost": seconds * 0.6, "xid": seconds * 0.8}
    training = create(here / "node-b", TRAINING_NODE + FAULTS.format_map(faults))
    targets = []

    def begin(name: str, *command: str | Path) -> None:
        programs.enter_context(running(here / f"{name}.log", sys.executable, *command))

    for name, node in (("node-a", shop), ("node-b", training)):
        port, jobs = free_port(), here / f"{name}.jobs"
        jobs.mkdir()
        for gpu, job in (("0", "4711"), ("1", "4711"), ("2", "4711"), ("3", "4711"), ("4", "4799")):
            if name == "node-b":
                (jobs / gpu).write_text(f"{job}\n")
        # Thirteen simulated GPUs at the usual ten readings a second are too much for a small machine.
        options = ("--driver", f"simulated:{node}", "--listen", f"127.0.0.1:{port}", "--interval", "0.5")
        begin(f"exporter-{name}", "-m", "gpu_profile_exporter", *options, "--attribution-job-mapping-dir", jobs)
        targets.append(target("gpu-profile-exporter", port, f"{name}:9400"))
    port = free_port()
    begin("shop", "-m", "gpu_profile_exporter.demo.service", "--directory", shop, "--metrics", str(port))
    targets.append(target("shop", port, "shop-0:9464", namespace="web", version="1.4.0"))
    llm, port, iterations, spans = create(here / "node-c", LLM_NODE), *ports(3)
    listening = ("--listen", f"127.0.0.1:{port}", "--receive-http", f"127.0.0.1:{spans}")
    serving = ("--serving", f"llm=tcp://127.0.0.1:{iterations}", "--serving-tenant", "tenant.id")
    # Nobody receives the joined spans.
    forward = ("--forward", f"http://127.0.0.1:{free_port()}", "--timeline", here / "timeline")
    driver = ("--driver", f"simulated:{llm}")
    begin("exporter-node-c", "-m", "gpu_profile_exporter", *driver, *listening, *serving, *forward)
    targets.append(target("gpu-profile-exporter", port, "node-c:9400"))
    addresses = ("--publish", f"tcp://127.0.0.1:{iterations}", "--spans", f"http://127.0.0.1:{spans}")
    begin("engine", "-m", "gpu_profile_exporter.demo.engine", "--directory", llm, *addresses)
    for rank, load_s in enumerate(LOADS_S):
        port = free_port()
        begin(f"rank-{rank}", HERE / "dashboard_pictures" / "rank.py", training, str(rank), str(port), str(load_s))
        targets.append(target("pretrain", port, f"rank-{rank}:9464", namespace="research", version="7f3c"))
    port = free_port()
    config = here / "prometheus.json"
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
                "rule_files": [f"{RULES}/*.yaml"],
                "scrape_configs": targets,
            }
        )
    )
    stored = (f"--config.file={config}", f"--storage.tsdb.path={here / 'data'}")
    listen = f"--web.listen-address=127.0.0.1:{port}"
    server.enter_context(running(here / "prometheus.log", "prometheus", *stored, listen))
    return f"http://127.0.0.1:{port}"


def renderer(here: Path) -> Path:
    """A copy of the renderer with its packages installed."""
    there = here / "renderer"
    shutil.copytree(HERE / "dashboard_pictures", there)
    subprocess.run(["npm", "install", "--legacy-peer-deps", "--no-audit", "--no-fund"], cwd=there, check=True)
    return there


def main() -> None:
    """Run everything for some minutes and write the pictures."""
    parser = argparse.ArgumentParser(description="Draw docs/images/dashboard-*.png from a run on simulated GPUs.")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--only", choices=CHOICES, help="draw this dashboard alone")
    parser.add_argument("--output", type=Path, default=HERE / "images")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as server, ExitStack() as programs:
        here, seconds = Path(directory), options.minutes * 60
        program = renderer(here)
        url = start(programs, server, here, seconds)
        time.sleep(seconds)
        # All pictures end at one moment, however long drawing takes; only Prometheus is needed for that.
        span = (str(int(time.time())), str(int(seconds)), "5")
        programs.close()
        for name, choice in CHOICES.items():
            if options.only not in (None, name):
                continue
            chosen = [f"{variable}={value}" for variable, value in choice.items()]
            picture = options.output / f"dashboard-{name}.png"
            command = ["node", program / "render.mjs", BOARDS / f"{name}.json", picture, url, *span]
            subprocess.run([*command, *chosen], check=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
