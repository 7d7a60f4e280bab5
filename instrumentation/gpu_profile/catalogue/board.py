"""The signals of power, heat and clocks.

Windows of power sensors are those that Yang, Adamek and Armour measured ("Part-time Power Measurements", SC24, arXiv
2312.02741).
"""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue import families
from gpu_profile.catalogue.group import Group
from gpu_profile.catalogue.signal import Dcgm, Kind, Signal, Tier

_MS: Final = 1_000_000
_SECOND: Final = 1_000 * _MS

POWER: Final = families.power(
    "power",
    "hw.power",
    "field POWER_INSTANT",
    "Power draw in the driver's latest short window (25-100 ms by architecture)",
    25 * _MS,
    group=Group.CORE,
    dcgm="DCGM_FI_DEV_POWER_USAGE_INSTANT",
)
POWER_AVERAGE: Final = families.power(
    "power_average",
    "nvidia.gpu.power.average",
    "field POWER_AVERAGE, else nvmlDeviceGetPowerUsage",
    "Power draw averaged by the driver over the last second",
    _SECOND,
    group=Group.CORE,
    dcgm="DCGM_FI_DEV_POWER_USAGE",
)
POWER_LIMIT: Final = families.power_limit(
    "power_limit",
    "nvidia.gpu.power.limit",
    "nvmlDeviceGetEnforcedPowerLimit",
    "Power limit that the driver enforces",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
    group=Group.CORE,
    tier=Tier.SLOW,
)
POWER_LIMITS: Final = (
    families.power_limit(
        "power_limit_requested",
        "nvidia.gpu.power.limit.requested",
        "field POWER_REQUESTED_LIMIT",
        "Power limit that was asked for",
        "DCGM_FI_DEV_POWER_MGMT_LIMIT",
    ),
    families.power_limit(
        "power_limit_default",
        "nvidia.gpu.power.limit.default",
        "field POWER_DEFAULT_LIMIT, else nvmlDeviceGetPowerManagementDefaultLimit",
        "Power limit that the GPU starts with",
        "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF",
    ),
    families.power_limit(
        "power_limit_min",
        "nvidia.gpu.power.limit.min",
        "field POWER_MIN_LIMIT, else nvmlDeviceGetPowerManagementLimitConstraints",
        "Lowest power limit that can be set",
        "DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN",
    ),
    families.power_limit(
        "power_limit_max",
        "nvidia.gpu.power.limit.max",
        "field POWER_MAX_LIMIT, else nvmlDeviceGetPowerManagementLimitConstraints",
        "Highest power limit that can be set",
        "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX",
    ),
)
ENERGY: Final = Signal(
    "energy",
    "hw.energy",
    "J",
    Kind.COUNTER,
    1e-3,
    4_000_000,
    Tier.FAST,
    source="field TOTAL_ENERGY_CONSUMPTION",
    brief="Energy consumed since the driver was loaded",
    refresh_ns=100 * _MS,
    dcgm=Dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1000),
)
MODULE_POWER: Final = (
    families.power(
        "power_module",
        "nvidia.gpu.module.power",
        "field POWER_INSTANT, scope MODULE",
        "Power draw of the whole superchip module, CPU included",
        25 * _MS,
        group=Group.MODULE,
        dcgm=None,
    ),
    families.power(
        "power_module_average",
        "nvidia.gpu.module.power.average",
        "field POWER_AVERAGE, scope MODULE",
        "Power draw of the whole superchip module, averaged over the last second",
        _SECOND,
        group=Group.MODULE,
        dcgm=None,
    ),
    families.power(
        "power_memory_average",
        "nvidia.gpu.memory.power.average",
        "field POWER_AVERAGE, scope MEMORY",
        "Power draw of the device memory, averaged over the last second",
        _SECOND,
        group=Group.MODULE,
        dcgm=None,
    ),
)

#: Above this no GPU runs, degrees Celsius: what a driver says beyond it is a code for something else.
_HOTTEST: Final = 200


def _temperature(key: str, source: str, brief: str, place: str, dcgm: str, lowest: int) -> Signal:
    return families.gauge(
        key,
        "hw.temperature",
        "Cel",
        source,
        brief,
        group=Group.CORE,
        limit=_HOTTEST,
        tier=Tier.SLOW,
        attributes=(("hw.sensor_location", place),),
        dcgm=Dcgm(dcgm),
        lowest=lowest,
    )


