"""The alerts about regions of programs: their regime, and their cost beside a week ago and beside other ranks.

A comparison with a week ago covers six hours on both sides, so that the time of day and of the week are the same. It
needs 500 calls on both sides: with a standard deviation as large as the mean, the ratio then varies by 6 %.
"""

from __future__ import annotations

from typing import Final

from queries import ANY_VERSION, by, rate, series
from rulefiles import Alert, Group, Urgency
from subjects import REGION

from gpu_profile.catalogue.metrics import REGION_CALLS, REGION_DURATION, REGION_ENERGY, REGION_ENERGY_UNCERTAIN

_REGION: Final = f"on ({ANY_VERSION})"
_WEEK: Final = " offset 1w"
_CALLS: Final = 500
_REGIMES: Final = f"{ANY_VERSION}, regime"


def _grown(selector: str, offset: str = "", keys: str = ANY_VERSION) -> str:
    """Growth over six hours."""
    return by(keys, f"increase({selector}[6h]{offset})")


def _calls(offset: str = "") -> str:
    return _grown(series(REGION_DURATION, part="_count"), offset)


_ENOUGH: Final = f"and {_REGION}\n{_calls()} > {_CALLS}\nand {_REGION}\n{_calls(_WEEK)} > {_CALLS}"


def _dearer(selector: str) -> str:
    """Cost of a call over that of a week ago, where it has grown by more than a quarter."""
    now, then = (f"({_grown(selector, offset)} / {_calls(offset)})" for offset in ("", _WEEK))
    return f"{now}\n  /\n{then} > 1.25\n{_ENOUGH}"


def _share(offset: str = "") -> str:
    """Share of each regime in a region's calls."""
    calls = (_grown(series(REGION_CALLS), offset, keys) for keys in (_REGIMES, ANY_VERSION))
    return f"{next(calls)}\n  / {_REGION} group_left ()\n{next(calls)}"


def _mostly(regime: str) -> str:
    """Share of a region's calls with this verdict, where it is above half and the region is active at all."""
    verdict = by(_REGIMES, rate(series(REGION_CALLS, {"regime": regime}), "30m"))
    calls = by(ANY_VERSION, rate(series(REGION_CALLS), "30m"))
    active = by(ANY_VERSION, rate(series(REGION_DURATION, part="_sum"), "30m"))
    return f"{verdict}\n  / {_REGION} group_left\n{calls}\n  > 0.5\nand {_REGION}\n{active} > 0.1"


def _straggles() -> str:
    """Duration of a rank's call over the median of all ranks. Ranks in lockstep have the same rate of calls."""
    keys = f"{ANY_VERSION}, instance"
    calls = by(keys, rate(series(REGION_DURATION, part="_count"), "15m"))
    duration = f"({by(keys, rate(series(REGION_DURATION, part='_sum'), '15m'))} / {calls})"
    return (
        f"{duration}\n  / {_REGION} group_left ()\nquantile by ({ANY_VERSION}) (0.5, {duration}) > 1.2\n"
        f"and {_REGION}\nstddev by ({ANY_VERSION}) ({calls}) < 0.02 * avg by ({ANY_VERSION}) ({calls})\n"
        f"and {_REGION}\ncount by ({ANY_VERSION}) ({calls}) >= 4\n"
        f"and {_REGION}\nmin by ({ANY_VERSION}) ({calls}) * 900 >= 30"
    )


def _mostly_uncertain() -> str:
    certain, uncertain = (by(ANY_VERSION, rate(series(row), "30m")) for row in (REGION_ENERGY, REGION_ENERGY_UNCERTAIN))
    active = by(ANY_VERSION, rate(series(REGION_DURATION, part="_sum"), "30m"))
    return f"{uncertain}\n  /\n({certain} + {uncertain}) > 0.5\nand {_REGION}\n{active} > 0.1"


