"""The exporter as its users run it: a process of its own, spoken to over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    """This process's environment with the packages on the path and no setting of the exporter."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GPU_PROFILE")}
    paths = [str(ROOT / "instrumentation"), str(ROOT / "exporter")]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gpu_profile_exporter", *arguments]


@dataclass
class Exporter:
    """A running exporter: `first_line` is what it said on standard output, `url` where it serves."""

    process: subprocess.Popen[str]
    first_line: str
    url: str

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str, bytes]:
        """Status, content type and body."""
        try:
            with urlopen(Request(self.url + path, headers=dict(headers or {})), timeout=10) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read()
        except HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; exit code and standard error."""
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=20)
        return self.process.returncode, stderr


@contextmanager
def exporter(*arguments: str, **env: str) -> Iterator[Exporter]:
    """An exporter on a port that the system chooses."""
    process = subprocess.Popen(
        command("--listen", "127.0.0.1:0", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
    )
    try:
        assert process.stdout is not None
        first_line = process.stdout.readline()
        found = re.search(r" on (http://127\.0\.0\.1:\d+)/metrics$", first_line)
        if found is None:
            process.kill()
            raise AssertionError(f"no address in {first_line!r}: {process.communicate()[1]}")
        yield Exporter(process, first_line.rstrip("\n"), found[1])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def fails(*arguments: str, **env: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of an exporter that is expected to end by itself."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(**env), timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr
