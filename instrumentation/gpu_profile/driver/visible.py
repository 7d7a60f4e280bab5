"""The devices that CUDA shows to a process, and the resolution of device names that users write.

Pure: the environment is a parameter. The rules and their sources:

- CUDA Programming Guide, "CUDA Environment Variables": `CUDA_VISIBLE_DEVICES` lists indices, UUIDs, or prefixes of
  UUIDs that fit exactly one GPU. The list ends at the first entry that is no device. Also defines `CUDA_DEVICE_ORDER`.
- PyTorch's parser, for details that the guide leaves open: `torch.cuda._parse_visible_devices`, which its authors
  compared with driver 525 (pytorch/pytorch#92315). The first entry decides between numbers, GPUs and MIG instances. An
  entry may begin with its number (`1gpu` is 1). A repeated entry leaves no device.
- NVIDIA MIG User Guide, "CUDA Device Enumeration": a process sees one compute instance, the first, and no whole GPU
  beside it. A GPU in MIG mode is replaced by its first instance. The guide says that newer drivers may relax that.
- DataDog's agent (`pkg/gpu/cuda/env.go`), for numbers on a node where only some GPUs are in MIG mode: whole GPUs come
  first. No document confirms it, so results are marked as assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Final, Protocol, SupportsIndex, TypeAlias

from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.errors import UsageError, few

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"
#: Messages shorten longer values of the variable, and longer entries beside others. A UUID has 40 characters.
_LONG_VALUE, _LONG_ENTRY = 48, 16
#: Nine digits exceed the number of devices of any node, and `int` always accepts them.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")
_BUS: Final = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)
_BARE_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_OLD_MIG: Final = re.compile(r"MIG-(GPU-[^/]*)/([0-9]{1,9})/([0-9]{1,9})", re.IGNORECASE)
_ORDINAL: Final = re.compile(r"(?:cuda:)?([0-9]{1,9})")
_PHYSICAL: Final = re.compile(r"nvml:([0-9]{1,9})(?::([0-9]{1,9}))?")
_FORMS: Final = (
    "write a number of CUDA's (0 or 'cuda:0'), a UUID or its beginning ('GPU-…', 'MIG-…'), 'nvml:N', 'nvml:N:I' for a "
    "MIG instance, a PCI bus id, or 'all'"
)
_GUESSED_ORDER: Final = (
    f"with several models CUDA's order is assumed, most memory first; set {ORDER}=PCI_BUS_ID or name GPUs by UUID"
)
_GUESSED_NUMBERS: Final = (
    "on a node where only some GPUs are cut into MIG instances CUDA's numbers are assumed; name devices by UUID"
)
_ONE_INSTANCE: Final = "CUDA shows a process one MIG instance, the first, and no other GPU beside it"
_NAME_INSTANCE: Final = "name it by its own UUID (MIG-…)"
_GUESSED_INSTANCE: Final = f"the MIG instance is assumed, the first of its GPU; {_NAME_INSTANCE}"
_NOT_NUMBERED: Final = "simulated GPUs with MIG instances have no number"


class FrameworkDevice(Protocol):
    """The attributes of `torch.device`."""

    @property
    def type(self) -> str:
        """The kind of device, such as `cuda`."""
        ...

    @property
    def index(self) -> int | None:
        """The CUDA ordinal; None means the current device."""
        ...


Spec: TypeAlias = "str | SupportsIndex | Device | FrameworkDevice | Iterable[Spec]"


def setting(value: str) -> str:
    """The variable and its value, in a message. Of a long value, the number of its entries and the first one."""
    if len(value) <= _LONG_VALUE:
        return f"{VARIABLE}={value!r}"
    first, *others = value.split(",")
    return f"{VARIABLE} of {_count(1 + len(others), 'entry', 'entries')}, first {_entry(first)}"


class Visible:
    """The devices that CUDA shows to a process with this environment.

    `devices`: all devices that the driver lists, in its order. `instances`: UUID of a MIG instance -> (GPU instance id,
    compute instance id), for the old form `MIG-GPU-<uuid>/<gi>/<ci>`. Without it, that form is unambiguous only if the
    GPU has a single instance. `simulated`: there is no CUDA. Unless `CUDA_VISIBLE_DEVICES` is set, the GPUs without MIG
    instances are visible, with the numbers of `SimulatedQueue`.
    """

    #: The devices that CUDA shows, in its order: the index of a device is its ordinal.
    devices: Sequence[Device]
    #: Why `devices` may be wrong, in words; empty if the rules leave no doubt.
    assumed: str
    #: Why CUDA does not show every device, in words; empty if it does.
    reason: str

    def __init__(
        self,
        devices: Sequence[Device],
        environ: Mapping[str, str],
        *,
        simulated: bool = False,
        instances: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self._listed = tuple(devices)
        uuids = {device.uuid for device in devices}
        # An instance without its GPU in the list is treated as a GPU.
        self._gpus = [one for one in devices if one.kind is not DeviceKind.MIG or one.parent not in uuids]
        self._instances = dict(instances or {})
        self._pci_order = environ.get(ORDER) == "PCI_BUS_ID"
        self.assumed = self.reason = ""
        value = environ.get(VARIABLE)
        self.devices = tuple(self._default(simulated) if value is None else self._selected(value))

    def resolve(self, spec: Spec, *, current: int | None = None) -> list[Device]:
        """The devices that `spec` names, in its order, each once. UsageError in one line if it names none.

        A number, `"1"`, `"cuda:1"` or `torch.device("cuda", 1)` is an ordinal of this process. `"cuda"` is the ordinal
        `current`, or 0 if that is None. `"all"` names all devices that CUDA shows. Names can be in a list, or in one
        string with commas. Other names can refer to any device of the node, whether CUDA shows it or not: a UUID or its
        prefix, `"nvml:N"` (NVML's index), `"nvml:N:I"` (MIG instance I of that GPU, from 0), a PCI bus id.
        """
        devices = self._resolve(spec, current)
        if not devices:
            raise UsageError(f"no device is named: {_FORMS}")
        return list(dict.fromkeys(devices))

    def defaults(
        self, process_uses: Sequence[str] = (), current: int | None = None, local_rank: int | None = None
    ) -> tuple[list[Device], str]:
        """The devices of a process that names none, and the evidence for them, in words.

        The evidence in order of preference: `process_uses`, the UUIDs of devices on which the driver lists this
        process; `current`, the current ordinal of a loaded framework; `local_rank` from the launcher (torchrun's
        convention: process n of a node uses device n); else ordinal 0, which is CUDA's default. Devices that do not
        exist are ignored. If CUDA shows no device, the result is empty, with the reason.
        """
        used = [device for device in (*self.devices, *self._listed) if device.uuid in process_uses]
        cut = {device.parent for device in used}
        used = [device for device in dict.fromkeys(used) if device.uuid not in cut]
        if used:
            return used, "the driver lists this process on it" if len(used) == 1 else "the driver lists this process"
        if not self.devices:
            return [], self._none()
        count, doubt = len(self.devices), f"; {self.assumed}" if self.assumed else ""
        if current is not None and 0 <= current < count:
            return [self.devices[current]], f"CUDA's current device, {current}{doubt}"
        if local_rank is not None and count > 1 and 0 <= local_rank < count:
            return [self.devices[local_rank]], f"assumed from the local rank, {local_rank}{doubt}"
        return [self.devices[0]], f"CUDA's device 0{doubt}"

    # ------------------------------------------------------------------ the devices that CUDA shows

    def _default(self, simulated: bool) -> list[Device]:
        """The devices that CUDA shows without the variable."""
        if simulated and (whole := [gpu for gpu in self._gpus if not self._slices(gpu)]):
            self.reason = _NOT_NUMBERED if len(whole) < len(self._gpus) else ""
            return whole
        cut = [gpu for gpu in self._gpus if self._head(gpu).kind is DeviceKind.MIG]
        ordered, self.assumed = self._ordered(cut or self._gpus)
        if cut and (len(self._gpus) > 1 or len(self._slices(cut[0])) > 1):
            self.reason = _ONE_INSTANCE
        return [self._head(gpu) for gpu in ordered[: 1 if cut else None]]

    def _selected(self, value: str) -> list[Device]:
        """The devices that CUDA shows with this value of the variable."""
        short = setting(value) if len(value) <= _LONG_ENTRY else VARIABLE
        prefix = next((prefix for prefix in ("GPU-", "MIG-") if value.startswith(prefix)), "")
        names: list[str] = []
        stop: str | None = None
        for entry in value.split(","):
            name = entry if prefix else _number(entry)
            if not name or not name.startswith(prefix):
                stop = entry
                break
            names.append(name)
        numbered, doubt = self._numbered()
        entries: list[Device] = []
        for name in names:
            device = self._entry(prefix, name, numbered)
            if device is None:
                stop = name
                break
            entries.append(device)
        if len(set(names)) < len(names) or len(set(entries)) < len(entries):
            self.reason = f"{short} names a device twice, so that CUDA shows none"
            return []
        if entries and not prefix:
            self.assumed = doubt
        elif entries and not entries[0].uuid.startswith(names[0]) and len(self._old_form(names[0])) > 1:
            self.assumed = _GUESSED_INSTANCE
        self.reason = f"{VARIABLE} is empty" if not value.strip() else setting(value)
        if value.strip() and stop is not None:
            self.reason = f"{short}: CUDA stops at {_entry(stop)}, which is no device here"
        heads = [self._head(device) for device in entries]
        instances = [device for device in heads if device.kind is DeviceKind.MIG]
        if instances and len(heads) > 1:
            self.reason += f": {_ONE_INSTANCE}"
        return instances[:1] or heads

    def _entry(self, prefix: str, name: str, numbered: Sequence[Device]) -> Device | None:
        if not prefix:
            return numbered[int(name)] if int(name) < len(numbered) else None
        kind = DeviceKind.MIG if prefix == "MIG-" else DeviceKind.GPU
        fits = [device for device in self._listed if device.kind is kind and device.uuid.startswith(name)]
        return _only(fits) or next(iter(self._old_form(name)), None)

    def _numbered(self) -> tuple[list[Device], str]:
        """GPUs in the order of their numbers in the variable, and why it may be wrong."""
        ordered, doubt = self._ordered(self._gpus)
        whole = [gpu for gpu in ordered if self._head(gpu).kind is not DeviceKind.MIG]
        cut = [gpu for gpu in ordered if gpu not in whole]
        return whole + cut, "; ".join(filter(None, (doubt, _GUESSED_NUMBERS if whole and cut else "")))

    def _ordered(self, gpus: Sequence[Device]) -> tuple[list[Device], str]:
        """GPUs in CUDA's order, and why it may be wrong. GPUs of one model are always in the order of their buses."""
        buses = {gpu.uuid: _bus(gpu.pci_bus_id) for gpu in gpus}
        # If a bus is unknown, keep NVML's order, which is that of the buses.
        ordered = list(gpus) if None in buses.values() else sorted(gpus, key=lambda gpu: buses[gpu.uuid] or ())
        if self._pci_order or len({gpu.name for gpu in gpus}) < 2:
            return ordered, ""
        return sorted(ordered, key=lambda gpu: -(gpu.memory_bytes or 0)), _GUESSED_ORDER

    def _old_form(self, name: str) -> list[Device]:
        """The instances that `MIG-GPU-<uuid>/<gi>/<ci>` may refer to: several if their ids are unknown."""
        match = _OLD_MIG.fullmatch(name)
        gpu = _only(gpu for gpu in self._gpus if gpu.uuid.startswith(match[1])) if match else None
        if match is None or gpu is None:
            return []
        wanted = int(match[2]), int(match[3])
        return [one for one in self._slices(gpu) if self._instances.get(one.uuid, wanted) == wanted]

    def _slices(self, gpu: Device) -> list[Device]:
        return [device for device in self._listed if device.parent == gpu.uuid]

    def _head(self, device: Device) -> Device:
        """The device that CUDA shows for this one: the first instance of a GPU in MIG mode, else the device itself."""
        return next(iter(self._slices(device)), device)

    # ------------------------------------------------------------------ the names that users write

    def _resolve(self, spec: Spec, current: int | None) -> list[Device]:
        if isinstance(spec, Device):
            return self._by_uuid(spec.uuid, spec.uuid)
        if isinstance(spec, str):
            names = [name.strip() for name in spec.split(",")]
            return [device for name in names if name for device in self._by_name(name, current)]
        if isinstance(spec, SupportsIndex) and not isinstance(spec, bool):
            return [self._by_ordinal(index(spec), repr(index(spec)))]
        kind = getattr(spec, "type", None)
        if isinstance(kind, str):
            number = getattr(spec, "index", None)
            name = kind if number is None else f"{kind}:{number}"
            if kind != "cuda":
                raise UsageError(f"device {name!r}: not a GPU of CUDA; {self._shown()}")
            return self._by_name(name, current)
        if isinstance(spec, Iterable) and not isinstance(spec, (bytes, Mapping)):
            return [device for each in spec for device in self._resolve(each, current)]
        raise UsageError(f"device {spec!r}: not a device; {_FORMS}")

    def _by_name(self, name: str, current: int | None) -> list[Device]:
        if name == "all":
            if not self.devices:
                raise UsageError(f"device 'all': {self._shown()}")
            return list(self.devices)
        if name == "cuda":
            return [self._by_ordinal(current or 0, repr(name))]
        if match := _ORDINAL.fullmatch(name):
            return [self._by_ordinal(int(match[1]), repr(name))]
        if match := _PHYSICAL.fullmatch(name):
            return [self._physical(name, int(match[1]), match[2])]
        if name[:4].upper() in ("GPU-", "MIG-") or _BARE_UUID.fullmatch(name):
            return self._by_uuid(name, name)
        check_form(name)
        bus = _bus(name)
        for gpu in self._gpus:
            if _bus(gpu.pci_bus_id) == bus:
                return [gpu]
        raise UsageError(f"device {name!r}: no GPU on this bus; {_named(gpu.pci_bus_id for gpu in self._gpus)}")

    def _by_ordinal(self, number: int, name: str) -> Device:
        if 0 <= number < len(self.devices):
            return self.devices[number]
        raise UsageError(f"device {name}: {self._shown()}")

    def _physical(self, name: str, number: int, instance: str | None) -> Device:
        gpu = next((gpu for gpu in self._gpus if gpu.index == number), None)
        if gpu is None:
            raise UsageError(f"device {name!r}: {_named(f'nvml:{gpu.index}' for gpu in self._gpus)}")
        if instance is None:
            return gpu
        slices = self._slices(gpu)
        if int(instance) < len(slices):
            return slices[int(instance)]
        have = f"has {_count(len(slices), 'MIG instance')}" if slices else "is not cut into MIG instances"
        raise UsageError(f"device {name!r}: nvml:{number} {have}{', counted from 0' if slices else ''}")

    def _by_uuid(self, text: str, name: str) -> list[Device]:
        low = text.lower()
        exact = [device for device in self._listed if low in (device.uuid.lower(), device.uuid[4:].lower())]
        matches = exact or [device for device in self._listed if device.uuid.lower().startswith(low)]
        if not matches and (matches := self._old_form(text)) and len(matches) > 1:
            raise UsageError(f"device {name!r}: {_NAME_INSTANCE}; {_named(d.uuid for d in matches)}")
        if len(matches) == 1:
            return matches
        problem = "several devices begin so, give more of it" if matches else "no device has this UUID"
        raise UsageError(f"device {name!r}: {problem}; {_named(device.uuid for device in matches or self._listed)}")

    def _shown(self) -> str:
        """The ordinals that CUDA shows, and why there are no others, in words."""
        if not self.devices:
            return self._none()
        seen = "0" if len(self.devices) == 1 else f"0 to {len(self.devices) - 1}"
        because = f" ({self.reason})" if self.reason else ""
        return f"CUDA shows this process {_count(len(self.devices), 'device')}, {seen}{because}"

    def _none(self) -> str:
        if not self._listed:
            return "the driver lists no GPU"
        listed = _named((device.uuid for device in self._listed), room=50)
        return f"CUDA shows this process no device: {self.reason}; {listed}"


def check_form(spec: str) -> None:
    """Raise UsageError unless `spec` has the form of a device's name, or of several with commas between them."""
    names = [name.strip() for name in spec.split(",") if name.strip()]
    if not names:
        raise UsageError(f"no device is named: {_FORMS}")
    for name in names:
        forms = (_ORDINAL.fullmatch(name), _PHYSICAL.fullmatch(name), _BARE_UUID.fullmatch(name), _bus(name))
        if name not in ("all", "cuda") and name[:4].upper() not in ("GPU-", "MIG-") and not any(forms):
            raise UsageError(f"device {name!r}: not a device; {_FORMS}")


def _number(entry: str) -> str:
    """The number at the start of the entry, as decimal digits; empty if there is none or it is negative."""
    match = _NUMBER.match(entry.strip())
    number = -1 if match is None else int(match[0])
    return "" if number < 0 else str(number)


def _only(devices: Iterable[Device]) -> Device | None:
    candidates = list(devices)
    return candidates[0] if len(candidates) == 1 else None


def _bus(text: str) -> tuple[int, ...] | None:
    """Domain, bus, device and function of `00000000:18:00.0`, `0000:18:00.0` or `18:00.0`."""
    match = _BUS.fullmatch(text)
    return None if match is None else tuple(int(part or "0", 16) for part in match.groups())


def _entry(entry: str) -> str:
    """An entry of the variable, in a message."""
    return repr(entry if len(entry) <= _LONG_ENTRY else f"{entry[:_LONG_ENTRY]}…")


def _named(names: Iterable[str], room: int = 100) -> str:
    listed = few(names, room)
    return f"there are {listed}" if listed else "the driver lists no GPU"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
