import json
import re
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from support.drivers import SLICE, A, B, FakeDriver
from support.nodes import node_of

from gpu_profile.catalogue import SIGNALS
from gpu_profile.cli import machine, run
from gpu_profile.cli.doctor import look, render
from gpu_profile.cli.finding import Finding, FindingState
from gpu_profile.driver import grammar, simulated
from gpu_profile.testing import FakeClock

Capture = pytest.CaptureFixture[str]

NODE = node_of("H200 SXM", "A10G") + 'unsupported = ["nvmlDeviceGetTemperature"]\n'


@pytest.fixture
def node(tmp_path: Path) -> str:
    return f"simulated:{simulated.create(tmp_path / 'node', NODE)}"


def findings(capsys: Capture) -> dict[str, dict[str, object]]:
    """The findings by subject; the last of each."""
    return {each["subject"]: each for each in json.loads(capsys.readouterr().out)["findings"]}


def test_where_gpus_can_be_read_it_ends_with_0_and_says_what_each_tells(node: str, capsys: Capture) -> None:
    assert run(["doctor", "--backend", node]) == 0
    out = capsys.readouterr().out
    uuids = simulated.Truth(node.partition(":")[2]).uuids
    assert f"NVIDIA H200, {uuids[0]}; read in " in out
    assert "gpm: needs Hopper or newer" in out
    assert re.search(r"not all .*\btemperature\b.*: not supported by this GPU", out)
    assert "not read:" not in out
    assert "not needed:" not in out
    assert "driver simulated:" in out
    assert out.endswith("\nGPUs can be read.\n")


