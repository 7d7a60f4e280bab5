import ctypes
import importlib.util
import sys
from types import ModuleType

import pytest
from support.programs import printed

from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile.kernels.sources import opening as sources
from gpu_profile.kernels.sources.cupti import CuptiSource
from gpu_profile.kernels.sources.opening import open_source
from gpu_profile.kernels.sources.source import has_driver


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def packages(monkeypatch: pytest.MonkeyPatch, *, installed: bool) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: ModuleType(name) if installed and name == "cupti" else None
    )


def test_auto_is_pytorch_where_the_program_has_imported_it() -> None:
    pytest.importorskip("torch")
    assert open_source().name == "torch"


@pytest.mark.usefixtures("without_torch")
def test_auto_is_cupti_where_the_program_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    packages(monkeypatch, installed=True)
    monkeypatch.setattr(sources, "has_driver", lambda: True)
    assert isinstance(open_source(), CuptiSource)
    assert "torch" not in sys.modules


def test_cupti_can_be_asked_for_beside_pytorch() -> None:
    assert open_source("cupti").name == "cupti"


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize(("installed", "missing"), [(False, "cupti-python is not installed"), (True, "no CUDA driver")])
def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, installed: bool, missing: str) -> None:
    packages(monkeypatch, installed=installed)
    monkeypatch.setattr(sources, "has_driver", lambda: False)
    with pytest.raises(GpuBackendError, match=missing) as caught:
        open_source()
    assert "pip install 'gpu-profile[cupti]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_source_is_a_usage_error_with_the_choices() -> None:
    with pytest.raises(UsageError, match="'nsys': choose among auto, torch, cupti"):
        open_source("nsys")


def test_a_pytorch_that_cannot_be_imported_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(GpuBackendError, match=r"pip install 'gpu-profile\[torch\]'"):
        open_source("torch")


def test_a_driver_is_looked_for_without_one_being_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> object:
        if name != "libcuda.so.1":
            raise AssertionError(name)
        return object()

    def missing(name: str) -> object:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert has_driver()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not has_driver()


def test_the_rooms_of_windows_import_neither_torch_nor_cupti_nor_the_sdk() -> None:
    script = (
        "import sys\n"
        "from gpu_profile.kernels.sources import torch_source\n"
        "from gpu_profile.kernels.windows import sampling, window\n"
        "found = [name for name in ('torch', 'cupti', 'opentelemetry.sdk') if name in sys.modules]\n"
        "assert not found, found\n"
    )
    printed("-c", script)