GROUP: Final = Group(
    "gpu-profile-regions",
    (
        Alert(
            "RegionSlower",
            Urgency.TICKET,
            "1h",
            _dearer(series(REGION_DURATION, part="_sum")),
            f"{REGION} is slower than a week ago",
            "Over six hours a call has taken more than 1.25 times as long as in the same hours a week ago.",
            "Was the program, its input or its batch size changed within the week? Compare the region's panels.",
            "Compare a recording with one from before: gpu-profile analyze compares two. Without a change of the "
            "program, look for clocks, throttling and a narrow link of its GPUs.",
            "The ratio: {{ $value | humanize }}.",
        ),
        Alert(
            "RegionHungrier",
            Urgency.TICKET,
            "1h",
            f"{_dearer(series(REGION_ENERGY))}\n"
            f"unless {_REGION}\n{_grown(series(REGION_ENERGY_UNCERTAIN))} > 0.05 * {_grown(series(REGION_ENERGY))}\n"
            f"unless {_REGION}\n"
            f"{_grown(series(REGION_ENERGY_UNCERTAIN), _WEEK)} > 0.05 * {_grown(series(REGION_ENERGY), _WEEK)}",
            f"{REGION} takes more energy than a week ago",
            "Over six hours a call has taken more than 1.25 times the energy of the same hours a week ago, as far as "
            "it is certain.",
            "Did RegionSlower fire as well? Then the cause is the same. Was the batch size or the model changed?",
            "With unchanged time, look for a raised power limit, another GPU model, or more work for each call.",
            "The ratio: {{ $value | humanize }}.",
        ),
        Alert(
            "RegionOtherRegime",
            Urgency.INFO,
            "1h",
            f"{_share()} > 0.6\nunless on ({_REGIMES}) (\n{_share(_WEEK)}\n) > 0.2\n{_ENOUGH}",
            f"{REGION} is now {{{{ $labels.regime }}}}",
            "Most calls of six hours have a regime that at most a fifth of the calls had in the same hours a week ago: "
            "another resource limits the region now.",
            "Look at the panel of the region's regimes for the time of the change, and at the deployments then.",
            "The page on regimes has the next step for each. A change on purpose needs none.",
            "Its share: {{ $value | humanizePercentage }} of the calls.",
        ),
        Alert(
            "RegionMostlyOverhead",
            Urgency.INFO,
            "30m",
            _mostly("OVERHEAD_BOUND"),
            f"{REGION} is bound by overhead",
            "More than half of its calls spend their time on launching work that is too small for the GPU.",
            "Compare the duration of a call with its busy time in the region's panels.",
            "Larger batches, fused kernels, compilation or CUDA graphs help.",
            "Its share: {{ $value | humanizePercentage }} of the calls.",
        ),
        Alert(
            "RegionMostlyWaitsForHost",
            Urgency.INFO,
            "30m",
            _mostly("HOST_BOUND"),
            f"{REGION} waits for the host",
            "In more than half of its calls the GPU waits for input data or for the program's own code.",
            "Look at input loading first: workers, prefetching, decoding.",
            "Load input in parallel, and remove synchronising calls such as .item() or prints of tensors.",
            "Its share: {{ $value | humanizePercentage }} of the calls.",
        ),
        Alert(
            "RegionMostlyUncertain",
            Urgency.INFO,
            "1h",
            _mostly_uncertain(),
            f"{REGION}: most of its energy is uncertain",
            "More than half of the energy was divided by time, because the region's own rate cannot be identified. The "
            "cost of a call is not shown.",
            "Does the region always run at the same time as another one, or in a loop of a fixed period?",
            "Vary the order or the length of the regions, merge those that always run together, or sample faster.",
            "Uncertain: {{ $value | humanizePercentage }}.",
        ),
        Alert(
            "RankStraggles",
            Urgency.TICKET,
            "15m",
            _straggles(),
            f"{REGION}: the rank at {{{{ $labels.instance }}}} is slower than the others",
            "Ranks that make the same number of calls wait for each other. One takes more than 1.2 times the median "
            "for this region, so all run at its pace. A region that contains a collective takes equally long on all "
            "ranks: name one for the work before it.",
            "Compare its GPU with those of the other ranks: clock, temperature, throttling, PCIe width.",
            "Repair or exclude the GPU or the node. If its input is larger than the others', balance it.",
            "The ratio: {{ $value | humanize }}.",
        ),
    ),
)
