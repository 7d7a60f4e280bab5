"""A simulated LLM server that runs in real time: `python -m gpu_profile_exporter.demo.engine`.

Its requests come from `gpu_profile.serving.simulated`. Each iteration's kernels run on
the first GPU of a simulated node. Then the engine publishes the iteration as SGLang does. It sends the span of each
request that has ended, as vLLM does. So an exporter sees no difference from a real engine. After the last request of
two minutes, the same two minutes begin again.

Every half second the engine prints a line of JSON: the requests that have ended since the line before, each as the
fields of an `EndedRequest`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import signal
import sys
import threading
import time
from bisect import bisect_left
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from gpu_profile.driver.simulated import SimulatedQueue, Work
from gpu_profile.serving.simulated import EnginePhysics, ServingRun, simulate
from gpu_profile.serving.simulated_load import TENANTS
from gpu_profile.serving.streams.forward_pass import message_types
from gpu_profile.serving.streams.pass_times import HOST_GAP_NS
from gpu_profile.serving.work import Parts, RequestPhase, WorkQuantity
from gpu_profile.units import NS_PER_S

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

#: Requests of so many seconds are simulated.
LAP_S: Final = 120.0
#: The model's name, and the attribute of spans that has the tenant.
MODEL, TENANT = "demo-8b", "tenant.id"
#: Fewer requests than the engine could serve, so that it is idle at times.
_LOAD: Final = 0.6
_EVERY_S: Final = 0.5
#: Further trials to send spans.
_TRIALS: Final = 20
_KERNELS: Final = range(3)


class EndedRequest(NamedTuple):
    """A request that has ended: its id, as on its span, and its true energy. `tokens` were computed for it."""

    id: str
    tenant: str
    tokens: int
    true_j: float


class EnginePlayer:
    """Plays a simulated run on the first GPU of the node in `directory`, from `start_ns` on.

    `publish` gets the frames of each iteration's message, `send` the requests that have ended, as spans.
    """

    def __init__(self, directory: Path, publish: Any, send: Any) -> None:
        self._queue = SimulatedQueue(directory, device=0)
        self._physics = EnginePhysics(self._queue.model)
        loads = tuple(replace(each, per_s=each.per_s * _LOAD) for each in TENANTS)
        self._names = [each.name for each in loads]
        self._run: ServingRun = simulate(self._physics, loads, seconds=LAP_S, noise=0.0, drained=True)
        self._publish, self._send = publish, send
        self._sequence = 0
        self._true_j = self._run.true_j
        self._ending: list[int] = []
        #: The requests that have ended.
        self.ended: queue.SimpleQueue[EndedRequest] = queue.SimpleQueue()

    def lap(self, number: int, start_ns: int) -> int:
        """Play the run once. Returns its end. On a busy machine it takes longer than the simulated time."""
        run, clock = self._run, _PlayedClock(start_ns - self._run.start_ns)
        self._true_j = run.true_j.copy()
        ends_ns = [run.start_ns + int(each.end_s * NS_PER_S) for each in run.requests]
        order = sorted(range(len(ends_ns)), key=ends_ns.__getitem__)
        kernels = [self._physics.kernel_work(kernel, run.iterations.work) for kernel in _KERNELS]
        done, parts, ended_ns = 0, run.iterations.parts.of(0, 1), 0
        for i, (begin_ns, end_ns) in enumerate(zip(run.iterations.starts, run.iterations.ends, strict=True)):
            began_ns = clock.wait_until(int(begin_ns))
            if began_ns - ended_ns < HOST_GAP_NS:
                self._lengthen(parts, began_ns - ended_ns)
            self._end_requests(number)
            for flops, size, sms in kernels:
                if flops[i] or size[i]:
                    self._queue.launch(Work(flops=float(flops[i]), bytes=float(size[i]), precision="bf16", sms=sms))
            ended_ns = clock.wait_until(int(end_ns))
            parts = run.iterations.parts.of(i, i + 1)
            self._lengthen(parts, ended_ns - began_ns - int(end_ns - begin_ns))
            self._publish(self._message(parts, (ended_ns - began_ns) / NS_PER_S))
            last = done
            # Requests have times in float s, iterations in whole ns.
            while done < len(order) and ends_ns[order[done]] <= end_ns + 1_000:
                done += 1
            self._ending = order[last:done]
            if done > last:
                self._send([self._span(number, request, clock) for request in self._ending])
        self._end_requests(number)
        return ended_ns

    def _lengthen(self, parts: Parts, longer_ns: int) -> None:
        """Add a time to an iteration: at the power of an idle device, in equal parts, as in the simulation."""
        self._true_j[parts.request] += longer_ns / NS_PER_S * self._run.idle_w / len(parts.request)

    def _end_requests(self, lap: int) -> None:
        """Report the requests that ended with the last iteration, whose cost is certain now."""
        for number in self._ending:
            request = self._run.requests[number]
            tokens = request.prompt - (request.cached or 0) + request.output
            tenant, joules = self._names[request.tenant], float(self._true_j[number])
            self.ended.put(EndedRequest(_request_id(lap, number), tenant, tokens, joules))
        self._ending = []

    def _message(self, parts: Parts, wall_s: float) -> list[bytes]:
        """The frames of an iteration's forward-pass metrics."""
        prefill = parts.phase == RequestPhase.PREFILL
        tokens, kv, context = (
            parts.work[:, each] for each in (WorkQuantity.TOKENS, WorkQuantity.PREFILL_KV, WorkQuantity.DECODE_CONTEXT)
        )
        lengths = [self._run.requests[request].prompt for request in parts.request[prefill].tolist()]
        scheduled = {
            "num_prefill_requests": int(prefill.sum()),
            "sum_prefill_tokens": int(tokens[prefill].sum()),
            "var_prefill_length": float(np.var(lengths)) if lengths else 0.0,
            "sum_prefill_kv_tokens": int(kv[prefill].sum()),
            "num_decode_requests": int((~prefill).sum()),
            "sum_decode_kv_tokens": int(context[~prefill].sum()),
            "var_decode_kv_tokens": float(np.var(context[~prefill])) if not prefill.all() else 0.0,
        }
        message = {"worker_id": "demo", "dp_rank": 0, "wall_time": wall_s, "scheduled_requests": scheduled}
        self._sequence += 1
        return [b"", self._sequence.to_bytes(8, "big"), message_types().encode(message)]

    def _span(self, lap: int, number: int, clock: _PlayedClock) -> Span:
        """The span of a request that has ended."""
        from opentelemetry.proto.trace.v1.trace_pb2 import Span

        request = self._run.requests[number]
        begin_ns, scheduled_ns, first_ns, end_ns = (
            clock.played(self._run.start_ns + round(each * NS_PER_S))
            for each in (request.arrival_s, request.scheduled_s, request.first_token_s, request.end_s)
        )
        made = Span(
            trace_id=os.urandom(16), span_id=os.urandom(8), name="llm_request", kind=Span.SPAN_KIND_SERVER,
            start_time_unix_nano=begin_ns, end_time_unix_nano=end_ns,
        )  # fmt: skip
        values: dict[str, str | int | float] = {
            "gen_ai.request.id": _request_id(lap, number),
            "gen_ai.response.model": MODEL,
            "gen_ai.usage.prompt_tokens": request.prompt,
            "gen_ai.usage.completion_tokens": request.output,
            "gen_ai.usage.cached_tokens": request.cached,
            "gen_ai.latency.time_in_queue": (scheduled_ns - begin_ns) / NS_PER_S,
            "gen_ai.latency.time_to_first_token": (first_ns - begin_ns) / NS_PER_S,
            "gen_ai.latency.e2e": (end_ns - begin_ns) / NS_PER_S,
            TENANT: self._names[request.tenant],
        }
        for key, value in values.items():
            pair = made.attributes.add(key=key)
            if isinstance(value, str):
                pair.value.string_value = value
            elif isinstance(value, int):
                pair.value.int_value = value
            else:
                pair.value.double_value = value
        return made


