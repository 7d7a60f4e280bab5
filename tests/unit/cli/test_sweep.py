"""`gpu-profile sweep` against a small server with OpenAI's API and vLLM's counts of requests."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from support.servers import answering

from gpu_profile import cli
from gpu_profile.cli import completions
from gpu_profile.testing import FakeClock

Capture = pytest.CaptureFixture[str]


class Server:
    """Each request takes a second of the clock. `others` run at the start, `foreign` ones end with each own request."""

    #: Other text than that of vLLM's counts.
    metrics = b""

    def __init__(
        self, clock: FakeClock, *, others: int = 0, foreign: int = 0, shows: bool = True, **model: Any
    ) -> None:
        self.clock, self.others, self.foreign, self.shows = clock, others, foreign, shows
        self.models: object = [{"id": "m"} | model]
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.usage: object = None
        self.fails: bytes | None = None
        self._lock = threading.Lock()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        code, text = self._answer(handler)
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def _answer(self, handler: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        if handler.path == "/v1/models":
            return 200, json.dumps({"data": self.models}).encode()
        if handler.path == "/metrics":
            if self.metrics:
                return 200, self.metrics
            ended = len(self.bodies) * (1 + self.foreign) + 7
            text = f'vllm:num_requests_running{{engine="0"}} {self.others}.0\nvllm:num_requests_waiting 0.0\n'
            return 200, (text + f"vllm:request_success_total {ended}\n").encode() if self.shows else b"other 1\n"
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            self.bodies.append(body)
            self.keys.add(handler.headers["Authorization"])
            self.clock.advance(1.0)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        return (400, self.fails) if self.fails else (200, json.dumps({"usage": self.usage or usage}).encode())


@contextmanager
def swept(monkeypatch: pytest.MonkeyPatch, *options: str, **about: Any) -> Iterator[tuple[Server, int]]:
    server = Server(FakeClock(), **about)
    monkeypatch.setattr(completions, "SYSTEM_CLOCK", server.clock)
    with answering(server.answer) as url:
        # Python's small server keeps few connections waiting.
        yield server, cli.run(["sweep", f"{url}/v1/", "--most", "4", *options])


def test_lengths_and_numbers_of_requests_vary_and_prompts_never_repeat(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with swept(monkeypatch, "--seconds", "150", "--longest", "1024") as (server, code):
        assert code == 0
    lengths = {len(body["prompt"]) for body in server.bodies}
    assert min(lengths) < 64
    assert 512 < max(lengths) <= 1024
    assert len({body["max_tokens"] for body in server.bodies}) > 10
    assert len({tuple(body["prompt"]) for body in server.bodies}) == len(server.bodies) >= 150
    assert all(body["ignore_eos"] and body["model"] == "m" for body in server.bodies)
    assert server.keys == {"Bearer k"}
    tokens = sum(len(body["prompt"]) for body in server.bodies)
    assert f"{len(server.bodies)} requests in " in (out := capsys.readouterr()).out
    assert f"{tokens:,} tokens in prompts" in out.out
    assert not out.err


@pytest.mark.parametrize(
    ("about", "reason", "most", "code"),
    [
        ({"others": 3}, "3 other requests run or wait", 0, 2),
        ({"foreign": 2}, "other requests came meanwhile: repeat it when nobody uses", 4, 1),
        ({"max_model_len": 100}, "the model takes 100 tokens", 0, 2),
    ],
)
def test_a_server_with_other_traffic_or_too_short_prompts_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, about: dict[str, Any], reason: str, most: int, code: int
) -> None:
    with swept(monkeypatch, **about) as (server, found):
        assert (found, len(server.bodies) <= most) == (code, True)
    error = capsys.readouterr().err
    assert reason in error
    assert len(error) <= 230


def test_unseen_traffic_is_named_and_the_models_length_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    with swept(monkeypatch, "--seconds", "60", shows=False, max_model_len=640) as (server, code):
        assert code == 0
    assert max(len(body["prompt"]) for body in server.bodies) <= 512
    assert "other traffic would go unseen" in capsys.readouterr().err


def test_a_server_that_does_not_answer_as_one_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    server = Server(FakeClock())
    monkeypatch.setattr(completions, "SYSTEM_CLOCK", server.clock)
    with answering(server.answer) as url:
        assert cli.run(["sweep", url, "--model", "n"]) == 2
        server.models = {"id": "m"}
        assert cli.run(["sweep", "--most", "4", url]) == 2
        server.models = [{"id": "m"}]
        server.usage = {"prompt_tokens": "many"}
        assert cli.run(["sweep", "--most", "4", url]) == 2
        server.fails = b'{"message": "This model\'s maximum\n context length"}' * 100
        assert cli.run(["sweep", "--most", "4", url]) == 2
    assert cli.run(["sweep", "http://127.0.0.1:1"]) == 2
    assert cli.run(["sweep", "me@host"]) == 2
    lines = capsys.readouterr().err.splitlines()
    for line, part in zip(
        lines, ("no model n", "no model", "does not count", "HTTP 400: ", "refused", "http://HOST:PORT"), strict=True
    ):
        assert part in line
        assert len(line) <= 230


@pytest.mark.parametrize(("prompt", "answer"), [(0, 1), (-5, 1), (True, 1), (16, -1), (16, False), (10**300, 1)])
def test_counts_that_no_request_has_are_no_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, prompt: int, answer: int
) -> None:
    server = Server(FakeClock(), max_model_len=True)
    monkeypatch.setattr(completions, "SYSTEM_CLOCK", server.clock)
    server.usage = {"prompt_tokens": prompt, "completion_tokens": answer}
    with answering(server.answer) as url:
        assert cli.run(["sweep", url, "--most", "1"]) == 2
    assert "an answer does not count its tokens" in capsys.readouterr().err


def test_the_first_failure_ends_the_sweep_without_a_wait_for_other_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    server, ended, late = Server(FakeClock()), threading.Event(), list[bool]()
    monkeypatch.setattr(completions, "SYSTEM_CLOCK", server.clock)
    server.fails = b"full"

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/v1/completions" and server.bodies:
            late.append(ended.wait(10))
        server.answer(handler)

    with answering(answer) as url:
        code = cli.run(["sweep", url, "--most", "4"])
        assert (code, late) == (2, [])
        ended.set()
    assert "HTTP 400: full" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
@pytest.mark.parametrize("code", [302, 307])
def test_a_redirect_does_not_take_the_key_or_a_prompt_to_another_server(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, path: str, code: int
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    server, elsewhere = Server(FakeClock()), list[str]()
    monkeypatch.setattr(completions, "SYSTEM_CLOCK", server.clock)

    def other(handler: BaseHTTPRequestHandler) -> None:
        elsewhere.append(handler.path)
        server.answer(handler)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path != path:
            server.answer(handler)
            return
        handler.send_response(code)
        handler.send_header("Location", target + path)
        handler.end_headers()

    with answering(other) as target, answering(answer) as url:
        assert cli.run(["sweep", url, "--most", "1"]) == 2
        assert elsewhere == []
    assert f"HTTP {code} redirects to {target}{path}, which is not followed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (200, b"[" * 100_000, "no JSON"),
        (200, b" " * (5 << 20), "more than 4 MiB"),
        (401, b"\x1b[31mwho?", r"HTTP 401: \x1b[31mwho?; set OPENAI_API_KEY"),
        (429, b"slow down", "HTTP 429: slow down; lower --most"),
        (500, b"", "HTTP 500 Internal Server Error"),
    ],
)
def test_an_answer_that_is_no_list_of_models_is_one_short_line(
    capsys: Capture, status: int, text: bytes, reason: str
) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()
        with suppress(ConnectionError):  # the client reads no more than 4 MiB
            handler.wfile.write(text)

    with answering(answer) as url:
        assert cli.run(["sweep", url]) == 2
    line = capsys.readouterr().err
    assert reason in line
    assert len(line) <= 230


def test_a_key_is_sent_without_its_line_break_and_never_shown(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret\n")
    with swept(monkeypatch, "--seconds", "5") as (server, code):
        assert (code, server.keys) == (0, {"Bearer secret"})
    monkeypatch.setenv("OPENAI_API_KEY", "sec\nret")
    with swept(monkeypatch) as (server, code):
        assert (code, server.bodies) == (2, [])
    error = capsys.readouterr().err
    assert "OPENAI_API_KEY has characters" in error
    assert "ret" not in error


@pytest.mark.parametrize("metrics", [b"vllm:num_requests_running 0.0\n", b"vllm:num_requests_running +Inf\n"])
def test_a_server_that_does_not_count_the_sweep_shows_no_other_traffic_either(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, metrics: bytes
) -> None:
    monkeypatch.setattr(Server, "metrics", metrics)
    with swept(monkeypatch, "--seconds", "5") as (_, code):
        assert code == 0
    assert "unseen" in capsys.readouterr().err
