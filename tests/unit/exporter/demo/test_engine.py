"""The simulated engine of the demonstration: its messages and spans are those of a real one."""

import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.nodes import node_of

from gpu_profile.driver.simulated import create
from gpu_profile.serving.streams.forward_pass import decoded
from gpu_profile.serving.streams.request_spans import ServedRequest, served_request
from gpu_profile_exporter.demo import engine


def test_a_lap_publishes_each_iteration_and_the_span_of_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LAP_S", 3.0)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    frames: list[list[bytes]] = []
    spans: list[Any] = []
    player = engine.EnginePlayer(create(tmp_path / "node", node_of("H200 SXM")), frames.append, spans.extend)
    player.lap(0, time.time_ns())
    passes = [decoded(each) for each in frames]
    assert all(later.sequence == earlier.sequence + 1 for earlier, later in pairwise(passes))
    requests = []
    for span in spans:
        values = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
        requests.append(served_request(span.name, span.start_time_unix_nano, values, engine.TENANT))
    found = [each for each in requests if isinstance(each, ServedRequest)]
    assert len(found) == len(spans) > 5
    # Each token of an answer but the first comes from one request's part of an iteration.
    assert sum(each.decodes for each in passes) == sum(each.completion - 1 for each in found)
    assert sum(each.prefill_tokens for each in passes) == sum(each.prompt - (each.cached or 0) for each in found)
    assert {each.tenant for each in found} <= {"rag", "chat", "agent"}
    ended = [player.ended.get() for _ in range(player.ended.qsize())]
    assert [each.id for each in ended] == [each.id for each in found]
    assert all(each.true_j > 0 and each.tokens > 0 for each in ended)


def test_an_address_that_cannot_be_used_has_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["engine", "--directory", str(tmp_path), "--publish", "nonsense", "--spans", "http://127.0.0.1:1"]
    monkeypatch.setattr(sys, "argv", options)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit):
        engine.main()
    assert "--publish nonsense: Invalid argument" in capsys.readouterr().err
