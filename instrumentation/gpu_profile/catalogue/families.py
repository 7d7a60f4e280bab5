"""What many rows of the table of signals have in common.

A family is called with what a row has of its own: key, OpenTelemetry name, source, brief, DCGM's name if it has one,
and by keyword what differs from the family. Families of one module's rows stand in that module.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu_profile.catalogue.signal import Kind, Signal, Tier

MS: Final = 1_000_000
#: How often drivers renew power, energy and GPM's counters.
REFRESH_NS: Final = 100 * MS

#: A running total, and a mean over the driver's window.
counter: Final = partial(Signal, kind=Kind.COUNTER)
mean: Final = partial(Signal, kind=Kind.WINDOW_MEAN)
#: A quantity as it is at the moment of the reading.
gauge: Final = partial(Signal, kind=Kind.INSTANT, quantum=1.0, tier=Tier.RARE)
#: 1 for yes, 0 for no.
flag: Final = partial(gauge, unit="{flag}", limit=1)
#: Events since the driver was loaded, or ever.
count: Final = partial(counter, quantum=1.0, limit=1 << 40, tier=Tier.RARE)
#: The most that one row of a link's traffic is trusted with, in B/s.
FASTEST: Final = 1 << 42
#: Attributes of what a link carries, seen from the GPU.
RECEIVED: Final = (("network.io.direction", "receive"),)
SENT: Final = (("network.io.direction", "transmit"),)
