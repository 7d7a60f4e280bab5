from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs import Exporter, exporter

from gpu_profile.driver.simulated import create

pytestmark = pytest.mark.debian


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    node = create(tmp_path_factory.mktemp("simulated") / "node")
    with exporter("--driver", f"simulated:{node}") as running:
        yield running


def chromium(tmp_path: Path, url: str, *options: str) -> str:
    """What a real browser made of the page after its script has run for some seconds of its own time."""
    command = [shutil.which("chromium") or "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
    command += ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", *options, url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90)
    return done.stdout


def test_the_page_lists_every_device_and_says_that_they_are_simulated(served: Exporter, tmp_path: Path) -> None:
    dom = chromium(tmp_path, f"{served.url}/", "--dump-dom")
    for name in ("NVIDIA H200", "NVIDIA A10G", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"):
        assert name in dom
    assert '<span class="mark">SIMULATED</span>' in dom
    assert dom.count('class="ok"') == 5


def test_the_page_says_that_its_values_are_old_once_the_exporter_has_gone(tmp_path: Path) -> None:
    node = create(tmp_path / "node")
    with exporter("--driver", f"simulated:{node}") as running:
        saved = tmp_path / "page.html"
        status, _, body = running.get("/")
        assert status == 200
        # The page as it was, with its script asking a port where nobody listens any more.
        saved.write_bytes(body.replace(b'fetch("/api/devices"', f'fetch("{running.url}/api/devices"'.encode()))
    dom = chromium(tmp_path, saved.as_uri(), "--dump-dom")
    assert "these values are old" in dom
