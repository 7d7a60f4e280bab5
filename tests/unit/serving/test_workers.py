import pytest

from gpu_profile.serving.streams.workers import EngineWorker, WorkerRole, role_of_span


@pytest.mark.parametrize(
    ("engine", "worker"),
    [
        ("sglang", EngineWorker(WorkerRole.WHOLE, "sglang")),
        ("prefill:llm", EngineWorker(WorkerRole.PREFILL, "llm")),
        ("decode:llm/2", EngineWorker(WorkerRole.DECODE, "llm")),
        ("decoder:llm", EngineWorker(WorkerRole.WHOLE, "decoder:llm")),
    ],
)
def test_the_name_of_an_engine_says_which_part_of_requests_it_computes(engine: str, worker: EngineWorker) -> None:
    assert EngineWorker.named(engine) == worker


def test_each_token_is_counted_on_one_worker() -> None:
    parts = [
        EngineWorker.named(name).counts(*spans) for name, spans in (("prefill:a", (70, 1)), ("decode:a", (100, 20)))
    ]
    assert parts == [(70, 0), (0, 20)]
    assert EngineWorker.named("a").counts(70, 20) == (70, 20)


def test_sglang_names_spans_after_the_role() -> None:
    assert [role_of_span(name) for name in ("prefill Req 1a", "decode Req 1a", " Req 1a", "llm_request")] == [
        WorkerRole.PREFILL, WorkerRole.DECODE, WorkerRole.WHOLE, WorkerRole.WHOLE,
    ]  # fmt: skip
