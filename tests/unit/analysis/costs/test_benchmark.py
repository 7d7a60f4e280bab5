"""Results as vLLM, SGLang and AIPerf write them: their keys, with made-up numbers."""

import json
from dataclasses import replace

import pytest

from gpu_profile.analysis.costs import BenchmarkResult, read_result
from gpu_profile.errors import UsageError

VLLM = {
    "date": "20260101-120000", "endpoint_type": "openai", "backend": "openai", "label": None, "model_id": "m",
    "tokenizer_id": "m", "num_prompts": 4, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8,
    "duration": 12.5, "completed": 4, "failed": 2, "total_input_tokens": 4096, "total_output_tokens": 512,
    "request_throughput": 0.32, "request_goodput": None, "output_throughput": 40.96, "total_token_throughput": 368.64,
    "input_lens": [1024, 1024, 1024, 1024], "errors": ["", "", "", ""], "mean_ttft_ms": 31.0,
}  # fmt: skip
SGLANG = (
    '{"backend": "sglang", "dataset_name": "random", "request_rate": Infinity, "max_concurrency": null, '
    '"random_input_len": 1024, "duration": 12.5, "completed": 4, "total_input_tokens": 4096, '
    '"total_output_tokens": 512, "total_output_tokens_retokenized": 511, "accept_length": null}\n'
)
AIPERF = {
    "schema_version": "1.5", "request_count": {"unit": "requests", "avg": 4.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1024.0, "sum": 4096},
    "output_sequence_length": {"unit": "tokens", "avg": 128.0, "sum": 512},
    "benchmark_duration": {"unit": "sec", "avg": 12.5}, "input_config": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (
            json.dumps(VLLM),
            {
                "model_id": "m", "backend": "openai", "num_prompts": 4, "request_rate": "inf", "burstiness": 1.0,
                "max_concurrency": 8,
            },
        ),
        (
            SGLANG.replace("4096", "1") + SGLANG,
            {"backend": "sglang", "dataset_name": "random", "request_rate": "inf", "random_input_len": 1024},
        ),
        ("\n" + json.dumps(AIPERF, indent=1) + "\n", {}),
        ('\ufeff{"completed": 4, "total_input_tokens": 4096, "total_output_tokens": 512, "duration": 12.5}', {}),
    ],
    ids=["vLLM", "SGLang, the last of two lines", "AIPerf", "any load generator"],
)  # fmt: skip
def test_the_last_result_of_a_file_is_read(text: str, settings: dict[str, str | float]) -> None:
    result = read_result(text, "r")
    assert replace(result, failed=0) == BenchmarkResult(4, 4096, 512, 12.5, settings)
    assert result.failed == (2 if "failed" in text else 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "r: no JSON object in it"),
        (json.dumps(VLLM)[:-20], "r: line 1: no complete JSON: was the benchmark interrupted?"),
        (json.dumps(VLLM) + "\n" + json.dumps(VLLM)[:9], "r: line 2: no complete JSON"),
        ("[1, 2]", "r: no JSON object in it"),
        ('{"date": "x"}', "r: no number for completed, total_input_tokens, total_output_tokens, duration"),
        (json.dumps(VLLM | {"duration": float("nan")}), "r: no number for duration"),
        (json.dumps(VLLM | {"completed": True}), "r: no number for completed"),
        (json.dumps(VLLM | {"completed": 10**400}), "r: no number for completed"),
        (json.dumps(AIPERF | {"output_sequence_length": {"avg": 1}}), "r: no number for output_sequence_length.sum"),
        (json.dumps(VLLM | {"total_output_tokens": 0}), "r: 4 requests and 0 output tokens in 12.5 s"),
        (json.dumps(VLLM | {"completed": 0}), "r: 0 requests and 512 output tokens in 12.5 s: the benchmark failed"),
        (json.dumps(VLLM | {"completed": 0.3}), "r: 0 requests and 512 output tokens in 12.5 s: the benchmark failed"),
        (json.dumps(VLLM | {"duration": 0}), "r: 4 requests and 512 output tokens in 0 s: the benchmark failed"),
    ],
)
def test_a_file_without_a_result_is_an_error(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_result(text, "r")
    assert str(caught.value).startswith(says)
    assert len(str(caught.value)) <= 200


def test_settings_are_numbers_and_text_that_a_terminal_can_show() -> None:
    odd = {"model_id": "m\x1b\ud800", "request_rate": float("inf"), "num_prompts": 10**30, "max_concurrency": [1]}
    settings = read_result(json.dumps(VLLM | odd), "r").settings
    assert [settings.get(key) for key in odd] == [r"m\x1b\ud800", "inf", str(10**30), None]
