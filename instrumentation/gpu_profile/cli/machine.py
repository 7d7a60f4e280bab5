"""The checks of `gpu-profile doctor` besides the driver's: the machine, and the software on it."""

from __future__ import annotations

import http.client
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from gpu_profile.cli.finding import NO_DRIVER, Finding, FindingState

_LIBRARY: Final = "libnvidia-ml.so.1"
_PACKAGES: Final = ("gpu-profile", "nvidia-ml-py", "opentelemetry-sdk", "prometheus-client", "numpy", "click")
_FRAMEWORKS: Final = (
    "torch",
    "lightning",
    "transformers",
    "tensorflow",
    "jax",
    "cupy",
    "numba",
    "triton",
    "vllm",
    "cupti-python",
)
_TELEMETRY: Final = (
    "opentelemetry-distro",
    "opentelemetry-instrumentation",
    "opentelemetry-exporter-otlp",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-exporter-otlp-proto-grpc",
)
_PORTS: Final = (9400, 9401)
#: The most characters of a container's setting in a line; `--json` has all.
_WIDEST_VALUE: Final = 60
#: Clock sources that Linux reads without entering the kernel.
_FAST_CLOCKS: Final = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")

# ---------------------------------------------------------------------- the machine


def python() -> Iterator[Finding]:
    """The interpreter and the packages that gpu-profile needs."""
    yield Finding("Python", FindingState.OK, f"{platform.python_version()}, {sys.executable}")
    versions = _versions(_PACKAGES)
    lacking = [name for name in _PACKAGES if name not in versions]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    state = FindingState.FAILS if "nvidia-ml-py" in lacking else FindingState.MISSING if lacking else FindingState.OK
    to_do = f"pip install {' '.join(lacking)}" if lacking else ""
    yield Finding("packages", state, listed or "none", to_do, {"versions": versions, "missing": lacking})


def clock() -> Iterator[Finding]:
    """The clock source, and the cost of reading it."""
    try:
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    except OSError:
        source = "not told"
    times = 2000
    start = time.perf_counter_ns()
    for _ in range(times):
        time.time_ns()
    each = (time.perf_counter_ns() - start) // times
    slow = source not in (*_FAST_CLOCKS, "not told")
    yield Finding(
        "clock",
        FindingState.MISSING if slow else FindingState.OK,
        f"{source}, {each} ns a reading",
        "reading the time enters the kernel, so regions cost more; boot with clocksource=tsc if it is stable"
        if slow
        else "",
        {"source": source, "read_ns": each},
    )


def container() -> Iterator[Finding]:
    """Whether this is a container, and its NVIDIA devices."""
    marks = {
        "Docker": Path("/.dockerenv").exists(),
        "Podman": Path("/run/.containerenv").exists(),
        "Kubernetes": "KUBERNETES_SERVICE_HOST" in os.environ,
    }
    inside = [name for name, there in marks.items() if there]
    settings = {name: value for name, value in os.environ.items() if name.startswith("NVIDIA_")}
    said = "".join(f", {name}={_shortened(value)}" for name, value in sorted(settings.items()))
    data = {"inside": inside, "environment": settings}
    yield Finding("container", FindingState.INFO, (", ".join(inside) or "no sign of one") + said, data=data)
    nodes = sorted(str(path) for path in Path("/dev").glob("nvidia*") if not path.is_dir())
    if not nodes:
        yield Finding("/dev/nvidia*", FindingState.MISSING, "no device files", NO_DRIVER, {"nodes": []})
        return
    shut = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    yield Finding(
        "/dev/nvidia*",
        FindingState.MISSING if shut else FindingState.OK,
        f"{len(nodes)} device files" + (f", not readable and writable: {', '.join(shut)}" if shut else ""),
        "add this user to the group of these files, or change their mode" if shut else "",
        {"nodes": nodes, "denied": shut},
    )


def kernel_driver() -> Iterator[Finding]:
    """NVIDIA's kernel driver, and whether it lets this process read the hardware's counters."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        yield Finding(
            "kernel driver",
            FindingState.MISSING,
            "not loaded: no /proc/driver/nvidia/version",
            f"modprobe nvidia, or {NO_DRIVER}",
        )
        return
    yield Finding("kernel driver", FindingState.OK, text.removeprefix("NVRM version:").strip())
    yield from counters()
    yield pm_sampling()


def counters(proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Whether this process may read the hardware's counters. Recording kernels needs no such right."""
    from gpu_profile.kernels.counters.permissions import counter_access

    access = counter_access(proc)
    states = {True: FindingState.OK, False: FindingState.MISSING, None: FindingState.INFO}
    said = {
        True: "this process may read them",
        False: "not for this process",
        None: "not known whether they may be read",
    }
    yield Finding(
        "counters",
        states[access.allowed],
        f"{said[access.allowed]}: {access.reason}; recording kernels and copies needs no privilege",
        access.to_do,
        {"allowed": access.allowed},
    )


