"""A server with OpenAI's API as a client of `gpu-profile sweep` sees it."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from queue import SimpleQueue
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from gpu_profile.cli.progress import Progress
from gpu_profile.clock import SYSTEM_CLOCK, Alarm
from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile.monitor.top.endpoint import StatusError, UntrustedError, fetch, read
from gpu_profile.monitor.top.region_rates import ScrapeError
from gpu_profile.report.table import printable
from gpu_profile.serving.sweep import LONGEST_ANSWER, SweepStep, sweep_steps
from gpu_profile.units import NS_PER_S, nanoseconds

#: The longest prompt unless the server allows less, and the shortest that makes a sweep, in tokens.
_LONGEST, _LEAST = 16_384, 64
#: No request has as many tokens.
_MOST_TOKENS: Final = 10**9
#: Tokens of prompts are drawn from here: vocabularies have at least as many, and their special ones are elsewhere.
_VOCABULARY: Final = range(1_000, 30_000)
#: The longest time for the list of models, and for an answer to a prompt.
_MODELS_S, _ANSWER_S = 30.0, 600.0
#: SGLang renews its count of running requests every 30 s while it is idle.
_IDLE_S, _STEP_S = 40.0, 1.0
_KEY: Final = "OPENAI_API_KEY"
#: The most characters of a failure that are shown, and the least status with words about one.
_MOST_REASON, _LEAST_ERROR = 100, 400
#: The remedies of statuses.
_REMEDIES: Final = {
    401: f"; set {_KEY}", 403: f"; set {_KEY}", 404: "; is it a server with OpenAI's API?", 429: "; lower --most",
}  # fmt: skip
#: A sample's labels and its value, if it is a number and finite.
_VALUE: Final = r"(?:\{.*\})? (\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?= |$)"
#: Metrics of vLLM and SGLang: the requests that run or wait, and the ended requests.
_RUNNING: Final = re.compile(
    rf"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs){_VALUE}", re.MULTILINE
)
_ENDED: Final = re.compile(rf"^(?:vllm:request_success_total|sglang:num_requests_total){_VALUE}", re.MULTILINE)


class TokenUsage(NamedTuple):
    """Requests that have ended, the tokens of their prompts and answers, and the time since the first one in s."""

    requests: int
    prompt: int
    answer: int
    seconds: float = 0.0


def base_url(url: str) -> str:
    """The address of a server, without `/v1`."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        valid = valid and url.isprintable() and " " not in url
    except ValueError:
        valid = False
    if not valid or parts.username is not None or parts.query or parts.fragment:
        raise UsageError("the URL of the server is not written as http://HOST:PORT, without a user name")
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1")).geturl()


class CompletionServer:
    """A server with OpenAI's API. UsageError if it does not answer as one."""

    def __init__(self, base: str, model: str, longest: int | None) -> None:
        self._base, self._ended, self._random = base, 0.0, random.Random()  # noqa: S311 - no secrets
        #: Whether the server's metrics counted the sweep's own requests at the last look.
        self.counts_requests = False
        listed = self._json("/v1/models").get("data")
        models = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        chosen = next((each for each in models if model in ("", each.get("id"))), None)
        if chosen is None or not isinstance(chosen.get("id"), str):
            raise UsageError(f"{base}: /v1/models lists no model {model}".rstrip())
        self._model, most = chosen["id"], chosen.get("max_model_len")
        self.longest = longest or _LONGEST
        if type(most) is int:
            # The answer needs room too.
            fits = most - LONGEST_ANSWER
            if (longest or _LEAST) > fits:
                raise UsageError(
                    f"{base}: the model takes {most} tokens, {LONGEST_ANSWER} of them for an answer: a prompt of "
                    f"{longest or _LEAST} does not fit; lower --longest, to {_LEAST} at least"
                )
            self.longest = min(self.longest, fits)

    def sweep(self, seconds: float, most: int) -> TokenUsage:
        """Send steps for a time, with up to `most` requests at once. GpuProfileError once others use the server too."""
        began_ns, lasts_ns = SYSTEM_CLOCK.elapsed_ns(), nanoseconds(seconds)
        total = TokenUsage(0, 0, 0)

        def share() -> float:
            return (SYSTEM_CLOCK.elapsed_ns() - began_ns) / lasts_ns

        with Progress("sweeping", share):
            for step in sweep_steps(self.longest, most):
                if share() >= 1:
                    break
                for usage in self._answers(step):
                    total = TokenUsage(total.requests + 1, total.prompt + usage.prompt, total.answer + usage.answer)
                self.check_alone(total.requests)
        return total._replace(seconds=share() * lasts_ns / NS_PER_S)

    def _answers(self, step: SweepStep) -> Iterator[TokenUsage]:
        """Send the requests of a step at once. Raises the first failure without a wait for the other answers."""
        answers = SimpleQueue[TokenUsage | Exception]()

        def send() -> None:
            try:
                answers.put(self.complete(step))
            except Exception as error:  # noqa: BLE001 - raised below
                answers.put(error)

        for _ in range(step.requests):
            # The process ends without these threads: a pool's would keep it after Ctrl-C until all answers have come.
            threading.Thread(target=send, name="gpu-profile-sweep", daemon=True).start()
        for _ in range(step.requests):
            answer = answers.get()
            if isinstance(answer, Exception):
                raise answer
            yield answer

    def complete(self, step: SweepStep) -> TokenUsage:
        """Send one request of a step. Returns the tokens by the server's count."""
        usage = self._json("/v1/completions", {
            "model": self._model, "prompt": self._random.choices(_VOCABULARY, k=step.prompt), "max_tokens": step.answer,
            "ignore_eos": True, "stream": False,
        }).get("usage")  # fmt: skip
        tokens = usage if isinstance(usage, dict) else {}
        prompt, answer = tokens.get("prompt_tokens"), tokens.get("completion_tokens")
        if type(prompt) is not int or type(answer) is not int or not (0 < prompt < _MOST_TOKENS > answer >= 0):
            raise UsageError(f"{self._base}: an answer does not count its tokens: is it a server with OpenAI's API?")
        return TokenUsage(1, prompt, answer)

    def wait_until_idle(self) -> bool:
        """Wait until no request runs. Returns whether the server shows its requests. UsageError if it stays busy."""
        end_ns = SYSTEM_CLOCK.elapsed_ns() + nanoseconds(_IDLE_S)
        while True:
            text = self._metrics()
            running = [float(each) for each in _RUNNING.findall(text)]
            if not sum(running):
                self._ended = _ended(text)
                return bool(running)
            if SYSTEM_CLOCK.elapsed_ns() >= end_ns:
                raise UsageError(
                    f"{self._base}: {sum(running):.0f} other requests run or wait: a sweep would delay them, so start "
                    "it when nobody uses the server"
                )
            SYSTEM_CLOCK.wait(Alarm(), _STEP_S)

    def check_alone(self, own: int) -> None:
        """GpuProfileError if more than `own` requests have ended since the server was idle."""
        ended = _ended(self._metrics()) - self._ended
        self.counts_requests = ended > 0
        others = ended - own
        if others > 0:
            raise GpuProfileError(
                f"{self._base}: the sweep stopped, because {others:.0f} other requests came meanwhile: repeat it when "
                "nobody uses the server"
            )

    def _metrics(self) -> str:
        try:
            return fetch(f"{self._base}/metrics")
        except ScrapeError:
            return ""

    def _json(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The object that the server answers, to a body by POST."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(_KEY, "").strip():
            if not key.isascii() or not key.isprintable():
                raise UsageError(f"{_KEY} has characters that no key has: set it anew")
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, headers)  # noqa: S310 - checked
        timeout_s = _MODELS_S if data is None else _ANSWER_S
        try:
            result = json.loads(read(request, timeout_s=timeout_s, clock=SYSTEM_CLOCK))
        except StatusError as error:
            words = error.words if error.code >= _LEAST_ERROR else ""
            reason = f"HTTP {error.code}: {words}" if words else str(error)
            raise UsageError(
                f"{self._base}{path}: {printable(reason)[:_MOST_REASON]}{_REMEDIES.get(error.code, '')}"
            ) from error
        except UntrustedError as error:
            raise UsageError(f"{self._base}: {error}") from error
        except ScrapeError as error:
            reason = printable(str(error))[:_MOST_REASON]
            raise UsageError(f"{self._base}{path}: {reason}: is it a server with OpenAI's API?") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self._base}{path}: no JSON: is it a server with OpenAI's API?") from error
        return result if isinstance(result, dict) else {}


def _ended(text: str) -> float:
    return sum(float(each) for each in _ENDED.findall(text))
