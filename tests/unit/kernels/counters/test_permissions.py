from pathlib import Path

import pytest

from gpu_profile.kernels.counters.permissions import counter_access, explain

NONE, SYS_ADMIN, PERFMON = 0, 1 << 21, 1 << 38
HOST = "         0          0 4294967295\n"


def proc(tmp_path: Path, *, only: str = "1", held: int = NONE, driver: str = "570.124.06", uid_map: str = HOST) -> Path:
    nvidia, own = tmp_path / "driver/nvidia", tmp_path / "self"
    nvidia.mkdir(parents=True)
    own.mkdir()
    (nvidia / "params").write_text(f'ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {only}\nRegistryDwords: ""\n')
    (nvidia / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Mon Jan 1 2024\n")
    (own / "status").write_text(f"Name:\tpython\nCapInh:\t0000000000000000\nCapEff:\t{held:016x}\nCapBnd:\t0\n")
    (own / "uid_map").write_text(uid_map)
    return tmp_path


@pytest.mark.parametrize("held", [NONE, SYS_ADMIN])
def test_everybody_may_where_the_driver_says_so(tmp_path: Path, held: int) -> None:
    access = counter_access(proc(tmp_path, only="0", held=held))
    assert (access.allowed, access.to_do) == (True, "")


def test_a_process_without_capabilities_may_not_and_learns_the_option_the_capability_and_the_flag(
    tmp_path: Path,
) -> None:
    access = counter_access(proc(tmp_path))
    assert access.allowed is False
    assert "RmProfilingAdminOnly: 1" in access.reason
    for word in ("options nvidia NVreg_RestrictProfilingToAdminUsers=0", "CAP_SYS_ADMIN", "--cap-add=SYS_ADMIN"):
        assert word in access.to_do


@pytest.mark.parametrize(
    ("held", "driver", "allowed"),
    [
        (SYS_ADMIN, "470.57.02", True),
        (SYS_ADMIN | PERFMON, "470.57.02", True),
        (PERFMON, "565.57.01", True),
        (PERFMON, "550.54.15", False),
        (~(SYS_ADMIN | PERFMON) & (1 << 41) - 1, "580.65.06", False),
    ],
)
def test_who_may_is_told_by_capabilities_and_the_drivers_release(
    tmp_path: Path, held: int, driver: str, allowed: bool
) -> None:
    access = counter_access(proc(tmp_path, held=held, driver=driver))
    assert access.allowed is allowed
    assert bool(access.to_do) is not allowed


def test_the_capability_of_a_user_namespace_does_not_count(tmp_path: Path) -> None:
    access = counter_access(proc(tmp_path, held=SYS_ADMIN, uid_map="0 1000 1\n1 100000 65536\n"))
    assert access.allowed is False
    assert "user namespace" in access.reason


def test_without_a_driver_or_its_parameter_it_is_not_known(tmp_path: Path) -> None:
    assert counter_access(tmp_path).allowed is None
    found = proc(tmp_path)
    (found / "driver/nvidia/params").write_text("ResmanDebugLevel: 1\n")
    access = counter_access(found)
    assert access.allowed is None
    assert access.reason.endswith("has no RmProfilingAdminOnly")
    (found / "driver/nvidia/params").write_text("RmProfilingAdminOnly: 1\n")
    (found / "self/status").unlink()
    assert counter_access(found).allowed is None


@pytest.mark.parametrize("code", [15, 26, 33, 35, 39, 40, 41, 42, 43, 45, 999, 12345])
def test_every_refusal_is_one_line_with_its_code_and_what_to_do(code: int) -> None:
    said = explain(code)
    assert f"(CUPTI error {code}): " in said
    assert "\n" not in said


def test_the_codes_are_cuptis() -> None:
    result = pytest.importorskip("cupti.cupti").Result
    named = {
        8: "ERROR_OUT_OF_MEMORY",
        15: "ERROR_NOT_INITIALIZED",
        26: "ERROR_HARDWARE_BUSY",
        27: "ERROR_NOT_SUPPORTED",
        33: "ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED",
        35: "ERROR_INSUFFICIENT_PRIVILEGES",
        38: "ERROR_LEGACY_PROFILER_NOT_SUPPORTED",
        39: "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        40: "ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
        41: "ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED",
        42: "ERROR_CMP_DEVICE_NOT_SUPPORTED",
        43: "ERROR_MIG_DEVICE_NOT_SUPPORTED",
        45: "ERROR_WSL_DEVICE_NOT_SUPPORTED",
        999: "ERROR_UNKNOWN",
    }
    assert {code: result(code).name for code in named} == named
    assert not {code for code in named if "not known here" in explain(code)}