def pm_sampling() -> Finding:
    """Whether cupti-python, which samples counters beside a program, is installed. It is not imported."""
    from gpu_profile.kernels.counters.permissions import SAMPLES_SINCE, sampling_release

    release = sampling_release()
    since = ".".join(map(str, SAMPLES_SINCE))
    if release is None:
        text, state = f"needs cupti-python {since} or newer, which is not installed", FindingState.INFO
    elif release < SAMPLES_SINCE:
        text, state = f"needs cupti-python {since} or newer, not {'.'.join(map(str, release))}", FindingState.INFO
    else:
        text, state = f"cupti-python {'.'.join(map(str, release))} has it", FindingState.OK
    return Finding("PM sampling", state, text, "pip install 'gpu-profile[cupti]'")


def library() -> Iterator[Finding]:
    """NVML's shared library: whether it can be loaded, and its path."""
    import ctypes

    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        yield Finding("NVML library", FindingState.MISSING, str(error), NO_DRIVER)
        return
    yield Finding(
        "NVML library", FindingState.OK, _mapped(_LIBRARY.removesuffix(".1")) or "loaded, from where is not known"
    )


def _mapped(name: str) -> str:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return ""
    return next((line.split()[-1] for line in maps.splitlines() if name in line), "")


def smi() -> Iterator[Finding]:
    """The command nvidia-smi."""
    path = shutil.which("nvidia-smi")
    if path is None:
        yield Finding("nvidia-smi", FindingState.MISSING, "not on PATH", "needed only where NVML cannot be loaded")
        return
    done = subprocess.run([path, "-L"], capture_output=True, text=True, errors="replace", timeout=9, check=False)
    said = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
    if done.returncode:
        yield Finding(
            "nvidia-smi", FindingState.MISSING, f"{path}: {said[0]}", "run it by hand: its message names the cause"
        )
    else:
        yield Finding(
            "nvidia-smi", FindingState.OK, f"{path}: lists {sum(line.startswith('GPU') for line in said)} GPUs"
        )


def _shortened(value: str) -> str:
    """A value cut to fit a line: NVIDIA_REQUIRE_CUDA of NVIDIA's images alone has some 2,000 characters."""
    return value if len(value) <= _WIDEST_VALUE else value[:_WIDEST_VALUE].rstrip() + "…"


# ---------------------------------------------------------------------- other software


def frameworks() -> Iterator[Finding]:
    """Installed frameworks and parts of OpenTelemetry. None is imported."""
    versions = _versions(_FRAMEWORKS)
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Finding("frameworks", FindingState.INFO, said or "none installed", data={"versions": versions})
    versions = _versions(_TELEMETRY)
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    named = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME")
    said += "".join(f", {name}={value}" for name, value in os.environ.items() if name in named)
    said = said.removeprefix(", ") or "no exporter of spans is installed"
    to_do = "" if versions else "to send spans: pip install 'gpu-profile[otlp]'"
    yield Finding(
        "OpenTelemetry", FindingState.OK if versions else FindingState.INFO, said, to_do, {"versions": versions}
    )


def settings() -> Iterator[Finding]:
    """The settings of gpu-profile in the environment, and the rank that a launcher set."""
    from gpu_profile.recording.rank import rank

    environment = {name: value for name, value in sorted(os.environ.items()) if name.startswith("GPU_PROFILE_")}
    said = ", ".join(f"{name}={value}" for name, value in environment.items())
    place = rank(os.environ)
    if place is not None:
        said += f"{', ' if said else ''}rank {place.rank} of {place.size}, local rank {place.local_rank}"
    yield Finding("settings", FindingState.INFO, said or "none in the environment", data={"environment": environment})


def exporter() -> Iterator[Finding]:
    """Whether an exporter serves on this machine."""
    said = [f"port {port}: {answer}" for port in _PORTS if (answer := _serves(port))]
    yield Finding("exporter", FindingState.INFO, "; ".join(said) or "none on ports 9400 and 9401", data={"found": said})


def _serves(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/-/ready")
        answer = connection.getresponse()
        text = answer.read(200).decode(errors="replace").strip().partition("\n")[0]
    except (OSError, http.client.HTTPException) as error:
        return "" if isinstance(error, ConnectionRefusedError) else f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    ours = {200: f"gpu-profile-exporter, {text or 'ready'}", 503: f"gpu-profile-exporter, {text}"}
    return ours.get(answer.status, "something else, perhaps dcgm-exporter")


def _versions(names: Sequence[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
