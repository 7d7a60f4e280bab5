"""The checked options of a monitored run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from math import inf
from types import EllipsisType
from typing import Any, Literal, SupportsFloat, SupportsIndex, TypeAlias

from gpu_profile.catalogue.samples import Device

#: A function that waits for launched work; `auto`: the one of the loaded framework. `...` means None: the documents
#: that specify `sync_fn` use it as a placeholder.
SyncFn: TypeAlias = Callable[[], object] | Literal["auto"] | EllipsisType | None


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run. `devices`: names as `Visible.resolve` takes them. `labels`: their names in summaries."""

    devices: tuple[Any, ...]
    labels: tuple[int | str, ...]
    interval_s: float
    backend: str
    strict: bool
    sync_fn: Callable[[], object] | Literal["auto"] | None
    warmup_s: float


def options(device: Any, interval_s: float, backend: str, strict: bool, sync_fn: SyncFn, warmup_s: float) -> Options:
    """The user's arguments as `Options`. Raises ValueError or TypeError, with one line, for invalid ones."""
    if not isinstance(interval_s, SupportsFloat) or not 0 < interval_s < inf:
        raise ValueError(f"interval_s must be a positive number of seconds, not {interval_s!r}")
    if not isinstance(warmup_s, SupportsFloat) or not 0 <= warmup_s < inf:
        raise ValueError(f"warmup_s must be a number of seconds of at least 0, not {warmup_s!r}")
    if sync_fn is ...:
        sync_fn = None
    if not (sync_fn is None or sync_fn == "auto" or callable(sync_fn)):
        raise TypeError(f"sync_fn is a function without arguments, 'auto' or None, not {sync_fn!r}")
    if not isinstance(backend, str):
        raise TypeError(f"backend is a name such as 'auto' or 'nvml', not {backend!r}")
    many = isinstance(device, Iterable) and not isinstance(device, (str, Device)) and not hasattr(device, "type")
    devices = tuple(device) if many else (device,)
    if not devices:
        raise ValueError("device names no device: give at least one")
    if not all(isinstance(each, Hashable) for each in devices):
        raise TypeError(f"device is a device's name or a list of such names, not {device!r}")
    return Options(devices, tuple(map(_label, devices)), interval_s, backend, strict, sync_fn, warmup_s)


def _label(spec: Any) -> int | str:
    """The name in summaries of a device that the user named `spec`."""
    if isinstance(spec, Device):
        return spec.uuid
    return int(spec) if isinstance(spec, SupportsIndex) else str(spec)