TEMPERATURE: Final = _temperature(
    "temperature", "nvmlDeviceGetTemperature", "Temperature of the GPU core", "core", "DCGM_FI_DEV_GPU_TEMP", 0
)
# Memory without a sensor is reported as 0 degrees by some drivers.
TEMPERATURE_MEMORY: Final = _temperature(
    "temperature_memory",
    "field MEMORY_TEMP",
    "Temperature of the device memory",
    "memory",
    "DCGM_FI_DEV_MEMORY_TEMP",
    1,
)
#: What each threshold is in OpenTelemetry's words: NVML's name, the place, the type of limit, and DCGM's name.
_THRESHOLDS: Final = (
    ("shutdown", "core", "high.critical", "DCGM_FI_DEV_SHUTDOWN_TEMP"),
    ("slowdown", "core", "throttled", "DCGM_FI_DEV_SLOWDOWN_TEMP"),
    ("gpu_max", "core", "max", "DCGM_FI_DEV_GPU_MAX_OP_TEMP"),
    ("mem_max", "memory", "max", "DCGM_FI_DEV_MEM_MAX_OP_TEMP"),
)
TEMPERATURE_LIMITS: Final = tuple(
    families.gauge(
        f"temperature_limit_{name}",
        "hw.temperature.limit",
        "Cel",
        f"nvmlDeviceGetTemperatureThreshold {name.upper()}",
        "Temperature from which the GPU protects itself",
        group=Group.LIMITS,
        limit=_HOTTEST,
        attributes=(("hw.limit_type", kind), ("hw.sensor_location", place)),
        dcgm=Dcgm(dcgm),
        lowest=1,
    )
    for name, place, kind, dcgm in _THRESHOLDS
)
TEMPERATURE_MARGIN: Final = families.gauge(
    "temperature_margin",
    "nvidia.gpu.temperature.margin",
    "Cel",
    "nvmlDeviceGetMarginTemperature",
    "How far the GPU is from slowing itself down (T.Limit)",
    group=Group.LIMITS,
    limit=_HOTTEST,
    tier=Tier.SLOW,
    dcgm=Dcgm("DCGM_FI_DEV_GPU_TEMP_LIMIT"),
    lowest=-_HOTTEST,
)
TEMPERATURE_MARGIN_LIMITS: Final = tuple(
    families.gauge(
        f"temperature_margin_limit_{name}",
        "nvidia.gpu.temperature.margin.limit",
        "Cel",
        f"field TEMPERATURE_{name.upper()}_TLIMIT",
        "Margin (T.Limit) from which the GPU protects itself (Ada and newer)",
        group=Group.LIMITS,
        limit=_HOTTEST,
        attributes=(("hw.limit_type", kind), ("hw.sensor_location", place)),
        lowest=-_HOTTEST,
    )
    for name, place, kind, _ in _THRESHOLDS
)
FAN: Final = families.gauge(
    "fan",
    "hw.fan.speed_ratio",
    "1",
    "nvmlDeviceGetFanSpeed",
    "Speed that the fan is meant to have, as a share of its highest",
    group=Group.LIMITS,
    limit=200,
    quantum=1e-2,
    dcgm=Dcgm("DCGM_FI_DEV_FAN_SPEED", 100),
)

CLOCK_SM: Final = families.clock("sm", "SM", "DCGM_FI_DEV_SM_CLOCK", "streaming multiprocessors")
CLOCK_MEMORY: Final = families.clock("memory", "MEM", "DCGM_FI_DEV_MEM_CLOCK", "device memory")
CLOCK_GRAPHICS: Final = families.clock("graphics", "GRAPHICS", None, "graphics engine", group=Group.CLOCKS)
CLOCK_VIDEO: Final = families.clock("video", "VIDEO", "DCGM_FI_DEV_VIDEO_CLOCK", "video engines", group=Group.CLOCKS)
CLOCKS_MAX: Final = tuple(
    families.clock(domain, nvml, dcgm, what, most=True, group=Group.CLOCKS)
    for domain, nvml, dcgm, what in (
        ("sm", "SM", "DCGM_FI_DEV_MAX_SM_CLOCK", "streaming multiprocessors"),
        ("memory", "MEM", "DCGM_FI_DEV_MAX_MEM_CLOCK", "device memory"),
        ("graphics", "GRAPHICS", None, "graphics engine"),
        ("video", "VIDEO", "DCGM_FI_DEV_MAX_VIDEO_CLOCK", "video engines"),
    )
)
PSTATE: Final = families.gauge(
    "pstate",
    "nvidia.gpu.pstate",
    "{state}",
    "nvmlDeviceGetPerformanceState",
    "Performance state, from 0 (fastest) to 15",
    group=Group.CORE,
    limit=15,
    tier=Tier.SLOW,
    dcgm=Dcgm("DCGM_FI_DEV_PSTATE"),
)
RECOVERY_ACTION: Final = families.gauge(
    "recovery_action",
    "nvidia.gpu.recovery_action",
    "{action}",
    "field GET_GPU_RECOVERY_ACTION",
    "What the driver asks for: 0 nothing, 1 reset the GPU, 2 reboot, 3 drain peer traffic, 4 drain and reset, "
    "5 recover the IMEX domain, 6 reset the bus, 7 reboot the system",
    group=Group.CORE,
    limit=100,
    tier=Tier.SLOW,
    dcgm=Dcgm("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION"),
)

