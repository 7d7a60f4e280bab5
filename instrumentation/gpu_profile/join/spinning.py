"""Detects a GPU that is busy without any movement: a kernel that waits for a peer, a lock or a request. Without numpy.

Utilisation cannot show it: it stays at 1. The evidence is the rest, second by second: no counter moves, and the power
is that of the same board without work. The detector reads only the running totals of columns, so it serves the
exporter's ledgers and the library's timelines alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device
from gpu_profile.catalogue.signal import Kind
from gpu_profile.history.ledger import ColumnsBySignal
from gpu_profile.regimes.evidence import Basis
from gpu_profile.regimes.thresholds import DEFAULT_THRESHOLDS, Thresholds
from gpu_profile.units import NS_PER_S, percent

#: Spinning is reported after this long. Slow readings and one GPM window come on top.
REPORT_NS: Final = 15 * NS_PER_S
#: The time between two decisions: each signal is averaged over at least this long.
_STEP_NS: Final = 2 * NS_PER_S
#: A mean older than this does not describe the present.
_STALE_NS: Final = 5 * NS_PER_S
#: The least busy share of each step. Recorded spinning has 0.99, because the last of a busy window is often missing;
#: the rest is the error of a sensor. A graph of tiny kernels has 0.67.
_ALWAYS: Final = 0.9
#: A step of at most this share has no busy time.
_NEVER: Final = 0.001
#: A waiting kernel draws at most this share of the power limit more than the idle board. One multiprocessor that polls
#: costs 3 W on an H100 (recorded), all of them some 12 W; a pointer chase in L2 costs 8 %.
_MARGIN: Final = 0.05
#: At this share of the highest clock or above, the idle power is that of a GPU with a context, as under a kernel.
_AWAKE: Final = 0.5
#: Without PCIe counters, only the memory controller shows copies: pinned ones move 1 % of the memory bandwidth of any
#: GPU before Hopper if the link is PCIe 4.0 x16 or faster. On slower links they look like spinning.
_FAST_LINK: Final = 20_000_000_000

_PIPES: Final = (rows.TENSOR, rows.FP64, rows.FP32, rows.FP16, rows.INTEGER)
_ENGINES: Final = (rows.DECODER, rows.ENCODER)
_PCIE: Final = (rows.PCIE_RX, rows.PCIE_TX)
_NVLINK: Final = (rows.NVLINK_RX, rows.NVLINK_TX)
_POWER: Final = (rows.ENERGY, rows.POWER_AVERAGE)
_WATCHED: Final = (
    *rows.BUSY_SOURCES, *_POWER, rows.POWER_LIMIT, rows.CLOCK_SM, rows.DRAM, rows.MEMORY_CONTROLLER, *_PIPES, *_ENGINES,
    *_PCIE, *_NVLINK,
)  # fmt: skip


class Spin(NamedTuple):
    """A GPU that has been busy without movement since `onset_ns`.

    `evidence` has the newest means, in the names and units of `Evidence.values`: `busy`, `power` (of the limit),
    `idle_power` (the same, of this board without work; absent if unknown), and each activity that was measured.
    """

    onset_ns: int
    evidence: Mapping[str, float]

    def text(self, now_ns: int) -> str:
        """The finding and the next step, in one line."""
        seconds, power = (now_ns - self.onset_ns) / NS_PER_S, percent(self.evidence["power"], 0)
        return (
            f"busy for {seconds:.0f} s without moving data, at {power} of the power limit: a kernel waits; see which"
            " call the program and its peers are in"
        )

    @property
    def basis(self) -> Basis:
        """The basis of the evidence."""
        return "counters" if "dram" in self.evidence else "coarse"


class SpinningDetector:
    """Judges one device, second by second. One thread calls `advance`, any may read the totals.

    It needs the busy share, the power with its limit, and the activity of the memory; a step without one of them is no
    evidence. With GPM's busy time, links and pipes count as far as they are measured, and PCIe must be. NVML's
    utilisation counts copies as well: without PCIe counters, the memory controller must then be silent in each step,
    and the link fast enough for copies to show, on a board with a measured idle power. Or no region may have ended.
    """

    def __init__(self, device: Device, columns: ColumnsBySignal[Any], limits: Thresholds = DEFAULT_THRESHOLDS) -> None:
        self._device = device
        self._columns = columns
        self._least = limits.silent / 2
        self._silent = limits.silent
        self._quiet_power = limits.quiet_power
        #: Time of spinning so far, in ns, from each onset on. None until a step has been decided.
        self.total_ns: int | None = None
        #: The spinning that lasts; None without.
        self.spin: Spin | None = None
        #: The lowest mean power of a step without busy time, in W: with the clocks up, and with any clock.
        self._awake_w: float | None = None
        self._asleep_w: float | None = None
        #: By signal: the mark, mass and covered time at the last step with a new row.
        self._marks: dict[Signal, tuple[int, int, int]] = {}
        #: By signal: the mean in base units over its newest step, and that step's end.
        self._means: dict[Signal, tuple[float, int]] = {}
        self._stepped_ns = 0
        self._onset_ns: int | None = None
        self._evidence: dict[str, float] = {}

    @property
    def idle_w(self) -> float | None:
        """The board's own power without work, in W; None if it was never seen without work."""
        return self._asleep_w if self._awake_w is None else self._awake_w

    def advance(self, now_ns: int, *, region_ended_ns: int | None = None) -> Spin | None:
        """The spinning that lasts at `now_ns`, once it has lasted for `REPORT_NS`; None otherwise.

        `region_ended_ns`: while a region is open on the device, the last beginning or end of one there. None without
        such a region: progress is unknown.
        """
        passed = now_ns - self._stepped_ns
        if 0 <= passed < _STEP_NS:
            return self.spin
        since_ns, self._stepped_ns = self._stepped_ns, now_ns
        self._take_means()
        self._learn_idle(now_ns)
        still = self._still(now_ns, stalled=region_ended_ns is not None)
        if still is not None and self.total_ns is None:
            self.total_ns = 0
        if not still or not 0 <= passed <= _STALE_NS:
            self._onset_ns = self.spin = None
        if not still:
            return None
        if self._onset_ns is None:
            # The newest means begin at the step before, or later.
            self._onset_ns = since_ns if 0 <= passed <= _STALE_NS else now_ns
        onset_ns = max(self._onset_ns, region_ended_ns or self._onset_ns)
        if now_ns - onset_ns < REPORT_NS:
            self.spin = None
            return None
        self.total_ns = (self.total_ns or 0) + (now_ns - (onset_ns if self.spin is None else since_ns))
        self.spin = Spin(onset_ns, MappingProxyType(dict(self._evidence)))
        return self.spin

    # ------------------------------------------------------------------ means

    def _take_means(self) -> None:
        """Renew the means of signals with new rows."""
        for signal in _WATCHED:
            column = self._columns.column(signal)
            mark = column.watermark_ns if column is not None else None
            if column is None or mark is None:
                continue
            totals = mark, column.total_mass, column.total_covered_ns
            before = self._marks.get(signal)
            if before is not None and mark == before[0]:
                continue
            self._marks[signal] = totals
            covered = totals[2] - before[2] if before is not None else 0
            if before is None or covered <= 0:
                self._means.pop(signal, None)
                continue
            mean = (totals[1] - before[1]) * signal.quantum / covered
            self._means[signal] = (mean * NS_PER_S if signal.kind is Kind.COUNTER else mean), mark

    def _mean(self, signal: Signal, now_ns: int) -> float | None:
        """A signal's newest mean; None if it has none, or an old one."""
        mean, mark = self._means.get(signal, (None, 0))
        return mean if now_ns - mark <= _STALE_NS else None

    def _first(self, signals: Iterable[Signal], now_ns: int) -> float | None:
        return next((mean for signal in signals if (mean := self._mean(signal, now_ns)) is not None), None)

    def _highest(self, signals: Iterable[Signal], now_ns: int) -> float | None:
        return max((mean for signal in signals if (mean := self._mean(signal, now_ns)) is not None), default=None)

    def _watts(self, now_ns: int) -> float | None:
        energy = self._columns.column(rows.ENERGY)
        return self._first(_POWER[1:] if energy is not None and energy.stuck else _POWER, now_ns)

    def _busy(self, now_ns: int) -> tuple[float | None, bool]:
        """The lowest busy share of its sources, and whether copies are in it."""
        graphics, utilization = (self._mean(source, now_ns) for source in rows.BUSY_SOURCES)
        shares = [share for share in (graphics, utilization) if share is not None]
        return min(shares, default=None), graphics is None

    # ------------------------------------------------------------------ judging

    def _learn_idle(self, now_ns: int) -> None:
        watts = self._watts(now_ns)
        sources = [share for s in rows.BUSY_SOURCES if (share := self._mean(s, now_ns)) is not None]
        if watts is None or not sources or max(sources) > _NEVER:
            return
        clock, highest = self._mean(rows.CLOCK_SM, now_ns), self._device.clock_max_hz
        if clock is not None and highest and clock >= _AWAKE * highest:
            self._awake_w = watts if self._awake_w is None else min(self._awake_w, watts)
        self._asleep_w = watts if self._asleep_w is None else min(self._asleep_w, watts)

    def _still(self, now_ns: int, *, stalled: bool) -> bool | None:
        """Whether nothing moved in the newest step although the device was busy. None if that cannot be decided."""
        busy, with_copies = self._busy(now_ns)
        watts, limit_w = self._watts(now_ns), self._mean(rows.POWER_LIMIT, now_ns)
        if busy is None or watts is None or not limit_w:
            return None
        memory = self._highest((rows.DRAM,), now_ns)
        controller = self._mean(rows.MEMORY_CONTROLLER, now_ns)
        pcie = self._link(_PCIE, self._device.pcie_bytes_per_s, now_ns)
        seen = {
            "busy": busy,
            "power": watts / limit_w,
            "idle_power": None if self.idle_w is None else self.idle_w / limit_w,
            "dram": memory,
            "memory_controller": controller,
            "pcie": pcie,
            "nvlink": self._link(_NVLINK, self._device.nvlink_bytes_per_s, now_ns),
            "media": self._highest(_ENGINES, now_ns),
            **{pipe.key: self._mean(pipe, now_ns) for pipe in _PIPES},
        }
        self._evidence = {name: value for name, value in seen.items() if value is not None}
        if not self._decides(memory, controller, pcie, with_copies=with_copies, stalled=stalled):
            return None
        if busy < _ALWAYS or watts > self._most_watts(limit_w):
            return False
        if (controller or 0.0) > (self._silent if pcie is not None or stalled else 0.0):
            return False
        moving = ("dram", "pcie", "nvlink", "media", *(pipe.key for pipe in _PIPES))
        return all(self._evidence.get(name, 0.0) < self._least for name in moving)

    def _decides(
        self, dram: float | None, controller: float | None, pcie: float | None, *, with_copies: bool, stalled: bool
    ) -> bool:
        """Whether the measured signals are enough: others would look like this while data move."""
        if dram is None and controller is None:
            return False
        if pcie is not None or stalled:
            return True
        # A copy, or a kernel that reads host memory, would look like this but for the memory controller.
        fast = (self._device.pcie_bytes_per_s or 0) >= _FAST_LINK
        return with_copies and controller is not None and dram is None and fast and self._awake_w is not None

    def _most_watts(self, limit_w: float) -> float:
        """The most power of a kernel that waits. Without a context the board idles lower, so the limit's share counts
        too until it was seen idle with its clocks up."""
        own_w = None if self.idle_w is None else self.idle_w + _MARGIN * limit_w
        if self._awake_w is not None and own_w is not None:
            return own_w
        return max(own_w or 0.0, self._quiet_power * limit_w)

    def _link(self, ways: Iterable[Signal], most: int | None, now_ns: int) -> float | None:
        """The share of a link's capacity that the busier direction carried; None unless both are measured."""
        traffic = [self._mean(way, now_ns) for way in ways]
        rates = [rate for rate in traffic if rate is not None]
        return max(rates) / most if most and len(rates) == len(traffic) else None
