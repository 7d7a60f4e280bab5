import importlib.util
from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "golden"


def test_the_texts_of_two_kept_recordings_stay_as_they_are() -> None:
    spec = importlib.util.spec_from_file_location("make_analysis", GOLDEN / "make_analysis.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    for name, text in maker.texts().items():
        assert text == (GOLDEN / "analysis" / name).read_text(encoding="utf-8"), name
