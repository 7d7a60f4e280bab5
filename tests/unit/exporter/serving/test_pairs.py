"""A request of a prefill worker and a decode worker has one total, on the span of the decode worker."""

import math
import random

import pytest

from gpu_profile.serving.pricing.cost_sums import RequestCost
from gpu_profile.serving.pricing.sharing import Unallocated
from gpu_profile.serving.streams.request_spans import ServedRequest
from gpu_profile.serving.streams.workers import WorkerRole
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.serving import CostTicket, pairs
from gpu_profile_exporter.serving.pairs import RequestPairs

S = 1_000_000_000
TRACE = b"\1" * 16
PREFILL, DECODE = WorkerRole.PREFILL, WorkerRole.DECODE
COST = RequestCost((2.0, 3.0), 0.3, 4.0, 0.5, None)


class Traces:
    """Makes tickets, as spans arrive."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.pairs = RequestPairs()

    def part(
        self, role: WorkerRole, start: int, end: int, *, trace: bytes = TRACE, prompt: int = 100, room: str = "",
        name: str = "", costs: bool = True,
    ) -> CostTicket:  # fmt: skip
        ticket = CostTicket(self.clock, 30 * S, role)
        ticket.request = ServedRequest(name, None, "", start * S, end * S, end * S, prompt, 5, None)
        self.pairs.take(trace, room, ticket)
        if costs:
            ticket.cost = COST._replace(joules=(float(start), 1.0))
        return ticket


def total(ticket: CostTicket) -> object:
    shown = ticket.attributes()
    return shown.get("gpu_profile.request.total.energy", shown.get("gpu_profile.request.total.reason"))


@pytest.mark.parametrize("first", [PREFILL, DECODE])
def test_the_decode_span_has_the_total_and_both_parts_and_the_prefill_span_its_own(first: WorkerRole) -> None:
    traces = Traces()
    if first is PREFILL:
        prefill, decode = traces.part(PREFILL, 2, 3), traces.part(DECODE, 3, 9)
    else:
        decode = traces.part(DECODE, 3, 9)
        assert not decode.is_ready
        prefill = traces.part(PREFILL, 2, 3)
    assert decode.is_ready
    assert prefill.is_ready
    shown = decode.attributes()
    assert {name.removeprefix("gpu_profile.request."): value for name, value in shown.items()} == {
        "energy": 4.0, "energy.marginal": 4.0, "energy.half_width": 0.3, "device_time": 0.5, "worker": "decode",
        "prefill.energy": 3.0, "total.energy": 7.0, "total.half_width": pytest.approx(math.hypot(0.3, 0.3)),
    }  # fmt: skip
    assert prefill.attributes()["gpu_profile.request.energy"] == 3.0
    assert prefill.attributes()["gpu_profile.request.worker"] == "prefill"
    assert total(prefill) is None


def test_a_decode_waits_for_its_prefill_and_says_what_is_missing() -> None:
    traces = Traces()
    alone, late, refused = (traces.part(DECODE, 1, 9, trace=bytes([n] * 16)) for n in range(1, 4))
    pending = traces.part(PREFILL, 1, 2, trace=b"\2" * 16, costs=False)
    failed = traces.part(PREFILL, 1, 2, trace=b"\3" * 16)
    failed.cost = COST._replace(reason=Unallocated.LOST)
    assert [each.is_ready for each in (alone, late, refused)] == [False, False, True]
    traces.clock.advance(31)
    assert alone.is_ready
    assert [total(each) for each in (alone, late, refused)] == [
        "prefill: span_missing", "prefill: not_settled_in_time", "prefill: iterations_lost",
    ]  # fmt: skip
    assert alone.attributes()["gpu_profile.request.energy"] == 2.0
    pending.cost = COST
    assert total(late) == 7.0
    own = traces.part(DECODE, 1, 9, trace=b"\4" * 16, costs=False)
    own.reason = "iterations_gone"
    assert own.is_ready
    assert total(own) == "decode: iterations_gone"


def test_a_prefill_is_in_one_total_where_a_decode_worker_restarted_and_spans_come_twice() -> None:
    """The first decode never ended. The router began the request anew."""
    traces = Traces()
    first, second = traces.part(PREFILL, 1, 2), traces.part(PREFILL, 5, 6)
    copy = traces.part(PREFILL, 5, 6)
    decode, again = traces.part(DECODE, 6, 9), traces.part(DECODE, 6, 9)
    assert decode.prefill is second
    assert again.prefill is None
    assert not copy.paired
    other = traces.part(DECODE, 6, 10)
    assert other.prefill is first


def test_requests_of_one_trace_are_told_apart_by_room_prompt_id_and_time() -> None:
    traces = Traces()
    prefills = [
        traces.part(PREFILL, 1, 2, prompt=50), traces.part(PREFILL, 1, 2, room="0xa"),
        traces.part(PREFILL, 2, 3, room="0xb"), traces.part(PREFILL, 3, 4, name="x"),
        traces.part(PREFILL, 4, 5, name="y"), traces.part(PREFILL, 20, 21),
    ]  # fmt: skip
    decodes = [
        traces.part(DECODE, 2, 9, prompt=50), traces.part(DECODE, 2, 9, room="0xa"),
        traces.part(DECODE, 2, 9, name="x"), traces.part(DECODE, 2, 9, name="y"),
    ]  # fmt: skip
    assert [prefills.index(each.prefill) for each in decodes if each.prefill] == [0, 1, 3, 4]
    assert traces.part(DECODE, 2, 9, prompt=7).prefill is None
    assert traces.part(DECODE, 2, 9, trace=b"\2" * 16).prefill is None


@pytest.mark.parametrize("first", [PREFILL, DECODE])
def test_several_answers_to_one_prompt_at_once_have_their_own_prefills(first: WorkerRole) -> None:
    """Only the first prefill computes the prompt: the others find it in the cache. The answers end in another order."""
    traces, times = Traces(), {PREFILL: [(1, 2), (2, 3), (3, 4)], DECODE: [(3, 7), (4, 8), (2, 9)]}
    parts = {role: [traces.part(role, *each) for each in times[role]] for role in sorted(times, key=first.__ne__)}
    assert [parts[PREFILL].index(each.prefill) for each in parts[DECODE] if each.prefill] == [1, 2, 0]


def test_pairs_of_one_trace_do_not_depend_on_the_order_of_spans() -> None:
    """An agent asks with prompts of one length, one after another. A decode begins 5 to 45 ms after its prefill."""
    draw, traces, wrong = random.Random(3), Traces(), 0  # noqa: S311
    for n in range(100):
        parts = []
        for at_ms in range(0, 2000, 100):
            end_ms = at_ms + 20
            parts.append((PREFILL, at_ms, at_ms, end_ms))
            parts.append((DECODE, at_ms, end_ms + draw.randint(5, 45), end_ms + 70))
        draw.shuffle(parts)
        tickets = {(role, at): traces.part(role, start, end, trace=bytes([n] * 16)) for role, at, start, end in parts}
        wrong += sum(
            ticket.prefill is not tickets[PREFILL, at] for (role, at), ticket in tickets.items() if role is DECODE
        )
    assert wrong == 0


def test_a_total_that_was_sent_keeps_its_prefill() -> None:
    traces = Traces()
    far, decode = traces.part(PREFILL, 1, 2), traces.part(DECODE, 6, 9)
    assert decode.prefill is far
    decode.sent = True
    near = traces.part(PREFILL, 5, 6)
    assert decode.prefill is far
    assert traces.part(DECODE, 2, 9).prefill is near


def test_parts_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_MOST", 10)
    monkeypatch.setattr(pairs, "_MOST_IN_TRACE", 4)
    traces = Traces()
    for n in range(30):
        traces.part(PREFILL, 1, 2, trace=bytes([n] * 16))
        traces.part(PREFILL, n, n + 1, trace=b"\xff" * 16)
    assert sum(map(len, traces.pairs._parts.values())) == traces.pairs._kept <= 10
