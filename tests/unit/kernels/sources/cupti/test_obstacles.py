import importlib.util
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_profile.kernels.sources.cupti import obstacles
from gpu_profile.kernels.sources.cupti.obstacles import hindrance, loaded, other_user


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch.autograd.profiler", raising=False)


def with_libraries(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Only these can be loaded, and are."""

    def load(name: str, **options: Any) -> object:
        if name not in names:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        return object()

    monkeypatch.setattr(obstacles, "ctypes", SimpleNamespace(CDLL=load))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(metadata, "version", lambda name: "13.4.0")


def test_with_package_and_driver_and_nobody_else_nothing_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with_libraries(monkeypatch, "libcuda.so.1", "libcupti.so.13")
    assert hindrance() == ""


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with_libraries(monkeypatch, "libcuda.so.1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert hindrance() == (
        "CUPTI needs the package cupti-python: pip install 'gpu-profile[cupti]', or record with PyTorch's profiler"
    )


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with_libraries(monkeypatch)
    assert hindrance().startswith("CUPTI needs NVIDIA's driver: libcuda.so.1: cannot open shared object file")
    assert "\n" not in hindrance()


@pytest.mark.parametrize("other", [12, 14])
def test_a_cupti_of_another_cuda_in_the_process_is_refused(monkeypatch: pytest.MonkeyPatch, other: int) -> None:
    with_libraries(monkeypatch, "libcuda.so.1", f"libcupti.so.{other}")
    found = hindrance()
    # In between stands the file, where a real one is loaded.
    assert found.startswith(f"libcupti.so.{other} is loaded ")
    assert "and cupti-python 13 needs libcupti.so.13: " in found
    assert "PyTorch's profiler" in found


def test_the_file_of_the_other_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_libraries(monkeypatch, "libcuda.so.1", "libcupti.so.12")
    maps = "7f0-7f1 r-xp 0 08:01 1 /opt/cuda/lib64/libcupti.so.2025.2.0\n7f2-7f3 r-xp 0 08:01 1 /lib/libc.so.6\n"
    monkeypatch.setattr(obstacles, "Path", lambda name: SimpleNamespace(read_text=lambda: maps))
    assert "libcupti.so.12 is loaded (/opt/cuda/lib64/libcupti.so.2025.2.0) and" in hindrance()


def test_libraries_are_known_by_what_they_call_themselves() -> None:
    assert loaded("libc.so.6")
    assert not loaded("libcupti.so.9")
    assert not loaded("libgpuprofile-no-such-library.so.1")


@pytest.mark.parametrize(
    ("name", "value", "tool"),
    [
        ("NSYS_PROFILING_SESSION_ID", "4711", "Nsight Systems"),
        ("CUDA_INJECTION64_PATH", "/opt/tool/libinjection64.so", "CUDA_INJECTION64_PATH=/opt/tool/libinjection64.so"),
        ("NVTX_INJECTION64_PATH", "/opt/tool/libnvtx.so", "NVTX_INJECTION64_PATH=/opt/tool/libnvtx.so"),
    ],
)
def test_a_tool_that_holds_cupti_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, tool: str
) -> None:
    with_libraries(monkeypatch, "libcuda.so.1")
    monkeypatch.setenv(name, value)
    found = hindrance()
    assert tool in found
    assert "run the program without" in found
    assert "\n" not in found


def test_cuptis_own_way_to_nvtx_is_no_other_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/usr/lib/libcupti.so.13")
    assert other_user() == ""


def test_pytorchs_profiler_is_seen_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = SimpleNamespace(_is_profiler_enabled=True)
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", profiler)
    assert other_user().startswith("PyTorch's profiler is running")
    profiler._is_profiler_enabled = False
    assert other_user() == ""
