"""On which devices the driver lists this process.

A driver names processes by numbers, and which numbers depends on it and on the namespace of process ids:

- NVIDIA's newer kernel modules translate them into the namespace of whoever asks, leave out processes that it cannot
  see, and number the *thread* that opened the device (`os_get_pid_info`, `os_find_ns_pid` and `gpuGetProcWithObject`
  in NVIDIA/open-gpu-kernel-modules; Project-HAMi/HAMi-core#112 shows it in a container).
- Older ones give the host's numbers (NVIDIA/nvidia-docker#1483). From inside a container no file tells a process its
  own number on the host: `NSpid` in `/proc/self/status` begins at the namespace of the mounted `/proc`. Only kernels
  before 4.14 leak it, in the first line of `/proc/self/sched`.

So the answer can be unknown, and is then None: never a guess.
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

#: `PROC_PID_INIT_INO` of the kernel's `include/linux/proc_ns.h`: the namespace that the host's numbers belong to.
_HOST_NAMESPACE: Final = "pid:[4026531836]"
_SCHED: Final = re.compile(r"\(([0-9]+), #threads: [0-9]+\)\s*$")

#: One list of processes can cost 4.5 ms under the driver's global lock (flightlessmango/MangoHud#2104). It is asked for
#: after `FIRST_S`, then after twice as long each time, up to `LAST_S`; from the first answer on, every `LAST_S`.
FIRST_S: Final = 1.0
LAST_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class OwnIds:
    """By which numbers a driver may know this process.

    `inside` are its own and its threads', as it sees them itself. `host` is its number on the host where that is
    known. `on_host`: it runs in the host's namespace, so that the two are the same.
    """

    inside: frozenset[int]
    host: int | None = None
    on_host: bool = True


def own_ids(proc: Path = Path("/proc/self")) -> OwnIds:
    """The numbers of this process now; `proc` is its directory below `/proc`. Threads come and go: ask each time."""
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
    """UUIDs of the `devices` on which the driver lists this process; [] if on none, None if that cannot be told.

    A GPU that is cut is asked through its MIG instances, which must be among `devices`. Unknown: no process is listed
    anywhere (a driver that cannot list them says the same), or a listed number belongs to nobody here, so that the
    numbers are another namespace's, or those of threads that have ended. A process under CUDA MPS may be listed as
    the MPS server's. GpuBackendError as from `processes`, of which this makes one call for each device, in the
    sampler's thread.
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
    found = [uuid for uuid, pids in listed.items() if pids & ids.inside]
    return None if strangers and not found else found


def runs(pid: int) -> bool:
    """Whether there is a process or thread of that number in this namespace, of whatever user."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def pause_s(asked: int, *, found: bool) -> float:
    """Seconds until the driver is asked again, after it was asked `asked` times and had `found` this process or not."""
    return LAST_S if found else min(LAST_S, FIRST_S * 2.0 ** min(asked, 16))
