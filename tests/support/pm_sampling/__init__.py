"""Replaces cupti-python's PM sampling and CUDA's driver in the process that samples counters."""

import os
import shutil
import subprocess
from pathlib import Path

#: The UUID of the fake driver's device.
UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
#: Increment of every `.sum` per sample, and the value of every other metric.
SUM, MEAN = 1000.0, 40.0

_DRIVER = """
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { for (int i = 0; i < 16; i++) uuid[i] = i; return device; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &cuInit; return device; }
int cuCtxSetCurrent(void *context) { return context != (void *)&cuInit; }
"""


def environment(directory: Path, *, fault: str = "") -> dict[str, str]:
    """The variables of a process that uses both. Builds the driver into `directory`. `fault`: the Collector's fault."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    assert compiler, "no C compiler (cc) on PATH"
    source = directory / "cuda.c"
    source.write_text(_DRIVER)
    command = [compiler, "-shared", "-fPIC", "-o", str(directory / "libcuda.so.1"), str(source)]
    subprocess.run(command, check=True)
    here = Path(__file__).parent
    path = [str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "LD_LIBRARY_PATH": str(directory),
        "PM_SAMPLING_FAULT": fault,
    }
