from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.roofline.machines import processor as rooms
from gpu_profile.roofline.machines.machine import Memory
from gpu_profile.roofline.machines.processor import Cache, memory, processor
from gpu_profile.units import MIB

KIB = 1 << 10
CPU = "sys/devices/system/cpu"
HOST = {
    "proc/self/status": "Name:\tpython\nVmHWM:\t    3000 kB\nVmRSS:\t    2000 kB\nThreads:\t1\n",
    "proc/meminfo": "MemTotal:       16000 kB\nMemFree:    1000 kB\nMemAvailable:   12000 kB\nHugePages_Total: 0\n",
}


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def cache(cpu: int, index: int, level: int, size: str, shared: str, kind: str = "Unified") -> dict[str, str]:
    folder = f"{CPU}/cpu{cpu}/cache/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/shared_cpu_list": f"{shared}\n",
    }


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC  9654\n\nmodel name\t: other\n", "AMD EPYC 9654"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "aarch64 0x41 0xd4f"),
        ("", "aarch64"),
    ],
)
def test_the_name_is_what_the_kernel_says_or_else_the_architecture(
    text: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert processor(tree(tmp_path, {"proc/cpuinfo": text}), {0}).name == name


# ---------------------------------------------------------------------- cores


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8.0),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8.0),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1600000 100000\n"}, 8.0),
        (
            {
                "proc/self/cgroup": "0::/slice/job\n",
                "sys/fs/cgroup/slice/cpu.max": "200000 100000",
                "sys/fs/cgroup/slice/job/cpu.max": "max 100000",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpuset:/\n2:cpu,cpuacct:/docker/abc\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "2:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8.0,
        ),
        ({"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/cpu.max": "400000 100000\n", "cpu.max": "1 100000"}, 4.0),
    ],
)
def test_the_cores_are_those_that_affinity_and_every_cgroup_above_leave(
    files: Mapping[str, str], cores: float, tmp_path: Path
) -> None:
    assert processor(tree(tmp_path, files), set(range(8))).cores == cores


# ---------------------------------------------------------------------- caches


def test_caches_are_added_up_over_the_cores_that_do_not_share_them(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for cpu in range(8):
        files |= cache(cpu, 0, 1, "48K", str(cpu), "Data") | cache(cpu, 1, 1, "32K", str(cpu), "Instruction")
        files |= cache(cpu, 2, 2, "2048K", str(cpu))
        files |= cache(cpu, 3, 3, "32M", "0-3" if cpu < 4 else "4-5,6-7")
    root = tree(tmp_path, files)
    assert processor(root, set(range(8))).caches == (
        Cache(1, 8 * 48 * KIB),
        Cache(2, 8 * 2 * MIB),
        Cache(3, 2 * 32 * MIB),
    )
    assert processor(root, {0, 1}).caches == (Cache(1, 2 * 48 * KIB), Cache(2, 2 * 2 * MIB), Cache(3, 32 * MIB))
    assert processor(root, {0, 4}).cache_bytes == 64 * MIB


def test_caches_whose_size_is_not_told_are_not_guessed(tmp_path: Path) -> None:
    assert processor(tmp_path, {0}).cache_bytes is None
    root = tree(tmp_path, cache(0, 0, 1, "64K", "0", "Data") | cache(0, 2, 2, "", "0"))
    assert processor(root, {0}).caches == (Cache(1, 64 * KIB),)


# ---------------------------------------------------------------------- memory


def limits(total: int, free: int) -> Memory:
    return Memory(2000 * KIB, 2000 * KIB, 3000 * KIB, free * KIB, total * KIB)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, limits(16000, 12000)),
        (
            {
                "proc/self/cgroup": "0::/pod\n",
                "sys/fs/cgroup/pod/memory.max": f"{8000 * KIB}\n",
                "sys/fs/cgroup/pod/memory.current": f"{6000 * KIB}\n",
                "sys/fs/cgroup/pod/memory.stat": f"anon 5\nfile 9\ninactive_file {1000 * KIB}\n",
            },
            limits(8000, 3000),
        ),
        (
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/memory.max": f"{8000 * KIB}\n",
                "sys/fs/cgroup/pod/memory.current": f"{7500 * KIB}\n",
                "sys/fs/cgroup/pod/box/memory.max": "max\n",
                "sys/fs/cgroup/pod/box/memory.current": "1\n",
            },
            limits(8000, 500),
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4000 * KIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3500 * KIB}\n",
                "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {500 * KIB}\n",
            },
            None,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
            },
            limits(16000, 12000),
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{8000 * KIB}\n",
                "sys/fs/cgroup/memory.current": f"{9000 * KIB}\n",
            },
            limits(8000, 0),
        ),
    ],
)
def test_memory_is_the_hosts_or_what_the_tightest_cgroup_leaves(
    files: Mapping[str, str], found: Memory | None, tmp_path: Path
) -> None:
    assert memory(tree(tmp_path, {**HOST, **files})) == (found or limits(4000, 1000))


@pytest.mark.parametrize("missing", ["proc/self/status", "proc/meminfo"])
def test_memory_that_the_kernel_does_not_tell_is_absent(missing: str, tmp_path: Path) -> None:
    assert memory(tree(tmp_path, {**HOST, missing: ""})) is None


def test_a_kernel_that_keeps_no_peak_is_helped_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_peak", lambda: 7)
    found = memory(tree(tmp_path, {**HOST, "proc/self/status": "VmRSS: 2000 kB\n"}))
    assert found is not None
    assert found.peak == 2000 * KIB


def test_this_machine_tells_its_processor_and_memory() -> None:
    here, now = processor(), memory()
    assert here.name
    assert here.cores > 0
    assert now is not None
    assert 0 < now.allocated <= now.peak
    assert 0 < now.free <= now.total


@given(
    texts=st.fixed_dictionaries(
        dict.fromkeys(
            [
                "proc/self/cgroup",
                "proc/cpuinfo",
                "proc/meminfo",
                "proc/self/status",
                "sys/fs/cgroup/cpu.max",
                "sys/fs/cgroup/memory.max",
                f"{CPU}/cpu0/cache/index0/level",
                f"{CPU}/cpu0/cache/index0/size",
                f"{CPU}/cpu0/cache/index0/shared_cpu_list",
            ],
            st.one_of(
                st.text(max_size=40),
                st.sampled_from(["0::/\n", "0::/../x\n", "0\n", "1\n", "-3\n", "²\n", "0 0\n", "9-1,x,,3-\n", "K\n"]),
            ),
        )
    )
)
@settings(max_examples=100)
def test_no_text_in_these_files_raises(texts: Mapping[str, str], tmp_path: Path) -> None:
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    found = processor(tmp_path, {0})
    assert 0 < found.cores <= 1
    assert memory(tmp_path) is None or texts["proc/meminfo"]
