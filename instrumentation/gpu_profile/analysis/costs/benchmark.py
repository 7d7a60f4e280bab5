"""The results of benchmarks of LLM servers: requests, tokens and settings, from the files that they write.

`vllm bench serve --save-result` writes a JSON object, or with `--append-result` one after another. SGLang's
`bench_serving` appends lines of JSON with the same names. AIPerf writes `profile_export_aiperf.json` (schema 1.5) with
an object for each metric. Any other load generator can write vLLM's four numbers: `completed`, `total_input_tokens`,
`total_output_tokens` and `duration`. Source: the programs' code of 2026 (vLLM 009e6d4a, `vllm/benchmarks/serve.py`;
SGLang 0033168f, `python/sglang/bench_serving.py`; AIPerf 1554b478, `docs/reference/json-export-schema.md`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpu_profile.errors import UsageError, few
from gpu_profile.report.table import printable

#: The keys of settings, on which the cost of a token depends.
_SETTINGS: Final = (
    "model_id", "model", "backend", "dataset_name", "num_prompts", "request_rate", "burstiness", "max_concurrency",
    "random_input_len", "random_output_len", "random_range_ratio", "sharegpt_output_len",
)  # fmt: skip
#: Requests, tokens of their prompts and of their answers, and seconds: vLLM's and SGLang's names.
_NUMBERS: Final = ("completed", "total_input_tokens", "total_output_tokens", "duration")
#: AIPerf's metrics in the same order, each with the statistic that has the number.
_AIPERF: Final = (
    ("request_count", "avg"), ("input_sequence_length", "sum"), ("output_sequence_length", "sum"),
    ("benchmark_duration", "avg"),
)  # fmt: skip

#: Larger numbers are damage, and their sums would overflow.
MOST: Final = 1e18

Setting = str | int | float | None


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """A benchmark's own count of requests that succeeded, the tokens of their prompts and answers, and its seconds.

    `failed` are further requests, as far as it counts them.
    """

    requests: int
    input_tokens: int
    output_tokens: int
    duration_s: float
    settings: Mapping[str, Setting] = field(default_factory=dict)
    failed: int = 0


def read_result(text: str, name: str) -> BenchmarkResult:
    """The last result in the text of a file. Raises UsageError with the file's `name` if there is none."""
    result = _last(text, name)
    values = [result.get(key) for key in _NUMBERS]
    if "request_count" in result:
        values = [_statistic(result.get(key), which) for key, which in _AIPERF]
        names = tuple(f"{key}.{which}" for key, which in _AIPERF)
    else:
        names = _NUMBERS
    missing = [key for key, value in zip(names, values, strict=True) if not _possible(value)]
    if missing:
        raise UsageError(f"{name}: no number for {few(missing)}; it is not a result of vLLM, SGLang or AIPerf")
    requests, inputs, outputs, duration_s = (float(value) for value in values if value is not None)
    requests, inputs, outputs = round(requests), round(inputs), round(outputs)
    if not (requests and outputs and duration_s):
        raise UsageError(
            f"{name}: {requests} requests and {outputs} output tokens in {duration_s:g} s: the benchmark failed"
        )
    # SGLang writes an unlimited rate as Infinity, vLLM as "inf".
    settings = {
        key: printable(str(value)) if isinstance(value, str) or not 0 <= value <= MOST else value
        for key in _SETTINGS
        if isinstance(value := result.get(key), str | int | float)
    }
    failures = result.get("failed", _statistic(result.get("error_request_count"), "avg"))
    failed = round(failures) if _possible(failures) else 0
    return BenchmarkResult(requests, inputs, outputs, duration_s, settings, failed)


def _last(text: str, name: str) -> Mapping[str, Any]:
    """The last JSON object of a text with one or several."""
    text = text.lstrip("\ufeff").strip()
    decoder, at, value = json.JSONDecoder(), 0, None
    try:
        while at < len(text):
            value, end = decoder.raw_decode(text, at)
            at = end + len(text[end:]) - len(text[end:].lstrip())
    except (ValueError, RecursionError) as error:
        place = f"line {text.count(chr(10), 0, at) + 1}"
        raise UsageError(f"{name}: {place}: no complete JSON: was the benchmark interrupted?") from error
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}: no JSON object in it")
    return value


def _statistic(metric: object, which: str) -> Any:
    return metric.get(which) if isinstance(metric, Mapping) else None


def _possible(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST
