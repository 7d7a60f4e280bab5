import pytest

from gpu_profile.serving.packing import Packed, packed
from gpu_profile.serving.workers import EngineWorker, WorkerRole, role_of_span


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


@pytest.mark.parametrize(
    ("left", "before", "count", "tokens", "stored", "full", "found"),
    [
        ([300, 500], [0, 0], 1, 500, 0, False, Packed((1,), None)),  # the first answer is a later iteration's
        ([300, 500], [0, 64], 1, 300, 64, False, None),  # the other one has the stored tokens
        ([300, 500, 200], [0, 0, 0], 2, 500, 0, False, Packed((0, 2), None)),
        ([300, 500], [0, 0], 2, 512, 0, True, Packed((0,), 1)),  # the second one is cut
        ([300, 500], [0, 0], 2, 512, 0, False, None),
        ([300, 500], [0, 0], 1, 320, 0, False, Packed((0,), None)),  # whole pages
        ([1] * 20, [0] * 20, 13, 13, 0, False, None),  # too many to search
    ],
)
def test_the_sums_of_an_iteration_identify_its_prompts(
    left: list[int], before: list[int], count: int, tokens: int, stored: int, full: bool, found: Packed | None
) -> None:
    assert packed(left, before, count, tokens, stored, full=full) == found
