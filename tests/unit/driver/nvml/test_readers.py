"""The table of readers against the catalogue and the names of nvml.h."""

from __future__ import annotations

import pynvml
import pytest

from gpu_profile.catalogue import SIGNALS, Kind, Tier, signal
from gpu_profile.driver.nvml.readers import ALL_LINKS, READERS


def test_every_row_of_the_catalogue_has_exactly_one_reader() -> None:
    assert list(READERS) == list(SIGNALS)
    assert all(reader.signal is row for row, reader in READERS.items())


def test_every_reader_has_a_source() -> None:
    assert [row.key for row, reader in READERS.items() if not (reader.field or reader.query or reader.gpm)] == []


def test_every_name_in_the_table_is_one_of_this_nvidia_ml_py() -> None:
    names = [
        name
        for reader in READERS.values()
        for name in (reader.field, reader.buffer, reader.gpm, *(reader.query.needs if reader.query else ()))
        if name
    ]
    assert [name for name in names if not hasattr(pynvml, name)] == []


@pytest.mark.parametrize(
    ("key", "field"),
    # Numbers of nvml.h, written out here on purpose: a wrong name must not be able to agree with itself.
    [
        ("energy", 83),
        ("power", 186),
        ("power_average", 185),
        ("temperature_memory", 82),
        ("pcie_tx", 197),
        ("pcie_rx", 198),
        ("nvlink_tx", 138),
        ("nvlink_rx", 139),
        ("pcie_replays", 94),
        ("ecc_corrected", 3),
        ("ecc_uncorrected", 4),
        ("throttle_sw_power_cap", 74),
        ("throttle_sync_boost", 76),
        ("throttle_sw_thermal", 269),
        ("throttle_hw_thermal", 270),
        ("throttle_hw_power_brake", 271),
    ],
)
def test_a_field_has_the_number_that_nvml_gives_it(key: str, field: int) -> None:
    assert getattr(pynvml, READERS[signal(key)].field) == field


@pytest.mark.parametrize(
    ("key", "metric"),
    [
        ("graphics", 1),
        ("sm", 2),
        ("occupancy", 3),
        ("tensor", 5),
        ("dram", 10),
        ("fp64", 11),
        ("fp32", 12),
        ("fp16", 13),
    ],
)
def test_a_gpm_metric_has_the_number_that_nvml_gives_it(key: str, metric: int) -> None:
    assert getattr(pynvml, READERS[signal(key)].gpm) == metric


def test_the_fields_are_those_that_the_catalogue_documents() -> None:
    for row, reader in READERS.items():
        if reader.field:
            documented = row.source.removeprefix("field ").split(",")[0]
            assert reader.field == f"NVML_FI_DEV_{documented}", row.key
        if reader.gpm:
            assert row.source == f"GPM {reader.gpm.removeprefix('NVML_GPM_METRIC_')}"
        if reader.query and not reader.field:
            assert reader.query.needs[0] in row.source


def test_nvlink_is_asked_for_the_sum_of_all_links() -> None:
    scopes = {row.key: reader.scope for row, reader in READERS.items() if reader.scope}
    assert scopes == {"nvlink_rx": ALL_LINKS, "nvlink_tx": ALL_LINKS}
    assert ALL_LINKS == 2**32 - 1


def test_only_gpm_rows_are_read_through_gpm_and_only_window_means_are_drained() -> None:
    for row, reader in READERS.items():
        assert bool(reader.gpm) == (row.tier is Tier.GPM)
        assert not reader.buffer or row.kind is Kind.WINDOW_MEAN
