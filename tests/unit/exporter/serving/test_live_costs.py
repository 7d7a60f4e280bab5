"""The rows of the live page's table of costs: sums of the last minutes that add up to the engine's energy."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.exporter.serving.test_costs import SPAN, gpus, serving

from gpu_profile.catalogue import serving as rows
from gpu_profile.serving.joined import ServingEngine
from gpu_profile.serving.pricing.cost_sums import RequestCost
from gpu_profile.serving.pricing.sharing import Unallocated
from gpu_profile.serving.streams.finished import CostRefusal, FinishedRequest
from gpu_profile.serving.streams.tenants import ModelUse
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.readings.readings import MetricReading
from gpu_profile_exporter.serving.engine import REFUSALS, EngineProgress
from gpu_profile_exporter.serving.live_costs import LiveCosts

ALICE = ModelUse("alice", "m")


def engine(clock: FakeClock, *readings: Any, priced: Any = (), remark: str = "", waits_j: float = 0.0) -> Any:
    """An engine after a step, with readings as metric, attributes in turn, and value."""
    latest = [MetricReading(metric, dict(zip(about[::2], about[1::2], strict=True)), value)
              for metric, *about, value in readings]  # fmt: skip
    progress = EngineProgress(clock.now_ns() - 8_000_000_000, 12, waits_j, remark)
    return SimpleNamespace(name="e", latest=latest, priced=dict(priced), progress=progress)


def of(tenant: str, prefill_j: float, decode_j: float, requests: int = 4) -> list[Any]:
    """The readings of a tenant with 1,000 tokens of prefill and 100 of decode for each request."""
    phases = [("prefill", prefill_j, 1000), ("decode", decode_j, 100)]
    made: list[Any] = [(rows.SERVING_REQUESTS, "tenant", tenant, requests)]
    for phase, joules, tokens in phases:
        made.append((rows.SERVING_ENERGY, "tenant", tenant, "phase", phase, joules))
        made.append((rows.SERVING_DEVICE_TIME, "tenant", tenant, "phase", phase, joules / 100))
        made.append((rows.SERVING_TOKENS, "tenant", tenant, "phase", phase, tokens * requests))
    return made


def test_the_rows_of_an_engine_add_up_to_its_energy() -> None:
    clock = FakeClock()
    costs = LiveCosts(clock)
    clock.advance(120)
    taken = engine(
        clock,
        *of("a", 100.0, 300.0),
        *of("b", 200.0, 1000.0),
        # The same tenant with another model.
        (rows.SERVING_ENERGY, "tenant", "b", "model", "m", "phase", "decode", 0.0),
        (rows.SERVING_REQUESTS, "tenant", "b", "model", "m", 0),
        (rows.SERVING_HALF_WIDTH, "tenant", "b", 0.05),
        (rows.SERVING_HALF_WIDTH, "tenant", "b", "model", "m", 0.04),
        (rows.SERVING_REQUESTS, "tenant", "new", 1),
        # Work without a span is nobody's, and is not counted in requests.
        (rows.SERVING_ENERGY, "phase", "decode", 50.0),
        (rows.SERVING_UNALLOCATED, "reason", "idle", 349.5),
        (rows.SERVING_UNALLOCATED, "reason", "unexplained", 0.5),
        (rows.SERVING_UNALLOCATED, "reason", "devices_shared", 0),
        priced={("b", "decode"): (800.0, 320), ("a", "decode"): (1.0, 1), ("b", "prefill"): (0.0, 0)},
        waits_j=77.0,
    )
    costs.take(taken, "")
    state = costs.state()
    (shown,) = state["engines"]
    assert state["over_s"] == 120
    # A tenant without a half-width has no price: a part of its energy may be missing.
    assert shown["tenants"] == [
        ["b", 4, 4000, 400, 1200.0, 60.0, None, 2500.0, 12.0],
        ["a", 4, 4000, 400, 400.0, None, None, None, 4.0],
        ["", None, None, None, 50.0, None, None, None, None],
        ["new", 1, None, None, None, None, None, None, None],
    ]
    idle, unexplained = rows.UNALLOCATED_REASONS["idle"], rows.UNALLOCATED_REASONS["unexplained"]
    assert shown["unallocated"] == [[idle.meaning, 349.5, idle.remedy], [unexplained.meaning, 0.5, unexplained.remedy]]
    assert shown["whole"] == ["", 9, 8000, 800, 2000.0, None, None, 2500.0, 16.0]
    assert sum(row[4] or 0 for row in shown["tenants"]) + sum(row[1] for row in shown["unallocated"]) == 2000.0
    assert (shown["remark"], shown["waiting"]) == ("", (12, 77.0, 8))


def test_rows_are_of_the_last_ten_minutes_and_are_renewed_every_five_seconds() -> None:
    clock = FakeClock()
    costs = LiveCosts(clock)

    def joules(total: float, requests: int) -> list[Any]:
        costs.take(engine(clock, *of("a", total, 0.0, requests)), "")
        return [row[1:5:3] for row in costs.state()["engines"][0]["tenants"]]

    assert joules(10.0, 1) == [[1, 10.0]]
    clock.advance(4)
    assert joules(20.0, 2) == [[1, 10.0]]
    number = costs.state()["number"]
    clock.advance(1)
    assert joules(20.0, 2) == [[2, 20.0]]
    assert costs.state()["number"] > number
    for second in range(10, 1000, 5):
        clock.advance(5)
        last = joules(20.0 + second, 2)
    over_s = costs.state()["over_s"]
    assert 600 <= over_s <= 630
    assert last == [[0, over_s]]
    # A tenant that does nothing any more leaves the table.
    for _ in range(22):
        clock.advance(30)
        last = joules(1015.0, 2)
    assert last == []
    assert costs.state()["engines"][0]["whole"] == ["", 0, 0, 0, None, None, None, None, None]


def test_every_reason_has_words() -> None:
    assert list(rows.UNALLOCATED_REASONS) == list(map(str, Unallocated))
    assert set(REFUSALS) == set(CostRefusal)


def test_an_engine_says_why_it_has_no_costs(tmp_path: Path) -> None:
    source = gpus()
    with serving(source, tmp_path, "e") as costs:
        assert costs.state() == {"number": 0, "over_s": 0, "engines": []}
        costs.step()
        (shown,) = costs.state()["engines"]
        assert (shown["remark"], shown["waiting"]) == ("no GPU has answered yet", None)
        source.states |= gpus("GPU-1").states
        costs.engines["e"].begin(("GPU-1",))
        costs._clock.advance(5)  # type: ignore[attr-defined]
        costs.step()
        (shown,) = costs.state()["engines"]
        assert (shown["remark"], shown["waiting"]) == ("no message has arrived", (0, 0.0, None))


@pytest.mark.parametrize(
    ("ended", "reason", "priced"),
    [
        (FinishedRequest("1", ALICE, 100, 7, 40), None, {"prefill": (3.0, 60), "decode": (2.0, 7)}),
        # An engine that reports its own requests: the tokens are those of the span with the same number.
        (FinishedRequest("1", ALICE), Unallocated.NOT_IDENTIFIABLE, {"prefill": (3.0, 60), "decode": (2.0, 7)}),
        (FinishedRequest("2", ALICE), None, {}),
        (FinishedRequest("1", ALICE, 100, 7, 40), Unallocated.LOST, {}),
        (FinishedRequest("1", ALICE, 100, 7, 40), Unallocated.OTHERS, {}),
    ],
)
def test_the_price_of_tokens_is_that_of_requests_with_a_complete_cost(
    ended: FinishedRequest, reason: Unallocated | None, priced: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = [(ended, RequestCost((3.0, 2.0), 0.5, 4.0, 1.0, reason))]
    with serving(gpus("GPU-1"), tmp_path, "e") as costs:
        costs.step()
        estimator = costs.engines["e"]._estimator
        assert estimator is not None
        estimator._reports = True
        ticket = costs.request("any", "llm_request", 5, SPAN)
        monkeypatch.setattr(ServingEngine, "finished", lambda _: finished)
        costs.step()
        assert ticket is not None
        assert costs.engines["e"].priced == {("alice", phase): each for phase, each in priced.items()}
