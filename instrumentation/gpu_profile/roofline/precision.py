"""Number formats: each one's arithmetic has a ceiling of its own."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Precision(Enum):
    """A number format as data sheets name it. `str()` gives the name."""

    FP64 = "fp64"
    FP32 = "fp32"
    #: float32 operands that tensor cores multiply with 10 bits of mantissa.
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"

    def __str__(self) -> str:
        return self.value


#: Names of data types in PyTorch and NumPy -> the format of their arithmetic. A complex number has the format of its
#: parts. Of the integers, only 8-bit ones have arithmetic units of their own.
_BY_DTYPE: Final = {
    "float64": Precision.FP64,
    "complex128": Precision.FP64,
    "float32": Precision.FP32,
    "complex64": Precision.FP32,
    "bfloat16": Precision.BF16,
    "float16": Precision.FP16,
    "complex32": Precision.FP16,
    "float8_e4m3fn": Precision.FP8,
    "float8_e4m3fnuz": Precision.FP8,
    "float8_e5m2": Precision.FP8,
    "float8_e5m2fnuz": Precision.FP8,
    "int8": Precision.INT8,
    "uint8": Precision.INT8,
}


def precision_of(dtype: object) -> Precision | None:
    """The format of a PyTorch, NumPy or CuPy data type or its name. None if the type has no ceiling of its own."""
    return _BY_DTYPE.get(str(dtype).rpartition(".")[2])
