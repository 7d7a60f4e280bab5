"""Draws docs/images/live.png from the live page of the demonstration's service: `python docs/make_live_picture.py`.

Needs Chromium. The service runs on a simulated GPU, which the page says in its title. A viewer asks for answers for
some time first, because executions are collected only while somebody looks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from gpu_profile.driver import simulated

PICTURE: Final = Path(__file__).parent / "images" / "live.png"
SIZE: Final = "1400,1180"


def main() -> None:
    """Run the service and write the picture."""
    parser = argparse.ArgumentParser(description="Draw docs/images/live.png from the demonstration's service.")
    parser.add_argument("--seconds", type=float, default=75)
    parser.add_argument("--output", type=Path, default=PICTURE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        node, port = simulated.create(Path(folder) / "node"), free_port()
        service = [sys.executable, "-m", "gpu_profile_exporter.demo.service", "--metrics", str(port)]
        service += ["--directory", str(node), "--seconds", f"{options.seconds + 60:g}"]
        running = subprocess.Popen(service, stdout=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}/"
            view(url, options.seconds)
            draw(url, options.output, Path(folder))
        finally:
            running.kill()
            running.wait()


def view(url: str, seconds: float) -> None:
    """Ask for answers once a second, as the page does."""
    after, end = "", time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urlopen(f"{url}api/live?after={after}", timeout=10) as answer:  # noqa: S310 - of this machine
                after = json.load(answer)["cursor"]
        except URLError:  # the service is starting
            pass
        time.sleep(1)


def draw(url: str, output: Path, folder: Path) -> None:
    """Write a picture of the page, after some answers."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
    options += ["--blink-settings=preferredColorScheme=1", "--virtual-time-budget=4000"]
    options += [f"--user-data-dir={folder / 'profile'}", f"--screenshot={output.absolute()}"]
    subprocess.run([shutil.which("chromium") or "chromium", *options, url], check=True, capture_output=True)


def free_port() -> int:
    """A port that no program uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
