"""A node whose exporter keeps a timeline."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.node.exporters import Exporter


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    made = Exporter(tmp_path, scenario='[[device]]\nmodel = "H100 SXM"\n')
    made.wait()
    yield made
    made.stop()