_EVENT: Final = "CLOCKS_EVENT_REASON_"
THROTTLES: Final = (
    families.throttle("sw_power_cap", "PERF_POLICY_POWER", "DCGM_FI_DEV_POWER_VIOLATION"),
    families.throttle("sw_thermal", f"{_EVENT}SW_THERM_SLOWDOWN", f"DCGM_FI_DEV_{_EVENT}SW_THERM_SLOWDOWN_NS"),
    families.throttle("hw_thermal", f"{_EVENT}HW_THERM_SLOWDOWN", f"DCGM_FI_DEV_{_EVENT}HW_THERM_SLOWDOWN_NS"),
    families.throttle(
        "hw_power_brake", f"{_EVENT}HW_POWER_BRAKE_SLOWDOWN", f"DCGM_FI_DEV_{_EVENT}HW_POWER_BRAKE_SLOWDOWN_NS"
    ),
    families.throttle("sync_boost", "PERF_POLICY_SYNC_BOOST", "DCGM_FI_DEV_SYNC_BOOST_VIOLATION"),
)
#: For drivers that lack one of those counters, in the same order.
THROTTLES_SEEN: Final = tuple(families.throttle_seen(row.key.removeprefix("throttle_")) for row in THROTTLES)
THROTTLES_RARER: Final = tuple(
    families.throttle(reason, f"PERF_POLICY_{field}", dcgm, tier=Tier.SLOW, group=Group.CLOCKS)
    for reason, field, dcgm in (
        ("thermal_policy", "THERMAL", "DCGM_FI_DEV_THERMAL_VIOLATION"),
        ("board_limit", "BOARD_LIMIT", "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION"),
        ("low_utilization", "LOW_UTILIZATION", "DCGM_FI_DEV_LOW_UTIL_VIOLATION"),
        ("reliability", "RELIABILITY", "DCGM_FI_DEV_RELIABILITY_VIOLATION"),
        ("application_clocks", "TOTAL_APP_CLOCKS", "DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION"),
        ("base_clocks", "TOTAL_BASE_CLOCKS", "DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION"),
    )
)
THROTTLE_REASONS: Final = families.gauge(
    "throttle_reasons",
    "nvidia.gpu.throttle.reasons",
    "{bitmask}",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "Reasons for the present clocks, as NVML's bit mask",
    group=Group.CLOCKS,
    limit=(1 << 24) - 1,
    tier=Tier.SLOW,
    dcgm=Dcgm("DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
)

BOARD: Final[tuple[Signal, ...]] = (
    POWER,
    POWER_AVERAGE,
    POWER_LIMIT,
    *POWER_LIMITS,
    *MODULE_POWER,
    ENERGY,
    TEMPERATURE,
    TEMPERATURE_MEMORY,
    *TEMPERATURE_LIMITS,
    TEMPERATURE_MARGIN,
    *TEMPERATURE_MARGIN_LIMITS,
    FAN,
    CLOCK_SM,
    CLOCK_MEMORY,
    CLOCK_GRAPHICS,
    CLOCK_VIDEO,
    *CLOCKS_MAX,
    PSTATE,
    RECOVERY_ACTION,
)
THROTTLING: Final[tuple[Signal, ...]] = (*THROTTLES, *THROTTLES_SEEN, *THROTTLES_RARER, THROTTLE_REASONS)
