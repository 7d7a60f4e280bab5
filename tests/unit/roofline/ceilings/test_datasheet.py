"""What data sheets promise, by the names that drivers give; and what clocks and widths allow."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.roofline.ceilings.datasheet import Facts, _product, expected, facts_of, formula, sheet_for
from gpu_profile.roofline.ceilings.datasheet_rows import ROWS
from gpu_profile.roofline.precision import Precision

GIB = 1 << 30

NAMES = {
    "Tesla V100-SXM2-16GB": "V100 SXM2",
    "Tesla V100-SXM2-32GB": "V100 SXM2",
    "Tesla V100-PCIE-32GB": "V100 PCIe",
    "Tesla T4": "T4",
    "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G",
    "NVIDIA A30": "A30",
    "NVIDIA A40": "A40",
    "NVIDIA A100-PCIE-40GB": "A100 40 GB",
    "NVIDIA A100-SXM4-40GB": "A100 40 GB",
    "NVIDIA A100 80GB PCIe": "A100 80 GB PCIe",
    "NVIDIA A100-SXM4-80GB": "A100 80 GB SXM",
    "A100-SXM-80GB": "A100 80 GB SXM",
    "NVIDIA L4": "L4",
    "NVIDIA L40": "L40",
    "NVIDIA L40S": "L40S",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA H200 NVL": "H200 NVL",
    "NVIDIA GH200 480GB": "GH200 96 GB",
    "NVIDIA GH200 144G HBM3e": "GH200 144 GB",
    "NVIDIA B200": "B200",
    "NVIDIA GB200": "GB200",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GeForce RTX 3090": "RTX 3090",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "NVIDIA GeForce RTX 5090": "RTX 5090",
    "NVIDIA RTX A6000": "RTX A6000",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Blackwell",
}


@pytest.mark.parametrize(("name", "row"), NAMES.items())
def test_a_drivers_name_finds_its_product(name: str, row: str) -> None:
    sheet = sheet_for(name)
    assert sheet is not None
    assert sheet.name == row


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100X",
        "NVIDIA A16",
        "NVIDIA A2",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H20",
        "NVIDIA H100 96GB HBM2e",
        "NVIDIA T400",
        "Tesla T40",
        "Quadro RTX 6000",
        "GRID A100-10C",
        "AMD Instinct MI300X",
        "",
    ],
)
def test_a_product_without_a_sheet_is_not_taken_for_another(name: str) -> None:
    assert sheet_for(name) is None


TOKENS = sorted({token for name in NAMES for token in re.split(r"[ -]", name)} | {"Ti", "D", "GPU", "96GB", "Tesla"})


@given(tokens=st.lists(st.sampled_from(TOKENS), max_size=6), gap=st.sampled_from([" ", "-"]))
def test_no_name_is_two_products(tokens: list[str], gap: str) -> None:
    product = _product(gap.join(tokens))
    assert sum(re.fullmatch(row.pattern, product, re.IGNORECASE) is not None for row in ROWS) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_one_product(name: str) -> None:
    assert sum(re.fullmatch(row.pattern, _product(name), re.IGNORECASE) is not None for row in ROWS) == 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_figures_are_dense_and_in_proportion(row: object) -> None:
    sheet = next(r for r in ROWS if r is row)
    if sheet.bf16 is not None and sheet.tf32 is not None:
        assert sheet.bf16 == sheet.fp16
        assert 1.9 < sheet.bf16 / sheet.tf32 < 2.1
    if sheet.fp8 is not None:
        assert 1.9 < sheet.fp8 / sheet.fp16 < 2.1
    assert sheet.source
    assert sheet.unsure <= {"memory", *map(str, Precision)}


def test_a_mig_instance_has_its_slices_share() -> None:
    whole, part = sheet_for("NVIDIA A100-SXM4-40GB"), sheet_for("NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    assert whole is not None
    assert part is not None
    assert part.memory == whole.memory * 4 / 8
    assert part.compute[Precision.BF16] == pytest.approx(whole.compute[Precision.BF16] * 3 / 7)
    assert part.note == "3 of 7 parts of the arithmetic, 4 of 8 of the memory"


@pytest.mark.parametrize(
    ("name", "compute", "memory"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 1 / 7, 1 / 8),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb+me", 1 / 7, 1 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", 1 / 7, 2 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", 1, 1),
        ("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", 1 / 7, 4 / 8),
        ("NVIDIA H200 MIG 1g.18gb", 1 / 7, 1 / 8),
        ("NVIDIA A30 MIG 2g.12gb", 2 / 4, 2 / 4),
    ],
)
def test_slices_of_each_product_add_up_to_it(name: str, compute: float, memory: float) -> None:
    whole, part = sheet_for(name.partition(" MIG")[0]), sheet_for(name)
    assert whole is not None
    assert part is not None
    assert part.memory / whole.memory == pytest.approx(memory)
    assert part.compute[Precision.FP32] / whole.compute[Precision.FP32] == pytest.approx(compute)


def test_a_board_with_other_memory_than_the_sheets_is_unsure_of_it() -> None:
    usual = sheet_for("NVIDIA GH200 480GB", memory_total=97_871 << 20)
    other = sheet_for("NVIDIA GH200 480GB", memory_total=144 * GIB)
    assert usual is not None
    assert other is not None
    assert usual.note == ""
    assert "memory" in other.unsure
    assert other.note == "the sheet is of a board with 96 GiB, this one has 144 GiB"


#: Of products whose clocks are known; the GPU boosts somewhat higher than some sheets count with.
BOARDS = {
    "Tesla V100-SXM2-16GB": Facts("", None, 877, 4096, 5120, 1530, 80, (7, 0)),
    "Tesla T4": Facts("", None, 5001, 256, 2560, 1590, 40, (7, 5)),
    "NVIDIA A100-SXM4-40GB": Facts("", None, 1215, 5120, 6912, 1410, 108, (8, 0)),
    "NVIDIA L40S": Facts("", None, 9001, 384, 18176, 2520, 142, (8, 9)),
    "NVIDIA H100 80GB HBM3": Facts("", None, 2619, 5120, 16896, 1980, 132, (9, 0)),
    "NVIDIA GeForce RTX 4090": Facts("", None, 10501, 384, 16384, 2520, 128, (8, 9)),
    "NVIDIA GeForce RTX 5090": Facts("", None, 14001, 512, 21760, 2407, 170, (12, 0)),
}


@pytest.mark.parametrize(("name", "facts"), BOARDS.items())
def test_the_formula_agrees_with_the_sheets_of_known_products(name: str, facts: Facts) -> None:
    sheet, found = sheet_for(name), formula(facts._replace(name=name))
    assert sheet is not None
    assert found.memory is not None
    assert found.memory.value == pytest.approx(sheet.memory, rel=0.01)
    assert found.memory.source == "formula"
    for precision, ceiling in found.compute.items():
        # V100 has 8 bit units, but no tensor cores for them.
        assert ceiling.value == pytest.approx(sheet.compute[precision], rel=0.1), precision
    assert Precision.FP16 in found.compute


def test_a_machines_key_tells_clocks_and_widths_but_not_those_of_a_mig_instance() -> None:
    key = {"max_sm_clock_mhz": "1410", "max_memory_clock_mhz": "1215", "bus_width_bits": "5120", "gpu_cores": "6912"}
    key |= {"multiprocessors": "108", "capability": "8.0"}
    whole = facts_of("NVIDIA A100-SXM4-40GB", key, 40 * GIB)
    assert whole == Facts("NVIDIA A100-SXM4-40GB", 40 * GIB, *BOARDS["NVIDIA A100-SXM4-40GB"][2:])
    part = facts_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb", key | {"multiprocessors": "14"}, 5 * GIB)
    assert (part.bus_width_bits, part.cores, part.multiprocessors) == (None, None, 14)


def test_cores_follow_from_multiprocessors() -> None:
    facts = Facts("", sm_clock_mhz=1410, multiprocessors=108, capability=(8, 0))
    assert formula(facts).compute[Precision.FP32].value == pytest.approx(19.5e12, rel=0.01)


def test_what_is_not_known_gives_nothing() -> None:
    assert formula(Facts("a GPU", memory_clock_mhz=1215)).memory is None
    half = formula(Facts("a GPU", memory_clock_mhz=1215, bus_width_bits=5120, multiprocessors=3, capability=(99, 0)))
    assert half.memory is not None
    assert half.compute == {}
    nothing = expected(facts_of("a GPU", {"capability": "gfx90a", "gpu_cores": ""}, None))
    assert (nothing.compute, nothing.memory, nothing.reason) == ({}, None, "unknown GPU a GPU")


def test_the_table_comes_before_the_formula_and_says_what_is_unsure() -> None:
    found = expected(BOARDS["Tesla T4"]._replace(name="Tesla T4"))
    assert found.compute[Precision.FP16].source == "datasheet"
    assert found.unsure == {"fp64"}
    assert found.compute[Precision.FP64].note == "NVIDIA's data sheet; no second source confirms this figure"
    assert expected(BOARDS["Tesla T4"]._replace(name="Tesla T4X")).compute[Precision.FP16].source == "formula"
