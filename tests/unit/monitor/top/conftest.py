from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.monitor.top.scene import TopScene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[TopScene]:
    scene = TopScene(tmp_path)
    scene.pass_(2)
    scene.pass_(60, share=1.0)
    yield scene
    scene.close()
