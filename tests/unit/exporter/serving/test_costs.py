"""Engines, their GPUs and their requests, as the settings name them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.exporter import FakeProc

from gpu_profile.catalogue.samples import Device, DeviceKind, ProcessUse
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.driver import Capability
from gpu_profile.errors import UsageError
from gpu_profile.serving.pricing.sharing import Unallocated
from gpu_profile.testing import START_NS, FakeClock
from gpu_profile_exporter.config import ServingSettings
from gpu_profile_exporter.serving import ServingCosts
from gpu_profile_exporter.serving.devices import chosen
from gpu_profile_exporter.serving.listener import EngineMessage
from gpu_profile_exporter.serving.programs import OtherPrograms

SPAN = {
    "gen_ai.request.id": "1", "gen_ai.usage.prompt_tokens": 100, "gen_ai.usage.completion_tokens": 7,
    "gen_ai.usage.cached_tokens": 40, "gen_ai.latency.time_in_queue": 0.1, "gen_ai.latency.time_to_first_token": 0.2,
    "gen_ai.latency.e2e": 0.5, "gen_ai.response.model": "m", "user": "alice",
}  # fmt: skip


def gpus(*uuids: str, counted: bool = True) -> Any:
    """A source of devices, with or without an energy counter."""
    capability = {ENERGY: Capability(counted, "" if counted else "not supported")}
    states = {
        uuid: SimpleNamespace(device=Device(uuid, index=i), capabilities=capability, processes=(), processes_ns=None)
        for i, uuid in enumerate(uuids)
    }
    return SimpleNamespace(states=states)


@contextmanager
def serving(source: Any, tmp_path: Path, *engines: str, **settings: Any) -> Iterator[ServingCosts]:
    addresses = tuple((name, f"unix:{tmp_path}/{name}.sock") for name in engines)
    costs = ServingCosts(ServingSettings(engines=addresses, tenant="user", **settings), source, FakeClock())
    try:
        yield costs
    finally:
        costs.stop()


def told(costs: ServingCosts) -> dict[tuple[str, ...], float]:
    """The readings by the name and the attributes' values."""
    return {(r.metric.otel.removeprefix("gpu_profile.serving."), *r.attributes.values()): r.value
            for r in costs.readings(0)}  # fmt: skip


def test_a_request_is_counted_for_its_tenant_and_its_ticket_waits(tmp_path: Path) -> None:
    with serving(gpus("GPU-1", "GPU-2"), tmp_path, "e") as costs:
        assert costs.request("any", "GET /", 5, {}) is None
        costs.step()
        # The place of a request that has just ended is not searched for yet.
        ticket = costs.request("any", "llm_request", START_NS, SPAN)
        copy, old = (costs.request("any", "llm_request", start_ns, SPAN) for start_ns in (START_NS, 5))
        assert ticket is not None
        assert not ticket.is_ready
        broken = costs.request("any", "llm_request", 5, {**SPAN, "gen_ai.usage.prompt_tokens": -1})
        assert broken is not None
        assert (broken.is_ready, broken.attributes()) == (True, {"gpu_profile.request.reason": "range"})
        costs.step()
        assert ticket.attributes() == {"gpu_profile.request.reason": "not_identifiable_yet"}
        assert (copy and copy.attributes()) == {"gpu_profile.request.reason": "repeated"}
        assert (old and old.attributes()) == {"gpu_profile.request.reason": "iterations_gone"}
        found = told(costs)
        assert found["requests", "e", "alice", "m"] == 2
        assert found["tokens", "e", "alice", "m", "prefill"] == 120
        assert found["tokens", "e", "alice", "m", "decode"] == 14
        assert found["cached", "e", "alice", "m"] == 80
        assert found["rejected", "e", "range"] == 1
        assert found["device", "e", "GPU-1"] == found["device", "e", "GPU-2"] == 1
        assert found["energy.unallocated", "e", "idle"] == 0
        assert not [key for key in found if key[0] in ("energy", "device.time", "half_width", "cached.energy")]


