import pytest

from gpu_profile.serving.streams.request_spans import ServedRequest, SpanFault, served_request
from gpu_profile.serving.streams.tenants import NO_TENANT, OTHER, ModelUses, Tenants

S = 1_000_000_000
#: As vLLM 0.11 writes it.
VLLM: dict[str, object] = {
    "gen_ai.response.model": "llama", "gen_ai.request.id": "cmpl-1", "gen_ai.request.max_tokens": 64,
    "gen_ai.request.n": 1, "gen_ai.usage.prompt_tokens": 100, "gen_ai.usage.completion_tokens": 20,
    "gen_ai.latency.time_in_queue": 0.5, "gen_ai.latency.time_to_first_token": 0.75, "gen_ai.latency.e2e": 1.5,
}  # fmt: skip


def test_a_span_of_vllm_gives_the_times_of_its_request() -> None:
    request = served_request("llm_request", 10 * S, {**VLLM, "team": "a"}, "team")
    assert request == ServedRequest(
        "cmpl-1", "a", "llama", 10 * S + S // 2, 10 * S + 3 * S // 4, 11 * S + S // 2, 100, 20, None
    )


@pytest.mark.parametrize("name", ["decode Req 1a2b3c4d", " Req 1a2b3c4d", "Req 1a2b3c4d"])
def test_a_span_of_sglang_and_the_names_of_the_specification_are_read(name: str) -> None:
    attributes: dict[str, object] = {
        "rid": "1a2b3c4d", "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 1,
        "gen_ai.usage.cached_tokens": 0, "gen_ai.latency.time_to_first_token": 0.1, "gen_ai.latency.e2e": 0.1,
    }  # fmt: skip
    request = served_request(name, 0, attributes, None)
    assert isinstance(request, ServedRequest)
    assert (request.id, request.tenant, request.prompt, request.completion, request.cached) == (
        "1a2b3c4d",
        None,
        7,
        1,
        0,
    )
    assert request.scheduled_ns == 0


@pytest.mark.parametrize("name", ["chat gpt-4", "POST /v1/completions", "llm_request2", "Req"])
def test_other_spans_are_no_requests(name: str) -> None:
    assert served_request(name, 0, VLLM, None) is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"gen_ai.usage.prompt_tokens": None}, SpanFault.RANGE),
        ({"gen_ai.usage.prompt_tokens": True}, SpanFault.RANGE),
        ({"gen_ai.usage.prompt_tokens": -1}, SpanFault.RANGE),
        ({"gen_ai.usage.prompt_tokens": 10**400}, SpanFault.RANGE),
        ({"gen_ai.usage.completion_tokens": 0}, SpanFault.RANGE),
        ({"gen_ai.usage.cached_tokens": 101}, SpanFault.RANGE),
        ({"gen_ai.latency.e2e": float("nan")}, SpanFault.RANGE),
        ({"gen_ai.latency.e2e": 0.1}, SpanFault.RANGE),
        ({"gen_ai.latency.time_in_queue": 0.9}, SpanFault.RANGE),
        ({"gen_ai.request.n": 2}, SpanFault.SEQUENCES),
    ],
)
def test_a_span_with_wrong_values_has_a_reason(change: dict[str, object], fault: SpanFault) -> None:
    assert served_request("llm_request", 0, {**VLLM, **change}, None) is fault


def test_a_request_of_one_token_ends_with_it() -> None:
    """As on a prefill worker of SGLang."""
    attributes = {name: value for name, value in VLLM.items() if name != "gen_ai.latency.e2e"}
    request = served_request("prefill Req 1a", 10 * S, {**attributes, "gen_ai.usage.completion_tokens": 1}, None)
    assert isinstance(request, ServedRequest)
    assert request.end_ns == request.first_token_ns == 10 * S + 3 * S // 4


def test_a_span_without_a_time_or_a_number_of_tokens_is_incomplete() -> None:
    for name in ("gen_ai.usage.prompt_tokens", "gen_ai.latency.time_to_first_token", "gen_ai.latency.e2e"):
        attributes = {key: value for key, value in VLLM.items() if key != name}
        assert served_request("llm_request", 0, attributes, None) is SpanFault.INCOMPLETE


def test_tenants_are_bounded_and_hostile_names_are_cut() -> None:
    tenants = Tenants(most=3)
    assert [tenants.name(each) for each in ("a", 7, "a", "b\n\x00" + "x" * 10**6)] == ["a", "7", "a", "b??" + "x" * 61]
    assert {tenants.name(f"t{place}") for place in range(100_000)} == {OTHER}
    assert tenants.name("a") == "a"
    nameless: list[object] = [None, "", "  ", True, 1.5, [], 10**5000]
    assert {tenants.name(each) for each in nameless} == {NO_TENANT}
    uses = ModelUses(most=2)
    assert [uses.of(tenant, model) for tenant, model in (("a", "x"), (None, ""), ("a", ""))] == [
        ("a", "x"), (NO_TENANT, ""), ("a", ""),
    ]  # fmt: skip
    assert len({uses.of(f"t{place}", f"m{place}") for place in range(1000)}) == 16
