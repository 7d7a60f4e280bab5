import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpu_profile.monitor.top.cells import StyledText, TableColumn, cell_width, fit, plain, safe, table_lines, wrapped

#: Text of two alphabets, wide and combining characters, emoji, and characters that control a terminal.
TEXTS = st.text(st.sampled_from("ab é漢字ｆ한e\u0301क्षि❤\ufe0f🚀…–\x1b\n\t\u202e\ud800[]"), max_size=30) | st.text(
    max_size=30
)


@pytest.mark.parametrize(
    ("text", "width"), [("", 0), ("abc", 3), ("漢字", 4), ("e\u0301", 1), ("🚀", 2), ("▁▂█", 3), ("한국", 4)]
)
def test_width_in_cells_is_that_of_textual(text: str, width: int) -> None:
    assert cell_width(text) == width == cell_len(text)


@given(st.text(st.characters(max_codepoint=0x10FF, exclude_categories=["Mn", "Mc", "Me"]), max_size=30))
def test_safe_text_has_the_width_that_textual_gives_it(text: str) -> None:
    assert cell_width(safe(text)) == cell_len(safe(text))


@given(TEXTS)
def test_safe_text_controls_no_terminal(text: str) -> None:
    assert safe(text).isprintable()


@given(TEXTS, st.integers(0, 40), st.booleans())
def test_fitted_text_has_exactly_the_width(text: str, width: int, right: bool) -> None:
    assert cell_width(fit(safe(text), width, right=right)) == width


def test_text_that_is_too_long_ends_in_an_ellipsis_and_no_wide_character_is_halved() -> None:
    assert fit("abcdef", 4) == "abc…"
    assert fit("漢字漢字", 4) == "漢… "
    assert fit("漢字漢字", 4, right=True) == " 漢…"
    assert fit("ab", 4, right=True) == "  ab"


def test_a_paragraph_is_broken_between_words_and_a_long_word_is_cut() -> None:
    assert [plain(line) for line in wrapped("one two three-and-four", 8)] == ["one two ", "three-a…"]
    assert [plain(line) for line in wrapped("", 3)] == ["   "]


COLUMNS = (
    TableColumn("name", "name", left=True, size=4, flexible=True),
    TableColumn("a", "first", rank=1),
    TableColumn("b", "second", rank=2, size=8),
)


def table(width: int, *rows: tuple[str, str, str], sorted_by: str = "", mark: str = "") -> list[str]:
    pieces = [[StyledText(text) for text in row] for row in rows]
    return [plain(line) for line in table_lines(COLUMNS, pieces, width, sorted_by=sorted_by, mark=mark)]


def test_the_flexible_column_takes_the_rest_and_the_sorted_one_is_marked() -> None:
    assert table(24, ("x", "1", "2"), sorted_by="a", mark="▲") == [
        "name     first▲   second",
        "x             1        2",
    ]


def test_columns_of_high_rank_are_left_out_first_and_those_of_rank_0_never() -> None:
    assert table(15, ("longer name", "1", "2")) == ["name      first", "longer n…     1"]
    assert table(6, ("longer name", "1", "2")) == ["name  ", "longe…"]
    assert table(3, ("longer name", "1", "2")) == ["na…", "lo…"]


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=4), st.integers(1, 80))
def test_every_line_of_a_table_has_exactly_the_width(rows: list[tuple[str, str, str]], width: int) -> None:
    safe_rows = [(safe(a), safe(b), safe(c)) for a, b, c in rows]
    assert {cell_width(line) for line in table(width, *safe_rows)} == {width}
