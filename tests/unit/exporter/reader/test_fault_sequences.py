"""Faults in random order, one sequence for each seed, and what must hold at every moment of it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from unit.exporter.reader.machine import TICK_S, Machine, sequence

from gpu_profile.catalogue.metric import Instrument
from gpu_profile_exporter.reader.settings import COUNTER, HOME, LISTENER
from gpu_profile_exporter.readings.readings import Identity, readings

#: The sequences by which the supervisor was found wrong once, of the first 400.
SEEDS = (7, 45, 67, 73, 163, 207, 254, 283)
GPUS = 3
SECONDS, FAULTS = 60.0, 14
#: A device that cannot be read is down within this, and one that can be read again is up within this.
DOWN_S = 8.0
BACK_S = 10.0
QUIET_S = 30.0
LOOK_EVERY = 5
IDENTITY = Identity("nvml", "570", "0.1.0")

Series = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


class Watch:
    """Looks at the machine, and keeps what it needs to tell that a promise was broken."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.alive_since = dict.fromkeys(machine.gpus, machine.time.now)
        self.dead_since: dict[int, float] = {}

    def look(self) -> None:
        machine, now = self.machine, self.machine.time.now
        found = list(readings(machine.readers, IDENTITY, machine.clock.now_ns()))
        for reading in found:
            if reading.metric.instrument is Instrument.COUNTER:
                name = reading.metric.otel, tuple(sorted(reading.attributes.items()))
                assert reading.value >= self.counters.get(name, 0), (machine.node_s, name)
                self.counters[name] = reading.value
        up = {r.attributes["hw.id"]: r.value for r in found if r.metric.otel == "gpu_profile.device.up"}
        told = {r.attributes.get("hw.id") for r in found if r.metric.otel == "hw.gpu.utilization"}
        xids = {uuid: state.xids.total() for uuid, state in machine.readers.states.items()}
        dead = machine.dead()
        for gpu in machine.gpus:
            uuid = machine.uuids[gpu]
            if uuid in xids:
                assert machine.heard[gpu] <= xids[uuid] <= machine.raised[gpu], (machine.node_s, gpu)
            if gpu not in dead:
                self.dead_since.pop(gpu, None)
                if now - max(machine.disturbed[gpu], machine.shaken) > BACK_S:
                    assert up.get(uuid) == 1, (machine.node_s, gpu, "is not up")
            elif now - self.dead_since.setdefault(gpu, now) > DOWN_S:
                assert not up.get(uuid), (machine.node_s, gpu, "stays up")
                assert uuid not in told, (machine.node_s, gpu, "has values")


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_in_whatever_order(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, tmp_path / "node", GPUS, sequence(seed, GPUS, SECONDS, FAULTS), listed=seed % 2 == 0)
    watch = Watch(machine)
    ends = max([SECONDS, *(fault.to_s for fault in machine.faults)])
    try:
        for tick in range(round((ends + QUIET_S) / TICK_S)):
            machine.tick()
            if tick % LOOK_EVERY == 0:
                watch.look()
        keys = {process.key for process in machine.alive}
        assert keys - {COUNTER} == {HOME, LISTENER}
    finally:
        machine.close()
