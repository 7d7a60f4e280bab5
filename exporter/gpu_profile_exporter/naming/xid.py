"""A short text for each of NVIDIA's XID codes: the label `err_msg` of dcgm-exporter.

Codes and meanings follow NVIDIA's "XID Errors" document. The wording is our own, so queries should select by
`err_code`.
"""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.xids import XIDS

NO_ERROR: Final = "No Error"
UNKNOWN: Final = "Unknown Error"

_MEANING: Final = {
    8: "GPU stopped processing",
    32: "Corrupted push buffer stream",
    38: "Driver firmware error",
    44: "Graphics engine fault during a context switch",
    56: "Display engine error",
    57: "Error in programming the video memory interface",
    58: "Unstable video memory interface",
    61: "Internal micro-controller breakpoint",
    65: "Video processor exception",
    66: "Illegal access by the driver",
    67: "Illegal access by the driver",
    68: "Video decoder exception",
    69: "Graphics engine class error",
    78: "A virtual GPU could not be started",
    93: "Wear limit of the InfoROM passed",
    110: "Security fault",
    122: "Failed read of the SPI flash",
    123: "Failed write of the SPI flash",
    124: "Failed erasure of the SPI flash",
    125: "Failure of the InfoROM's file system",
    136: "Link training failed",
    137: "NVLink privilege error",
    144: "NVLink error (SAW)",
    145: "NVLink error (RLW)",
    146: "NVLink error (TLW)",
    147: "NVLink error (TREX)",
    148: "NVLink error (NVLPW_CTRL)",
    149: "NVLink error (NETIR)",
    150: "NVLink error (MSE)",
    155: "NVLink error defined by software",
    156: "A resource was retired",
    157: "A resource could not be retired",
    **{xid.code: xid.meaning for xid in XIDS},
}


def meaning(code: str) -> str:
    """The text for a code in decimal digits. "0" is no error."""
    if code == "0":
        return NO_ERROR
    return _MEANING.get(int(code), UNKNOWN) if code.isascii() and code.isdecimal() and len(code) < 9 else UNKNOWN
