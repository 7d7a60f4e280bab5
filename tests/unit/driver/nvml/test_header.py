"""The C interface of NVML, as its published header declares it (`tests/data/nvml`), beside what is called here."""

from __future__ import annotations

import json
from typing import Any, Final

import pynvml
import pytest
from support.nvml_interface import FACTS, STRUCTURES, constants, functions, layout

from gpu_profile.driver.nvml import buffers, fields

_HEADER: Final[dict[str, Any]] = json.loads(FACTS.read_text())
#: Their last member is an array that grows with each release.
_GROWING: Final = {"c_nvmlGpmMetricsGet_t"}


def test_every_function_that_is_called_is_in_the_header() -> None:
    asked = functions()
    assert {"nvmlDeviceGetFieldValues", "nvmlDeviceGetSamples", "nvmlInitWithFlags", "nvmlGpmSampleGet"} <= asked
    assert asked == set(_HEADER["functions"])


def test_every_constant_has_the_value_that_the_header_gives_it() -> None:
    named, declared = constants(), _HEADER["constants"]
    assert {"NVML_FI_DEV_POWER_INSTANT", "NVML_TOTAL_POWER_SAMPLES", "NVML_GPM_METRIC_SM_UTIL"} <= named.keys()
    known = {name: value for name, value in named.items() if name in declared}
    assert known == {name: declared[name] for name in known}
    assert len(known) > 0.9 * len(declared)


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_lie_in_memory_as_the_header_declares(name: str) -> None:
    own, declared = layout(getattr(pynvml, name)), dict(_HEADER["structures"][name])
    if name in _GROWING:
        assert own.pop("") >= declared.pop("")
    assert own == declared


def test_bytes_are_taken_apart_where_the_header_has_them() -> None:
    """Offsets of time stamp, type, code and value within the layouts that are read without the binding."""
    field, sample = _HEADER["structures"]["c_nvmlFieldValue_t"], _HEADER["structures"]["c_nvmlSample_t"]
    assert fields._LAYOUT.size == field[""]
    assert buffers._LAYOUT.size == sample[""]
    raw = bytearray(field[""])
    for number, (member, width) in enumerate(
        {"timestamp": 8, "valueType": 4, "nvmlReturn": 4, "value": 8}.items(), start=1
    ):
        raw[field[member] : field[member] + width] = number.to_bytes(width, "little")
    assert fields._LAYOUT.unpack(raw) == (1, 2, 3, 4)
    raw = bytearray(sample[""])
    raw[sample["timeStamp"]], raw[sample["sampleValue"]] = 1, 2
    assert buffers._LAYOUT.unpack(raw) == (1, 2)