def test_where_none_can_it_ends_with_1_and_every_line_that_fails_says_what_to_do(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["doctor", "--json", "--backend", "smi"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["driver"]) == (False, "smi")
    failed = [each for each in found["findings"] if each["state"] in ("fails", "missing")]
    assert "GPUs" in [each["subject"] for each in failed]
    assert all(each["to_do"] for each in failed)


def test_gpus_that_are_listed_and_all_lost_are_none_that_can_be_read(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver(FakeClock(), [A, B], lost={A.uuid, B.uuid})
    monkeypatch.setattr(grammar, "open_driver", lambda *_, **__: driver)
    assert run(["doctor", "--backend", "nvml"]) == 1
    out = capsys.readouterr().out
    assert len(re.findall(r"^fails +GPU \d +it fell off the bus$", out, re.MULTILINE)) == 2
    assert out.endswith("\nNo GPU can be read.\n")
    driver.lost.discard(B.uuid)
    assert run(["doctor", "--backend", "nvml"]) == 0


def test_the_json_has_each_group_of_signals_with_the_reason_for_what_is_missing(node: str, capsys: Capture) -> None:
    assert run(["doctor", "--json", "--backend", node]) == 0
    reads = [each for each in json.loads(capsys.readouterr().out)["findings"] if each["subject"] == "reads"]
    first, second = (each["data"]["groups"] for each in reads)
    assert first["gpm"]["sm"] is None
    assert second["gpm"]["sm"] == "needs Hopper or newer"
    assert second["core"]["energy"] is None
    assert first["limits"]["fan"] == "not read: the group limits is off"
    assert sorted(key for group in first.values() for key in group) == sorted(signal.key for signal in SIGNALS)


def test_it_says_what_cuda_would_see(node: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert run(["doctor", "--json", "--backend", node]) == 0
    sees = findings(capsys)["CUDA sees"]
    assert sees["found"] == "0: GPU 1 (CUDA_VISIBLE_DEVICES='1', CUDA_DEVICE_ORDER=PCI_BUS_ID)"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert run(["doctor", "--json", "--backend", node]) == 0
    sees = findings(capsys)["CUDA sees"]
    assert sees["state"] == "missing"
    assert "CUDA_VISIBLE_DEVICES is empty" in str(sees["found"])


def test_the_node_s_timeline_of_a_simulated_node_shows_its_devices(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver = FakeDriver(FakeClock(), [A, SLICE, B], name="node:/run", recorded_driver="simulated:/node")
    monkeypatch.setattr(grammar, "open_driver", lambda *_, **__: driver)
    assert run(["doctor", "--json", "--backend", "node"]) == 0
    assert findings(capsys)["CUDA sees"]["found"] == (
        "0: GPU 1 (CUDA_VISIBLE_DEVICES is not set; simulated GPUs with MIG instances have no number)"
    )


def test_a_device_that_is_lost_is_told_and_the_others_are_read(tmp_path: Path, capsys: Capture) -> None:
    lost = f'{NODE}\n[[fault]]\nkind = "gpu_lost"\ndevice = 0\nfrom_s = 0\n'
    node = simulated.create(tmp_path / "node", lost)
    assert run(["doctor", "--json", "--backend", f"simulated:{node}"]) == 0
    found = findings(capsys)
    assert found["GPU 1"]["state"] == "ok"
    assert "it fell off the bus" in str(found["driver says"]["found"])


def test_a_backend_that_is_none_is_a_slip_of_the_users(capsys: Capture) -> None:
    assert run(["doctor", "--backend", "nvlm"]) == 2
    assert "did you mean 'nvml'?" in capsys.readouterr().err


def test_it_imports_no_framework(node: str) -> None:
    before = set(sys.modules)
    assert run(["doctor", "--backend", node]) == 0
    assert not {"torch", "tensorflow", "jax", "cupy", "numba"} & (set(sys.modules) - before)


def test_a_check_that_hangs_keeps_what_it_found_and_holds_up_no_other() -> None:
    release = threading.Event()

    def hangs() -> Iterator[Finding]:
        yield Finding("first", FindingState.OK, "found")
        release.wait(60)

    def works() -> Iterator[Finding]:
        yield Finding("works", FindingState.OK, "found")

    found = look([("hangs", hangs), ("works", works)], limit_s=0.2)
    release.set()
    assert [(each.subject, each.state) for each in found] == [
        ("first", FindingState.OK),
        ("hangs", FindingState.FAILS),
        ("works", FindingState.OK),
    ]
    assert found[1].text == "did not answer within 0.2 s"
    assert found[1].to_do


def test_a_check_that_fails_is_one_finding() -> None:
    def broken() -> Iterator[Finding]:
        raise OSError("no such thing")
        yield

    (found,) = look([("broken", broken)])
    assert (found.state, found.text) == (FindingState.FAILS, "could not be looked at: OSError: no such thing")


def test_the_checks_of_the_machine_find_something_everywhere() -> None:
    for check in (
        machine.python,
        machine.clock,
        machine.container,
        machine.kernel_driver,
        machine.library,
        machine.smi,
    ):
        found = list(check())
        assert found, check
        assert all(each.text for each in found)
        assert all(each.to_do for each in found if each.state in (FindingState.FAILS, FindingState.MISSING))


def test_long_settings_of_the_container_are_cut_in_the_line_and_whole_in_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    required = "cuda>=13.0 " + " ".join(f"brand={number},driver>=535,driver<536" for number in range(60))
    monkeypatch.setenv("NVIDIA_REQUIRE_CUDA", required)
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    found = next(machine.container())
    assert f", NVIDIA_REQUIRE_CUDA={required[:60].rstrip()}…, " in found.text
    assert ", NVIDIA_VISIBLE_DEVICES=all" in found.text
    assert found.data["environment"]["NVIDIA_REQUIRE_CUDA"] == required


@pytest.mark.parametrize(
    ("only", "state"), [("0", FindingState.OK), ("1", FindingState.MISSING), ("", FindingState.INFO)]
)
def test_it_says_whether_counters_may_be_read_and_that_recording_kernels_needs_nothing(
    tmp_path: Path, only: str, state: FindingState
) -> None:
    for file, text in {
        "driver/nvidia/params": f"RmProfilingAdminOnly: {only}\n",
        "self/status": "CapEff:\t0000000000000000\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    (found,) = machine.counters(tmp_path)
    assert (found.subject, found.state) == ("counters", state)
    assert found.text.endswith("recording kernels and copies needs no privilege")
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in found.to_do) is (state is FindingState.MISSING)


@pytest.mark.parametrize(
    ("version", "state", "said"),
    [
        ("13.4.0", FindingState.OK, "cupti-python 13.4 has it"),
        ("13.3.0.post1", FindingState.OK, "cupti-python 13.3 has it"),
        ("13.0.1", FindingState.INFO, "needs cupti-python 13.3 or newer, not 13.0"),
        ("", FindingState.INFO, "needs cupti-python 13.3 or newer, which is not installed"),
    ],
)
def test_it_says_whether_counters_can_be_sampled(
    monkeypatch: pytest.MonkeyPatch, version: str, state: FindingState, said: str
) -> None:
    def installed(name: str) -> str:
        if not version:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", installed)
    found = machine.pm_sampling()
    assert (found.subject, found.state, found.text) == ("PM sampling", state, said)
    assert "gpu-profile[cupti]" in found.to_do


def test_what_to_do_stands_beneath_its_line() -> None:
    text = render(
        [Finding("good", FindingState.OK, "there"), Finding("bad", FindingState.FAILS, "gone", "bring it back")]
    )
    assert text.splitlines() == ["ok      good  there", "fails   bad   gone", "              → bring it back"]
