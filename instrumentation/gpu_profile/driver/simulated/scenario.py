"""The scenario of a simulated node: devices, their scripts, and faults. Read from a TOML file."""

from __future__ import annotations

import tomllib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, get_args

from gpu_profile.driver.simulated.models import MODELS, PRECISIONS, DeviceModel
from gpu_profile.driver.simulated.script import MOST_LAUNCHES, Phase, step
from gpu_profile.errors import ScenarioError

FILE: Final = "scenario.toml"
FaultKind = Literal["gpu_lost", "gpu_removed", "driver_reload", "xid", "hang"]
_NAMESPACE: Final = uuid.UUID("6f0f2a1e-6c0b-5d3e-9d53-6b1c9f0d7a11")
_FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault from `from_s` to `to_s`, in seconds after the node's start.

    `device`: the index of the GPU (a driver reload has none). A removed GPU is listed again only in processes that
    start NVML after `to_s`. `xid`: the number of an XID error, sent at `from_s`. During a hang, each call of `function`
    ("*": any) on the device takes `hang_s` longer. `mismatch`: after the reload, processes that had NVML open before it
    get "driver/library version mismatch" until they are restarted.
    """

    kind: FaultKind
    device: int = 0
    from_s: float = 0.0
    to_s: float = _FOREVER
    xid: int = 0
    hang_s: float = 0.0
    function: str = "*"
    mismatch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A GPU or MIG instance of a scenario. `slot`: its number in work logs. `parent`: the slot of its GPU."""

    slot: int
    index: int
    uuid: str
    model: DeviceModel
    parent: int | None = None
    profile: str | None = None
    slices: tuple[int, ...] = ()
    phases: tuple[Phase, ...] = ()
    loop: bool = True
    memory_used_mib: int = 0
    unsupported: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A simulated node. `start_ns` None: the node starts when its directory is created. `noise` is relative."""

    units: tuple[Unit, ...]
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    start_ns: int | None = None
    noise: float = 0.0
    driver_version: str = "580.126.09"

    @property
    def gpus(self) -> tuple[Unit, ...]:
        """The GPUs, by index."""
        return tuple(unit for unit in self.units if unit.parent is None)

    def find(self, device: int | str) -> Unit | None:
        """The GPU with this index, or the GPU or MIG instance with this UUID."""
        units = (unit for unit in self.units if device == unit.uuid or (device == unit.index and unit.parent is None))
        return next(units, None)


DEFAULT: Final = """\
# A node with a GPU that has GPM, one that has not, and one that is cut into two MIG instances.
[[device]]
model = "H200 SXM"

[[device]]
model = "A10G"

[[device]]
model = "H100 SXM"
  [[device.mig]]
  profile = "3g.40gb"
  [[device.mig]]
  profile = "3g.40gb"
