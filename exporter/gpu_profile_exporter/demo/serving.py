"""The demonstration of an LLM server: the costs of its requests by tenant, beside the simulated engine's true costs."""

from __future__ import annotations

import http.client
import shutil
import statistics
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Final

import click

from gpu_profile.catalogue.serving import REQUEST_ENERGY, REQUEST_HALF_WIDTH, REQUEST_REASON
from gpu_profile.driver.simulated.temporary import TemporaryFolder
from gpu_profile.errors import UsageError
from gpu_profile.report.table import UNKNOWN, WHOSE_JOULES, fitted_table, folded, terminal_width
from gpu_profile.units import percent, si
from gpu_profile_exporter.demo.engine import TENANT, EndedRequest
from gpu_profile_exporter.demo.screen import Screen
from gpu_profile_exporter.demo.watch import SILENCE_S, free_port, watched

#: Packages of the extras `serving` and `sidecar`.
_PACKAGES: Final = ("msgspec", "zmq", "opentelemetry.proto")
_ID: Final = "gen_ai.request.id"
#: The newest requests that are compared: those of an hour.
MOST_REQUESTS: Final = 20_000
_COLUMNS: Final = (
    "tenant", "requests", "with cost", "per request", "per 1,000 tokens", "energy", "true energy", "error", "by tokens"
)  # fmt: skip
#: Indices of the columns to omit on a narrow terminal, in this order.
_SPARE: Final = [[_COLUMNS.index(name)] for name in ("true energy", "requests", "per 1,000 tokens", "with cost")]
_NOTES: Final = ("error: of the energy; by tokens: the error if the same joules were divided by tokens", WHOSE_JOULES)


@dataclass
class ReceivedRequests:
    """The spans of requests, as an OpenTelemetry backend receives them: their attributes, by the request's id."""

    by_id: dict[str, Mapping[str, object]] = field(default_factory=dict)

    def take(self, content: bytes) -> None:
        """Take a request of OTLP in protobuf."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for group in ExportTraceServiceRequest.FromString(content).resource_spans:
            for scope in group.scope_spans:
                for span in scope.spans:
                    values = {
                        pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value")
                        for pair in span.attributes
                    }
                    self.by_id[str(values.get(_ID, ""))] = values
        while len(self.by_id) > MOST_REQUESTS:
            self.by_id.pop(next(iter(self.by_id)), None)


@dataclass(frozen=True, slots=True)
class TenantCosts:
    """The requests of one tenant. Tokens and energies are of its requests with a cost.

    `energy_j` is the sum of the spans' energies, `true_j` the simulator's, both in J.
    """

    tenant: str
    requests: int
    costed: int
    tokens: int
    energy_j: float
    true_j: float


@dataclass
class RequestLedger:
    """The true costs of the engine's requests beside the received ones."""

    received: ReceivedRequests
    ended: list[EndedRequest] = field(default_factory=list)

    def add(self, ended: Iterable[EndedRequest]) -> None:
        """Add requests that have ended, and drop the oldest beyond the limit."""
        self.ended += ended
        del self.ended[:-MOST_REQUESTS]

    def tenants(self) -> list[TenantCosts]:
        """Each tenant's costs so far, by name."""
        by_tenant = defaultdict[str, list[EndedRequest]](list)
        for each in self.ended:
            by_tenant[each.tenant].append(each)
        result = []
        for tenant, requests in sorted(by_tenant.items()):
            costed = [each for each in requests if self._energy(each) is not None]
            energy = sum(self._energy(each) or 0.0 for each in costed)
            tokens, true = sum(each.tokens for each in costed), sum(each.true_j for each in costed)
            result.append(TenantCosts(tenant, len(requests), len(costed), tokens, energy, true))
        return result

    def _energy(self, request: EndedRequest) -> float | None:
        value = self.received.by_id.get(request.id, {}).get(REQUEST_ENERGY.name)
        return value if isinstance(value, float) else None

    def within(self) -> float | None:
        """The share of costs with the truth in their 95 % interval. None without a cost."""
        hits = []
        for each in self.ended:
            energy = self._energy(each)
            width = self.received.by_id.get(each.id, {}).get(REQUEST_HALF_WIDTH.name)
            if energy is not None and isinstance(width, float):
                hits.append(abs(energy - each.true_j) <= width)
        return statistics.fmean(hits) if hits else None

    def reasons(self) -> Counter[str]:
        """The reasons of the received requests without a cost."""
        reasons = (str(values[REQUEST_REASON.name]) for values in self._received() if REQUEST_REASON.name in values)
        return Counter(reasons)

    def example(self) -> Mapping[str, object]:
        """The attributes of the newest span with a cost."""
        return next((values for values in reversed(self._received()) if REQUEST_ENERGY.name in values), {})

    def _received(self) -> list[Mapping[str, object]]:
        return list(self.received.by_id.values())


def by_tokens(rows: Sequence[TenantCosts], row: TenantCosts) -> float:
    """A tenant's energy in J if all true joules were divided by tokens."""
    return sum(each.true_j for each in rows) * row.tokens / sum(each.tokens for each in rows)


