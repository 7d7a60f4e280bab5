"""Separate processes: the exporter as users run it, with an HTTP client, and a real Prometheus."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """This process's environment with the packages first on the path and no setting of the exporter."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GPU_PROFILE")}
    # Other entries of the machine's path, such as installed packages, follow. An empty entry would mean the working
    # directory.
    behind = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = dict.fromkeys([str(ROOT / "instrumentation"), str(ROOT / "exporter"), *behind])
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), **more}


def ran(
    words: Sequence[str | os.PathLike[str]], *, cwd: str | Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. Returns its exit code and output. `env` is added to `environment()`."""
    return subprocess.run(
        words, capture_output=True, text=True, cwd=cwd, env=environment(**env), timeout=300, check=False
    )


def python(
    *words: str | os.PathLike[str], cwd: str | Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """The same for Python with these arguments."""
    return ran([sys.executable, *words], cwd=cwd, **env)


def printed(*words: str | os.PathLike[str], cwd: str | Path | None = None, **env: str) -> str:
    """The output of Python with these arguments. Fails unless the exit code is 0."""
    done = python(*words, cwd=cwd, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gpu_profile_exporter", *arguments]


@dataclass
class Exporter:
    """A running exporter. `first_line`: its first line on standard output. `url`: its address."""

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
        """Send a signal. Returns exit code and standard error."""
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
        match = re.search(r" on (https?://127\.0\.0\.1:\d+)/metrics$", first_line)
        if match is None:
            process.kill()
            raise AssertionError(f"no address in {first_line!r}: {process.communicate()[1]}")
        yield Exporter(process, first_line.rstrip("\n"), match[1])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def said(running: Exporter, word: str) -> list[str]:
    """The lines on standard error up to the first one with `word`."""
    assert running.process.stderr is not None
    lines: list[str] = []
    watchdog = threading.Timer(20, running.process.kill)
    watchdog.start()
    for line in running.process.stderr:
        lines.append(line)
        if word in line:
            break
    watchdog.cancel()
    return lines


def fails(*arguments: str, **env: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of an exporter that is expected to end by itself."""
    done = ran(command(*arguments), **env)
    return done.returncode, done.stdout, done.stderr


def free_port() -> int:
    """A free port, below the range of ports that the system assigns."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextmanager
def taken_port() -> Iterator[int]:
    """A port of this machine in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def until(condition: Any, what: str, timeout_s: float = 30) -> Any:
    """The first true value of `condition()`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


class Prometheus:
    """Prometheus over `data` with a configuration's text, and further options."""

    def __init__(self, data: Path, *, config: str, options: Sequence[str] = ()) -> None:
        self.data = data
        self.options = options
        self.config = data.with_suffix(".yml")
        self.config.write_text(config)
        self.url = f"http://127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        self.log = self.data.with_suffix(".log").open("w+")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={self.config}",
                f"--storage.tsdb.path={self.data}",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--log.level=warn",
                *self.options,
            ],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        try:
            until(self._ready, f"prometheus is ready: {self.data.with_suffix('.log')}")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.log.close()

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.data.with_suffix(".log").read_text()
        try:
            with urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def api(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str, *, at_s: float | None = None) -> list[dict[str, Any]]:
        """An instant query's vector."""
        when = {} if at_s is None else {"time": f"{at_s:.3f}"}
        rows: list[dict[str, Any]] = self.api("query", query=expression, **when)["result"]
        return rows
