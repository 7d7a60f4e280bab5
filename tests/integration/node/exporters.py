"""Exporters of a simulated node as processes of their own."""

import subprocess
import sys
import time
from pathlib import Path

from support.programs import environment

from gpu_profile.driver import simulated
from gpu_profile.driver.node.table import TableFile


class Exporter:
    """An exporter of a simulated node, which keeps a timeline."""

    def __init__(self, folder: Path, *options: str, scenario: str | None = None) -> None:
        self.node, self.timeline = folder / "node", folder / "timeline"
        if not self.node.exists():
            simulated.create(self.node, scenario)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpu_profile_exporter", f"--driver=simulated:{self.node}", "--listen=127.0.0.1:0",
             f"--timeline={self.timeline}", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip

    def wait(self, files: int = 1) -> None:
        """Until each device has so many files."""
        table = TableFile(self.timeline)
        while True:
            assert self.process.poll() is None, self.process.communicate()
            try:
                found = table.read()
            except Exception:  # not there yet
                found = None
            if found is not None and found.devices and all(len(one.files) >= files for one in found.devices):
                return
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=20)
