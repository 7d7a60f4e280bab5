"""Loops whose period is near the sensor's, with work in a part of a region: what the windows show is a few mixtures
again and again, and another timing of the sensor with steady rates explains them as well, or better."""

from pathlib import Path

import numpy as np
import pytest
from support.regions import Stage

from gpu_profile import region
from gpu_profile.catalogue.signals import GRAPHICS


@pytest.mark.parametrize(
    ("count", "length_ms", "share", "pause_ms", "jitter_ms"),
    [
        (300, 80.0, 0.8, 30.0, 0.0),
        (45, 80.0, 0.8, 30.0, 0.0),
        (120, 60.0, 0.5, 45.0, 0.0),
        (200, 50.0, 0.3, 25.0, 0.0),
        (370, 46.7, 0.5, 20.0, 1.5),
        (330, 45.0, 0.2, 30.0, 0.2),
        (280, 45.0, 1.0, 45.0, 0.2),
        (119, 157.5, 0.8, 52.5, 0.2),
    ],
)
def test_a_rate_is_refused_or_within_its_interval(
    count: int, length_ms: float, share: float, pause_ms: float, jitter_ms: float,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The busy share of a region whose work is in the first part of it."""
    rng = np.random.default_rng(70)
    lengths, pauses = ((ms + jitter_ms * rng.random(count)).round(2) / 1000 for ms in (length_ms, pause_ms))
    with Stage(tmp_path, monkeypatch) as stage:
        for length, pause in zip(lengths.tolist(), pauses.tolist(), strict=True):
            with region("request"):
                with region("model"):
                    stage.work(length, "model", share=share)
                stage.run(pause)
        stage.flush()
        rate = stage.session.joiner.pools[stage.uuid].pooled("model").rates[GRAPHICS]
        assert rate.reason or rate.value == pytest.approx(share, abs=1.5 * rate.half_width), rate