def show_requests(screen: Screen, folder: TemporaryFolder, port: int, seconds: float | None, begun_s: float) -> None:
    """Run the exporter on `port` and the engine on the simulated node in `folder`, and show the costs until the end."""
    if not all(map(find_spec, _PACKAGES)):
        raise UsageError("--serving needs further packages: pip install 'gpu-profile[serving,sidecar]'")
    ledger = RequestLedger(ReceivedRequests())
    with _backend(ledger.received) as backend:
        iterations, spans = f"tcp://127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        exporter = ["gpu_profile_exporter", "--listen", f"127.0.0.1:{port}", "--log-level", "error"]
        exporter += ["--driver", f"simulated:{folder.path}", "--timeline", str(folder.path / "timeline")]
        exporter += ["--serving", f"demo={iterations}", "--serving-devices", "demo=0", "--serving-tenant", TENANT]
        exporter += ["--receive-http", spans, "--forward", f"http://127.0.0.1:{backend}"]
        engine = ["gpu_profile_exporter.demo.engine", "--directory", str(folder.path)]
        engine += ["--publish", iterations, "--spans", f"http://{spans}"]
        with watched(folder, {"exporter": exporter, "engine": engine}, begun_s) as watch:
            screen.say(f"{'live page':<21}http://127.0.0.1:{port}/")
            screen.say(f"{'metrics':<21}http://127.0.0.1:{port}/metrics")
            screen.say(f"{'work':<21}a simulated LLM server: three tenants, batched requests")
            screen.say("The first costs come after a minute or two: the prices of the work are estimated first.\n")
            priced = False
            for message in watch.messages(until=lambda: watch.is_over(seconds), patience_s=SILENCE_S):
                ledger.add(EndedRequest(*each) for each in message.get("ended", ()))
                if not priced and ledger.example():
                    priced = True
                    screen.say(f"first costs after {watch.passed_s:.0f} s")
                screen.draw(_table(ledger, f"requests of the simulated engine, {watch.passed_s:.0f} s"))
            broken = watch.early_end(seconds)
            screen.draw([])
            if watch.ended:
                screen.say("stopping …")
    screen.say(result_text(ledger, terminal_width(sys.stdout)))
    if broken:
        raise click.ClickException(broken)


def _table(ledger: RequestLedger, title: str) -> list[str]:
    reasons = ", ".join(f"{reason} {n}" for reason, n in ledger.reasons().most_common(3))
    lines = requests_table(ledger.tenants(), shutil.get_terminal_size().columns).splitlines()
    return [title, *lines, f"without a cost: {reasons}" if reasons else ""]


def requests_table(rows: Sequence[TenantCosts], width: int | None) -> str:
    """A line for each tenant, at most `width` characters long."""
    return fitted_table(_COLUMNS, [_row(rows, row) for row in rows], _SPARE, width=width)


def _row(rows: Sequence[TenantCosts], row: TenantCosts) -> tuple[str, ...]:
    counts = (row.tenant, f"{row.requests:,}", f"{row.costed:,}")
    if not row.costed:
        return (*counts, *[UNKNOWN] * (len(_COLUMNS) - len(counts)))
    return (
        *counts,
        si(row.energy_j / row.costed, "J"),
        si(1000 * row.energy_j / row.tokens, "J"),
        si(row.energy_j, "J"),
        si(row.true_j, "J"),
        _change(row.energy_j / row.true_j),
        _change(by_tokens(rows, row) / row.true_j),
    )


def _change(ratio: float) -> str:
    text = percent(abs(ratio - 1))
    return f"{'+' if ratio >= 1 or text == percent(0.0) else '−'}{text}"


def result_text(ledger: RequestLedger, width: int | None) -> str:
    """The last table, one span, and the result in sentences."""
    rows = ledger.tenants()
    costed = [row for row in rows if row.costed]
    if not costed:
        reasons = ", ".join(ledger.reasons()) or "no request has ended"
        return folded(f"no request has a cost: {reasons}. Let the demonstration run for three minutes.", width)
    lines = [requests_table(rows, width), *(folded(note, width) for note in _NOTES)]
    lines.append("\nthe newest span with a cost, as an OpenTelemetry backend receives it:")
    lines += [f"  {key} = {value}" for key, value in ledger.example().items()]
    dearest = max(costed, key=lambda row: row.energy_j / row.costed)
    worst = max(costed, key=lambda row: abs(by_tokens(costed, row) / row.true_j - 1))
    most = max(abs(row.energy_j / row.true_j - 1) for row in costed)
    share = dearest.energy_j / sum(row.energy_j for row in costed)
    wrong = abs(by_tokens(costed, worst) / worst.true_j - 1)
    each = si(dearest.energy_j / dearest.costed, "J")
    within = percent(ledger.within() or 0.0, 0)
    rule = f"by tokens, {worst.tenant}'s is by {percent(wrong, 0)}"
    sentences = [
        f"{percent(share, 0)} of their energy is {dearest.tenant}'s, {each} a request.",
        f"No tenant's energy is off by more than {percent(most)}; {rule}.",
        f"{within} of the requests have their true energy within their 95 % interval.",
    ]
    return "\n".join([*lines, "", *(folded(line, width) for line in sentences)])


@contextmanager
def _backend(received: ReceivedRequests) -> Iterator[int]:
    """A receiver of OTLP over HTTP on the yielded port."""

    class BackendHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.take(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.send_response(http.client.OK)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Leave standard error to problems."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), BackendHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(2)
