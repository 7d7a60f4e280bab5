"""CUPTI as `cupti-python` shows it, with the package's own record structures and none of NVIDIA's library or driver."""

import ctypes
import importlib.machinery
import re
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpu_profile.kernels.sources.cupti import rows as r
from gpu_profile.kernels.sources.cupti import source as source_module

real: Any = pytest.importorskip("cupti.cupti")

#: Structures by the kind of their records, without the number of their version.
STRUCTURES = {
    r.CONCURRENT_KERNEL: "activity_kernel",
    r.MEMCPY: "activity_memcpy",
    r.MEMCPY2: "activity_memcpy_pto_p",
    r.MEMSET: "activity_memset",
    r.RUNTIME: "activity_api",
    r.DRIVER: "activity_api",
    r.DEVICE: "activity_device",
    r.EXTERNAL_CORRELATION: "activity_external_correlation",
    r.MEMORY2: "activity_memory",
}
LAUNCH = 211
STREAM_SYNCHRONIZE = 131
#: Texts that records point to.
_texts: dict[str, Any] = {}


def versions(kind: int) -> list[str]:
    """The types of a kind's records in this release of the package, oldest first."""
    stem = STRUCTURES[kind]
    found = (re.fullmatch(rf"{stem}(\d*)_dtype", name) for name in dir(real))
    return [match[0] for match in sorted((each for each in found if each), key=lambda match: int(match[1] or 0))]


def record(kind: int, dtype: str = "", **values: Any) -> tuple[Any, Any]:
    """A record of the newest structure (or of `dtype`), and the buffer that it is a view of."""
    name = dtype or versions(kind)[-1]
    buffer = np.zeros(1, getattr(real, name))
    buffer["kind"] = kind
    for field, value in values.items():
        if isinstance(value, str):
            text = _texts.setdefault(value, ctypes.create_string_buffer(value.encode()))
            buffer[field] = ctypes.addressof(text)
        else:
            buffer[field] = value
    made = name.removesuffix("_dtype").replace("_", "").lower()
    (structure,) = (each for each in dir(real) if each.lower() == made)
    return getattr(real, structure).from_data(buffer), buffer


class FakeCupti:
    """The functions that the source calls. `refuses` has the error of a call by its name, or by an activity's kind."""

    def __init__(self) -> None:
        self.refuses: dict[str | int, int] = {}
        self.enabled: set[int] = set()
        self.quiet: set[tuple[str, int]] = set()
        self.lost = 0
        self.ids = threading.local()
        self.threads = 0
        self.flushed: list[int] = []
        self.callbacks: tuple[Callable[[], tuple[int, int]], Callable[[list[Any]], None]] | None = None
        self.pending: list[tuple[Any, Any]] = []
        self.buffers: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("activity_") or "get_" in name:
            raise AttributeError(name)
        return getattr(real, name)

    def _refuse(self, what: str | int) -> None:
        if code := self.refuses.get(what):
            raise real.cuptiError(code)

    # ------------------------------------------------------------------ the test's side

    def add(self, kind: int, **values: Any) -> None:
        """Something happens; it is recorded if its kind is on."""
        if kind in self.enabled:
            self.pending.append(record(kind, **values))

    def call(
        self, correlation: int, *, start: int = 10, end: int = 20, kind: int = r.RUNTIME, cbid: int = LAUNCH
    ) -> None:
        """A call in this thread, preceded by what it was made in."""
        for external, stack in getattr(self.ids, "stacks", {}).items():
            if stack:
                self.add(
                    r.EXTERNAL_CORRELATION, external_kind=external, external_id=stack[-1], correlation_id=correlation
                )
        thread = threading.get_native_id() if self.threads == 1 else threading.get_ident() & 0xFFFFFFFF
        self.add(kind, start=start, end=end, cbid=cbid, correlation_id=correlation, thread_id=thread)

    def kernel(self, correlation: int, *, start: int = 30, end: int = 40, name: str = "gemm", **values: Any) -> None:
        self.add(r.CONCURRENT_KERNEL, start=start, end=end, name=name, correlation_id=correlation, **values)

    def deliver(self) -> None:
        """A buffer is full. It is used anew as soon as the callback has returned."""
        assert self.callbacks is not None
        asked, completed = self.callbacks
        self.buffers.append(asked())
        pending, self.pending = self.pending, []
        if pending:
            completed([each for each, _ in pending])
        for _, buffer in pending:
            buffer.view(np.uint8).fill(0)

    # ------------------------------------------------------------------ CUPTI's side

    def set_thread_id_type(self, kind: int) -> None:
        self._refuse("set_thread_id_type")
        self.threads = kind

    def activity_register_callbacks(self, asked: Any, completed: Any) -> None:
        self._refuse("activity_register_callbacks")
        self.callbacks = (asked, completed)

    def activity_enable(self, kind: int) -> None:
        self._refuse(kind)
        self.enabled.add(kind)

    def activity_enable_and_dump(self, kind: int) -> None:
        self._refuse(kind)
        assert self.callbacks is not None, "CUPTI gives no records before the callbacks are there"
        self.enabled.add(kind)
        self.add(kind, id=0, num_multiprocessors=132)

    def activity_disable(self, kind: int) -> None:
        self.enabled.discard(kind)

    def activity_enable_runtime_api(self, callback: int, enable: int) -> None:
        assert not enable
        self.quiet.add(("runtime", callback))

    def activity_enable_driver_api(self, callback: int, enable: int) -> None:
        assert not enable
        self.quiet.add(("driver", callback))

    def activity_flush_all(self, flag: int) -> None:
        self._refuse("activity_flush_all")
        self.flushed.append(flag)
        self.deliver()

    def activity_get_num_dropped_records(self, context: int, stream: int, where: int) -> None:
        assert (context, stream) == (0, 0)
        ctypes.c_size_t.from_address(where).value = self.lost
        self.lost = 0

    def activity_push_external_correlation_id(self, kind: int, number: int) -> None:
        assert 0 <= number < 1 << 64
        if not hasattr(self.ids, "stacks"):
            self.ids.stacks = {}
        self.ids.stacks.setdefault(kind, []).append(number)

    def activity_pop_external_correlation_id(self, kind: int) -> int:
        stack = getattr(self.ids, "stacks", {}).get(kind)
        if not stack:
            raise real.cuptiError(18)
        popped: int = stack.pop()
        return popped


def install(monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    """Have `from cupti import cupti` give a fake, in a process that has never used CUPTI."""
    fake, package = FakeCupti(), ModuleType("cupti")
    package.__spec__ = importlib.machinery.ModuleSpec("cupti", None)
    package.cupti = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setattr(source_module, "hindrance", lambda: "")
    monkeypatch.setattr(source_module, "other_user", lambda: "")
    monkeypatch.setattr(source_module, "_process", source_module._Process())
    return fake
