import os
import socket
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.serving_vllm import ExecutionContext, ModelMetrics, perf_module

from gpu_profile.serving.streams.forward_pass import decoded, frames_of
from gpu_profile.serving.vllm import ADDRESS, ServingStatLogger

CONFIG = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=2048), instance_id="v1")


def stats(
    running: int, decodes: int, prompts: tuple[int, int] | None = None, firsts: int = 0, ended: int = 0
) -> tuple[Any, Any]:
    """The fields of vLLM 0.15's `SchedulerStats` and `IterationStats` that are read."""
    computed, cached = prompts or (0, 0)
    iteration = SimpleNamespace(
        iteration_timestamp=1.0, num_generation_tokens=decodes + firsts, num_preempted_reqs=0,
        prompt_token_stats=SimpleNamespace(computed=computed, cached_tokens=cached, total=computed + cached),
        inter_token_latencies_iter=[0.01] * decodes, time_to_first_tokens_iter=[0.2] * firsts,
        finished_requests=[object()] * ended,
    )  # fmt: skip
    return SimpleNamespace(num_running_reqs=running, num_waiting_reqs=0, kv_cache_usage=0.1), iteration


def scheduled(logger: ServingStatLogger, *arguments: Any, **named: Any) -> tuple[int, ...]:
    return tuple(logger.scheduled(*stats(*arguments, **named)).values())


def test_prefill_and_decode_follow_from_the_fields_of_vllm() -> None:
    logger = ServingStatLogger(CONFIG)
    assert scheduled(logger, 1, 0, (300, 50), firsts=1) == (1, 300, 50, 0)
    assert scheduled(logger, 1, 1) == (0, 0, 0, 1)
    # A prompt of 3,000 tokens: a chunk that fills the iteration, and the rest in the next one.
    assert scheduled(logger, 2, 1) == (1, 2047, 0, 1)
    assert scheduled(logger, 2, 1, (3000, 0), firsts=1) == (1, 953, 2047, 1)
    assert scheduled(logger, 0, 2, ended=2) == (0, 0, 0, 2)


def test_the_older_fields_are_read_too() -> None:
    scheduler = SimpleNamespace(num_running_reqs=2)
    iteration = SimpleNamespace(
        num_prompt_tokens=70, time_per_output_tokens_iter=[0.1], time_to_first_tokens_iter=[0.2], finished_requests=[]
    )
    assert tuple(ServingStatLogger(CONFIG).scheduled(scheduler, iteration).values()) == (1, 70, 0, 1)
    assert tuple(ServingStatLogger(CONFIG).scheduled(SimpleNamespace(num_running_reqs=0), None).values()) == (
        0,
        0,
        0,
        0,
    )


def test_without_computed_tokens_cached_ones_follow_from_the_hits_of_the_prefix_cache() -> None:
    logger = ServingStatLogger(CONFIG)

    def iteration(running: int, prompts: tuple[int, ...], requests: int, hits: int) -> tuple[int, ...]:
        caching = SimpleNamespace(requests=requests, queries=9999, hits=hits)
        fields = SimpleNamespace(
            num_prompt_tokens=sum(prompts), inter_token_latencies_iter=[0.01], finished_requests=[],
            time_to_first_tokens_iter=[0.2] * len(prompts),
        )  # fmt: skip
        scheduler = SimpleNamespace(num_running_reqs=running, prefix_cache_stats=caching)
        return tuple(logger.scheduled(scheduler, fields).values())

    assert iteration(2, (300,), 1, 50) == (1, 250, 50, 1)
    # A prompt of 3,000 tokens, of which 500 are cached: a chunk fills the iteration.
    assert iteration(2, (), 1, 500) == (1, 2047, 0, 1)
    assert iteration(2, (3000,), 0, 0) == (1, 453, 2547, 1)
    # Its client aborts it: its hits are no later prompt's.
    assert iteration(2, (), 1, 700) == (1, 2047, 0, 1)
    assert iteration(1, (), 0, 0) == (0, 0, 0, 1)
    assert iteration(2, (100,), 1, 40)[1:3] == (60, 40)


def estimated(
    logger: ServingStatLogger, bytes_read: float, decodes: int, prompts: tuple[int, int] | None = None, **named: Any
) -> int | None:
    """The contexts that the plug-in reports for this estimate of vLLM's."""
    scheduler, iteration = stats(decodes + (prompts is not None), decodes, prompts, **named)
    scheduler.perf_stats = SimpleNamespace(num_flops_per_gpu=1, num_read_bytes_per_gpu=bytes_read)
    return logger.scheduled(scheduler, iteration).get("sum_decode_kv_tokens")


def bytes_of(decodes: int, contexts: int, prompt: int = 0) -> int:
    work = ExecutionContext()
    if prompt:
        work.add(prompt, prompt, True)
    work.add(decodes, contexts, False)
    return ModelMetrics(None).get_read_bytes(work)


def settled(factor: float = 1.0) -> ServingStatLogger:
    """After enough iterations to trust the estimates, if they are right. The last ones have ended."""
    logger = ServingStatLogger(CONFIG)
    for step in range(50):
        estimated(logger, factor * bytes_of(3, 7003 + 3 * step), 3, ended=3 * (step == 49))
    return logger


