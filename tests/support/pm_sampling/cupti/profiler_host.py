"""cupti-python 13.4's `profiler_host`, as far as metrics are looked at with it."""

from collections.abc import Sequence
from enum import IntEnum

from cupti.pm_sampling import FAULT, CuptiError

#: What an H100 answered.
_PASSES = {"sm__inst_executed_pipe_tensor.sum": 2}
_INVALID_PARAMETER = 1


class ProfilerType(IntEnum):
    """As `cupti.cupti.ProfilerType`, but for its numbers."""

    RANGE_PROFILER = 0
    PM_SAMPLING = 1


class ProfilerHost:
    """Metrics that are asked for are added up, as CUPTI does."""

    def __init__(self, chip_name: str, profiler_type: ProfilerType) -> None:
        assert chip_name == "GH100"
        assert profiler_type is ProfilerType.PM_SAMPLING
        self._asked: list[str] | None = None

    def initialize(self) -> None:
        assert self._asked is None
        if FAULT == "host":
            raise RuntimeError("CUPTI could not load the nvperf* libraries required for profiling.")
        self._asked = []

    def deinitialize(self) -> None:
        assert self._asked is not None
        self._asked = None

    def create_config_image(self, metrics: Sequence[str]) -> list[str]:
        assert self._asked is not None
        assert isinstance(metrics, list)
        if any("__" not in name for name in metrics):
            raise CuptiError(_INVALID_PARAMETER)
        self._asked += metrics
        return self._asked


def get_num_of_passes(config_image: list[str]) -> int:
    """Two where the Collector refuses them for that, three with a metric that needs two by itself."""
    several = any(name in _PASSES for name in config_image)
    if len(config_image) == 1:
        return _PASSES.get(config_image[0], 1)
    return 3 if several else 2 if FAULT in {"passes", "host"} else 1
