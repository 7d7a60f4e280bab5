import importlib.util
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[3] / "golden" / "kernels"


def made() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("make_kernels", GOLDEN / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    texts: dict[str, str] = module.texts()
    return texts


@pytest.mark.parametrize("name", ["report.txt", "region.txt", "report.json", "report.csv", "cpu.txt"])
def test_a_report_looks_as_it_did(name: str) -> None:
    assert made()[name] == (GOLDEN / name).read_text(encoding="utf-8")
