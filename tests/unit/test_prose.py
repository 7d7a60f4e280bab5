from pathlib import Path

import pytest
from support.prose import ROOT, Prose, measure, modules


def test_the_prose_of_every_module_and_page_is_plain() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    pages += [ROOT / "SECURITY.md", *(ROOT / "changelog.d").glob("*.md")]
    pages += [page for folder in ("docs", "docker", "grafana") for page in (ROOT / folder).rglob("*.md")]
    rough = {path.relative_to(ROOT): prose for path in [*modules(), *pages] if not (prose := measure(path)).plain}
    assert not rough, "\n".join(f"{name}: {prose}, such as {prose.passages[:3]}" for name, prose in rough.items())


@pytest.mark.parametrize(
    ("source", "riddles", "sentences", "long", "vague"),
    [
        ('"""Energy in J. One value per device."""', 0, 2, 0, 0),
        ('"""What was found is told to those who ask."""', 5, 1, 0, 0),
        ("x = 1  # let go of it\n# and it stands\ny = 2\n", 2, 1, 0, 0),
        ("def f(known, _told):\n    found = [a for a in known]\n    return found", 0, 0, 0, 3),
        ("try:\n    x()\nexcept E as found:\n    self.told = 1\nimport x as known\ndef found(): ...", 0, 0, 0, 4),
        (f'"""{"word " * 25}.\n\n{"word " * 26}."""', 0, 2, 1, 0),
        ('"""`what told` is code, as is ``who``."""  # noqa: D400', 0, 1, 0, 0),
    ],
)
def test_prose_is_counted(tmp_path: Path, source: str, riddles: int, sentences: int, long: int, vague: int) -> None:
    (tmp_path / "code.py").write_text(source)
    prose = measure(tmp_path / "code.py")
    assert (prose.riddles, prose.sentences, prose.long, prose.vague) == (riddles, sentences, long, vague)


@pytest.mark.parametrize(
    ("page", "words", "riddles", "sentences"),
    [
        ("# What\n\nText that\nholds.\n\n```python\nwhat = told\n```\n\n| what | who |\n|---|---|\n", 3, 0, 1),
        ("# What\nIt is told.\n| what |\nIt is told.\n", 6, 2, 2),
        ("<b>what</b> it tells", 5, 2, 1),
        ("<!-- run -->\n~~~\nwhat\n```\ntold\n~~~\nIt is told", 3, 1, 1),
        ("- what\n- who\n1. told", 3, 3, 3),
        ("[a](https://x/what/who?told=1) page", 2, 0, 1),
        ("one ` is told\n\nis told ` two", 8, 2, 2),
    ],
)
def test_a_page_is_counted_without_its_code_and_tables(
    tmp_path: Path, page: str, words: int, riddles: int, sentences: int
) -> None:
    (tmp_path / "page.md").write_text(page)
    assert measure(tmp_path / "page.md")[:3] == (words, riddles, sentences)


@pytest.mark.parametrize(
    ("counts", "plain"),
    [
        ((100, 1, 1, 1, 0), True), ((100, 2, 20, 0, 0), False), ((1000, 5, 100, 5, 0), True),
        ((1000, 6, 100, 5, 0), False), ((1000, 5, 100, 6, 0), False), ((1000, 0, 100, 0, 1), False),
    ],
)  # fmt: skip
def test_limits(counts: tuple[int, int, int, int, int], plain: bool) -> None:
    assert Prose(*counts, ()).plain is plain
