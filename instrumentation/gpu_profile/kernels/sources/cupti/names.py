"""Names of CUPTI's numbers: copies as in PyTorch's profiler, calls and kernels as in their source."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final

from gpu_profile.kernels.sources.cupti.rows import RUNTIME

#: CUpti_ActivityMemcpyKind; A is a CUDA array, P a peer.
COPY_KINDS: Final = ("Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
#: CUpti_ActivityMemoryKind.
MEMORY_KINDS: Final = ("Unknown", "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
#: Suffixes of function names in the enumerations: the parameters' version, and per-thread default streams.
_RUNTIME_SUFFIX: Final = re.compile(r"(_pt[sd]z|_ptds)?(_v\d{4,5})?$")
_DRIVER_SUFFIX: Final = re.compile(r"(_ptsz|_ptds)$")


def copy_name(kind: int, source: int, target: int) -> str:
    """`Memcpy HtoD (Pinned -> Device)`."""
    return f"Memcpy {named(COPY_KINDS, kind)} ({named(MEMORY_KINDS, source)} -> {named(MEMORY_KINDS, target)})"


def set_name(kind: int) -> str:
    """`Memset (Device)`."""
    return f"Memset ({named(MEMORY_KINDS, kind)})"


def named(names: tuple[str, ...], number: int) -> str:
    """The name of a number, or the number itself if a later release added it."""
    return names[number] if 0 <= number < len(names) else f"kind {number}"


def call_names(cupti: Any) -> Callable[[int, int], str]:
    """A function that names calls by activity kind and callback id, from the package's tables; else `runtime 211`."""

    @cache
    def name(kind: int, callback: int) -> str:
        api, suffix = ("Runtime", _RUNTIME_SUFFIX) if kind == RUNTIME else ("Driver", _DRIVER_SUFFIX)
        tables = (f"{api}ApiTraceCbid", f"{api.lower()}_api_trace_cbid")
        table = next((names for each in tables if (names := getattr(cupti, each, None)) is not None), None)
        try:
            full: str = table(callback).name  # type: ignore[misc]  # None is caught as well
        except (TypeError, ValueError):
            return f"{api.lower()} {callback}"
        return suffix.sub("", full)

    return name


@lru_cache(maxsize=8192)
def demangled(name: str) -> str:
    """A kernel's C++ name as in its source; unchanged if it is none, or if libstdc++ cannot be loaded."""
    demangle = _demangler() if name.startswith("_Z") else None
    return name if demangle is None else demangle(name)


@lru_cache(maxsize=1)
def _demangler() -> Callable[[str], str] | None:
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    function.restype = ctypes.c_void_p  # c_char_p would lose the address to free
    free.argtypes, free.restype = (ctypes.c_void_p,), None

    def demangle(name: str) -> str:
        status = ctypes.c_int()
        address = function(name.encode(), None, None, ctypes.byref(status))
        if not address:
            return name
        try:
            return ctypes.string_at(address).decode(errors="replace")
        finally:
            free(address)

    return demangle
