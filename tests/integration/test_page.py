import re
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
    assert '<span class="mark" id="simulated">SIMULATED</span>' in dom
    assert dom.count('class="ok"') == 5
    # It has asked for itself again, and is what it got.
    metrics = served.get("/metrics")[2].decode()
    asked = re.search(r'^gpu_profile_http_requests_total{http_route="/",.*} (.*)$', metrics, re.MULTILINE)
    assert asked is not None
    assert float(asked[1]) > 1
    assert '<p id="reason" role="status"></p>' in dom


def test_the_page_says_that_its_values_are_old_once_the_exporter_has_gone(tmp_path: Path) -> None:
    node = create(tmp_path / "node")
    with exporter("--driver", f"simulated:{node}") as running:
        saved = tmp_path / "page.html"
        status, _, body = running.get("/")
        assert status == 200
        # The page as it was, with its script asking a port where nobody listens any more.
        saved.write_bytes(body.replace(b'fetch("/"', f'fetch("{running.url}/"'.encode()))
    dom = chromium(tmp_path, saved.as_uri(), "--dump-dom")
    assert '<p id="reason" role="status">The exporter does not answer (' in dom
