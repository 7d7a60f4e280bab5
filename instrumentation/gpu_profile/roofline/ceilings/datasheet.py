"""The rates that a GPU should reach, by the table of data sheets, or else by its clocks and widths. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpu_profile.roofline.ceilings.ceilings import Ceiling
from gpu_profile.roofline.ceilings.datasheet_rows import ROWS, DatasheetRow
from gpu_profile.roofline.precision import Precision

#: Device names begin with the maker and, before Ampere, the family.
_MAKER: Final = re.compile(r"^(NVIDIA )?(Tesla )?", re.IGNORECASE)
#: `1g.10gb`, `1g.10gb+me` (with media engines), `2c.3g.20gb` (two compute instances of a 3g GPU instance).
_MIG: Final = re.compile(r" MIG (?:(?P<part>\d+)c\.)?(?P<compute>\d+)g\.(?P<gb>\d+)gb(?:[+-]\S+)?$", re.IGNORECASE)
#: NVML reports a little less memory than the nominal size. A larger relative difference means another board.
_SAME_SIZE: Final = 0.15
_GIB: Final = 1 << 30

#: Float32 units of one multiprocessor by compute capability: the CUDA C++ Programming Guide's table of arithmetic
#: throughput (results of float32 additions per clock).
_CORES: Final = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (12, 0): 128}
#: Multiply-adds of float16 operands with float32 sums, per clock and multiprocessor, by compute capability: the white
#: papers of the architectures; for 12.0 the products' figures.
_TENSOR: Final = {
    (7, 0): 512,
    (7, 5): 512,
    (8, 0): 1024,
    (8, 6): 512,
    (8, 9): 512,
    (9, 0): 2048,
    (10, 0): 4096,
    (12, 0): 512,
}
#: GeForce boards of these compute capabilities do half of that.
_HALVED: Final = frozenset({(8, 6), (8, 9), (12, 0)})


@dataclass(frozen=True, slots=True)
class Sheet:
    """The data sheet of one product: `memory` in bytes per second, `compute` in FLOPs per second by precision.

    `unsure`: names of figures that no second source confirms, `memory` or a precision. `note`: how the device differs
    from the sheet.
    """

    name: str
    memory: float
    compute: Mapping[Precision, float]
    source: str
    unsure: frozenset[str] = frozenset()
    note: str = ""


class Facts(NamedTuple):
    """Properties that a device reports. `memory_total` in bytes, highest clocks in MHz, `cores`: float32 units."""

    name: str
    memory_total: int | None = None
    memory_clock_mhz: float | None = None
    bus_width_bits: int | None = None
    cores: int | None = None
    sm_clock_mhz: float | None = None
    multiprocessors: int | None = None
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """The ceilings that a device should reach. `unsure`: as in `Sheet`. `reason`: why there are none."""

    compute: Mapping[Precision, Ceiling] = field(default_factory=dict)
    memory: Ceiling | None = None
    unsure: frozenset[str] = frozenset()
    reason: str = ""


def facts_of(name: str, key: Mapping[str, str], memory_total: int | None) -> Facts:
    """The facts in a machine's key, which come from NVML, so that they do not depend on the framework.

    The bus width and the units of a MIG instance stay unknown: NVML reports the numbers of the whole GPU.
    """
    whole = _MIG.search(name) is None
    capability = re.fullmatch(r"(\d+)\.(\d+)", key.get("capability", ""))  # AMD's is a name

    def number(of: str) -> int | None:
        return int(text) if (text := key.get(of, "")).isdecimal() else None

    return Facts(
        name,
        memory_total=memory_total,
        memory_clock_mhz=number("max_memory_clock_mhz"),
        bus_width_bits=number("bus_width_bits") if whole else None,
        cores=number("gpu_cores") if whole else None,
        sm_clock_mhz=number("max_sm_clock_mhz"),
        multiprocessors=number("multiprocessors"),
        capability=None if capability is None else (int(capability[1]), int(capability[2])),
    )


def sheet_for(name: str, *, memory_total: int | None = None) -> Sheet | None:
    """The data sheet of a device by its name in NVML or the framework. None if the table has no row for it.

    For a MIG instance, the figures are the share of its slices. `memory_total`, in bytes, distinguishes boards of the
    same name: if it differs from the sheet's, the figure of the memory is unsure.
    """
    mig = _MIG.search(name)
    row = next((row for row in ROWS if re.fullmatch(row.pattern, _product(name), re.IGNORECASE)), None)
    if row is None:
        return None
    compute = {Precision(p): 1e12 * rate for p in map(str, Precision) if (rate := getattr(row, p)) is not None}
    if mig is not None:
        return _instance(row, compute, mig)
    sheet = Sheet(row.name, 1e9 * row.memory, compute, row.source, row.unsure)
    if memory_total is None or any(abs(memory_total / _GIB / gib - 1) <= _SAME_SIZE for gib in row.gib):
        return sheet
    note = f"the sheet is of a board with {row.gib[0]} GiB, this one has {memory_total / _GIB:.0f} GiB"
    return Sheet(row.name, sheet.memory, compute, row.source, row.unsure | {"memory"}, note)


def _product(name: str) -> str:
    return _MAKER.sub("", _MIG.sub("", " ".join(name.split())))


def _instance(row: DatasheetRow, compute: Mapping[Precision, float], mig: re.Match[str]) -> Sheet:
    """The sheet of a MIG instance. NVIDIA divides multiprocessors and memory evenly among slices."""
    of_compute, of_memory = row.slices
    has_compute = min(int(mig["part"] or mig["compute"]), of_compute)
    has_memory = min(max(1, round(int(mig["gb"]) / row.gib[0] * of_memory)), of_memory)
    return Sheet(
        f"{row.name}{mig[0]}",
        1e9 * row.memory * has_memory / of_memory,
        {precision: rate * has_compute / of_compute for precision, rate in compute.items()},
        row.source,
        row.unsure,
        f"{has_compute} of {of_compute} parts of the arithmetic, {has_memory} of {of_memory} of the memory",
    )


def formula(facts: Facts) -> Expected:
    """Ceilings from clocks and widths, for products without a row in the table. Missing facts give no ceiling.

    Memory transfers two bits per clock on every line of the bus. A float32 unit, or a lane of a tensor core, does one
    multiplication and one addition per clock. Tensor cores do tf32 at half the rate of float16, and 8 bits at twice.
    """
    compute: dict[Precision, float] = {}
    memory: Ceiling | None = None
    if facts.memory_clock_mhz and facts.bus_width_bits:
        rate = 2 * facts.memory_clock_mhz * 1e6 * facts.bus_width_bits / 8
        memory = Ceiling(rate, "formula", "memory clock x bus width")
    capability, clock, units = facts.capability, facts.sm_clock_mhz, facts.multiprocessors
    if clock:
        cores = facts.cores or (units or 0) * _CORES.get(capability or (0, 0), 0)
        if cores:
            compute[Precision.FP32] = 2 * cores * clock * 1e6
        if units and capability in _TENSOR:
            compute |= _tensor(
                2 * _TENSOR[capability] * units * clock * 1e6, capability, "geforce" in facts.name.lower()
            )
    ceilings = {
        precision: Ceiling(rate, "formula", "multiprocessors x highest clock") for precision, rate in compute.items()
    }
    return Expected(ceilings, memory, reason="" if ceilings or memory else f"unknown GPU {facts.name}")


def _tensor(full: float, capability: tuple[int, int], geforce: bool) -> dict[Precision, float]:
    half = full / 2 if geforce and capability in _HALVED else full
    rates = {Precision.FP16: half}
    if capability >= (8, 0):
        rates |= {Precision.BF16: half, Precision.TF32: half / 2}
    if capability >= (8, 9):
        rates[Precision.FP8] = 2 * half
    if capability >= (7, 5):
        rates[Precision.INT8] = 2 * full  # sums of integers are not halved
    return rates


def expected(facts: Facts) -> Expected:
    """The ceilings that the device should reach: from the table, else from `formula`, else none, with the reason."""
    sheet = sheet_for(facts.name, memory_total=facts.memory_total)
    if sheet is None:
        return formula(facts)

    def ceiling(figure: str, rate: float) -> Ceiling:
        notes = (sheet.note, "no second source confirms this figure" if figure in sheet.unsure else "")
        return Ceiling(rate, "datasheet", "; ".join(filter(None, (sheet.source, *notes))))

    compute = {precision: ceiling(str(precision), rate) for precision, rate in sheet.compute.items()}
    return Expected(compute, ceiling("memory", sheet.memory), sheet.unsure)
