"""Foreign spans that are watched by the rule that holds where nobody gives one."""

import pytest
from support.regions import Stage
from unit.regions.telemetry.foreign import watch

from gpu_profile.regions.telemetry.server_spans import AdoptedSpans


@pytest.fixture
def spans(on_host: Stage, monkeypatch: pytest.MonkeyPatch) -> AdoptedSpans:
    """What watches them on a stage."""
    return watch(monkeypatch)