def test_a_tenants_models_have_series_of_their_own_and_cached_tokens_a_saving_once_it_can_be_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(gpus("GPU-1"), tmp_path, "e") as costs:
        costs.step()
        estimator = costs.engines["e"]._estimator
        assert estimator is not None
        for name, price_j in (("m", None), ("n", 0.25)):
            monkeypatch.setattr(estimator.account, "saving", lambda n, price_j=price_j: price_j and n * price_j)
            span = {**SPAN, "gen_ai.request.id": name, "gen_ai.response.model": name}
            ticket = costs.request("any", "llm_request", 5, span)
            costs.step()
            assert ticket is not None
            assert ticket.saved_j == (price_j and 10.0)
        found = told(costs)
        assert found["requests", "e", "alice", "m"] == found["requests", "e", "alice", "n"] == 1
        assert {key: value for key, value in found.items() if key[0] == "cached.energy"} == {
            ("cached.energy", "e", "alice", "n"): 10.0
        }


def test_a_time_with_another_program_is_left_out_and_its_requests_say_so(tmp_path: Path) -> None:
    source, proc = gpus("GPU-1"), FakeProc(tmp_path / "proc")
    proc.add(7, group=7)
    proc.add(8, group=8)
    with serving(source, tmp_path, "e") as costs:
        costs.step()
        (engine,), state = costs.engines.values(), source.states["GPU-1"]
        engine._programs = OtherPrograms("e", ["GPU-1"], costs._clock, proc=proc.root)
        for listed_ns, share in ((5, 0.0), (6, 0.5)):
            state.processes_ns = costs._clock.now_ns() + listed_ns * 10**9
            state.processes = ProcessUse(7, None, 0.5), ProcessUse(8, None, share)
            costs._clock.advance(listed_ns)  # type: ignore[attr-defined]
            ticket = costs.request("any", "llm_request", costs._clock.now_ns(), SPAN)
            costs._listener._waiting["e"].add(EngineMessage([], 0))
            costs.step()
            assert engine.progress is not None
            assert engine.progress.remark.startswith("another program works" if share else "no prices yet")
            assert told(costs)["programs.other", "e"] == (share > 0)
            assert ticket is not None
            assert ticket.likely == ("other_programs" if share else "not_identifiable_yet")
        assert engine._estimator is not None
        ((start_ns, end_ns, reason),) = engine._estimator.account._spoiled._some
        assert (end_ns - start_ns, reason) == (7 * 10**9, Unallocated.OTHERS)