def _request_id(lap: int, number: int) -> str:
    return f"{lap}-{number}"


class _PlayedClock:
    """The times at which moments of a run were played, all in ns. They began as the run's, `offset_ns` later."""

    def __init__(self, offset_ns: int) -> None:
        self._offset_ns = offset_ns
        self._moments, self._played = [0], [offset_ns]

    def wait_until(self, moment_ns: int) -> int:
        """Wait until a moment is due. Returns the time then."""
        left_ns = moment_ns + self._offset_ns - time.time_ns()
        if left_ns > 0:
            time.sleep(left_ns / NS_PER_S)
        now_ns = time.time_ns()
        self._offset_ns = now_ns - moment_ns
        self._moments.append(moment_ns)
        self._played.append(now_ns)
        return now_ns

    def played(self, moment_ns: int) -> int:
        """When a moment was played: from the nearest ones before and after it."""
        after = min(max(bisect_left(self._moments, moment_ns), 1), len(self._moments) - 1)
        before_ns, after_ns = self._moments[after - 1], self._moments[after]
        share = min(1.0, (moment_ns - before_ns) / max(1, after_ns - before_ns))
        begin_ns, end_ns = self._played[after - 1], self._played[after]
        return begin_ns + round((end_ns - begin_ns) * share)


class SpanSender:
    """Sends spans to a receiver of OTLP over HTTP, in batches, in a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._spans: queue.Queue[list[Span]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def __call__(self, spans: list[Span]) -> None:
        """Queue spans."""
        self._spans.put(spans)

    def _run(self) -> None:
        while True:
            spans = self._spans.get()
            time.sleep(_EVERY_S)
            while not self._spans.empty():
                spans += self._spans.get()
            problem = self._problem(spans)
            # As exporters of spans do, it tries again where nobody listens yet.
            for _ in range(_TRIALS if problem else 0):
                time.sleep(_EVERY_S)
                problem = self._problem(spans)
                if not problem:
                    break
            if problem:
                sys.stderr.write(f"the spans of {len(spans)} requests were not received: {problem}\n")

    def _problem(self, spans: list[Span]) -> str:
        """Send spans. Returns the problem if they were not received."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        request = ExportTraceServiceRequest()
        group = request.resource_spans.add()
        group.resource.attributes.add(key="service.name").value.string_value = "demo"
        group.scope_spans.add().spans.extend(spans)
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=10)
        try:
            headers = {"Content-Type": "application/x-protobuf"}
            connection.request("POST", "/v1/traces", request.SerializeToString(), headers)
            answer = connection.getresponse()
            answer.read()
        except OSError as error:
            return str(error)
        finally:
            connection.close()
        return "" if answer.status == http.HTTPStatus.OK else f"HTTP {answer.status}"


def main() -> int:
    """Run until SIGTERM."""
    import zmq

    parser = argparse.ArgumentParser(description="A simulated LLM server, for the demonstration.")
    parser.add_argument("--directory", type=Path, required=True, help="the simulated node")
    parser.add_argument("--publish", required=True, help="address for the iterations, such as tcp://127.0.0.1:5557")
    parser.add_argument("--spans", required=True, help="receiver of OTLP over HTTP for the requests' spans")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.setsockopt(zmq.LINGER, 0)
        try:
            publisher.bind(options.publish)
        except zmq.ZMQError as error:
            parser.error(f"--publish {options.publish}: {error.strerror}")
        player = EnginePlayer(options.directory, publisher.send_multipart, SpanSender(options.spans))
        threading.Thread(target=_report, args=(player,), daemon=True).start()
        start_ns = time.time_ns()
        for number in count():
            start_ns = player.lap(number, start_ns)
    return 0


def _report(player: EnginePlayer) -> None:
    while True:
        ended = [player.ended.get() for _ in range(player.ended.qsize())]
        sys.stdout.write(json.dumps({"ended": ended}) + "\n")
        sys.stdout.flush()
        time.sleep(_EVERY_S)


if __name__ == "__main__":
    sys.exit(main())
