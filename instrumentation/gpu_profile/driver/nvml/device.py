"""An open device. Its capabilities are probed once, and only available signals are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from gpu_profile.catalogue import SIGNALS, Group, Kind, Signal, Tier
from gpu_profile.catalogue.samples import DeviceKind, Sample, plain_sample
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
from gpu_profile.driver.nvml.fields import FieldBatch
from gpu_profile.driver.nvml.gpm import Gpm
from gpu_profile.driver.nvml.library import NvmlLibrary
from gpu_profile.driver.nvml.queries import REASONS, Query
from gpu_profile.driver.nvml.readers import READERS, TIERS, Reader
from gpu_profile.driver.nvml.throttling import ThrottleTimes
from gpu_profile.driver.protocol import AVAILABLE, Capability, absent
from gpu_profile.errors import DeviceLost
from gpu_profile.units import NS_PER_S

#: A driver's time stamp further from the clock than this is not used.
_PLAUSIBLE_NS: Final = 5 * NS_PER_S
#: The batch of `SLOW_COUNTERS`. A round may read it early, by up to 1/`_EARLY` of its period.
_COUNTERS: Final = "counters"
_EARLY: Final = 16
#: A return code of this module: the value's type is unknown to this binding.
_NO_TYPE: Final = -1
#: Drivers mark an unavailable count by setting all of its 32 or 64 bits.
_NOT_A_COUNT: Final = frozenset({(1 << 32) - 1, (1 << 64) - 1})


class OpenDevice:
    """A device's handle, its readers, and the end of each polled window mean.

    `throttled`: totals of integrated throttle time, which continue when the device is opened again. The driver is slow
    to read `SLOW_COUNTERS`, so they are read only once in `counters_ns`.
    """

    def __init__(
        self,
        library: NvmlLibrary,
        clock: Clock,
        entry: EnumeratedDevice,
        groups: Collection[Group],
        throttled: dict[Signal, int] | None = None,
        counters_ns: int = 0,
    ) -> None:
        self._counters_ns, self._counted_ns, self._throttled = counters_ns, -counters_ns, throttled
        self.entry = entry
        self._library = library
        self._clock = clock
        self._uuid = entry.device.uuid
        self._reasons: dict[Signal, str] = {}
        self._fields: dict[str, FieldBatch] = {}
        self._queries: dict[Tier, dict[Query, list[Reader]]] = {tier: {} for tier in TIERS}
        self._buffers: list[DriverBuffer] = []
        self._ends: dict[Signal, int] = {}
        self._gpm: Gpm | None = None
        self._throttling: ThrottleTimes | None = None
        #: In elapsed time, like `lost_ns`.
        self.opened_ns: Final = clock.elapsed_ns()
        #: When a source that had worked first failed for good. It may work again after the device is opened again.
        self.lost_ns: int | None = None
        self._answered: set[Query] = set()
        self._probe(groups)

    def capabilities(self) -> dict[Signal, Capability]:
        """The capability of every signal of the catalogue."""
        return {row: absent(self._reasons[row]) if row in self._reasons else AVAILABLE for row in SIGNALS}

    def read(self, tier: Tier) -> list[Sample]:
        """The signals of `tier`, now."""
        samples: list[Sample] = []
        fast = tier is Tier.FAST
        if batch := self._fields.get(tier):
            self._read_fields(batch, samples)
        if fast and self._counters_ns and self._counters_due() and (batch := self._fields.get(_COUNTERS)):
            self._read_fields(batch, samples)
        for query, readers in list(self._queries.get(tier, {}).items()):
            self._read_query(query, readers, samples)
        if fast and self._throttling is not None:
            self._read_throttling(self._throttling, samples)
        return samples

    def drain(self) -> list[Sample]:
        """Samples that the driver buffered since the last drain."""
        samples: list[Sample] = []
        now, elapsed = self._clock.now_ns(), self._clock.elapsed_ns()
        errors = self._library.errors
        for buffer in list(self._buffers):
            try:
                samples += buffer.fetch(self.entry.handle, now, elapsed)
            except errors.failures as failure:
                rule = errors.judge(failure, buffer.reader.buffer, self._uuid)
                if rule.action in NEVER:
                    self._buffers.remove(buffer)
                    self._note(buffer.reader, rule)
                    if buffer.delivered:
                        self._lose(failure, buffer.reader.buffer)
                    self._poll(buffer.reader)
                    continue
            if buffer.silent(now):
                # Nothing was ever drained, so drained and polled samples never mix.
                self._buffers.remove(buffer)
                self._poll(buffer.reader)
        return samples

    def boundary(self) -> list[Sample]:
        """Close the current GPM window, open the next, and return the samples of the closed one."""
        return self._gpm.boundary() if self._gpm is not None else []

    def close(self) -> None:
        """Free the driver's resources of this device."""
        if self._gpm is not None:
            self._gpm.close()

    # -- probing -------------------------------------------------------------------------------------------------

    def _probe(self, groups: Collection[Group]) -> None:
        every = list(READERS.values())
        readers = [reader for reader in every if reader.signal.group in groups]
        off = {group: f"not read: the group {group} is off" for group in Group if group not in groups}
        self._reasons |= {row: off[row.group] for row in READERS if row.group in off}
        if self.entry.device.kind is DeviceKind.MIG:
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
        masks = [(reader.signal, self._library.constant(reader.bit)) for reader in readers]
        self._reasons |= {row: NOT_KNOWN_TO_BINDING for row, mask in masks if mask is None}
        return [(row, mask) for row, mask in masks if mask is not None]

    def _probe_fields(self, readers: list[Reader]) -> None:
        numbered = [reader for reader in readers if self._library.field(reader.field) is not None]
        for reader in readers:
            if reader not in numbered:
                binding = self._library.constant(reader.field) is not None
                self._reasons[reader.signal] = NOT_KNOWN_TO_DRIVER if binding else NOT_KNOWN_TO_BINDING
        if not numbered:
            return
        if self._library.field_values is None:
            self._reasons |= {reader.signal: NOT_KNOWN_TO_DRIVER for reader in numbered}
            return
        self._ask_fields(numbered)
        self._group_fields(numbered)

    def _ask_fields(self, readers: list[Reader]) -> None:
        """Probe the fields in one call. Drivers return a code per field. If an unknown field makes a driver refuse the
        whole call, bisect the list."""
        errors = self._library.errors
        batch = FieldBatch(self._library, readers)
        code = batch.call(self.entry.handle)
        rule = errors.judge(code, "nvmlDeviceGetFieldValues", self._uuid) if code else None
        if rule is RULES["INVALID_ARGUMENT"] and len(readers) > 1:
            middle = len(readers) // 2
            self._ask_fields(readers[:middle])
            self._ask_fields(readers[middle:])
        elif rule is not None and rule.action in NEVER:
            self._reasons |= {reader.signal: rule.words for reader in readers}
        elif rule is None:
            for reader, (_, kind, status, value) in batch.values():
                if status or kind not in batch.decoders:
                    self._note(reader, errors.judge(status or _NO_TYPE, reader.field, self._uuid))
                elif not batch.decoders[kind](value) and reader.signal.lowest > 0:
                    self._reasons[reader.signal] = NO_SENSOR

    def _group_fields(self, readers: Iterable[Reader]) -> None:
        """Rebuild the batches of these readers, with the readers that the batches have already."""
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
        now = self._clock.elapsed_ns()
        due = now - self._counted_ns >= self._counters_ns - self._counters_ns // _EARLY
        if due:
            self._counted_ns = now
        return due

    def _place_buffer(self, reader: Reader) -> bool:
        """Drain this signal if the driver buffers it. False if it does not."""
        if self._library.constant(reader.buffer) is None or self._library.samples is None:
            return False
        errors = self._library.errors
        buffer = DriverBuffer(self._library, reader, self._uuid)
        try:
            buffer.ask(self.entry.handle)
        except errors.failures as failure:
            rule = errors.judge(failure, reader.buffer, self._uuid)
            if rule.action in NEVER:
                return False
        self._buffers.append(buffer)
        return True

    def _poll(self, reader: Reader) -> None:
        """Poll a signal that turned out not to be buffered."""
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
        numbered = [(signal, metric, scale) for signal, metric, scale in metrics if metric is not None]
        if not numbered:
            return
        errors = self._library.errors
        handle = self.entry.handle if self.entry.parent_handle is None else self.entry.parent_handle
        try:
            supported = bool(self._library.api.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
            reason = NEEDS_HOPPER
        except errors.failures as failure:
            rule = errors.judge(failure, "nvmlGpmQueryDeviceSupport", self._uuid)
            supported = rule.action is Action.TRANSIENT
            reason = NEEDS_HOPPER if errors.name(failure) == "NOT_SUPPORTED" else rule.words
        except AttributeError:
            supported, reason = False, NOT_KNOWN_TO_BINDING
        if not supported:
            self._reasons |= {signal: reason for signal, *_ in numbered}
            return
        self._gpm = Gpm(self._library, self._clock, self._uuid, handle, self.entry.instance, numbered, self._no_metric)

    def _no_metric(self, signal: Signal, reason: str, failure: Exception | int | None) -> None:
        """Note an absent GPM metric. `failure`: the driver's error if the metric had worked before."""
        self._reasons[signal] = reason
        if failure is not None:
            self._lose(failure, "GPM")

    def _lose(self, failure: Exception | int, source: str) -> None:
        """Count and log that a source stopped working, and make the driver open the device again later."""
        errors = self._library.errors
        name = errors.name(failure)
        errors.counts["SOURCE_LOST"] += 1
        if self.lost_ns is None:
            self.lost_ns = self._clock.elapsed_ns()
        errors.warn(f"{name} {source}", source, self._uuid, f"worked before, fails with {name} now; tried again later")

    # -- reading -------------------------------------------------------------------------------------------------

    def _read_fields(self, batch: FieldBatch, samples: list[Sample]) -> None:
        errors = self._library.errors
        code = batch.call(self.entry.handle)
        if code:
            rule = errors.judge(code, "nvmlDeviceGetFieldValues", self._uuid)
            if rule.action is Action.ABSENT:
                # The call worked when the device was opened, so the handle is stale.
                raise DeviceLost(f"NVML: GPU {self._uuid}: its handle is no longer valid; it was reset or reloaded")
            return
        now = self._clock.now_ns()
        earliest, latest = max(1, now - _PLAUSIBLE_NS), now + _PLAUSIBLE_NS
        decoders, whole, missing, append = batch.decoders, batch.whole, [], samples.append
        last_us = end = -1
        for reader, (stamp_us, kind, status, value) in batch.values():
            if status or kind != whole:
                decode = None if status else decoders.get(kind)
                if decode is None:
                    if self._note(reader, errors.judge(status or _NO_TYPE, reader.field, self._uuid)):
                        missing.append((status or _NO_TYPE, reader.field))
                    continue
                value = round(decode(value))  # noqa: PLW2901 - the raw bytes, decoded
            if stamp_us != last_us:
                # Most of a device's fields have the same stamp.
                last_us, stamp = stamp_us, stamp_us * 1000
                end = stamp if earliest <= stamp <= latest else now
            if reader.counts and value >= 0 and value not in _NOT_A_COUNT:
                append(plain_sample(Sample, (reader.signal, end, end, value)))
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
            answer = query.run(self._library.api, self.entry.handle)
        except errors.failures as failure:
            rule = errors.judge(failure, query.needs[0], self._uuid)
            if rule.action in NEVER and query in self._answered:
                self._lose(failure, query.needs[0])
            return None, rule
        self._answered.add(query)
        return answer, None

    def _words(self, rule: ErrorRule) -> str:
        return f"{rule.words}{CUT}" if self.entry.mig_mode and rule is RULES["NOT_SUPPORTED"] else rule.words

    def _note(self, reader: Reader, rule: ErrorRule) -> bool:
        """Note the signal as absent if the rule says so. True if it does."""
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
            return  # the driver has not renewed the reading
        self._ends[signal] = end
        first = previous is None or previous > end
        start = end - signal.window_ns if first else max(previous or 0, end - reader.longest_ns)
        samples.append(plain_sample(Sample, (signal, start, end, value)))
