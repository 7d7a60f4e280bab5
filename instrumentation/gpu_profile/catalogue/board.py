"""The signals of power, heat and clocks.

Windows of power sensors are as measured by Yang, Adamek and Armour ("Part-time Power Measurements", SC24, arXiv
2312.02741).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gpu_profile.catalogue.families import MS, REFRESH_NS, counter, flag, gauge, mean
from gpu_profile.catalogue.group import Group
from gpu_profile.catalogue.signal import Signal, Tier
from gpu_profile.units import NS_PER_S

#: Power draw over the driver's window, and a limit of it, in mW.
_power: Final = partial(mean, unit="W", quantum=1e-3, limit=4_000_000, tier=Tier.FAST, refresh_ns=REFRESH_NS)
_power_limit: Final = partial(gauge, unit="W", quantum=1e-3, limit=4_000_000, group=Group.LIMITS)
#: No GPU runs above this, in degrees Celsius: a higher value from a driver is a code for something else.
_HOTTEST: Final = 200
_temperature: Final = partial(gauge, unit="Cel", limit=_HOTTEST)
#: The clock of one domain, in whole MHz.
_clock: Final = partial(gauge, unit="Hz", quantum=1e6, limit=100_000, dcgm_scale=1e-6)
#: The time of throttling for one reason.
_throttle: Final = partial(counter, unit="s", quantum=1e-9, limit=2 * NS_PER_S)

POWER: Final = _power(
    "power",
    "hw.power",
    "nvmlDeviceGetSamples TOTAL_POWER, else field POWER_INSTANT",
    "Power draw in the driver's latest short window (15-100 ms by architecture)",
    "DCGM_FI_DEV_POWER_USAGE_INSTANT",
    window_ns=25 * MS,
)
POWER_AVERAGE: Final = _power(
    "power_average",
    "nvidia.gpu.power.average",
    "field POWER_AVERAGE, else nvmlDeviceGetPowerUsage",
    "Power draw averaged by the driver over the last second",
    "DCGM_FI_DEV_POWER_USAGE",
    window_ns=NS_PER_S,
)
POWER_LIMIT: Final = _power_limit(
    "power_limit",
    "nvidia.gpu.power.limit",
    "nvmlDeviceGetEnforcedPowerLimit",
    "Power limit that the driver enforces",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
    group=Group.CORE,
    tier=Tier.SLOW,
)
_POWER_LIMITS: Final = (
    _power_limit(
        "power_limit_requested",
        "nvidia.gpu.power.limit.requested",
        "field POWER_REQUESTED_LIMIT",
        "Power limit that was requested",
        "DCGM_FI_DEV_POWER_MGMT_LIMIT",
    ),
    _power_limit(
        "power_limit_default",
        "nvidia.gpu.power.limit.default",
        "field POWER_DEFAULT_LIMIT, else nvmlDeviceGetPowerManagementDefaultLimit",
        "Power limit that the GPU starts with",
        "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF",
    ),
    _power_limit(
        "power_limit_min",
        "nvidia.gpu.power.limit.min",
        "field POWER_MIN_LIMIT, else nvmlDeviceGetPowerManagementLimitConstraints",
        "Lowest power limit that can be set",
        "DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN",
    ),
    _power_limit(
        "power_limit_max",
        "nvidia.gpu.power.limit.max",
        "field POWER_MAX_LIMIT, else nvmlDeviceGetPowerManagementLimitConstraints",
        "Highest power limit that can be set",
        "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX",
    ),
)
_module_power: Final = partial(_power, group=Group.MODULE, tier=Tier.SLOW)
_MODULE_POWER: Final = (
    _module_power(
        "power_module",
        "nvidia.gpu.module.power",
        "field POWER_INSTANT, scope MODULE",
        "Power draw of the whole superchip module, CPU included",
        window_ns=25 * MS,
    ),
    _module_power(
        "power_module_average",
        "nvidia.gpu.module.power.average",
        "field POWER_AVERAGE, scope MODULE",
        "Power draw of the whole superchip module, averaged over the last second",
        window_ns=NS_PER_S,
    ),
    _module_power(
        "power_memory_average",
        "nvidia.gpu.memory.power.average",
        "field POWER_AVERAGE, scope MEMORY",
        "Power draw of the device memory, averaged over the last second",
        window_ns=NS_PER_S,
    ),
)
ENERGY: Final = counter(
    "energy",
    "hw.energy",
    "field TOTAL_ENERGY_CONSUMPTION",
    "Energy consumed since the driver was loaded; the integral of power where the device does not count energy",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    unit="J",
    quantum=1e-3,
    limit=4_000_000,
    tier=Tier.FAST,
    refresh_ns=REFRESH_NS,
    dcgm_scale=1000,
)

TEMPERATURE: Final = _temperature(
    "temperature",
    "hw.temperature",
    "nvmlDeviceGetTemperature",
    "Temperature of the GPU core",
    "DCGM_FI_DEV_GPU_TEMP",
    attributes=(("hw.sensor_location", "core"),),
    tier=Tier.SLOW,
)
TEMPERATURE_MEMORY: Final = _temperature(
    "temperature_memory",
    "hw.temperature",
    "field MEMORY_TEMP",
    "Temperature of the device memory",
    "DCGM_FI_DEV_MEMORY_TEMP",
    attributes=(("hw.sensor_location", "memory"),),
    tier=Tier.SLOW,
    lowest=1,  # Memory without a sensor is reported as 0 degrees by some drivers.
)
#: Thresholds: NVML's name, OpenTelemetry's location and type of limit, and DCGM's name.
_THRESHOLDS: Final = (
    ("shutdown", "core", "high.critical", "DCGM_FI_DEV_SHUTDOWN_TEMP"),
    ("slowdown", "core", "throttled", "DCGM_FI_DEV_SLOWDOWN_TEMP"),
    ("gpu_max", "core", "max", "DCGM_FI_DEV_GPU_MAX_OP_TEMP"),
    ("mem_max", "memory", "max", "DCGM_FI_DEV_MEM_MAX_OP_TEMP"),
)
_TEMPERATURES: Final = (
    TEMPERATURE,
    TEMPERATURE_MEMORY,
    *(
        _temperature(
            f"temperature_limit_{name}",
            "hw.temperature.limit",
            f"nvmlDeviceGetTemperatureThreshold {name.upper()}",
            "Temperature from which the GPU protects itself",
            dcgm,
            attributes=(("hw.limit_type", kind), ("hw.sensor_location", place)),
            group=Group.LIMITS,
            lowest=1,
        )
        for name, place, kind, dcgm in _THRESHOLDS
    ),
    _temperature(
        "temperature_margin",
        "nvidia.gpu.temperature.margin",
        "nvmlDeviceGetMarginTemperature",
        "How far the GPU is from slowing itself down (T.Limit)",
        "DCGM_FI_DEV_GPU_TEMP_LIMIT",
        tier=Tier.SLOW,
        group=Group.LIMITS,
        lowest=-_HOTTEST,
    ),
    *(
        _temperature(
            f"temperature_margin_limit_{name}",
            "nvidia.gpu.temperature.margin.limit",
            f"field TEMPERATURE_{name.upper()}_TLIMIT",
            "Margin (T.Limit) from which the GPU protects itself (Ada and newer)",
            attributes=(("hw.limit_type", kind), ("hw.sensor_location", place)),
            group=Group.LIMITS,
            lowest=-_HOTTEST,
        )
        for name, place, kind, _ in _THRESHOLDS
    ),
)
_FAN: Final = gauge(
    "fan",
    "hw.fan.speed_ratio",
    "nvmlDeviceGetFanSpeed",
    "Speed that the fan is meant to have, as a share of its highest",
    "DCGM_FI_DEV_FAN_SPEED",
    unit="1",
    quantum=1e-2,
    limit=200,
    group=Group.LIMITS,
    dcgm_scale=100,
)
#: Domain, NVML's name, the part that it clocks, DCGM's names of the current and the highest clock, and the group.
_DOMAINS: Final = (
    ("sm", "SM", "streaming multiprocessors", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MAX_SM_CLOCK", Group.CORE),
    ("memory", "MEM", "device memory", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MAX_MEM_CLOCK", Group.CORE),
    ("graphics", "GRAPHICS", "graphics engine", "", "", Group.CLOCKS),
    ("video", "VIDEO", "video engines", "DCGM_FI_DEV_VIDEO_CLOCK", "DCGM_FI_DEV_MAX_VIDEO_CLOCK", Group.CLOCKS),
)
_CLOCKS: Final = tuple(
    _clock(
        f"clock_{domain}",
        "nvidia.gpu.clock",
        f"nvmlDeviceGetClockInfo {nvml}",
        f"Current clock of the {what}",
        dcgm,
        attributes=(("nvidia.gpu.clock.domain", domain),),
        tier=Tier.SLOW,
        group=group,
    )
    for domain, nvml, what, dcgm, _, group in _DOMAINS
)
_CLOCKS_MAX: Final = tuple(
    _clock(
        f"clock_{domain}_max",
        "nvidia.gpu.clock.max",
        f"nvmlDeviceGetMaxClockInfo {nvml}",
        f"Highest clock of the {what}",
        dcgm,
        attributes=(("nvidia.gpu.clock.domain", domain),),
        group=Group.CLOCKS,
    )
    for domain, nvml, what, _, dcgm, _ in _DOMAINS
)
CLOCK_SM, CLOCK_MEMORY, *_ = _CLOCKS
_PSTATE: Final = gauge(
    "pstate",
    "nvidia.gpu.pstate",
    "nvmlDeviceGetPerformanceState",
    "Performance state, from 0 (fastest) to 15",
    "DCGM_FI_DEV_PSTATE",
    unit="{state}",
    limit=15,
    tier=Tier.SLOW,
    group=Group.CORE_DETAIL,
)
RECOVERY_ACTION: Final = gauge(
    "recovery_action",
    "nvidia.gpu.recovery_action",
    "field GET_GPU_RECOVERY_ACTION",
    "Action that the driver requests: 0 none, 1 reset the GPU, 2 reboot, 3 drain peer traffic, 4 drain and reset, "
    "5 recover the IMEX domain, 6 reset the bus, 7 reboot the system",
    "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION",
    unit="{action}",
    limit=100,
    tier=Tier.SLOW,
)


_MODES: Final = (
    gauge(
        "addressing_mode",
        "nvidia.gpu.addressing_mode",
        "nvmlDeviceGetAddressingMode",
        "Access of the GPU to memory that the system allocated: 0 none, 1 by mirrored page tables (HMM), 2 by the "
        "CPU's page tables (ATS)",
        unit="{mode}",
        limit=2,
        group=Group.MODES,
    ),
    flag(
        "confidential_compute",
        "nvidia.gpu.confidential_compute",
        "nvmlSystemGetConfComputeState ccFeature",
        "1 while confidential computing is on, else 0",
        "DCGM_FI_DEV_CC_MODE",
        group=Group.MODES,
    ),
    flag(
        "power_smoothing",
        "nvidia.gpu.power.smoothing",
        "field PWR_SMOOTHING_ENABLED",
        "1 while power smoothing is on, else 0",
        "DCGM_FI_DEV_PWR_SMOOTHING_ENABLED",
        group=Group.MODES,
    ),
)


_EVENT: Final = "CLOCKS_EVENT_REASON_"
#: Reason, NVML's field, and DCGM's name; and reasons that are rarer.
_REASONS: Final = (
    ("sw_power_cap", "PERF_POLICY_POWER", "DCGM_FI_DEV_POWER_VIOLATION"),
    ("sw_thermal", f"{_EVENT}SW_THERM_SLOWDOWN", f"DCGM_FI_DEV_{_EVENT}SW_THERM_SLOWDOWN_NS"),
    ("hw_thermal", f"{_EVENT}HW_THERM_SLOWDOWN", f"DCGM_FI_DEV_{_EVENT}HW_THERM_SLOWDOWN_NS"),
    ("hw_power_brake", f"{_EVENT}HW_POWER_BRAKE_SLOWDOWN", f"DCGM_FI_DEV_{_EVENT}HW_POWER_BRAKE_SLOWDOWN_NS"),
    ("sync_boost", "PERF_POLICY_SYNC_BOOST", "DCGM_FI_DEV_SYNC_BOOST_VIOLATION"),
)
_RARER: Final = (
    ("thermal_policy", "PERF_POLICY_THERMAL", "DCGM_FI_DEV_THERMAL_VIOLATION"),
    ("board_limit", "PERF_POLICY_BOARD_LIMIT", "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION"),
    ("low_utilization", "PERF_POLICY_LOW_UTILIZATION", "DCGM_FI_DEV_LOW_UTIL_VIOLATION"),
    ("reliability", "PERF_POLICY_RELIABILITY", "DCGM_FI_DEV_RELIABILITY_VIOLATION"),
    ("application_clocks", "PERF_POLICY_TOTAL_APP_CLOCKS", "DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION"),
    ("base_clocks", "PERF_POLICY_TOTAL_BASE_CLOCKS", "DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION"),
)


def _group(reason: str) -> Group:
    # Boards synchronise their boost only where an administrator groups them.
    return Group.CORE_DETAIL if reason == "sync_boost" else Group.CORE


def _counted(
    reasons: tuple[tuple[str, str, str], ...], tier: Tier, group: Callable[[str], Group]
) -> tuple[Signal, ...]:
    return tuple(
        _throttle(
            f"throttle_{reason}",
            "nvidia.gpu.throttle.time",
            f"field {field}",
            "Time for which the driver lowered the clocks, by reason",
            dcgm,
            attributes=(("nvidia.gpu.throttle.reason", reason),),
            tier=tier,
            group=group(reason),
            dcgm_scale=NS_PER_S,
        )
        for reason, field, dcgm in reasons
    )


THROTTLES: Final = _counted(_REASONS, Tier.FAST, _group)
#: The time in which readings showed a reason, for drivers without one of those counters, in the same order.
THROTTLES_SEEN: Final = tuple(
    _throttle(
        f"throttle_seen_{reason}",
        "gpu_profile.throttle.time",
        "nvmlDeviceGetCurrentClocksEventReasons, integrated where the driver has no counter",
        "Time in which readings showed throttling",
        attributes=(("nvidia.gpu.throttle.reason", reason),),
        tier=Tier.FAST,
        group=_group(reason),
    )
    for reason, _, _ in _REASONS
)
_THROTTLE_REASONS: Final = gauge(
    "throttle_reasons",
    "nvidia.gpu.throttle.reasons",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "Reasons for the present clocks, as NVML's bit mask",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    unit="{bitmask}",
    limit=(1 << 24) - 1,
    tier=Tier.SLOW,
    group=Group.CLOCKS,
)

BOARD: Final[tuple[Signal, ...]] = (
    POWER,
    POWER_AVERAGE,
    POWER_LIMIT,
    *_POWER_LIMITS,
    *_MODULE_POWER,
    ENERGY,
    *_TEMPERATURES,
    _FAN,
    *_CLOCKS,
    *_CLOCKS_MAX,
    _PSTATE,
    RECOVERY_ACTION,
    *_MODES,
)
THROTTLING: Final[tuple[Signal, ...]] = (
    *THROTTLES,
    *THROTTLES_SEEN,
    *_counted(_RARER, Tier.SLOW, lambda _: Group.CLOCKS),
    _THROTTLE_REASONS,
)
