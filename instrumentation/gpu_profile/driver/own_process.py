"""Finds the devices on which the driver lists this process.

The process ids that a driver reports depend on the driver and on the PID namespace:

- NVIDIA's newer kernel modules translate ids into the caller's namespace and leave out processes outside it. They
  report the id of the *thread* that opened the device (`os_get_pid_info`, `os_find_ns_pid` and `gpuGetProcWithObject`
  in NVIDIA/open-gpu-kernel-modules). Project-HAMi/HAMi-core#112 shows it in a container.
- Older modules report the host's ids (NVIDIA/nvidia-docker#1483). Inside a container, no file contains the process's id
  on the host: `NSpid` in `/proc/self/status` begins at the namespace of the mounted `/proc`. Only kernels before 4.14
  leak it, in the first line of `/proc/self/sched`.

The answer can therefore be unknown. It is None then, never a guess.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpu_profile.catalogue.samples import Device
from gpu_profile.driver.protocol import Driver

#: `PROC_PID_INIT_INO` of the kernel's `include/linux/proc_ns.h`: the PID namespace of the host.
_HOST_NAMESPACE: Final = "pid:[4026531836]"
_SCHED: Final = re.compile(r"\(([0-9]+), #threads: [0-9]+\)\s*$")

#: Listing processes can take 4.5 ms under the driver's global lock (flightlessmango/MangoHud#2104). The first pause
#: between two lists is `FIRST_S`. It doubles up to `LAST_S`, and is `LAST_S` once the process is listed.
FIRST_S: Final = 1.0
LAST_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class OwnIds:
    """The ids under which a driver may list this process.

    `inside`: the ids of the process and its threads in its own namespace. `host`: its id on the host, None if unknown.
    `on_host`: it runs in the host's namespace, so both are the same.
    """

    inside: frozenset[int]
    host: int | None = None
    on_host: bool = True


def own_ids(proc: Path = Path("/proc/self")) -> OwnIds:
    """The ids of this process now, with its current threads. `proc`: its directory below `/proc`."""
    try:
        threads = frozenset(int(task.name) for task in (proc / "task").iterdir())
    except OSError:
        threads = frozenset()
    try:
        on_host = str((proc / "ns" / "pid").readlink()) == _HOST_NAMESPACE
    except OSError:
        on_host = False
    pid = os.getpid()
    host = pid if on_host else _leaked(proc / "sched")
    return OwnIds(threads | {pid}, host if on_host or host != pid else None, on_host)


def _leaked(file: Path) -> int | None:
    try:
        first, _, _ = file.read_text(encoding="utf-8", errors="replace").partition("\n")
    except OSError:
        return None
    match = _SCHED.search(first)
    return int(match[1]) if match else None


def uses(
    driver: Driver, devices: Sequence[Device], ids: OwnIds, *, exists: Callable[[int], bool] | None = None
) -> list[str] | None:
    """UUIDs of the `devices` on which the driver lists this process; [] if on none, None if unknown.

    Of a GPU in MIG mode, only its instances are queried, which must be among `devices`. The result is unknown if no
    process is listed anywhere, which is also the result of a driver that cannot list processes. It is also unknown if a
    listed id does not exist in this namespace: ids may then be of another namespace, or of ended threads. The driver
    may list a process under CUDA MPS as the MPS server.

    Calls `processes` once for each device, in the sampler's thread, and raises its GpuBackendError.
    """
    cut = {device.parent for device in devices}
    listed = {
        device.uuid: {use.pid for use in driver.processes(device)} for device in devices if device.uuid not in cut
    }
    numbers = frozenset[int]().union(*listed.values())
    if not numbers:
        return None
    if ids.host is not None and ids.host in numbers and not ids.on_host:
        return [uuid for uuid, pids in listed.items() if ids.host in pids]
    strangers = any(not (exists or runs)(number) for number in numbers - ids.inside)
    if strangers and not ids.on_host:
        return None
    uuids = [uuid for uuid, pids in listed.items() if pids & ids.inside]
    return None if strangers and not uuids else uuids


def runs(pid: int) -> bool:
    """Whether a process or thread of any user has this id in this namespace."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def pause_s(asked: int, *, listed: bool) -> float:
    """Seconds until the next query, after `asked` queries. `listed`: whether the driver lists this process."""
    return LAST_S if listed else min(LAST_S, FIRST_S * 2.0 ** min(asked, 16))
