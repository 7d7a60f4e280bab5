import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.programs import printed

from gpu_profile.cli import run as command
from gpu_profile.cli.op import op
from gpu_profile.cli.op_text import ceilings_text, profile_text
from gpu_profile.errors import UsageError
from gpu_profile.recording import read_recording
from gpu_profile.roofline.ceilings import cache as ceiling_cache
from gpu_profile.roofline.ceilings.ceilings import Ceiling, Ceilings, Level
from gpu_profile.roofline.precision import Precision
from gpu_profile.roofline.workloads import WORKLOADS

pytest.importorskip("torch")

Capture = pytest.CaptureFixture[str]

CEILINGS = Ceilings(
    "A CPU",
    {},
    compute={
        Precision.FP32: Ceiling(126e9, "measured"),
        Precision.BF16: Ceiling(990e12, "datasheet", "not measured: no memory left"),
    },
    levels=(Level("L2", 2 << 20, Ceiling(90e9, "measured")), Level("memory", None, Ceiling(13.4e9, "formula"))),
    launch_s=3e-6,
    fault_s=0.25e-6,
    missing={"fp8": "there is no such product here"},
    calibrated_ns=1_795_000_000_000_000_000,
)
ABOUT = {
    "operation": "matmul",
    "shape": "1000×1000, 1000×1000",
    "dtype": "float32",
    "device": "cpu",
    "machine": "A CPU",
}
PROFILE: Mapping[str, Any] = {
    "operation": "matmul",
    "device": "A CPU",
    "runtime_ms": 17.24,
    "runs": {"n": 20, "median_ms": 17.24, "low_ms": 16.9, "high_ms": 18.1, "caches": "warm"},
    "regime": "COMPUTE_BOUND",
    "confidence": 0.82,
    "runner_up": "BALANCED",
    "reason": "FLOPs per second are nearer to their ceiling than bytes",
    "advice": "a lower precision or fewer FLOPs help",
    "precision": "fp32",
    "achieved_flops": 116e9,
    "achieved_bandwidth": 0.7e9,
    "flops_utilization": 0.92,
    "bandwidth_utilization": 0.052,
    "compute_intensity": 166.7,
    "ridge": 9.4,
    "attainable_flops": 126e9,
    "overhead_ratio": 0.0001,
    "first_touch_ratio": 0.19,
    "growth": None,
    "residency": "memory",
    "memory": {"allocated_mb": 400.0, "headroom_mb": 14_000.0, "total_available_mb": 16_000.0, "oom_risk": "LOW"},
    "reasons": {},
}
UNKNOWN: Mapping[str, Any] = dict.fromkeys(PROFILE) | {
    "operation": "matmul",
    "runtime_ms": 2.0,
    "runs": {"n": 1, "median_ms": 2.0, "low_ms": 2.0, "high_ms": 2.0, "caches": "unknown"},
    "regime": "UNKNOWN",
    "reason": "neither FLOPs nor bytes are known",
    "reasons": {"flops": "needs passes=2", "bytes": "no formula", "overhead": "no launch", "memory": "not told"},
}


class Machine:
    kind = device = "cpu"
    name = "A CPU"
    region_device = None


class Profiler:
    machine = Machine()
    ceilings = CEILINGS

    def __init__(self, *profiles: Mapping[str, Any]) -> None:
        self.profiles = list(profiles) or [PROFILE]
        self.calls: list[dict[str, Any]] = []

    def profile_operation(self, function: object, *args: Any, **options: Any) -> dict[str, Any]:
        self.calls.append(options)
        found = self.profiles[min(len(self.calls), len(self.profiles)) - 1]
        if not found:
            raise MemoryError
        return {**found, "reasons": dict(found["reasons"])}


