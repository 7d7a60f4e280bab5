import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpu_profile_exporter.exposition.format import LONGEST_VALUE, Format, family_lines, negotiate, number, series_text
from gpu_profile_exporter.naming.series import Series, TextFamily

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "style"),
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", Format.TEXT),
        (PROMETHEUS_2, Format.OPENMETRICS),
        (PROMETHEUS_3, Format.OPENMETRICS),
        ("application/openmetrics-text", Format.OPENMETRICS),
        ('Application/OpenMetrics-Text; Version="1.0.0"', Format.OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1", Format.TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0.1,text/plain;q=0.9", Format.TEXT),
        ("text/plain;q=0.1,application/openmetrics-text;version=1.0.0;q=0.9", Format.OPENMETRICS),
        ("text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0", Format.TEXT),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4", Format.OPENMETRICS),
        ("application/openmetrics-text;q=0,text/plain;q=0.1", Format.TEXT),
        ("application/openmetrics-text;q=nan", Format.TEXT),
        ("application/openmetrics-text;q=high", Format.TEXT),
        (",;,=;;q=", Format.TEXT),
    ],
)
def test_the_format_with_the_highest_q_is_chosen_and_text_if_none_is_known(accept: str, style: Format) -> None:
    assert negotiate(accept) is style


@given(st.text(max_size=200))
def test_no_accept_header_breaks_the_negotiation(accept: str) -> None:
    assert negotiate(accept) in Format


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1.0"),
        (1.0, "1.0"),
        (1e-07, "1e-07"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (1e22, "1e+22"),
        (0.1, "0.1"),
    ],
)
def test_numbers_are_written_as_prometheus_reads_them(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("family", "text", "openmetrics"),
    [
        (
            TextFamily("a_joules_total", "counter", "", "joules"),
            "a_joules_total counter",
            "a_joules counter, unit joules",
        ),
        (TextFamily("DCGM_FI_DEV_XID", "counter", "", ""), "DCGM_FI_DEV_XID counter", "DCGM_FI_DEV_XID unknown"),
        (TextFamily("a_info", "info", "", ""), "a_info gauge", "a info"),
        (TextFamily("about", "info", "", ""), "about gauge", "about gauge"),
        (TextFamily("a_watts", "gauge", "", "watts"), "a_watts gauge", "a_watts gauge, unit watts"),
        (TextFamily("a", "gauge", "", "watts"), "a gauge", "a gauge"),
        (TextFamily("a", "untyped", "", ""), "a untyped", "a unknown"),
    ],
)
def test_a_family_has_the_name_type_and_unit_that_its_format_allows(
    family: TextFamily, text: str, openmetrics: str
) -> None:
    def said(style: Format) -> str:
        lines = [line.split() for line in family_lines(family, style).splitlines()]
        kind = next(f"{line[2]} {line[3]}" for line in lines if line[1] == "TYPE")
        return kind + "".join(f", unit {line[3]}" for line in lines if line[1] == "UNIT")

    assert said(Format.TEXT) == text
    assert said(Format.OPENMETRICS) == openmetrics


HOSTILE = [
    'a "quoted" name',
    "two\nlines",
    "back\\slash\\",
    "\\n",
    'a"} 1\nfaked{b="c',
    "nul\0byte",
    "carriage\rreturn",
    "half a pair \ud83d",
    "line separators \u2028 \u0085",
    "100 %s %d %(x)s %r",
    "# EOF",
    " ",
    "x" * 10_000,
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_label_values_stay_in_their_label(value: str) -> None:
    check(value)


@given(st.text(st.characters(exclude_categories=()), max_size=80))
def test_any_label_value_is_one_label_on_one_line_for_both_parsers(value: str) -> None:
    check(value)


def check(value: str) -> None:
    series = Series(TextFamily("a", "gauge", value, ""), (("before", "1"), ("hostile", value), ("after", "2")), 1.0)
    line = f"{series_text(series)}1.0\n"
    found = []
    for style, parse in ((Format.TEXT, parse_text), (Format.OPENMETRICS, parse_openmetrics)):
        text = family_lines(series.family, style) + line + ("# EOF\n" if style is Format.OPENMETRICS else "")
        text = text.encode().decode()
        assert text.count("\n") == (3 if style is Format.TEXT else 4)
        (family,) = parse(text)
        (sample,) = family.samples
        assert set(sample.labels) == {"before", "hostile", "after"}
        assert (sample.labels["before"], sample.labels["after"]) == ("1", "2")
        assert sample.value == 1
        found.append(sample.labels["hostile"])
    assert found[0] == found[1]
    assert len(found[0]) <= LONGEST_VALUE
    if value.isprintable() and len(value) <= LONGEST_VALUE:
        assert found[0] == value


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_name_becomes_one_that_parses(metric: str, label: str) -> None:
    line = series_text(Series(TextFamily(metric, "gauge", "", ""), ((label, "v"), (label, "again")), 1.0))
    (family,) = parse_text(f"{line}1.0\n")
    (sample,) = family.samples
    assert list(sample.labels.values()) == ["v"]


def test_labels_keep_the_order_in_which_their_scheme_gives_them() -> None:
    names = ["gpu", "UUID", "device", "Hostname", "a"]
    text = series_text(Series(TextFamily("a", "gauge", "", ""), tuple((name, "x") for name in names), 1.0))
    assert [part.partition("=")[0] for part in text[2:-2].split(",")] == names
