"""The table of readers against the catalogue and the names of nvml.h."""

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
        for name in (reader.field, reader.buffer, reader.gpm, reader.bit, *(reader.query.needs if reader.query else ()))
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
        ("throttle_thermal_policy", 75),
        ("throttle_board_limit", 77),
        ("throttle_low_utilization", 78),
        ("throttle_reliability", 79),
        ("throttle_application_clocks", 80),
        ("throttle_base_clocks", 81),
        ("ecc_aggregate_corrected", 5),
        ("ecc_aggregate_uncorrected", 6),
        ("ecc_volatile_uncorrected_l1", 8),
        ("ecc_volatile_corrected_dram", 11),
        ("ecc_aggregate_uncorrected_registers", 25),
        ("ecc_aggregate_uncorrected_control", 28),
        ("retired_pages_single_bit", 29),
        ("retired_pages_double_bit", 30),
        ("retired_pages_pending", 31),
        ("nvlink_errors_crc_flit", 38),
        ("nvlink_errors_crc_data", 45),
        ("nvlink_errors_replay", 52),
        ("nvlink_errors_recovery", 59),
        ("remapped_rows_correctable", 142),
        ("remapped_rows_uncorrectable", 143),
        ("remap_pending", 144),
        ("remap_failure", 145),
        ("nvlink_7_errors_replay", 161),
        ("nvlink_7_errors_recovery", 162),
        ("nvlink_7_errors_crc", 163),
        ("nvlink_7_state", 165),
        ("c2c_links", 170),
        ("c2c_0_state", 171),
        ("pcie_errors_correctable", 173),
        ("pcie_errors_fatal", 180),
        ("power_limit_min", 187),
        ("power_limit_max", 188),
        ("power_limit_default", 189),
        ("power_limit_requested", 192),
        ("temperature_margin_limit_shutdown", 193),
        ("temperature_margin_limit_slowdown", 194),
        ("temperature_margin_limit_mem_max", 195),
        ("temperature_margin_limit_gpu_max", 196),
        ("nvlink_7_errors_receive", 208),
        ("nvlink_7_errors_symbol", 221),
        ("recovery_action", 230),
        ("c2c_0_errors_replay_back_to_back", 233),
        ("power_smoothing", 251),
        ("tensor_stall", 297),
        ("remapped_banks_active", 303),
        ("remapped_banks_inactive", 304),
        ("spare_banks_max", 305),
        ("spare_banks_none", 306),
        ("remapped_banks_pending", 307),
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
        ("integer", 4),
        ("tensor_dfma", 6),
        ("tensor_hmma", 7),
        ("tensor_dmma", 8),
        ("tensor_imma", 9),
        ("pcie_tx_rate", 20),
        ("pcie_rx_rate", 21),
        ("nvlink_rx_rate", 60),
        ("nvlink_tx_rate", 61),
        ("c2c_tx_rate", 100),
        ("c2c_rx_rate", 101),
    ],
)
def test_a_gpm_metric_has_the_number_that_nvml_gives_it(key: str, metric: int) -> None:
    assert getattr(pynvml, READERS[signal(key)].gpm) == metric


def test_the_fields_are_those_that_the_catalogue_documents() -> None:
    for row, reader in READERS.items():
        if reader.field:
            documented = row.source.rpartition("field ")[2].split(",")[0]
            assert reader.field in (f"NVML_FI_DEV_{documented}", f"NVML_FI_{documented}"), row.key
        if reader.gpm:
            assert row.source == f"GPM {reader.gpm.removeprefix('NVML_GPM_METRIC_')}"
        if reader.query and not reader.field:
            assert reader.query.needs[0] in row.source


def test_nvlink_is_asked_for_the_sum_of_all_links_and_a_link_for_itself() -> None:
    scopes = {row.key: reader.scope for row, reader in READERS.items() if row.key.startswith(("nvlink", "c2c"))}
    assert {key for key, scope in scopes.items() if scope == ALL_LINKS} == {"nvlink_rx", "nvlink_tx"}
    assert ALL_LINKS == 2**32 - 1
    for key, scope in scopes.items():
        parts = key.split("_")
        if len(parts) > 1 and parts[1].isdigit():
            assert scope == int(parts[1]), key


def test_power_is_that_of_the_gpu_unless_the_row_says_otherwise() -> None:
    scopes = {row.key: READERS[row].scope for row in SIGNALS if row.key.startswith("power") and READERS[row].field}
    assert {key: scope for key, scope in scopes.items() if scope} == {
        "power_module": pynvml.NVML_POWER_SCOPE_MODULE,
        "power_module_average": pynvml.NVML_POWER_SCOPE_MODULE,
        "power_memory_average": pynvml.NVML_POWER_SCOPE_MEMORY,
    }


@pytest.mark.parametrize(
    ("reason", "bit"),
    # Of nvml.h: 0x8 is any hardware slowdown, which is none of these.
    [("sw_power_cap", 0x4), ("sync_boost", 0x10), ("sw_thermal", 0x20), ("hw_thermal", 0x40), ("hw_power_brake", 0x80)],
)
def test_a_throttle_reason_has_the_bit_that_nvml_gives_it(reason: str, bit: int) -> None:
    assert getattr(pynvml, READERS[signal(f"throttle_seen_{reason}")].bit) == bit


def test_only_gpm_rows_are_read_through_gpm_and_only_window_means_are_drained() -> None:
    for row, reader in READERS.items():
        assert bool(reader.gpm) == (row.tier is Tier.GPM)
        assert not reader.buffer or row.kind is Kind.WINDOW_MEAN