Use = Callable[..., Profiler]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Has the command use a profiler that gives these profiles, one after the other."""

    def make(*profiles: Mapping[str, Any]) -> Profiler:
        profiler = Profiler(*profiles)
        monkeypatch.setattr(import_module("gpu_profile.cli.op"), "_profiler", lambda device, **options: profiler)
        return profiler

    return make


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Gives every machine the same ceilings; whether they were to be measured again, each time."""
    asked: list[bool] = []

    def ceilings_for(machine: object, *, recalibrate: bool, say: Callable[[str], None]) -> tuple[Ceilings, str]:
        asked.append(recalibrate)
        if recalibrate:
            say("measuring the memory's bandwidth")
        return CEILINGS, "measured now"

    monkeypatch.setattr(ceiling_cache, "ceilings_for", ceilings_for)
    return asked


def run(*arguments: str) -> None:
    op.main(list(arguments), prog_name="gpu-profile op", standalone_mode=False)


def fields(text: str) -> dict[str, str]:
    """The lines of a profile by their labels, longer ones joined."""
    found: dict[str, str] = {}
    label = ""
    for line in text.splitlines()[2:]:
        label = line[:15].strip() or label
        found[label] = f"{found.get(label, '')} {line[15:]}".strip()
    return found


def test_the_names_are_listed(capsys: Capture) -> None:
    run("--list")
    assert capsys.readouterr().out.split() == list(WORKLOADS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["matmull"], r"^unknown operation 'matmull': there are cos, .*; did you mean 'matmul'\?$"),
        ([], r"^which operation\? cos, .*attention; or --ceilings, or --visualize$"),
        (["cos", "--dtype", "int3"], "^unknown data type 'int3': there are float64, "),
        (["cos", "--plot", "missing/a.png"], "^missing/a.png: cannot be written: there is no directory"),
        (["cos", "--plot", "a"], r"^a: a figure's name ends in \.png, "),
        (["--visualize", "--output", "missing/a.png"], "^missing/a.png: cannot be written"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_runs(arguments: list[str], says: str, use: Use) -> None:
    profiler = use()
    with pytest.raises(UsageError, match=says):
        run(*arguments)
    assert profiler.calls == []


def test_a_profile_is_some_aligned_lines() -> None:
    text = profile_text(PROFILE, ABOUT, CEILINGS)
    assert text.splitlines()[0] == "matmul of 1000×1000 and 1000×1000, float32, on cpu: A CPU"
    assert fields(text) == {
        "time": "17.2 ms   median of 20 runs, warm caches; 95 % interval 16.9 ms – 18.1 ms",
        "regime": "COMPUTE_BOUND, confidence 82 %; else BALANCED",
        "why": "FLOPs per second are nearer to their ceiling than bytes",
        "arithmetic": "116 GFLOP/s   92 % of 126 GFLOP/s (fp32, measured)",
        "memory": "700 MB/s   5.2 % of 13.4 GB/s (memory, by formula)",
        "intensity": "167 FLOP/B   18 × the ridge of 9.4 FLOP/B",
        "overhead": "launching takes less than 0.1 % of the time",
        "device memory": "419 MB in use here, 14.7 GB of 16.8 GB left; risk of running out: LOW",
        "next step": "a lower precision or fewer FLOPs help",
    }


def test_what_is_not_known_is_a_dash_with_the_reason() -> None:
    found = fields(profile_text(UNKNOWN, ABOUT, CEILINGS))
    assert found["time"] == "2.00 ms   one run"
    assert found["regime"] == "UNKNOWN"
    assert found["arithmetic"] == found["intensity"] == "–   needs passes=2"
    assert found["memory"] == "–   no formula"
    assert found["overhead"] == "–   no launch"
    assert found["device memory"] == "–   not told"
    assert "next step" not in found


def test_a_rate_without_a_ceiling_has_the_reason() -> None:
    profile = {**PROFILE, "flops_utilization": None, "reasons": {"compute ceiling": "fp8: not here"}}
    assert fields(profile_text(profile, ABOUT, CEILINGS))["arithmetic"] == "116 GFLOP/s   fp8: not here"


def test_data_in_a_cache_is_held_against_that_cache() -> None:
    profile = {**PROFILE, "residency": "L2", "bandwidth_utilization": 0.5, "growth": 0.9}
    found = fields(profile_text(profile, ABOUT, CEILINGS))
    assert found["memory"] == "700 MB/s   50 % of 90.0 GB/s (L2, measured)"
    assert found["overhead"].endswith("; twice the size takes 90 % longer")


def test_much_time_for_new_memory_is_a_line_of_its_own() -> None:
    found = fields(profile_text({**PROFILE, "first_touch_ratio": 0.2}, ABOUT, CEILINGS))
    assert found["first touch"] == "20 % of the time goes to new memory, which counts as memory's"


def test_uncertain_ceilings_are_told_beside_the_profile_and_beneath_the_table() -> None:
    unsure = replace(CEILINGS, waited=0.48)
    found = fields(profile_text({**PROFILE, "reasons": {"ceilings": unsure.doubt}}, ABOUT, unsure))
    assert found["to note"].startswith("the ceilings are uncertain: others had the processor for 48 %")
    assert "the ceilings are uncertain" in ceilings_text(unsure)
    assert "uncertain" not in ceilings_text(CEILINGS)


def test_few_runs_have_no_95_percent_interval() -> None:
    runs = {"n": 3, "median_ms": 2.0, "low_ms": 1.0, "high_ms": 3.0, "caches": "unknown"}
    found = fields(profile_text({**PROFILE, "runs": runs}, ABOUT, CEILINGS))
    assert found["time"].endswith("median of 3 runs; from the least to the most 1.00 ms – 3.00 ms")


@pytest.mark.parametrize(
    ("shape", "says"),
    [("1000×1000", "1000×1000"), ("10000000, 10000000", "10,000,000 and 10,000,000"), ("2, 3, 4", "2, 3 and 4")],
)
def test_inputs_can_be_told_apart_and_large_ones_read(shape: str, says: str) -> None:
    text = profile_text(PROFILE, {**ABOUT, "shape": shape}, CEILINGS)
    assert text.startswith(f"matmul of {says}, float32, on cpu")


@pytest.mark.parametrize("profile", [PROFILE, UNKNOWN, {**PROFILE, "advice": "fuse it " * 40}])
def test_no_line_is_wider_than_100_characters(profile: Mapping[str, Any]) -> None:
    assert all(len(line) <= 100 for line in profile_text(profile, ABOUT, CEILINGS).splitlines())


def test_the_json_is_the_profile_with_what_was_run(use: Use, capsys: Capture) -> None:
    use()
    run("matmul", "--json", "--size", "10000", "--dtype", "bf16")
    found = json.loads(capsys.readouterr().out)
    assert found == {
        **PROFILE,
        "shape": "100×100, 100×100",
        "size": 10_000,
        "dtype": "bfloat16",
        "device": "cpu",
        "machine": "A CPU",
    }


def test_an_operation_runs_often_unless_told_otherwise(use: Use) -> None:
    profiler = use()
    run("layernorm", "--size", "100")
    run("cos", "--size", "100", "--repeats", "2", "--warmup", "0", "--flush")
    first, second = profiler.calls
    assert {key: first[key] for key in ("name", "repeats", "warmup", "flush", "passes")} == {
        "name": "layernorm",
        "repeats": 20,
        "warmup": 3,
        "flush": False,
        "passes": 2,
    }
    assert "weight" in first
    assert (second["repeats"], second["warmup"], second["flush"]) == (2, 0, True)


def test_the_doubling_test_is_made_only_where_nothing_else_tells(use: Use, capsys: Capture) -> None:
    profiler = use(PROFILE)
    run("cos", "--size", "10")
    assert ["growth" in call for call in profiler.calls] == [False]
    profiler = use(UNKNOWN, {**PROFILE, "growth": 0.1})
    run("cos", "--size", "10")
    assert [call.get("growth", False) for call in profiler.calls] == [False, True]
    assert "COMPUTE_BOUND" in capsys.readouterr().out


def test_in_a_recording_each_run_is_there_once(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PROFILE_RECORD", "somewhere")
    profiler = use(UNKNOWN)
    run("cos", "--size", "10")
    assert [call["growth"] for call in profiler.calls] == [True]


def test_if_twice_the_size_cannot_be_run_the_reason_is_told(use: Use, capsys: Capture) -> None:
    refused = "arguments of twice the size were refused: MemoryError: "
    use(UNKNOWN, {**UNKNOWN, "reasons": {**UNKNOWN["reasons"], "growth": refused}})
    run("cos", "--size", "10", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["regime"] == "UNKNOWN"
    assert found["reasons"]["growth"] == refused


def test_without_pytorch_that_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setenv("GPU_PROFILE_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert command(["op", "cos"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpu-profile: a named operation needs PyTorch: pip install 'gpu-profile[roofline]'")
    assert err.count("\n") == 1


@pytest.mark.parametrize("profile", [PROFILE, UNKNOWN], ids=["known", "unknown"])
def test_the_plot_is_written(profile: Mapping[str, Any], use: Use, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    use(profile)
    run("cos", "--size", "10", "--plot", str(tmp_path / "op.png"))
    assert (tmp_path / "op.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().err == f"wrote {tmp_path / 'op.png'}\n"


def test_the_ceilings_are_a_table_with_their_sources() -> None:
    lines = ceilings_text(CEILINGS).splitlines()
    assert lines[0] == "A CPU"
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in lines[4:] if line}
    assert rows["L2"] == "L2 90.0 GB/s up to 2.10 MB measured"
    assert rows["memory"] == "memory 13.4 GB/s any size by formula"
    assert rows["fp32"] == "fp32 126 GFLOP/s ridge 9.4 FLOP/B measured"
    assert rows["bf16"].endswith("data sheet not measured: no memory left")
    assert rows["empty launch"] == "empty launch 3.00 µs measured"
    assert rows["first touch"] == "first touch 250 ns a page of memory measured"
    assert rows["fp8"] == "fp8 – there is no such product here"
    assert lines[-1] == "measured 2026-11-18 11:06 UTC"


def test_ceilings_as_json_can_be_read_back(calibrated: list[bool], capsys: Capture) -> None:
    run("--ceilings", "--json", "--device", "cpu")
    assert Ceilings.from_json(json.loads(capsys.readouterr().out)) == CEILINGS
    assert calibrated == [False]


def test_calibrating_again_tells_on_standard_error_what_goes_on(calibrated: list[bool], capsys: Capture) -> None:
    run("--recalibrate", "--device", "cpu")
    out, err = capsys.readouterr()
    assert calibrated == [True]
    assert out.startswith("A CPU\n")
    assert err == "measuring the memory's bandwidth\nceilings: measured now\n"


def test_a_device_that_is_not_there_is_one_line(calibrated: list[bool]) -> None:
    with pytest.raises(UsageError, match="tpu"):
        run("cos", "--device", "tpu")


def test_visualize_draws_to_the_file_that_is_named(
    use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("matplotlib")
    from gpu_profile.roofline.plots import panels

    use()
    monkeypatch.setattr(panels, "sweep", lambda profiler, budget_s: [])
    run("--visualize", "--output", str(tmp_path / "four.png"))
    assert (tmp_path / "four.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"Performance figure written to {tmp_path / 'four.png'}\n"


def test_a_real_operation_is_profiled_and_recorded(calibrated: list[bool], tmp_path: Path, capsys: Capture) -> None:
    arguments = ("--size", "10000", "--device", "cpu", "--repeats", "5", "--json", "--record", str(tmp_path / "rec"))
    run("matmul", *arguments)
    found = json.loads(capsys.readouterr().out)
    assert found["flops"] == 2 * 100**3
    assert found["bytes"] == 3 * 100**2 * 4
    assert found["runs"]["n"] == 5
    recording = read_recording(tmp_path / "rec")
    assert {span.name for span in recording.spans} == {"matmul"}
    assert len(recording.spans) == 5


def test_nothing_heavy_is_loaded_with_the_command_line() -> None:
    code = "import sys, gpu_profile.cli.op; print([m for m in ('numpy', 'torch', 'matplotlib') if m in sys.modules])"
    assert printed("-c", code) == "[]\n"
