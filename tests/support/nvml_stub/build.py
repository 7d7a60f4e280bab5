"""Builds the library from the C files in this directory, and loads it under nvidia-ml-py, here or in a child."""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pynvml

SOURCES: Final = tuple(sorted(Path(__file__).parent.glob("*.c")))
SONAME: Final = "libnvidia-ml.so.1"
#: No constant of nvidia-ml-py has this value. It replaces constants that an old release does not have.
_UNKNOWN: Final = 0x7FFF0000


class CannotBuildError(Exception):
    """The stub cannot be built on this machine. The message gives the reason in one line."""


def build(directory: Path, *, soname: bool = True) -> Path:
    """The library, built into `directory` in about half a second. Raises CannotBuildError without a C compiler.

    With `soname` it is `libnvidia-ml.so.1`, for a child's LD_LIBRARY_PATH. A process that loads it gets the stub
    instead of the driver's library until it ends. Without `soname`, any process may load it.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise CannotBuildError("no C compiler (cc) on PATH")
    directory.mkdir(parents=True, exist_ok=True)
    written = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    (directory / "constants.h").write_text(_constants(written), encoding="ascii")
    target = directory / (SONAME if soname else "nvml-stub.so")
    command = [compiler, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-shared", "-fPIC"]
    command += [f"-I{directory}", "-o", os.fspath(target), *map(os.fspath, SOURCES)]
    command += [f"-Wl,-soname,{SONAME}"] if soname else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuildError(f"{compiler} could not build the stub: {done.stderr.strip()}")
    return target


def _constants(source: str) -> str:
    """A header with the binding's constants in the source."""
    names = sorted(
        set(
            re.findall(
                r"\b(?:NVML_(?!STUB)[A-Z0-9_]+|nvml(?:Memory|MarginTemperature|GpuFabricInfo|EccSramErrorStatus|RepairStatus|DeviceAddressingMode)_v\d|nvmlEventType\w+|nvmlClocksEventReason\w+)\b",
                source,
            )
        )
    )
    values = {name: getattr(pynvml, name, _UNKNOWN + i) for i, name in enumerate(names)}
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def child_environment(library: Path, **settings: object) -> dict[str, str]:
    """The environment of a child process with the stub as NVML. `settings` are NVML_STUB_… in lower case."""
    return {**os.environ, **_variables(settings), "LD_LIBRARY_PATH": os.fspath(library.parent)}


def _variables(settings: Mapping[str, object]) -> dict[str, str]:
    return {f"NVML_STUB_{key.upper()}": str(value) for key, value in settings.items()}


class Stub:
    """The loaded library, with the stub's functions beyond NVML."""

    def __init__(self, library: Any) -> None:
        self.library = library
        library.stubSetTime.argtypes = [ctypes.c_int64]
        library.stubCalls.restype = ctypes.c_ulonglong
        library.stubFunction.restype = ctypes.c_char_p
        library.stubBusyNs.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        library.stubBusyNs.restype = ctypes.c_int64
        library.stubEnergyMj.argtypes = [ctypes.c_int, ctypes.c_int64]
        library.stubEnergyMj.restype = ctypes.c_ulonglong

    def set_time(self, now_ns: int) -> None:
        """Set the stub's time. 0: the system's time."""
        self.library.stubSetTime(now_ns)

    def calls(self) -> dict[str, int]:
        """The number of calls of each function since the library was loaded."""
        counts: dict[str, int] = {}
        while (name := self.library.stubFunction(len(counts))) is not None:
            counts[name.decode()] = self.library.stubCalls(name)
        return counts

    def busy_ns(self, gpu: int, start_ns: int, end_ns: int) -> int:
        """The true busy time of a GPU between two times, in ns."""
        busy: int = self.library.stubBusyNs(gpu, start_ns, end_ns)
        return busy

    def energy_mj(self, gpu: int, now_ns: int) -> int:
        """The value of the energy counter at a time, in mJ."""
        energy: int = self.library.stubEnergyMj(gpu, now_ns)
        return energy


@contextmanager
def installed(library: Path, **settings: object) -> Iterator[Stub]:
    """The stub (built without a soname) beneath pynvml in this process, with `settings` as in `child_environment`."""
    copy = library.with_name(f"nvml-stub-{os.getpid()}-{len(list(library.parent.iterdir()))}.so")
    shutil.copyfile(library, copy)  # the settings are read when a file is loaded, and each file is loaded once
    variables = _variables(settings)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        stub = Stub(ctypes.CDLL(os.fspath(copy)))
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    was = pynvml.nvmlLib, pynvml._nvmlLib_refcount
    _put(stub.library, 0)
    try:
        yield stub
    finally:
        _put(*was)


def _put(library: Any, references: int) -> None:
    with pynvml.libLoadLock:
        pynvml.nvmlLib = library
        pynvml._nvmlLib_refcount = references
        # The cache is by name, across libraries.
        pynvml._nvmlGetFunctionPointer_cache.clear()
