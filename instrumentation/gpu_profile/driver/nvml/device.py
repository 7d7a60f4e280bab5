"""One device that is open: what it can do was found out once, and only that is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from gpu_profile.catalogue import SIGNALS, Group, Kind, Signal, Tier
from gpu_profile.catalogue.samples import DeviceKind, Sample
from gpu_profile.catalogue.signals import SLOW_COUNTERS, THROTTLES
from gpu_profile.clock import Clock
from gpu_profile.driver.nvml.buffers import DriverBuffer
from gpu_profile.driver.nvml.enumeration import EnumeratedDevice
from gpu_profile.driver.nvml.errors import (
    CUT,
    NEEDS_HOPPER,
    NEVER,
    NO_SENSOR,
    NOT_KNOWN_TO_BINDING,
    NOT_KNOWN_TO_DRIVER,
    NOT_ON_MIG,
    RULES,
    Action,
    ErrorRule,
)
from gpu_profile.driver.nvml.fields import FieldBatch, plain_sample
from gpu_profile.driver.nvml.gpm import Gpm
from gpu_profile.driver.nvml.library import NvmlLibrary
from gpu_profile.driver.nvml.queries import REASONS, Query
from gpu_profile.driver.nvml.readers import READERS, TIERS, Reader
from gpu_profile.driver.nvml.throttling import ThrottleTimes
from gpu_profile.driver.protocol import Capability
from gpu_profile.errors import DeviceLost
from gpu_profile.units import NS_PER_S

#: A driver's time stamp further from the clock than this is not used.
_PLAUSIBLE_NS: Final = 5 * NS_PER_S
_AVAILABLE: Final = Capability(available=True)
#: The batch of `SLOW_COUNTERS`, which come along with a round that is such a part of their period too early.
_COUNTERS: Final = "counters"
_EARLY: Final = 16
#: A return code of our own: the driver gave a value of a type that this binding does not know.
_NO_TYPE: Final = -1
#: What drivers put where a count is not to be had: all bits set, of the half or of the whole.
_NOT_A_COUNT: Final = frozenset({(1 << 32) - 1, (1 << 64) - 1})


class OpenDevice:
    """A device's handle, the readers that work on it, and how far each polled window mean has been covered.

    `throttled` are totals of throttle time that are integrated here, and go on where the device was open before. Of the
    fast tier, what takes a driver long is read once in `counters_ns` only.
    """

    def __init__(
        self,
        library: NvmlLibrary,
        clock: Clock,
        found: EnumeratedDevice,
        groups: Collection[Group],
        throttled: dict[Signal, int] | None = None,
        counters_ns: int = 0,
    ) -> None:
        self._counters_ns, self._counted_ns, self._throttled = counters_ns, -counters_ns, throttled
        self.found = found
        self._library = library
        self._clock = clock
        self._uuid = found.device.uuid
        self._reasons: dict[Signal, str] = {}
        self._fields: dict[str, FieldBatch] = {}
        self._queries: dict[Tier, dict[Query, list[Reader]]] = {tier: {} for tier in TIERS}
        self._buffers: list[DriverBuffer] = []
        self._ends: dict[Signal, int] = {}
        self._gpm: Gpm | None = None
        self._throttling: ThrottleTimes | None = None
        #: In elapsed time, as the next.
        self.opened_ns: Final = clock.elapsed_ns()
        #: When a source that had answered was given up: it may answer again once the device is opened anew.
        self.lost_ns: int | None = None
        self._answered: set[Query] = set()
        self._probe(groups)

    def capabilities(self) -> dict[Signal, Capability]:
        """Every signal, with whether it can be read and why not."""
        return {
            row: Capability(available=False, reason=self._reasons[row]) if row in self._reasons else _AVAILABLE
            for row in SIGNALS
        }

    def read(self, tier: Tier) -> list[Sample]:
        """The signals of `tier`, now."""
        samples: list[Sample] = []
        batches = [tier, _COUNTERS] if tier is Tier.FAST and self._counters_due() else [tier]
        for batch in [self._fields[name] for name in batches if name in self._fields]:
            self._read_fields(batch, samples)
        for query, readers in list(self._queries.get(tier, {}).items()):
            self._read_query(query, readers, samples)
        if tier is Tier.FAST and self._throttling is not None:
            self._read_throttling(self._throttling, samples)
        return samples

    def drain(self) -> list[Sample]:
        """What the driver buffered since the last drain."""
        samples: list[Sample] = []
        now, elapsed = self._clock.now_ns(), self._clock.elapsed_ns()
        errors = self._library.errors
        for buffer in list(self._buffers):
            try:
                samples += buffer.fetch(self.found.handle, now, elapsed)
            except errors.failures as failure:
                rule = errors.met(failure, buffer.reader.buffer, self._uuid)
                if rule.action in NEVER:
                    self._buffers.remove(buffer)
                    self._note(buffer.reader, rule)
                    if buffer.told:
                        self._lose(failure, buffer.reader.buffer)
                    self._poll(buffer.reader)
                    continue
            if buffer.silent(now):
                # Nothing was ever drained, so polling from here on mixes nothing.
                self._buffers.remove(buffer)
                self._poll(buffer.reader)
        return samples

    def boundary(self) -> list[Sample]:
        """Close the open GPM window."""
        return self._gpm.boundary() if self._gpm is not None else []

    def close(self) -> None:
        """Free what the driver holds for this device."""
        if self._gpm is not None:
            self._gpm.close()

    # -- finding out ---------------------------------------------------------------------------------------------

    def _probe(self, groups: Collection[Group]) -> None:
        every = list(READERS.values())
        readers = [reader for reader in every if reader.signal.group in groups]
        self._reasons |= {row: f"not read: the group {row.group} is off" for row in READERS if row.group not in groups}
        if self.found.device.kind is DeviceKind.MIG:
            self._reasons |= {reader.signal: NOT_ON_MIG for reader in readers if not reader.signal.mig}
            readers = [reader for reader in readers if reader.signal.mig]
        polled = [reader for reader in readers if not (reader.buffer and self._place_buffer(reader))]
        self._probe_fields([reader for reader in polled if reader.field])
        for reader in polled:
            if not reader.bit and not (reader.field and reader.signal not in self._reasons):
                self._place_query(reader)
        self._probe_throttling([reader for reader in readers if reader.bit])
        self._probe_gpm([reader for reader in readers if reader.gpm])

    def _probe_throttling(self, readers: list[Reader]) -> None:
        counted = {signal.attributes for signal in THROTTLES if signal not in self._reasons}
        self._reasons |= {
            reader.signal: "not needed: the driver counts it"
            for reader in readers
            if reader.signal.attributes in counted
        }
        bits = [(row, mask) for row, mask in self._masks(readers) if row not in self._reasons]
        if not bits:
            return
        rule = self._ask(REASONS)[1]
        if rule is None or rule.action not in NEVER:
            self._throttling = ThrottleTimes(bits, self._throttled)
        else:
            self._reasons |= {row: rule.words for row, _ in bits}

    def _masks(self, readers: list[Reader]) -> list[tuple[Signal, int]]:
        found = [(reader.signal, self._library.constant(reader.bit)) for reader in readers]
        self._reasons |= {row: NOT_KNOWN_TO_BINDING for row, mask in found if mask is None}
        return [(row, mask) for row, mask in found if mask is not None]

    def _probe_fields(self, readers: list[Reader]) -> None:
        known = [reader for reader in readers if self._library.field(reader.field) is not None]
        for reader in readers:
            if reader not in known:
                binding = self._library.constant(reader.field) is not None
                self._reasons[reader.signal] = NOT_KNOWN_TO_DRIVER if binding else NOT_KNOWN_TO_BINDING
        if not known:
            return
        if self._library.field_values is None:
            self._reasons |= {reader.signal: NOT_KNOWN_TO_DRIVER for reader in known}
            return
        self._ask_fields(known)
        self._group_fields(known)

    def _ask_fields(self, readers: list[Reader]) -> None:
        """Find out which fields there are. Drivers judge each by itself; should one that they do not know make them
        refuse the whole call, it is looked for by halves."""
        errors = self._library.errors
        batch = FieldBatch(self._library, readers)
        code = batch.call(self.found.handle)
        rule = errors.met(code, "nvmlDeviceGetFieldValues", self._uuid) if code else None
        if rule is RULES["INVALID_ARGUMENT"] and len(readers) > 1:
            middle = len(readers) // 2
            self._ask_fields(readers[:middle])
            self._ask_fields(readers[middle:])
        elif rule is not None and rule.action in NEVER:
            self._reasons |= {reader.signal: rule.words for reader in readers}
        elif rule is None:
            for reader, (_, kind, status, value) in batch.values():
                if status or kind not in batch.decoders:
                    self._note(reader, errors.met(status or _NO_TYPE, reader.field, self._uuid))
                elif not batch.decoders[kind](value) and reader.signal.lowest > 0:
                    self._reasons[reader.signal] = NO_SENSOR

    def _group_fields(self, readers: Iterable[Reader]) -> None:
        """Read these beside those of their tiers that are read already."""
        for name in {self._batch_of(reader) for reader in readers}:
            batch = self._fields.get(name)
            every = dict.fromkeys([*(batch.readers if batch is not None else ()), *readers])
            rows = [r for r in every if self._batch_of(r) == name and r.signal not in self._reasons]
            if rows:
                self._fields[name] = FieldBatch(self._library, rows)
            else:
                self._fields.pop(name, None)

    def _batch_of(self, reader: Reader) -> str:
        return _COUNTERS if self._counters_ns and reader.signal in SLOW_COUNTERS else reader.signal.tier

    def _counters_due(self) -> bool:
        if not self._counters_ns:
            return False
        now = self._clock.elapsed_ns()
        due = now - self._counted_ns >= self._counters_ns - self._counters_ns // _EARLY
        if due:
            self._counted_ns = now
        return due

    def _place_buffer(self, reader: Reader) -> bool:
        """Whether the driver buffers this signal."""
        if self._library.constant(reader.buffer) is None or self._library.samples is None:
            return False
        errors = self._library.errors
        buffer = DriverBuffer(self._library, reader, self._uuid)
        try:
            buffer.ask(self.found.handle)
        except errors.failures as failure:
            rule = errors.met(failure, reader.buffer, self._uuid)
            if rule.action in NEVER:
                return False
        self._buffers.append(buffer)
        return True

    def _poll(self, reader: Reader) -> None:
        """Read a signal that the driver does not buffer after all."""
        self._reasons.pop(reader.signal, None)
        if reader.field:
            self._probe_fields([reader])
        if not reader.field or reader.signal in self._reasons:
            self._place_query(reader)

    def _place_query(self, reader: Reader) -> None:
        query = reader.query
        if query is None:
            return
        self._reasons.pop(reader.signal, None)
        if any(self._library.constant(name) is None for name in query.needs):
            self._reasons[reader.signal] = NOT_KNOWN_TO_BINDING
            return
        rule = self._ask(query)[1]
        if rule is None or not self._note(reader, rule):
            self._queries[reader.signal.tier].setdefault(query, []).append(reader)

    def _probe_gpm(self, readers: list[Reader]) -> None:
        metrics = [
            (reader.signal, self._library.constant(reader.gpm), reader.gpm_unit / reader.signal.quantum)
            for reader in readers
        ]
        self._reasons |= {signal: NOT_KNOWN_TO_BINDING for signal, metric, _ in metrics if metric is None}
        known = [(signal, metric, scale) for signal, metric, scale in metrics if metric is not None]
        if not known:
            return
        errors = self._library.errors
        handle = self.found.handle if self.found.parent_handle is None else self.found.parent_handle
        try:
            supported = bool(self._library.api.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
            reason = NEEDS_HOPPER
        except errors.failures as failure:
            rule = errors.met(failure, "nvmlGpmQueryDeviceSupport", self._uuid)
            supported = rule.action is Action.TRANSIENT
            reason = NEEDS_HOPPER if errors.name(failure) == "NOT_SUPPORTED" else rule.words
        except AttributeError:
            supported, reason = False, NOT_KNOWN_TO_BINDING
        if not supported:
            self._reasons |= {signal: reason for signal, *_ in known}
            return
        self._gpm = Gpm(self._library, self._clock, self._uuid, handle, self.found.instance, known, self._without)

    def _without(self, signal: Signal, reason: str, failure: Exception | int | None) -> None:
        """A GPM metric is given up; it had answered if there is a `failure`."""
        self._reasons[signal] = reason
        if failure is not None:
            self._lose(failure, "GPM")

    def _lose(self, failure: Exception | int, what: str) -> None:
        """Say once that a source which had answered is given up, and have the device opened anew."""
        errors = self._library.errors
        name = errors.name(failure)
        errors.counts["SOURCE_LOST"] += 1
        if self.lost_ns is None:
            self.lost_ns = self._clock.elapsed_ns()
        errors.warn(f"{name} {what}", what, self._uuid, f"it had answered, and says {name} now; it is asked anew")

    # -- reading -------------------------------------------------------------------------------------------------

    def _read_fields(self, batch: FieldBatch, samples: list[Sample]) -> None:
        errors = self._library.errors
        code = batch.call(self.found.handle)
        if code:
            rule = errors.met(code, "nvmlDeviceGetFieldValues", self._uuid)
            if rule.action is Action.ABSENT:
                # The call worked when the device was opened: the handle itself has gone stale.
                raise DeviceLost(f"NVML: GPU {self._uuid}: its handle is no longer valid; it was reset or reloaded")
            return
        now = self._clock.now_ns()
        earliest, latest = max(1, now - _PLAUSIBLE_NS), now + _PLAUSIBLE_NS
        decoders, missing = batch.decoders, []
        last_us = end = -1
        for reader, (stamp_us, kind, status, value) in batch.values():
            if status or kind != batch.whole:
                decode = None if status else decoders.get(kind)
                if decode is None:
                    if self._note(reader, errors.met(status or _NO_TYPE, reader.field, self._uuid)):
                        missing.append((status or _NO_TYPE, reader.field))
                    continue
                value = round(decode(value))  # noqa: PLW2901 - the raw bytes as what they stand for
            if stamp_us != last_us:
                # Most of a device's fields bear the same stamp.
                last_us, stamp = stamp_us, stamp_us * 1000
                end = stamp if earliest <= stamp <= latest else now
            if reader.counts and value >= 0 and value not in _NOT_A_COUNT:
                samples.append(plain_sample(Sample, (reader.signal, end, end, value)))
            else:
                self._add(samples, reader, end, value)
        if missing:
            code, field = missing[0]
            self._lose(code, field if len(missing) == 1 else f"{field} and {len(missing) - 1} more fields")
            self._group_fields(batch.readers)
            for reader in batch.readers:
                if reader.signal in self._reasons:
                    self._place_query(reader)

    def _read_query(self, query: Query, readers: list[Reader], samples: list[Sample]) -> None:
        answer, rule = self._ask(query)
        if rule is None:
            now = self._clock.now_ns()
            for reader in readers:
                value = reader.pick(answer)
                if value is not None:
                    self._add(samples, reader, now, value)
        elif rule.action in NEVER:
            for reader in readers:
                self._reasons[reader.signal] = self._words(rule)
            del self._queries[readers[0].signal.tier][query]

    def _read_throttling(self, throttling: ThrottleTimes, samples: list[Sample]) -> None:
        mask, rule = self._ask(REASONS)
        if rule is None:
            samples += throttling.read(self._clock.now_ns(), mask)
        elif rule.action in NEVER:
            self._reasons |= dict.fromkeys(throttling.signals, rule.words)
            self._throttling = None

    def _ask(self, query: Query) -> tuple[Any, ErrorRule | None]:
        errors = self._library.errors
        try:
            answer = query.run(self._library.api, self.found.handle)
        except errors.failures as failure:
            rule = errors.met(failure, query.needs[0], self._uuid)
            if rule.action in NEVER and query in self._answered:
                self._lose(failure, query.needs[0])
            return None, rule
        self._answered.add(query)
        return answer, None

    def _words(self, rule: ErrorRule) -> str:
        return f"{rule.words}{CUT}" if self.found.cut and rule is RULES["NOT_SUPPORTED"] else rule.words

    def _note(self, reader: Reader, rule: ErrorRule) -> bool:
        """Remember a signal that this device does not have; True if it is so."""
        if rule.action not in NEVER:
            return False
        self._reasons[reader.signal] = self._words(rule)
        return True

    def _add(self, samples: list[Sample], reader: Reader, end: int, value: int) -> None:
        signal = reader.signal
        if value < 0 or value in _NOT_A_COUNT if reader.counts else not signal.lowest <= value <= signal.limit:
            self._library.errors.implausible(signal.key, self._uuid, value)
            return
        if signal.kind is not Kind.WINDOW_MEAN:
            samples.append(plain_sample(Sample, (signal, end, end, value)))
            return
        previous = self._ends.get(signal)
        if previous == end:
            return  # the driver gave the reading that we already have
        self._ends[signal] = end
        first = previous is None or previous > end
        start = end - signal.window_ns if first else max(previous or 0, end - reader.longest_ns)
        samples.append(plain_sample(Sample, (signal, start, end, value)))