def test_with_several_engines_the_service_names_the_requests_engine(tmp_path: Path) -> None:
    with serving(gpus("GPU-1", "GPU-2"), tmp_path, "a", "b", devices=(("a", "0"), ("b", "GPU-2"))) as costs:
        costs.step()
        costs.request("b", "llm_request", 5, SPAN)
        stray = costs.request("c", "llm_request", 5, SPAN)
        assert stray is not None
        assert stray.attributes() == {"gpu_profile.request.reason": "engine_not_known"}
        costs.step()
        assert [key for key in told(costs) if key[0] in ("requests", "device")] == [
            ("device", "a", "GPU-1"), ("requests", "b", "alice", "m"), ("device", "b", "GPU-2"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("engines", "devices", "says"),
    [
        (("a",), (("x", "0"),), "--serving-devices: x is no engine of --serving: a"),
        (("a", "b"), (("a", "0"),), "--serving-devices: names no GPU of b; with several engines, each needs its own"),
        (("a", "b"), (("a", "0,1"), ("b", "1")), "--serving-devices: a and b share 1; such engines have no costs"),
    ],
)
def test_engines_need_gpus_of_their_own(engines: tuple[str, ...], devices: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught, serving(gpus("GPU-1"), tmp_path, *engines, devices=devices):
        pass
    assert str(caught.value) == says


def test_gpus_are_found_by_index_or_uuid_and_slices_are_left_out() -> None:
    found = [Device("GPU-a", index=0), Device("MIG-x", "GPU-a", DeviceKind.MIG, index=0), Device("GPU-b", index=1)]
    assert chosen("", found) == (("GPU-a", "GPU-b"), "")
    assert chosen("1,GPU-a,1", found) == (("GPU-b", "GPU-a"), "")
    assert chosen("7", found) == ((), "this node has no GPU 7")
    assert chosen("0", ()) == ((), "no GPU has answered yet")


@pytest.mark.parametrize(
    ("source", "devices", "says"),
    [
        (gpus("GPU-1", counted=False), (), "GPU GPU-1 has no energy counter: not supported"),
        (gpus("GPU-1"), (("e", "1"),), "this node has no GPU 1"),
    ],
)
def test_an_engine_without_usable_gpus_is_logged_once_and_has_no_series(
    source: Any, devices: Any, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(source, tmp_path, "e", devices=devices) as costs:
        costs.step()
        costs.step()
        assert [record.message for record in caplog.records] == [f"engine e has no costs: {says}"]
        assert told(costs) == {}


def test_spans_of_a_prefill_and_a_decode_worker_go_to_their_engines_and_count_once(tmp_path: Path) -> None:
    """SGLang's workers have the same service name, and the same numbers of tokens. vLLM's have names of their own."""
    names = ("prefill:llm", "decode:llm")
    with serving(gpus("GPU-1", "GPU-2"), tmp_path, *names, devices=tuple(zip(names, "01", strict=True))) as costs:
        costs.step()
        trace = b"1" * 16
        prefill = SPAN | {"gen_ai.usage.completion_tokens": 1}
        first = costs.request("sglang", "prefill Req 1a", START_NS, prefill, trace)
        second = costs.request("sglang", "decode Req 2b", START_NS, SPAN, trace)
        assert second is not None
        assert second.prefill is first
        for service, name, ours in (
            ("decode:llm", "llm_request", True), ("llm", "decode Req 1", True), ("llm", "llm_request", False),
            ("prefill:llm", "decode Req 1", False),
        ):  # fmt: skip
            ticket = costs.request(service, name, START_NS - 1, SPAN, b"2" * 16)
            assert ticket is not None
            assert (ticket.reason == "engine_not_known") is not ours
        costs.step()
        found = told(costs)
        counted = {key: value for key, value in found.items() if key[0] in ("requests", "tokens", "cached")}
        assert counted == {
            ("tokens", "prefill:llm", "alice", "m", "prefill"): 60,
            ("cached", "prefill:llm", "alice", "m"): 40,
            ("tokens", "decode:llm", "alice", "m", "decode"): 14,
            ("requests", "decode:llm", "alice", "m"): 2,
        }
        assert second.attributes() == {
            "gpu_profile.request.reason": "not_identifiable_yet", "gpu_profile.request.worker": "decode",
            "gpu_profile.request.total.reason": "decode: not_identifiable_yet",
        }  # fmt: skip


def test_a_worker_alone_takes_only_the_spans_of_its_role_and_has_no_total(tmp_path: Path) -> None:
    """The other worker is on another node."""
    with serving(gpus("GPU-1"), tmp_path, "decode:llm") as costs:
        costs.step()
        other, own = (
            costs.request("sglang", f"{each} Req 1a", START_NS, SPAN, b"1" * 16) for each in ("prefill", "decode")
        )
        for service in ("prefill:llm", "decode:other"):
            vllm = costs.request(service, "llm_request", START_NS, SPAN, b"1" * 16)
            assert vllm is not None
            assert vllm.reason == "engine_not_known"
        assert other is not None
        assert own is not None
        assert other.reason == "engine_not_known"
        assert not own.paired
        assert own.attributes() == {
            "gpu_profile.request.reason": "not_settled_in_time", "gpu_profile.request.worker": "decode",
        }  # fmt: skip
