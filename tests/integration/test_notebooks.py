import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

# The notebook's own tools warn of their own future; nothing of ours runs in this process.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each notebook after all of its cells have run, all at once: they mostly wait."""
    place = tmp_path_factory.mktemp("notebooks")
    paths = f"{ROOT / 'instrumentation'}:{os.environ.get('PYTHONPATH', '')}"
    own = {"IPYTHONDIR": str(place / "ipython"), "MPLCONFIGDIR": str(place / "mpl"), "TMPDIR": str(place)}
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **own}

    async def all_of_them() -> list[Any]:
        clients = [
            nbclient.NotebookClient(nbformat.read(path, as_version=4), timeout=60, kernel_name="python3")
            for path in NOTEBOOKS
        ]
        return await asyncio.gather(*(client.async_execute(env=environment) for client in clients))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", own["IPYTHONDIR"])
        return {path.stem: book for path, book in zip(NOTEBOOKS, asyncio.run(all_of_them()), strict=True)}


def printed(book: Any) -> str:
    """All that a notebook's cells printed, and the plain form of what they showed."""
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


def shown(book: Any, kind: str) -> list[str]:
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    return [output["data"][kind] for output in outputs if kind in output.get("data", {})]


def test_both_notebooks_are_here() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["quickstart", "recordings"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_names_no_machines_paths(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    for cell in book.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?:/home|/root|/tmp|/work|/Users)/?\w*", text) == []
    assert "simulated" in text.lower()


def test_no_cell_complains(executed: dict[str, Any]) -> None:
    for book in executed.values():
        complaints = [
            output.get("text", output.get("evalue"))
            for cell in book.cells
            for output in cell.get("outputs", ())
            if output["output_type"] == "error" or output.get("name") == "stderr"
        ]
        assert complaints == []


def test_the_quickstart_shows_the_cell_its_regions_and_a_picture(executed: dict[str, Any]) -> None:
    book = executed["quickstart"]
    (html,) = shown(book, "text/html")
    for told in ("NVIDIA H200", "decode", "prefill", "load"):
        assert told in html
    verdicts = dict(re.findall(r"^(load|prefill|decode) +([A-Z_]+) ", printed(book), re.MULTILINE))
    # On a machine that does much else, a few seconds may leave it open.
    for region, right in (("load", "HOST_BOUND"), ("prefill", "COMPUTE_BOUND"), ("decode", "MEMORY_BOUND")):
        assert verdicts[region] in (right, "UNKNOWN")
    (picture,) = shown(book, "image/png")
    assert len(picture) > 20_000
    text = printed(book)
    assert re.search(r"\d+ tokens/s, \d+\.\d\d J per token", text)
    assert "util trace:" in text


def test_the_notebook_on_recordings_finds_what_was_changed_and_writes_what_other_tools_read(
    executed: dict[str, Any],
) -> None:
    text = printed(executed["recordings"])
    # On a machine that does much else, a few seconds may leave it open: then the interval reaches below the bound.
    (outcome,) = re.findall(r"decode\.energy > \+20% -> (\w+)", text)
    assert outcome in {"HOLDS", "NOT", "UNTOLD"}
    if outcome == "HOLDS":
        assert re.search(r"decode .*\+\d\d", text)
    for told in ("MEMORY_BOUND", "What to do next", "after.html", "after.perfetto", "regions.csv", "devices.csv"):
        assert told in text
    assert len(shown(executed["recordings"], "image/png")) == 1
