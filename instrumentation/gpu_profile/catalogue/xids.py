"""The XID codes with the most information on a GPU or a program.

Codes and meanings are those of NVIDIA's "XID Errors" catalogue, in our own words. Codes outside this table are counted
too.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class XidTier(StrEnum):
    """The severity of an error for the operator of the node."""

    #: The work on the GPU is lost, and often the GPU too until it is reset or replaced.
    CRITICAL = "critical"
    #: The GPU continues, but a part of it is worn or was retired.
    WARNING = "warning"
    #: Usually a defect of the program.
    APPLICATION = "application"


class Xid(NamedTuple):
    """One code of the driver's error reports."""

    code: int
    tier: XidTier
    meaning: str


XIDS: Final = (
    Xid(13, XidTier.APPLICATION, "Exception in the graphics engine, such as an index out of bounds in a kernel"),
    Xid(31, XidTier.APPLICATION, "Memory page fault: a kernel used an address that is not its own"),
    Xid(43, XidTier.APPLICATION, "A program's channel was stopped after its error"),
    Xid(45, XidTier.APPLICATION, "A program's channels were removed, after another error or a kill"),
    Xid(48, XidTier.CRITICAL, "Memory error of two bits, which ECC cannot correct"),
    Xid(62, XidTier.CRITICAL, "The power-management controller halted"),
    Xid(63, XidTier.WARNING, "A memory page was retired, or a row was set down for remapping"),
    Xid(64, XidTier.CRITICAL, "A memory page could not be retired, or a row not be remapped"),
    Xid(74, XidTier.CRITICAL, "NVLink error"),
    Xid(79, XidTier.CRITICAL, "The GPU fell off the bus"),
    Xid(92, XidTier.WARNING, "Many memory errors of one bit"),
    Xid(94, XidTier.WARNING, "Memory error that was contained: only the program that met it ends"),
    Xid(95, XidTier.CRITICAL, "Memory error that was not contained: every program on the GPU may be wrong"),
    Xid(109, XidTier.APPLICATION, "A context switch took too long"),
    Xid(119, XidTier.CRITICAL, "The GPU's system processor did not answer a call in time"),
    Xid(120, XidTier.CRITICAL, "Error in the GPU's system processor"),
    Xid(121, XidTier.WARNING, "Error on the link between chips that was corrected"),
    Xid(140, XidTier.CRITICAL, "Memory error that was not recovered from"),
    Xid(143, XidTier.CRITICAL, "The GPU could not be initialised"),
    Xid(154, XidTier.WARNING, "The driver asks for a different recovery action than before"),
)