def test_contexts_in_decode_follow_from_the_estimate_of_bytes_read() -> None:
    with perf_module():
        logger = settled()
        # vLLM counts the current token of each request too.
        assert estimated(logger, bytes_of(3, 9003), 3) == 9000
        assert "sum_decode_kv_tokens" not in logger.scheduled(*stats(2, 2))


def test_an_estimate_that_does_not_fit_the_tokens_gives_no_contexts() -> None:
    """Of other tokens, and of less than a token for each request."""
    with perf_module():
        logger = settled()
        assert estimated(logger, bytes_of(3, 7003) + 50_000, 3) is None
        assert estimated(logger, bytes_of(3, 3), 3) is None
        assert estimated(logger, bytes_of(3, 7003), 3) == 7000


@pytest.mark.parametrize("factor", [0.5, 2.0, 3.0, 3.7])
def test_estimates_that_are_wrong_by_a_factor_are_not_trusted_where_they_fit_by_chance(factor: float) -> None:
    """Twice the bytes give whole numbers, as the bytes of weights are a multiple of a context's. They grow too fast."""
    with perf_module():
        logger = settled(factor)
        assert estimated(logger, bytes_of(3, 9003), 3) is None
        assert estimated(logger, factor * bytes_of(3, 9006), 3) is None


def test_estimates_that_become_wrong_by_a_factor_give_no_contexts_from_then_on() -> None:
    with perf_module():
        logger = settled()
        assert estimated(logger, bytes_of(3, 9003), 3) == 9000
        assert {estimated(logger, 2 * bytes_of(3, 9006 + 3 * step), 3) for step in range(50)} == {None}


def test_the_contexts_beside_prompts_of_unclear_tokens_follow_from_the_iteration_before() -> None:
    """vLLM computed 100 tokens of a prompt, the plug-in takes it for 400."""
    with perf_module():
        logger = settled()
        assert estimated(logger, bytes_of(3, 9003), 3) == 9000
        assert estimated(logger, bytes_of(3, 9006, prompt=100), 3, (400, 0), firsts=1) == 9003
        # The next iteration has one request more.
        assert estimated(logger, bytes_of(4, 9509), 4) == 9505


class Windowed(ModelMetrics):
    window = 4096


@pytest.mark.parametrize("named", [{"ModelMetrics": Windowed}, {"ModelMetrics": None}, {"ExecutionContext": int}])
def test_without_a_usable_formula_all_else_is_reported(
    named: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """The layers have a window; vLLM has another interface."""
    caplog.set_level("INFO")
    with perf_module(**named):
        logger = ServingStatLogger(CONFIG)
        assert estimated(logger, bytes_of(3, 7003), 3) is None
        assert estimated(logger, bytes_of(3, 7003), 3) is None
    assert caplog.text.count("Contexts do not follow") == 1
    assert max(map(len, caplog.messages)) <= 200


def test_an_engine_that_hides_its_cached_tokens_reports_nothing_and_the_log_has_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ADDRESS, f"unix://{tmp_path}/serving")
    cache = SimpleNamespace(enable_prefix_caching=True)
    logger = ServingStatLogger(SimpleNamespace(**vars(CONFIG), cache_config=cache))
    logger.record(SimpleNamespace(num_running_reqs=1), SimpleNamespace(num_prompt_tokens=70))
    logger.record(*stats(1, 1))
    assert caplog.text.count("--no-enable-prefix-caching") == 1
    assert max(map(len, caplog.messages)) <= 200


def test_iterations_are_forwarded_and_an_idle_engine_sends_a_heartbeat(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ADDRESS, f"unix://{tmp_path}/serving")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(str(tmp_path / "serving"))
        receiving.settimeout(60)
        config = SimpleNamespace(**vars(CONFIG), parallel_config=SimpleNamespace(pipeline_parallel_size=2))
        logger = ServingStatLogger(config, 1)
        logger.record(*stats(2, 2))
        logger.record(*stats(0, 2, ended=2), None, 1)
        messages = [decoded(frames_of(receiving.recv(65536))) for _ in range(3)]
    # Several API servers of an engine are several publishers.
    worker = f"v1-{os.getpid()}"
    assert [(each.worker, each.rank, each.stages, each.decodes, each.idle) for each in messages] == [
        (worker, 1, 2, 2, False), (worker, 1, 2, 2, False), (worker, 1, 2, 0, True),
    ]  # fmt: skip


def test_without_an_address_and_after_an_error_nothing_reaches_vllm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    ServingStatLogger(CONFIG).record(*stats(1, 1))
    monkeypatch.setenv(ADDRESS, "nonsense")
    ServingStatLogger(CONFIG).record(*stats(1, 1))
    assert "are not reported" in caplog.text
    monkeypatch.setenv(ADDRESS, f"unix://{tmp_path}/serving")
    logger = ServingStatLogger(CONFIG)
    wrong: Any = SimpleNamespace(num_running_reqs="many")
    logger.record(wrong, SimpleNamespace(time_to_first_tokens_iter=3))
    logger.record(*stats(1, 1))
    assert caplog.text.count("not reported any more") == 1
    logger.log()
    logger.log_engine_initialized()
    logger.record_sleep_state(True, 1)


def test_the_entry_point_names_the_class() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    (value,) = pyproject["project"]["entry-points"]["vllm.stat_logger_plugins"].values()
    assert EntryPoint("gpu_profile", value, "vllm.stat_logger_plugins").load() is ServingStatLogger
