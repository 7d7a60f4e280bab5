"""A real Prometheus of one's own: another port, another directory, gone at the end."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def until(condition: Any, what: str, timeout_s: float = 30) -> Any:
    """The first true value of `condition()`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


class Prometheus:
    """Prometheus over `data` with a configuration's text."""

    def __init__(self, data: Path, *, config: str) -> None:
        self.data = data
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
