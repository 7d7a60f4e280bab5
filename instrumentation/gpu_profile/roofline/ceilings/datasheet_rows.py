"""The figures of NVIDIA's data sheets, one row for each product.

Figures are for dense matrices: sheets since Ampere print twice as much, for sparse matrices. Figures of float16 are
with float32 accumulators, as in PyTorch; GeForce boards are twice as fast with float16 accumulators. If tensor cores
multiply float64, `fp64` is their figure. The source of a row is NVIDIA's data sheet of the product, unless `source`
names another. Each row was compared with a second copy. Figures without a second copy, or with differing copies, are
`unsure`.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class DatasheetRow(NamedTuple):
    """One product. `pattern`: regular expression of its device name without maker and MIG. `gib`: nominal memory sizes.

    `memory` in GB/s, all others in TFLOP/s (TOP/s for `int8`), None without such units. `unsure`: names of unconfirmed
    figures. `slices`: the number of MIG slices of the multiprocessors, and of the memory.
    """

    name: str
    pattern: str
    gib: tuple[int, ...]
    memory: float
    fp64: float | None
    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float
    fp8: float | None
    int8: float | None
    unsure: frozenset[str] = frozenset()
    source: str = "NVIDIA's data sheet"
    slices: tuple[int, int] = (7, 8)


_ALL: Final = frozenset({"memory", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"})
_TENSOR: Final = frozenset({"tf32", "bf16", "fp16", "fp8", "int8"})
_COMPUTE: Final = _ALL - {"memory"}
_FP64: Final = frozenset({"fp64"})
_INT8: Final = frozenset({"int8"})
_ADA: Final = "NVIDIA's white paper of the Ada architecture"
_GA102: Final = "NVIDIA's white paper of GA102"
_BLACKWELL: Final = "NVIDIA's white paper of the RTX Blackwell architecture"
_ADA_6000: Final = r"RTX 6000 Ada Generation"
_PRO_6000: Final = r"RTX PRO 6000 Blackwell (Workstation|Max-Q Workstation|Server) Edition"

# Columns: memory, fp64, fp32, tf32, bf16, fp16, fp8, int8.
ROWS: Final = (
    DatasheetRow("V100 SXM2", r"V100-SXM2(-\d+GB)?", (16, 32), 900, 7.8, 15.7, None, None, 125, None, 62, _INT8),
    DatasheetRow("V100 PCIe", r"V100-PCIE(-\d+GB)?", (16, 32), 900, 7.0, 14.0, None, None, 112, None, 56, _INT8),
    DatasheetRow("T4", r"T4", (16,), 320, 0.25, 8.1, None, None, 65, None, 130, _FP64),
    DatasheetRow("A10", r"A10", (24,), 600, 0.49, 31.2, 62.5, 125, 125, None, 250, _FP64),
    DatasheetRow("A10G", r"A10G", (24,), 600, 0.55, 35, 35, 70, 70, None, 140, _COMPUTE, "AWS' page of G5 instances"),
    DatasheetRow("A30", r"A30", (24,), 933, 10.3, 10.3, 82, 165, 165, None, 330, slices=(4, 4)),
    DatasheetRow("A40", r"A40", (48,), 696, 0.58, 37.4, 74.8, 149.7, 149.7, None, 299.3, _FP64),
    DatasheetRow("A100 40 GB", r"A100-(PCIE|SXM4)-40GB", (40,), 1555, 19.5, 19.5, 156, 312, 312, None, 624),
    DatasheetRow(
        "A100 80 GB PCIe", r"A100 80GB PCIe|A100-PCIE-80GB", (80,), 1935, 19.5, 19.5, 156, 312, 312, None, 624
    ),
    DatasheetRow("A100 80 GB SXM", r"A100-SXM4?-80GB", (80,), 2039, 19.5, 19.5, 156, 312, 312, None, 624),
    DatasheetRow("L4", r"L4", (24,), 300, 0.47, 30.3, 60, 121, 121, 242.5, 242.5, _FP64),
    DatasheetRow("L40", r"L40", (48,), 864, 1.41, 90.5, 90.5, 181, 181, 362, 362, _FP64),
    DatasheetRow("L40S", r"L40S", (48,), 864, 1.43, 91.6, 183, 362, 362, 733, 733, _FP64),
    DatasheetRow("H100 PCIe", r"H100 PCIe", (80,), 2039, 51, 51, 378, 756, 756, 1513, 1513),
    DatasheetRow("H100 SXM", r"H100 80GB HBM3|H100 SXM5?", (80,), 3352, 67, 67, 494.7, 989.4, 989.4, 1979, 1979),
    DatasheetRow("H100 NVL", r"H100 NVL", (94,), 3938, 60, 60, 417.5, 835, 835, 1671, 1671, _ALL),
    DatasheetRow("H200 SXM", r"H200", (141,), 4800, 67, 67, 494.7, 989.4, 989.4, 1979, 1979),
    DatasheetRow("H200 NVL", r"H200 NVL", (141,), 4800, 60, 60, 417.5, 835, 835, 1671, 1671, _COMPUTE),
    # The sizes 120GB and 480GB in this name are the processor's memory.
    DatasheetRow("GH200 96 GB", r"GH200 (96GB HBM3|120GB|480GB)", (96,), 4000, 67, 67, 494, 990, 990, 1979, 1979, _ALL),
    DatasheetRow("GH200 144 GB", r"GH200 144GB? HBM3e", (144,), 4900, 67, 67, 494, 990, 990, 1979, 1979, _ALL),
    DatasheetRow("B100", r"B100", (180, 192), 8000, 30, 60, 900, 1750, 1750, 3500, 3500, _ALL),
    DatasheetRow(
        "B200", r"B200", (180, 192), 8000, 37, 75, 1100, 2250, 2250, 4500, 4500, frozenset({"memory", "fp64", "fp32"})
    ),
    DatasheetRow(
        "GB200", r"GB200", (186, 192), 8000, 40, 80, 1250, 2500, 2500, 5000, 5000, frozenset({"fp64", "fp32"})
    ),
    # No figure for int8: sources differ by a factor.
    DatasheetRow("B300", r"B300( SXM6( AC)?)?", (268, 288), 8000, 1.2, 75, 1100, 2250, 2250, 4500, None, _COMPUTE),
    DatasheetRow("RTX 3090", r"GeForce RTX 3090", (24,), 936, 0.56, 35.6, 35.6, 71, 71, None, 285, _TENSOR, _GA102),
    DatasheetRow("RTX 4090", r"GeForce RTX 4090", (24,), 1008, 1.29, 82.6, 82.6, 165.2, 165.2, 330, 661, source=_ADA),
    DatasheetRow(
        "RTX 5090", r"GeForce RTX 5090", (32,), 1792, 1.64, 104.8, 104.8, 209.5, 209.5, 419, 838, _TENSOR, _BLACKWELL
    ),
    DatasheetRow(
        "RTX A6000", r"(Quadro )?RTX A6000", (48,), 768, 0.6, 38.7, 77.4, 154.8, 154.8, None, 309.7, _FP64 | _TENSOR
    ),
    DatasheetRow("RTX 6000 Ada", _ADA_6000, (48,), 960, 1.42, 91.1, 182.1, 364.2, 364.2, 728.5, 728.5, _FP64 | _TENSOR),
    DatasheetRow(
        "RTX PRO 6000 Blackwell", _PRO_6000, (96,), 1792, 1.97, 126, 252, 504, 504, 1007, 1007, _COMPUTE, slices=(4, 4)
    ),
)
