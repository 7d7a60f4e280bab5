"""The parts that many rows of the signal table share.

A call of a family takes a row's own values: key, OpenTelemetry name, source, brief, and DCGM's name if there is one.
Keywords override the family's values. A family with rows in one module only is defined in that module.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu_profile.catalogue.signal import Kind, Signal, Tier

MS: Final = 1_000_000
#: The interval at which drivers renew power, energy and GPM's counters.
REFRESH_NS: Final = 100 * MS

#: A running total, and a mean over the driver's window.
counter: Final = partial(Signal, kind=Kind.COUNTER)
mean: Final = partial(Signal, kind=Kind.WINDOW_MEAN)
#: A quantity at the moment of the reading.
gauge: Final = partial(Signal, kind=Kind.INSTANT, quantum=1.0, tier=Tier.RARE)
#: 1 for yes, 0 for no.
flag: Final = partial(gauge, unit="{flag}", limit=1)
#: Events since the driver was loaded, or ever.
count: Final = partial(counter, quantum=1.0, limit=1 << 40, tier=Tier.RARE)
#: The highest plausible traffic of one link's row, in B/s.
FASTEST: Final = 1 << 42
#: Attributes of a link's traffic, seen from the GPU.
RECEIVED: Final = (("network.io.direction", "receive"),)
SENT: Final = (("network.io.direction", "transmit"),)
