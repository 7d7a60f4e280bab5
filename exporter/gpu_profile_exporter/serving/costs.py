"""The costs of all engines of the settings: their parts, and the thread that shares energy out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.clock import Clock
from gpu_profile.errors import UsageError
from gpu_profile.sampling.tracked import TrackedDevice
from gpu_profile.serving.streams.forward_pass import message_types
from gpu_profile.serving.streams.request_spans import SpanFault, served_request
from gpu_profile.serving.streams.workers import EngineWorker, WorkerRole, role_of_span
from gpu_profile.units import nanoseconds
from gpu_profile_exporter.config import ServingSettings
from gpu_profile_exporter.readings.readings import MetricReading
from gpu_profile_exporter.serving.devices import check_devices, chosen
from gpu_profile_exporter.serving.engine import ServedEngine
from gpu_profile_exporter.serving.listener import EngineListener
from gpu_profile_exporter.serving.live_costs import LiveCosts
from gpu_profile_exporter.serving.pairs import BOOTSTRAP_ROOM, RequestPairs
from gpu_profile_exporter.serving.programs import SAMPLE_S, TIMELINE_SAMPLE_S
from gpu_profile_exporter.serving.tickets import CostTicket

_log = logging.getLogger("gpu_profile_exporter")

#: Seconds between two steps. Most of the cost of a step is the same however much has arrived.
STEP_S: Final = 2.0


class DeviceSource(Protocol):
    """Has the node's devices, by UUID."""

    @property
    def states(self) -> Mapping[str, TrackedDevice]:
        """The devices with the signals that their driver has."""
        ...


class ServingCosts:
    """Shares the energy of engines out to their requests, from `start` to `stop`.

    `source` has the node's devices; `take_samples` gets their samples. `from_timeline`: both come from a node's
    timeline. Raises UsageError for engines or devices that cannot be, and if packages are missing.
    """

    def __init__(
        self, settings: ServingSettings, source: DeviceSource, clock: Clock, *, from_timeline: bool = False
    ) -> None:
        addresses, self._wanted = dict(settings.engines), dict(settings.devices)
        check_devices(list(addresses), self._wanted)
        try:
            message_types()
        except UsageError as error:
            raise UsageError(f"--serving: {error}") from error
        self._settings, self._source, self._clock = settings, source, clock
        self._listener = EngineListener(addresses, clock)
        behind_s = TIMELINE_SAMPLE_S if from_timeline else SAMPLE_S
        self.engines = {
            name: ServedEngine(name, self._listener, clock, settings, behind_s=behind_s) for name in addresses
        }
        self._live = LiveCosts(clock)
        #: By server: the requests of its workers, if both are engines of this exporter.
        self._pairs = {
            server: RequestPairs()
            for server in {engine.worker.server for engine in self.engines.values()}
            if {WorkerRole.PREFILL, WorkerRole.DECODE}
            <= {engine.worker.role for engine in self.engines.values() if engine.worker.server == server}
        }
        self._problems: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        self._failed = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Listen and share energy out in two threads until `stop()`."""
        self._listener.start()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-serving", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End both threads."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)
            self._thread = None
        self._listener.close()

    def _run(self) -> None:
        while not self._clock.wait(self._stop, STEP_S):
            self.step()

    def step(self) -> None:
        """Find the GPUs of engines that have none yet, and let each engine do its step."""
        for engine in self.engines.values():
            try:
                if engine.energy is None:
                    self._begin(engine)
                engine.step(self._source.states)
                self._live.take(engine, self._problems.get(engine.name, ""))
            except Exception:  # noqa: BLE001 - a defect with one engine must not end the costs of all
                if not self._failed:
                    _log.exception("the costs of engine %s failed; the next step follows", engine.name)
                self._failed = True

    def _begin(self, engine: ServedEngine) -> None:
        states = list(self._source.states.values())
        uuids, problem = chosen(self._wanted.get(engine.name, ""), [state.device for state in states])
        for state in states:
            if state.device.uuid not in uuids:
                continue
            capability = state.capabilities.get(ENERGY)
            if capability is not None and not capability.available:
                problem = f"GPU {state.device.uuid} has no energy counter: {capability.reason}"
            elif self._owners.get(state.device.uuid, engine.name) != engine.name:
                problem = f"GPU {state.device.uuid} is of engine {self._owners[state.device.uuid]} already"
        if problem:
            if self._problems.get(engine.name) != problem:
                self._problems[engine.name] = problem
                _log.warning("engine %s has no costs: %s", engine.name, problem)
            return
        self._owners |= dict.fromkeys(uuids, engine.name)
        engine.begin(uuids)

    def take_samples(self, uuid: str, values: Sequence[int]) -> None:
        """Take a device's samples, as readers send them."""
        for engine in self.engines.values():
            if engine.energy is not None:
                engine.energy.take(uuid, values)

    # ------------------------------------------------------------------ requests

    def request(
        self, service: str, name: str, start_ns: int, attributes: Mapping[str, object], trace: bytes = b""
    ) -> CostTicket | None:
        """Take a span with the attributes of its resource and its own, and the id of its trace. Returns a ticket if it
        is a request's.
        """
        request = served_request(name, start_ns, attributes, self._settings.tenant or None)
        if request is None:
            return None
        engine = self._engine_of(service, name)
        role = WorkerRole.WHOLE if engine is None else engine.worker.role
        ticket = CostTicket(self._clock, nanoseconds(self._settings.wait_s), role)
        if engine is None:
            ticket.reason = "engine_not_known"
        elif isinstance(request, SpanFault):
            ticket.reason = str(request)
            engine.refuse(str(request))
        else:
            ticket.request = request
            if (pairs := self._pairs.get(engine.worker.server)) is not None and trace:
                pairs.take(trace, str(attributes.get(BOOTSTRAP_ROOM, "")), ticket)
            engine.add(request, ticket)
        return ticket

    def _engine_of(self, service: str, name: str) -> ServedEngine | None:
        """The engine of a span, from the service's name, which with several engines must be the engine's or its
        server's, or else from the worker's role in the span's name."""
        role, every, worker = role_of_span(name), self.engines.values(), EngineWorker.named(service)
        fit = [
            engine for engine in every if engine.worker.role is role or WorkerRole.WHOLE in (engine.worker.role, role)
        ]
        if worker.role:
            # vLLM's spans have no role in their names. The other worker's may come too, also if it is on another node.
            fit = [one for one in fit if one.worker == worker]
        named = [one for one in every if service in (one.name, one.worker.server)]
        if named or (role is WorkerRole.WHOLE and len(every) > 1):
            fit = [one for one in fit if one in named]
        return fit[0] if len(fit) == 1 else None

    # ------------------------------------------------------------------ metrics

    def readings(self, now_ns: int) -> Iterator[MetricReading]:  # noqa: ARG002 - the common signature
        """The metrics of all engines, as of the last step, metric by metric."""
        for engine in self.engines.values():
            yield from engine.latest

    def state(self) -> Mapping[str, Any]:
        """The rows of the live page, as JSON."""
        return self._live.state()