"""

_MISSING: Final = object()


class _Table:
    """One table of the file. Returns checked values; `done` raises ScenarioError for keys that were not read."""

    def __init__(self, file: str, place: str, values: object) -> None:
        self.file, self.place = file, place
        if not isinstance(values, Mapping):
            raise self.error("expected a table")
        self._values = dict(values)
        self._asked: list[str] = []

    def error(self, reason: str, key: str = "") -> ScenarioError:
        place = ".".join(part for part in (self.place, key) if part)
        return ScenarioError(f"{self.file}: [{place}]: {reason}")

    def _take(self, key: str, default: Any) -> Any:
        self._asked.append(key)
        value = self._values.pop(key, default)
        if value is _MISSING:
            raise self.error("missing", key)
        return value

    def text(self, key: str, default: Any = _MISSING, among: Iterable[str] = ()) -> str:
        value = self._take(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(f"expected a text, got {value!r}", key)
        if (options := tuple(among)) and value not in options:
            raise self.error(f"unknown {value!r}{_nearest(value, options)}", key)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.error(f"expected true or false, got {value!r}", key)
        return value

    def number(self, key: str, default: Any = _MISSING, low: float = 0.0, high: float = _FOREVER) -> Any:
        value = self._take(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - NaN
            raise self.error(f"expected a number, got {value!r}", key)
        if not low <= value <= high:
            limit = f"at least {low:g}" if value < low else f"at most {high:g}"
            raise self.error(f"must be {limit}, got {value!r}", key)
        return value

    def whole(self, key: str, default: Any = _MISSING, low: int = 0, high: float = _FOREVER) -> Any:
        value = self.number(key, default, low, high)
        if value is not default and not isinstance(value, int):
            raise self.error(f"expected a whole number, got {value!r}", key)
        return value

    def texts(self, key: str) -> frozenset[str]:
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error("expected a list of texts", key)
        return frozenset(value)

    def tables(self, key: str) -> list[_Table]:
        value = self._take(key, [])
        if not isinstance(value, list):
            raise self.error(f"expected [[{key}]] tables", key)
        place = f"{self.place}." if self.place else ""
        return [_Table(self.file, f"{place}{key} {i}", item) for i, item in enumerate(value)]

    def done(self) -> None:
        for key in self._values:
            raise self.error(f"unknown key{_nearest(key, self._asked)}", key)


def _nearest(word: str, words: Iterable[str]) -> str:
    options = tuple(words)
    match = get_close_matches(word, options, n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else f"; one of {', '.join(options)}"


def _phase(table: _Table, model: DeviceModel) -> Phase:
    numbers = ("flops", "bytes", "launch_gap_s", "host_wait_s", "pcie_bytes", "nvlink_bytes")
    phase = Phase(
        duration_s=float(table.number("duration_s", low=1e-6)),
        name=table.text("name", table.place),
        precision=table.text("precision", "bf16", PRECISIONS),  # type: ignore[arg-type]  # Checked by `among`.
        sms=table.number("sms", 1.0, 1e-3, 1),
        occupancy=table.number("occupancy", 0.5, 1e-3, 1),
        launches=table.whole("launches", 1, 1, MOST_LAUNCHES),
        duty=table.number("duty", None, 0, 1),
        period_s=table.number("period_s", None, 1e-6),
        compute=table.number("compute", 0.6, 0, 1),
        memory=table.number("memory", 0.3, 0, 1),
        **{key: float(table.number(key, 0.0)) for key in numbers},
    )
    table.done()
    if (phase.duty is None) != (phase.period_s is None):
        raise table.error("a square wave needs both duty and period_s")
    if phase.duty is not None and any(getattr(phase, key) for key in numbers):
        raise table.error("a square wave states compute and memory shares, not amounts of work")
    try:
        step(phase, model)
    except (ValueError, KeyError) as error:
        raise table.error(str(error)) from None
    return phase


def _unit(table: _Table, *, slot: int, index: int, model: DeviceModel, name: str, **more: Any) -> Unit:
    return Unit(
        slot=slot,
        index=index,
        uuid=table.text("uuid", name),
        model=model,
        phases=tuple(_phase(each, model) for each in table.tables("phase")),
        loop=table.flag("loop", True),
        memory_used_mib=table.whole("memory_used_mib", 0, 0, model.memory_mib - model.reserved_mib),
        **more,
    )


def _device(table: _Table, *, seed: int, index: int, slot: int) -> list[Unit]:
    model = MODELS[table.text("model", _MISSING, MODELS)]
    unsupported = table.texts("unsupported")
    instances: list[Unit] = []
    for number, each in enumerate(slices := table.tables("mig")):
        if not model.mig:
            raise each.error(f"{model.key} cannot be cut into MIG instances")
        profile = each.text("profile", _MISSING, model.mig)
        name = f"MIG-{uuid.uuid5(_NAMESPACE, f'{seed}/{index}/{number}')}"
        unit = _unit(
            each,
            slot=slot + 1 + number,
            index=number,
            model=model.slice(profile),
            name=name,
            parent=slot,
            profile=profile,
            unsupported=unsupported,
        )
        instances.append(unit)
        each.done()
    for kind, room in enumerate((7, 8)):
        taken = sum(model.mig[unit.profile or ""][kind] for unit in instances)
        if taken > room:
            raise table.error(f"the instances take {taken} {('compute', 'memory')[kind]} slices of {room}", "mig")
    gpu = _unit(
        table,
        slot=slot,
        index=index,
        model=model,
        name=f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{index}')}",
        slices=tuple(unit.slot for unit in instances),
        unsupported=unsupported,
    )
    table.done()
    if slices and gpu.phases:
        raise table.error("a GPU with MIG instances runs nothing itself; give the phases to its instances", "phase")
    return [gpu, *instances]


def _fault(table: _Table, gpus: int) -> Fault:
    kind = table.text("kind", _MISSING, get_args(FaultKind))
    start = table.number("from_s")
    settings: dict[str, Any] = {"from_s": start}
    if kind != "xid":
        settings["to_s"] = table.number("to_s", _FOREVER, start)
    if kind != "driver_reload":
        settings["device"] = table.whole("device", 0, 0, gpus - 1)
    if kind == "xid":
        settings["xid"] = table.whole("xid", _MISSING, 1)
    if kind == "hang":
        settings["hang_s"] = table.number("hang_s")
        settings["function"] = table.text("function", "*")
    if kind == "driver_reload":
        settings["mismatch"] = table.flag("mismatch", False)
    table.done()
    return Fault(kind=kind, **settings)  # type: ignore[arg-type]  # Checked by `among`.


def parse(text: str, file: str = FILE) -> Scenario:
    """The scenario in `text`. Raises ScenarioError("FILE: [place]: reason")."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{file}: [file]: {error}") from None
    root = _Table(file, "", values)
    seed = root.whole("seed", 0)
    units: list[Unit] = []
    for index, table in enumerate(root.tables("device")):
        units += _device(table, seed=seed, index=index, slot=len(units))
    if not units:
        raise root.error("a node needs at least one", "device")
    seen: dict[str, int] = {}
    for unit in units:
        if unit.uuid in seen:
            raise root.error(f"two devices have the uuid {unit.uuid}", "device")
        seen[unit.uuid] = unit.slot
    gpus = sum(unit.parent is None for unit in units)
    scenario = Scenario(
        units=tuple(units),
        faults=tuple(_fault(table, gpus) for table in root.tables("fault")),
        seed=seed,
        start_ns=root.whole("start_ns", None),
        noise=root.number("noise", 0.0, 0, 0.5),
        driver_version=root.text("driver_version", "580.126.09"),
    )
    root.done()
    return scenario


def load(directory: Path) -> Scenario:
    """The scenario of a node's directory; the built-in node if it has no `scenario.toml`."""
    file = directory / FILE
    try:
        return parse(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        return parse(DEFAULT, "built-in scenario")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{file}: [file]: cannot be read: {error}") from error
