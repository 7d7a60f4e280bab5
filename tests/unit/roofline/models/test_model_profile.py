"""A model's profile: its modules ranked and judged, the whole of them, and how it is told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.roofline import CEILINGS, FakeMachine  # noqa: E402
from torch import nn  # noqa: E402
from unit.roofline.models.modules import Residual, fixed, rows  # noqa: E402

from gpu_profile.errors import UsageError  # noqa: E402
from gpu_profile.regimes.operation import RegionOperation  # noqa: E402
from gpu_profile.roofline.models import ModelProfile, profile_model  # noqa: E402
from gpu_profile.roofline.models import run as model_run  # noqa: E402
from gpu_profile.roofline.profiler import GPUProfiler  # noqa: E402

# ---------------------------------------------------------------------- the whole


def test_modules_are_ranked_by_their_own_time_whose_shares_are_all_of_it(
    profiler: GPUProfiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed(monkeypatch, {"": 1e-3, "0": 2e-3, "0.inside": 5e-3, "1": 2e-3})
    found = profile_model(nn.Sequential(Residual(nn.Linear(4, 4)), nn.ReLU()), torch.randn(2, 4), profiler=profiler)
    assert [row.name for row in found.rows] == ["0.inside", "0", "1", "Sequential"]
    assert [row.share for row in found.rows] == pytest.approx([0.5, 0.2, 0.2, 0.1])
    assert found.whole.own_s == found.whole.total_s == pytest.approx(10e-3)
    assert rows(found)["0"].total_s == pytest.approx(7e-3)
    assert sum(found.regimes.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(("uncounted_s", "known"), [(0.09e-3, True), (0.2e-3, False)])
def test_the_whole_is_judged_if_next_to_no_time_is_left_uncounted_and_its_flops_are_a_lower_bound(
    profiler: GPUProfiler, monkeypatch: pytest.MonkeyPatch, uncounted_s: float, known: bool
) -> None:
    fixed(monkeypatch, {"": 0.0, "0": uncounted_s, "0.inside": 1e-3})
    found = profile_model(nn.Sequential(Residual(nn.Linear(4, 4, bias=False))), torch.randn(2, 4), profiler=profiler)
    assert found.counted_flops.value == 2 * 2 * 16
    assert found.counted_flops.share == pytest.approx(1e-3 / (1e-3 + uncounted_s))
    assert (found.whole.flops, found.whole.work.at_least) == (None, 64)
    assert (found.whole.position.compute is not None) is known
    share = "8 %" if known else "17 %"
    assert found.whole.reasons["flops"] == f"modules that take {share} of the time are not counted: needs passes=2"


def test_what_bounds_a_module_is_judged_by_its_own_time(profiler: GPUProfiler, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(512, 512, bias=False)
    flops, moved = 2 * 512**3, 4 * 3 * 512**2
    assert flops / moved > 5
    fixed(monkeypatch, {"": 0.0, "0": flops / 100e9 / 0.8})
    found = profile_model(nn.Sequential(linear), torch.randn(512, 512), profiler=profiler)
    row = rows(found)["0"]
    assert row.regime == found.whole.regime == "COMPUTE_BOUND"
    assert row.position.compute == pytest.approx(0.8)
    assert row.confidence is not None
    assert "80 % of the compute" in (row.advice or "")


def test_a_run_is_a_region_with_the_operation_of_the_whole(
    profiler: GPUProfiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    @contextmanager
    def region(name: str, *, device: Any) -> Iterator[Any]:
        execution = SimpleNamespace(name=name, device=device, stopped=0, operation=None)

        def stop() -> None:
            execution.stopped += 1
            assert execution.operation is None

        execution.stop = stop
        seen.append(execution)
        yield execution

    monkeypatch.setattr(model_run, "region", region)
    fixed(monkeypatch, {"": 0.0, "0": 1e-3})
    profile_model(nn.Sequential(nn.Linear(4, 4, bias=False)), torch.randn(2, 4), profiler=profiler, repeats=2, warmup=1)
    assert [(each.name, each.device, each.stopped) for each in seen] == [("Sequential", None, 1)] * 2
    assert all(isinstance(each.operation, RegionOperation) and each.operation.flops == 64 for each in seen)


def test_a_profiler_without_regions_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_run, "region", None)
    profiler = GPUProfiler("cpu", ceilings=CEILINGS, quiet=True, regions=False)
    assert profile_model(nn.ReLU(), torch.ones(2), profiler=profiler).whole.calls == 1


# ---------------------------------------------------------------------- how it is told


@pytest.fixture(name="told")
def one_profile(profiler: GPUProfiler, monkeypatch: pytest.MonkeyPatch) -> ModelProfile:
    fixed(monkeypatch, {"": 0.1e-3, "0": 0.5e-3, "0.inside": 2e-3, "1": 0.9e-3, "2": 0.0})
    monkeypatch.setattr(profiler, "machine", FakeMachine())
    model = nn.Sequential(Residual(nn.Linear(256, 256)), nn.ReLU(), nn.Identity())
    return profile_model(model, torch.randn(256, 256), profiler=profiler)


def test_the_text_has_a_line_for_each_module_and_the_rest_in_one(told: ModelProfile) -> None:
    text = told.text()
    assert text.splitlines()[0] == "Sequential on a test's machine: 3.50 ms"
    lines = [line for line in text.splitlines() if line.startswith(("0.inside", "1 ", "Sequential "))]
    assert len(lines) == 4
    assert [cell in lines[1] for cell in ("Linear", "2.00 ms", "57.1 %")] == [True] * 3
    assert "passes=2 counts the rest" in text
    assert "the hooks took" in text
    short = told.text(top=2)
    assert "3 more" in short
    narrow = told.text(width=100)
    assert max(map(len, narrow[narrow.index("\nmodule ") :].lstrip().split("\n\n")[0].splitlines())) <= 100
    assert "with inner" in text
    assert "with inner" not in narrow
    assert "Residual" not in short


def test_the_values_are_json_and_say_of_what_is_none_why(told: ModelProfile) -> None:
    values = json.loads(json.dumps(told.to_dict(), allow_nan=False))
    modules = {row["module"]: row for row in values["modules"]}
    assert modules["0.inside"]["own_ms"] == pytest.approx(2.0)
    assert modules["0"]["flops"] is None
    assert modules["0"]["reasons"]["flops"] == "needs passes=2"
    assert values["runtime_ms"] == pytest.approx(3.5)
    assert values["memory"]["oom_risk"] == "LOW"


def test_it_is_written_by_the_ending_of_the_files_name(told: ModelProfile, tmp_path: Path) -> None:
    assert told.save(tmp_path / "model.txt").read_text(encoding="utf-8").startswith("Sequential on")
    assert json.loads(told.save(tmp_path / "model.json").read_text(encoding="utf-8"))["model"] == "Sequential"
    for name in ("model.doc", "model"):
        with pytest.raises(UsageError, match=r"\.txt, \.json, \.png"):
            told.save(tmp_path / name)
    with pytest.raises(UsageError, match="cannot be written"):
        told.save(tmp_path / "absent" / "model.txt")


def test_every_module_that_does_something_is_a_point_of_the_roofline(
    told: ModelProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from gpu_profile.roofline.plots import roofs as plots

    drawn: list[Any] = []
    draw = plots.roofline_figure

    def noted(ceilings: Any, points: Any, **look: Any) -> Any:
        drawn.extend(points)
        return draw(ceilings, points, **look)

    monkeypatch.setattr(plots, "roofline_figure", noted)
    assert told.save(tmp_path / "model.png", dark=True).read_bytes().startswith(b"\x89PNG")
    assert [point.name for point in drawn][:3] == ["0.inside", "1", "0"]
    assert drawn[0].share == pytest.approx(2 / 3.5)
    assert "Sequential" not in [point.name for point in drawn]


def test_it_is_told_shortly_where_it_is_not_printed(told: ModelProfile) -> None:
    assert repr(told) == "<ModelProfile of Sequential: 3.50 ms, 5 modules>"
