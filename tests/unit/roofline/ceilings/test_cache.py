"""Ceilings are kept between runs, for the machine that they are of, and a bad file costs a calibration at most."""

import errno
import json
import logging
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from unit.roofline.ceilings.calibration import SlowDevice, use

from gpu_profile import user_cache
from gpu_profile.roofline.ceilings.cache import MOST_AGE_S, MOST_DOUBTED_S, ceilings_for, load, path_of, store
from gpu_profile.roofline.ceilings.ceilings import Ceiling, Ceilings, Level
from gpu_profile.roofline.ceilings.contention import Contention
from gpu_profile.roofline.precision import Precision
from gpu_profile.testing import FakeClock

KEY = {"device": "NVIDIA A100-SXM4-40GB", "uuid": "GPU-1", "driver": "550.54"}
CEILINGS = Ceilings(
    machine="NVIDIA A100-SXM4-40GB",
    key=KEY,
    compute={Precision.BF16: Ceiling(280e12, "measured")},
    levels=(
        Level("L2", 40 << 20, Ceiling(4e12, "measured", "a note")),
        Level("memory", None, Ceiling(1e12, "measured")),
    ),
    launch_s=3e-6,
    missing={"fp8": "needs compute capability 8.9"},
    calibrated_ns=123,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPU_PROFILE_CACHE", str(tmp_path))
    return tmp_path


def written(key: dict[str, str] = KEY) -> Path:
    path = path_of(key)
    assert path is not None
    return path


def test_what_is_stored_is_what_is_loaded() -> None:
    assert load(KEY) is None
    for waited in (0.0, 0.48):
        kept = replace(CEILINGS, waited=waited)
        assert store(kept) == ""
        assert load(KEY) == kept


def test_ceilings_hold_for_one_key_only() -> None:
    store(CEILINGS)
    assert load(KEY | {"driver": "555.42"}) is None
    assert load({name: KEY[name] for name in ("device", "uuid")}) is None
    assert load(dict(reversed(KEY.items()))) == CEILINGS


def test_a_file_is_named_after_the_device_and_is_its_owners_alone(home: Path) -> None:
    store(CEILINGS)
    (file,) = (home / "ceilings").iterdir()
    assert file == written()
    assert file.name.startswith("nvidia-a100-sxm4-40gb-")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("key", [{}, {"device": "../../etc/passwd"}, {"processor": "Ä" * 500}, {"device": "\0/"}])
def test_no_key_leads_out_of_the_folder(key: dict[str, str], home: Path) -> None:
    path = written(key)
    assert path.parent == home / "ceilings"
    assert len(path.name) < 80
    assert store(replace(CEILINGS, key=key)) == ""
    assert load(key) is not None


def test_the_folder_is_the_one_that_the_user_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_PROFILE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_cache.folder("ceilings") == Path("/somewhere/gpu-profile/ceilings")
    monkeypatch.setenv("HOME", "/home/of")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache.folder("ceilings") == Path("/home/of/.cache/gpu-profile/ceilings")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache.folder("ceilings") == Path("/home/of/.cache/gpu-profile/ceilings")


def test_without_a_home_nothing_is_kept_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_PROFILE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert store(CEILINGS) == "there is no home folder: set GPU_PROFILE_CACHE"
    assert load(KEY) is None


def test_a_folder_that_cannot_be_made_is_a_reason(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("GPU_PROFILE_CACHE", str(home / "file"))
    assert store(CEILINGS) == f"{home}/file/ceilings: Not a directory"
    assert load(KEY) is None


def test_a_full_disk_is_a_reason_and_leaves_the_old_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(CEILINGS)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        assert store(replace(CEILINGS, launch_s=1.0)) == f"{home}/ceilings: No space left on device"
    assert load(KEY) == CEILINGS
    assert len(list((home / "ceilings").iterdir())) == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"schema": 1}', b"[" * 100_000, b"9" * 5000]
)
def test_a_damaged_file_is_no_ceilings_and_is_told_once(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store(CEILINGS)
    written().write_bytes(content)
    with caplog.at_level(logging.WARNING, "gpu_profile"):
        assert load(KEY) is None
        assert load(KEY) is None
    assert len(caplog.records) == 1
    assert str(written()) in caplog.text
    assert store(CEILINGS) == ""
    assert load(KEY) == CEILINGS


def test_a_file_that_is_there_and_cannot_be_read_is_told_once(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    written().mkdir(parents=True)
    with caplog.at_level(logging.WARNING, "gpu_profile"):
        assert load(KEY) is None
        assert load(KEY) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"gpu-profile: {written()} cannot be read (Is a directory) and is not used"
    ]


def test_no_file_in_a_folder_that_cannot_be_entered_is_told(
    home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home of another user: nothing shows that a file is there."""
    assert home.is_dir()

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.lstat", denied)
    with caplog.at_level(logging.WARNING, "gpu_profile"):
        assert load(KEY) is None
    assert not caplog.records


def test_another_schemas_or_another_keys_file_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    store(CEILINGS)
    content = json.loads(written().read_text())
    written().write_text(json.dumps(content | {"schema": 2}))
    assert load(KEY) is None
    content["ceilings"]["key"]["uuid"] = "GPU-2"
    written().write_text(json.dumps(content))
    assert load(KEY) is None
    assert not caplog.records


WRITER = """
import sys
from gpu_profile.roofline.ceilings.cache import store
from gpu_profile.roofline.ceilings.ceilings import Ceiling, Ceilings
from gpu_profile.roofline.precision import Precision
name = sys.argv[1]
for size in range(200):
    each = Ceilings(name, {"device": "shared"}, {Precision.FP32: Ceiling(1.0, "measured", name * size * 50)})
    assert store(each) == ""
"""


def test_two_processes_that_write_at_once_leave_one_whole_file(home: Path) -> None:
    store(Ceilings("a", {"device": "shared"}))
    here = {"PYTHONPATH": os.pathsep.join(sys.path), "GPU_PROFILE_CACHE": str(home)}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name], env=here) for name in "ab"]
    while any(writer.poll() is None for writer in writers):
        found = load({"device": "shared"})
        assert found is not None
        assert all(set(each.note) <= {found.machine} for each in found.compute.values())
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(list((home / "ceilings").iterdir())) == 1


def test_a_machine_is_calibrated_once_and_again_when_asked_or_when_it_was_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, clock = use(SlowDevice(), monkeypatch), FakeClock(1_800_000_000 * 10**9)
    first, remark = ceilings_for(device, clock=clock)
    assert remark == "measured now"
    clock.advance(MOST_AGE_S - 1)
    runs = device.runs
    assert ceilings_for(device, clock=clock) == (first, "kept from 2027-01-15")
    assert device.runs == runs
    assert ceilings_for(device, recalibrate=True, clock=clock)[1] == "measured now"
    assert device.runs > runs
    clock.advance(MOST_AGE_S + 1)
    assert ceilings_for(device, clock=clock)[1] == "measured now"
    # Of a clock that was set back, no age is known.
    clock.set_back(10)
    assert ceilings_for(device, clock=clock)[1] == "measured now"


def test_what_cannot_be_kept_is_used_and_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = use(SlowDevice(), monkeypatch)
    (home / "file").write_text("")
    monkeypatch.setenv("GPU_PROFILE_CACHE", str(home / "file"))
    found, remark = ceilings_for(device)
    assert found.memory is not None
    assert remark == f"measured now; not kept: {home}/file/ceilings: Not a directory"


def test_what_lacks_something_for_want_of_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    device = use(SlowDevice("NVIDIA A100-SXM4-40GB"), monkeypatch)
    device.breaks = {"traffic": MemoryError()}
    _, remark = ceilings_for(device)
    assert remark == "measured now; not kept: not enough free memory for all of it"
    device.breaks = {}
    assert ceilings_for(device)[1] == "measured now"


def test_where_nothing_can_be_measured_nothing_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = use(SlowDevice(), monkeypatch)
    device.breaks = dict.fromkeys(("traffic", "nothing", "small", *map(str, Precision)), RuntimeError("broken"))
    assert ceilings_for(device)[1] == "nothing could be measured"
    assert not (home / "ceilings").exists()


def test_ceilings_of_a_busy_processor_are_kept_flagged_and_only_ever_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    device, clock = use(SlowDevice(), monkeypatch), FakeClock(1_800_000_000 * 10**9)
    monkeypatch.setattr(Contention, "share", lambda _: 0.48)
    # A GPU's own times say nothing of the host's processor.
    assert ceilings_for(device, clock=clock)[1] == "measured now"
    device.kind, device.key = "cpu", {"processor": "of a test"}
    doubt = (
        "the ceilings are uncertain: others had the processor for 48 % of the time while they were measured: "
        "recalibrate when the machine is idle"
    )
    first, remark = ceilings_for(device, clock=clock)
    assert (first.doubt, remark) == (doubt, f"measured now; {doubt}")
    runs = device.runs
    clock.advance(MOST_DOUBTED_S)
    assert ceilings_for(device, clock=clock) == (first, f"kept from 2027-01-15; {doubt}")
    assert device.runs == runs, "a warm start measures nothing"
    # Slower, as others take more of it now: what was reached once can be reached.
    device.rates = {precision: rate / 2 for precision, rate in device.rates.items()}
    clock.advance(1)
    second, _ = ceilings_for(device, clock=clock)
    assert device.runs > runs
    assert (second.compute, second.doubt) == (first.compute, doubt)
    # What was measured undisturbed stands by itself, and a busy hour later changes nothing of it.
    monkeypatch.setattr(Contention, "share", lambda _: 0.01)
    third, remark = ceilings_for(device, recalibrate=True, clock=clock)
    assert (third.doubt, remark) == ("", "measured now")
    assert third.compute[Precision.FP32] < first.compute[Precision.FP32]
    monkeypatch.setattr(Contention, "share", lambda _: 0.9)
    device.rates = {precision: rate / 2 for precision, rate in device.rates.items()}
    fourth, _ = ceilings_for(device, recalibrate=True, clock=clock)
    assert (fourth.compute, fourth.doubt) == (third.compute, "")


def test_contention_is_the_wait_of_the_thread_that_waited_most(tmp_path: Path) -> None:
    for thread in ("1", "2"):
        (tmp_path / "task" / thread).mkdir(parents=True)
        (tmp_path / "task" / thread / "schedstat").write_text("5 7 9\n")
    contention = Contention(tmp_path)
    assert contention.share() == 0.0
    (tmp_path / "task" / "2" / "schedstat").write_text(f"5 {10**15} 9\n")
    assert contention.share() == 1.0
    (tmp_path / "task" / "2" / "schedstat").write_text("nothing")
    assert contention.share() == 0.0
