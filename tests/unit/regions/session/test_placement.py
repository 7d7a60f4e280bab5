from __future__ import annotations

import logging

import pytest

from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.driver.visible import Spec
from gpu_profile.regions.session.placement import Placement

A, B = (Device(f"GPU-{name}", index=i, name="H100", pci_bus_id=f"0000:0{i}:00.0") for i, name in enumerate("ab"))
SLICE = Device("MIG-1", parent="GPU-a", kind=DeviceKind.MIG, index=0, name="H100 MIG 1g.10gb")


def placed(
    *known: Device, environ: dict[str, str] | None = None, asked: Spec | None = None, used: list[str] | None = None
) -> Placement:
    placement = Placement(asked, environ=environ or {})
    placement.update(known, used)
    return placement


def test_without_a_word_regions_are_on_cudas_first_device() -> None:
    assert placed(A, B).of(None) == (A,)
    assert placed(A, B, environ={"CUDA_VISIBLE_DEVICES": "1"}).of(None) == (B,)


def test_devices_that_the_driver_lists_this_process_on_come_first() -> None:
    placement = placed(A, B, used=["GPU-b"])
    assert placement.of(None) == (B,)
    assert "lists this process" in placement.reason
    placement.update((A, B))
    assert placement.of(None) == (B,), "what is not told anew stays"


def test_what_the_program_names_is_taken() -> None:
    assert placed(A, B, asked=[1, "GPU-a"]).of(None) == (B, A)
    assert placed(A, B).of("nvml:1") == (B,)
    assert placed(A, B).of((0, 1)) == (A, B)


def test_nothing_is_known_before_the_driver_answers() -> None:
    placement = Placement(environ={})
    assert placement.of(None) == placement.of(0) == ()
    assert "not listed its devices yet" in placement.why(None)
    placement.update((A,))
    assert placement.of(0) == (A,)


def test_a_name_that_is_none_is_told_once_and_joins_nothing(caplog: pytest.LogCaptureFixture) -> None:
    placement = placed(A)
    with caplog.at_level(logging.WARNING):
        assert placement.of(7) == placement.of(7) == ()
    assert "7" in placement.why(7)
    assert len(caplog.records) == 1


def test_each_wrong_name_has_its_own_reason() -> None:
    placement = placed(A)
    assert placement.of(7) == placement.of("GPU-nowhere") == ()
    assert "device 7" in placement.why(7)
    assert "GPU-nowhere" in placement.why("GPU-nowhere")
    assert "device 7" not in placement.why(None)


def test_a_driver_that_lists_nothing_has_answered() -> None:
    placement = Placement(environ={})
    placement.update((), driver="none")
    assert placement.of(None) == placement.of(0) == ()
    assert placement.why(None) == placement.why(0) == "the driver none lists no devices"


@pytest.mark.parametrize("value", ["", "7", "GPU-nowhere"])
def test_where_cuda_sees_nothing_the_reason_names_the_variable(value: str) -> None:
    placement = placed(A, environ={"CUDA_VISIBLE_DEVICES": value})
    assert placement.of(None) == ()
    assert "CUDA_VISIBLE_DEVICES" in placement.why(None)


def test_on_simulated_devices_gpus_that_are_not_cut_come_first() -> None:
    placement = Placement(environ={})
    placement.update((A, SLICE, B), simulated=True)
    assert placement.of(None) == (B,)
    assert placed(A, SLICE, B).of(None) == (SLICE,), "as CUDA would have it"


def test_answers_change_their_version() -> None:
    placement = placed(A)
    before = placement.version
    placement.update((A,))
    assert placement.version == before
    placement.update((A, B), ["GPU-b"])
    assert placement.version > before
