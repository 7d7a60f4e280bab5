import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from support.regions import Stage

from gpu_profile import GpuBackendError, region
from gpu_profile.regions import running
from gpu_profile.regions.region import current_name
from gpu_profile.regions.session import process


def test_wrong_arguments_name_the_function_that_the_user_called() -> None:
    with pytest.raises(TypeError, match=r"^region\(\) got an unexpected keyword argument 'devise'"):
        region("x", devise=0)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["", 42, None, 1.5])
def test_name_that_is_no_name_is_a_type_error(name: Any) -> None:
    with pytest.raises(TypeError, match="name"):
        region(name)
    with pytest.raises(TypeError, match="non-empty string"):
        region.start(name)


class Thing:
    pass


@pytest.mark.parametrize("thing", [Thing, property(len), staticmethod(len), classmethod(type)])
def test_decorating_what_is_no_function_is_a_type_error(thing: Any) -> None:
    with pytest.raises(TypeError):
        region(thing)
    with pytest.raises(TypeError, match="put it on the function inside"):
        region("x")(thing)


@pytest.mark.parametrize("items", [-1, float("nan"), float("inf"), "3"])
def test_items_that_would_break_a_counter_are_refused(on_host: Stage, items: Any) -> None:
    with pytest.raises(ValueError, match="items is a finite number"):
        region("x", items=items)
    with region("x") as running, pytest.raises(ValueError, match="items is a finite number"):
        running.add_items(items)


def test_items_add_up_over_an_execution(on_host: Stage) -> None:
    once = region("decode", items=2)
    with once as running:
        running.add_items(3)
        running.add_items(0.5)
    with once:
        pass
    with region("prefill") as other:
        other.add_items(7)
    on_host.session.settle(final=True)
    assert [(e.name, e.items) for e in on_host.ended] == [("decode", 5.5), ("decode", 2.0), ("prefill", 7.0)]
    assert on_host.session.joiner.verdicts.durations["decode"].items == 7.5
    on_host.flush()
    assert on_host.attributes("prefill")["items"] == 7.0


# ------------------------------------------------------------------ what fails is not the user's


def test_without_any_tracer_provider_regions_are_counted(on_host: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "tracer", trace.NoOpTracer())
    with region("outer"), region("inner"):
        pass
    on_host.session.settle(final=True)
    assert (on_host.calls("outer"), on_host.calls("inner")) == (1, 1)


class Broken:
    """A stream or tracer of which everything fails."""

    device_uuid = "GPU-broken"

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError(f"{name} is broken")

        return fail


def _broken_stream() -> Any:
    raise RuntimeError("no stream in this thread")


@pytest.mark.parametrize("stream", [Broken(), _broken_stream])
def test_stream_that_fails_leaves_the_hosts_interval(on_host: Stage, stream: Any) -> None:
    process.use_stream(stream)
    with region("step"):
        on_host.clock.advance(0.5)
    execution = on_host.only()
    interval = execution.interval()
    assert interval is not None
    assert (interval.source, interval.end_ns - interval.start_ns) == ("host", 500_000_000)
    assert on_host.session.counts["mark errors"] == 1


@pytest.mark.parametrize("fails", ["record", "resolve"])
def test_stream_that_fails_later_leaves_the_hosts_interval(on_host: Stage, fails: str) -> None:
    class Failing:
        device_uuid = on_host.uuid
        marks = 0

        def record(self) -> int:
            self.marks += 1
            if fails == "record" and self.marks > 1:
                raise RuntimeError("the context is gone")
            return self.marks

        def resolve(self, mark: int) -> int | None:
            if fails == "resolve":
                raise RuntimeError("the event is gone")
            return mark

    process.use_stream(Failing())
    with region("step"):
        on_host.clock.advance(0.5)
    execution = on_host.only()
    assert execution.interval() == execution.host
    assert not execution.failed
    on_host.session.settle(final=True)
    assert on_host.session.counts["internal errors"] == 0


def test_tracer_that_fails_leaves_the_function_alone(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running, "tracer", Broken())

    @region("step")
    def step() -> str:
        return "result"

    with caplog.at_level(logging.WARNING):
        assert [step(), step()] == ["result", "result"]
    on_host.session.settle(final=True)
    assert on_host.calls("step") == 2
    assert on_host.session.counts["span errors"] == 2
    assert len(caplog.records) == 1


def test_clock_that_is_set_back_makes_no_negative_execution(on_host: Stage) -> None:
    now = iter([2_000, 1_000])
    on_host.session.now_ns = lambda: next(now)
    with region("step", span=False):
        pass
    execution = on_host.only()
    assert (execution.start_ns, execution.end_ns) == (2_000, 2_000)


# ------------------------------------------------------------------ strict


def without_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch, on_device=False, backend="replay:/nowhere/at/all")


def test_without_a_driver_regions_run_and_their_spans_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with without_driver(tmp_path, monkeypatch) as on_host:

        @region("step")
        def step() -> int:
            return 7

        assert step() == 7
        on_host.flush()
        assert "/nowhere/at/all" in on_host.attributes("step")["unjoined"]
        assert not [key for key in on_host.attributes("step") if key not in ("region", "unjoined")]
        assert on_host.session.joiner.verdicts.calls == {("step", "UNKNOWN", ""): 1}
        assert on_host.processor.unjoined == 1


Use = Callable[[], object]


@pytest.mark.parametrize(
    "use",
    [
        lambda: region("x", strict=True).__enter__(),
        lambda: region.start("x", strict=True),
        region("x", strict=True)(lambda: None),
        lambda: next(region("x", strict=True)(lambda: (yield))()),
    ],
    ids=["with", "start", "decorator", "generator"],
)
def test_strict_region_says_in_one_line_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Use
) -> None:
    with without_driver(tmp_path, monkeypatch) as on_host:
        on_host.run(0.1)
        with pytest.raises(GpuBackendError, match="/nowhere/at/all") as caught:
            use()
        assert "\n" not in str(caught.value)
        assert current_name() is None
        on_host.session.settle(final=True)
        assert not on_host.session.joiner.verdicts.durations


def test_strict_regions_run_where_a_driver_answers_even_if_it_is_lost_later(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_host.run(0.1)
    with region("x", strict=True):
        pass
    monkeypatch.setattr(on_host.session.sampler, "driver", None)
    with region("x", strict=True):
        pass
    monkeypatch.undo()
    on_host.session.settle(final=True)
    assert on_host.calls("x") == 2
