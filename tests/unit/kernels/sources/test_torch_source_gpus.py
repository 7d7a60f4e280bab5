"""What PyTorch's profiler gives on GPUs, as far as stand-ins can tell."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.traces import CALL, KERNEL

from gpu_profile.kernels.records import Call, Kind, Operation
from gpu_profile.kernels.sources import torch_source
from gpu_profile.kernels.sources.torch_source import TorchSource, waits_for_gpu

torch: Any = pytest.importorskip("torch")


def saved(monkeypatch: pytest.MonkeyPatch, events: list[dict[str, Any]], *, base_last: bool = True) -> None:
    """Have PyTorch save these, as it would on a GPU."""
    members = {"traceEvents": events, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    text = json.dumps(dict(sorted(members.items(), reverse=base_last)))
    monkeypatch.setattr(
        torch.profiler.profile, "export_chrome_trace", lambda self, path: Path(path).write_text(text) and None
    )


LAUNCH = CALL | {"ts": 10, "dur": 3, "args": {"correlation": 1}}
WAIT = LAUNCH | {"name": "cudaDeviceSynchronize", "args": {"correlation": 2}}
GEMM = KERNEL | {"ts": 20.5, "dur": 4, "args": KERNEL["args"] | {"correlation": 1}}


@pytest.mark.parametrize("base_last", [False, True])
def test_gpu_records_are_moved_to_the_epoch(
    source: TorchSource, monkeypatch: pytest.MonkeyPatch, base_last: bool
) -> None:
    others = [{"ph": "M", "name": "a" * 1000}] * 200
    saved(monkeypatch, [*others, LAUNCH, GEMM, *others], base_last=base_last)
    source.start()
    call, operation = source.stop()
    assert isinstance(call, Call)
    assert isinstance(operation, Operation)
    assert (call.start_ns, call.end_ns) == (1_700_000_000_000_010_000, 1_700_000_000_000_013_000)
    assert (operation.kind, operation.start_ns) == (Kind.KERNEL, 1_700_000_000_000_020_500)


@pytest.mark.parametrize(
    ("events", "held"), [([LAUNCH, GEMM, WAIT], False), ([WAIT], False), ([LAUNCH, WAIT], True), ([], True)]
)
def test_a_gpu_that_was_used_without_a_record_of_it_is_told_as_cupti_being_held(
    source: TorchSource, monkeypatch: pytest.MonkeyPatch, events: list[dict[str, Any]], held: bool
) -> None:
    saved(monkeypatch, events)
    source.start()
    monkeypatch.setattr(source, "_device", 0)
    list(source.stop())
    assert ("another tool holds CUPTI" in source.problem) == held


def test_without_a_gpu_an_empty_recording_is_no_problem(source: TorchSource, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(monkeypatch, [])
    source.start()
    assert list(source.stop()) == []
    assert source.problem == ""


@pytest.mark.parametrize(
    ("cuda", "hip", "driver", "used", "waits"),
    [
        ("12.4", None, True, False, True),
        ("12.4", None, True, True, False),
        ("12.4", None, False, False, False),
        (None, "6.2", False, False, True),
        (None, None, True, False, False),
    ],
)
def test_a_gpu_that_the_program_has_not_used_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, hip: str | None, driver: bool, used: bool, waits: bool
) -> None:
    stand_in = SimpleNamespace(
        version=SimpleNamespace(cuda=cuda, hip=hip), cuda=SimpleNamespace(is_initialized=lambda: used)
    )
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    monkeypatch.setattr(torch_source, "has_driver", lambda: driver)
    assert waits_for_gpu() == waits


def test_while_pytorch_is_being_imported_its_gpu_is_not_used_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(cuda="12.4", hip=None)))
    monkeypatch.setattr(torch_source, "has_driver", lambda: True)
    assert waits_for_gpu()


def test_a_program_without_pytorch_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert not waits_for_gpu()
