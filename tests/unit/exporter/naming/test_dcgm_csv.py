import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.exporter.naming.dcgm_node import CORE, DATA, GPU, IDENTITY, TEMPERATURE, everything

from gpu_profile.catalogue import SIGNALS
from gpu_profile.catalogue.group import DEFAULT_GROUPS, Group
from gpu_profile.errors import UsageError
from gpu_profile_exporter.naming.dcgm import DcgmNames
from gpu_profile_exporter.naming.dcgm_csv import parse_counters, read_counters
from gpu_profile_exporter.naming.dcgm_fields import (
    DEFAULT_COUNTERS,
    DEFAULT_FIELDS,
    SOURCES,
    Field,
    FieldSelection,
    groups,
    measured,
)
from gpu_profile_exporter.naming.dcgm_renamed import RENAMED

DOCS = Path(__file__).parents[4] / "docs" / "dcgm.md"


def test_a_file_as_dcgm_exporter_reads_it_is_taken_over_with_one_warning_for_each_line_that_is_not() -> None:
    path = DATA / "counters.csv"
    counters = read_counters(path)
    names = [field.name for field in counters.fields]
    assert names[:2] == ["DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK"]
    assert counters.labels == ("DCGM_FI_DRIVER_VERSION",)
    refused = ["DCGM_EXP_P2P_STATUS", "DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT", "dcgm_gpu_temp", "DCGM_FI_DEV_BRAND"]
    assert [re.sub(r":\d+: (\S+) is left out: .*", r" \1", line) for line in counters.warnings] == [
        f"{path} {name}" for name in refused
    ]
    lines = path.read_text().splitlines()
    numbers = [int(line.split(":")[1]) for line in counters.warnings]
    assert [lines[number - 1].split(",")[0] for number in numbers] == refused
    assert len(names) + len(counters.labels) + len(refused) == sum(bool(x) and x[0] != "#" for x in lines)


def test_what_a_file_lists_is_all_that_is_published_with_its_help_and_its_type() -> None:
    naming = DcgmNames(counters=parse_counters('DCGM_FI_DEV_FB_TOTAL ,counter , "All, of it."', "c.csv"))
    naming.about({"GPU-11": GPU})
    (series,) = everything(naming, "GPU-11")
    assert series.family == ("DCGM_FI_DEV_FB_TOTAL", "counter", "All, of it.", "")
    assert series.labels == IDENTITY


def test_label_fields_become_labels_on_every_series_in_alphabetical_order() -> None:
    text = "DCGM_FI_DRIVER_VERSION,label,x\nDCGM_FI_DEV_VBIOS_VERSION,label,x\nDCGM_FI_DEV_GPU_TEMP,gauge,x"
    naming = DcgmNames(counters=parse_counters(text, "c.csv"))
    naming.about({"GPU-11": GPU})
    (series,) = naming.series(TEMPERATURE, {"hw.id": "GPU-11", **CORE})
    assert series.labels[len(IDENTITY) :] == (
        ("DCGM_FI_DEV_VBIOS_VERSION", "96.00.89"),
        ("DCGM_FI_DRIVER_VERSION", "580.126.09"),
    )


def test_a_file_may_use_the_names_before_and_since_dcgm_4_6_and_each_series_has_the_name_of_its_line() -> None:
    text = (
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, x\nDCGM_FI_DEV_GPU_TEMP, gauge, y\n"
        "DCGM_FI_DEV_XID_ERROR, gauge, x\nDCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL, counter, x\n"
        "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL, counter, x\nDCGM_FI_SYSTEM_DRIVER_VERSION, label, x"
    )
    counters = parse_counters(text, "c.csv")
    assert counters.warnings == ()
    assert groups(counters) == {Group.CORE, Group.NVLINK}
    naming = DcgmNames(counters=counters)
    naming.about({"GPU-11": GPU})
    found = {series.family.name: (series.family.help, dict(series.labels)) for series in everything(naming, "GPU-11")}
    assert sorted(found) == sorted(line.split(",")[0] for line in text.splitlines()[:-1])
    assert (found["DCGM_FI_DEV_GPU_TEMP_CELSIUS"][0], found["DCGM_FI_DEV_GPU_TEMP"][0]) == ("x", "y")
    assert {labels["DCGM_FI_SYSTEM_DRIVER_VERSION"] for _, labels in found.values()} == {"580.126.09"}
    assert found["DCGM_FI_DEV_XID_ERROR"][1]["err_code"] == "79"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("DCGM_FI_DEV_GPU_TEMPS, gauge, x", "not measured here; did you mean DCGM_FI_DEV_GPU_TEMP?"),
        ("DCGM_FI_DEV_VGPU_LICENSE_STATUS, gauge, x", "not measured here"),
        ("DCGM_FI_DEV_GPU_TEMP, histogram, x", "no histogram"),
        ("DCGM_FI_DEV_GPU_TEMP, label, x", "cannot be a label"),
        ("DCGM_FI_DRIVER_VERSION, gauge, x", "can only be a label"),
        ("DCGM_FI_DEV_FB_USED, gauge, again", "listed above already"),
    ],
)
def test_a_line_that_cannot_be_followed_is_left_out_with_its_reason(line: str, reason: str) -> None:
    counters = parse_counters(f"DCGM_FI_DEV_FB_USED, gauge, x\n\n{line}\n", "c.csv")
    (warning,) = counters.warnings
    assert warning.startswith(f"c.csv:3: {line.split(',', maxsplit=1)[0]} is left out: ")
    assert reason in warning
    assert [field.name for field in counters.fields] == ["DCGM_FI_DEV_FB_USED"]


def test_a_field_of_another_quantity_is_no_suggestion_for_one_that_is_not_measured() -> None:
    (warning,) = parse_counters(
        "DCGM_FI_DEV_FB_USED, gauge, x\nDCGM_FI_DEV_FB_CAPACITY_BYTES, gauge, x", "c.csv"
    ).warnings
    assert warning.endswith("is left out: it is not measured here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("DCGM_FI_DEV_FB_USED, gauge", "c.csv:1: 2 columns instead of 3"),
        ("# x\n\nDCGM_FI_DEV_FB_USED, gauge, used, free", "c.csv:3: 4 columns instead of 3"),
        ("DCGM_FI_DEV_FB_USED, gauge, x\nDCGM_FI_DEV_FB_FREE, guage, x", "c.csv:2: .* type 'guage'; there are gauge"),
        ('DCGM_FI_DEV_FB_USED, gauge, "x\nDCGM_FI_DEV_FB_FREE, gauge, x', "c.csv:1: not CSV"),
        ('DCGM_FI_DEV_FB_USED, gauge, "x" y', "c.csv:1: not CSV"),
        ("", "c.csv: no line of it names a metric"),
        ("# nothing\n", "c.csv: no line of it names a metric"),
        ("DCGM_FI_DEV_BRAND, label, x", r"c.csv: no line .* \(the first: c.csv:1: "),
        ("<html><body>404</body></html>", "c.csv:1: 1 columns"),
    ],
)
def test_a_file_that_is_no_such_list_is_refused_with_file_line_and_reason(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        parse_counters(text, "c.csv")
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.csv: cannot be read: No such file"):
        read_counters(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_counters(tmp_path)
    (tmp_path / "latin.csv").write_bytes(b"# x\nDCGM_FI_DEV_FB_USED,gauge,\xe9\n")
    with pytest.raises(UsageError, match=r"latin\.csv:2: not UTF-8"):
        read_counters(tmp_path / "latin.csv")
    (tmp_path / "big.csv").write_bytes(b"#" * (2 << 20))
    with pytest.raises(UsageError, match="larger than 256 KiB"):
        read_counters(tmp_path / "big.csv")


def test_a_file_of_another_system_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "windows.csv"
    path.write_bytes(b"\xef\xbb\xbf# x\r\nDCGM_FI_DEV_FB_USED, gauge, used\r\n")
    assert [field.help for field in read_counters(path).fields] == ["used"]


def test_a_message_is_a_line_of_text_whatever_the_file_holds() -> None:
    hostile = "\x1b[31mDCGM" + "x" * 10_000
    (warning,) = parse_counters(f"DCGM_FI_DEV_FB_USED,gauge,x\n{hostile},gauge,x\n", "c.csv").warnings
    assert warning.isprintable()
    assert len(warning) < 200
    with pytest.raises(UsageError) as refused:
        parse_counters(f"DCGM_FI_DEV_FB_USED,{hostile},x\n", "c.csv")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


CELL = st.one_of(
    st.sampled_from([field.name for field in DEFAULT_FIELDS]),
    st.sampled_from(["gauge", "counter", "label", "histogram", "#", '"', "", " ", "DCGM_FI_DRIVER_VERSION"]),
    st.text(max_size=12),
)
TEXT = st.one_of(st.text(), st.lists(st.lists(CELL, max_size=5).map(",".join), max_size=8).map("\n".join))


@given(TEXT)
def test_any_text_is_a_selection_or_a_clear_error(text: str) -> None:
    refusal = ""
    try:
        counters = parse_counters(text, "c.csv")
    except UsageError as error:
        counters, refusal = FieldSelection(()), str(error)
    if refusal:
        assert refusal.startswith("c.csv:")
        return
    names = [field.name for field in counters.fields]
    assert names
    assert len(set(names)) == len(names)
    assert all(measured(name) for name in names)
    assert {field.kind for field in counters.fields} <= {"gauge", "counter"}
    assert all("\n" not in text for text in (*counters.warnings, *(field.help for field in counters.fields)))


MEASURED = [field for field in DEFAULT_FIELDS if measured(field.name)]


@given(st.lists(st.sampled_from(MEASURED), unique=True, min_size=1))
def test_a_written_selection_is_read_as_it_was(fields: list[Field]) -> None:
    text = "".join(f'{field.name},{field.kind},"{field.help}"\n' for field in fields)
    assert parse_counters(text, "c.csv").fields == tuple(fields)


# -------------------------------------------------------------------------------------------------------------- groups


def test_the_default_metrics_bring_the_groups_that_they_need() -> None:
    assert groups(DEFAULT_COUNTERS) - DEFAULT_GROUPS == {Group.CORE_DETAIL, Group.MEDIA, Group.GPM_DETAIL}
    assert groups(DEFAULT_COUNTERS) >= DEFAULT_GROUPS


def test_a_selection_says_which_groups_must_be_read_for_it() -> None:
    def needed(*names: str) -> set[str]:
        return set(groups(parse_counters("".join(f"{name},gauge,x\n" for name in names), "c.csv")))

    assert needed("DCGM_FI_DEV_GPU_TEMP") == {Group.CORE}
    assert needed("DCGM_FI_DEV_FAN_SPEED", "DCGM_FI_PROF_PIPE_INT_ACTIVE") == {Group.LIMITS, Group.PIPES}
    assert needed("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL") == {Group.NVLINK}
    assert needed("DCGM_FI_PROF_SM_CYCLES_ELAPSED_TOTAL") == {Group.GPM}
    assert needed("DCGM_FI_PROF_FP32_CYCLES_ACTIVE_TOTAL", "DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL") == {
        Group.PIPES,
        Group.PCIE,
    }
    assert groups(FieldSelection(())) == frozenset()


def test_no_field_has_two_sources() -> None:
    names = [row.dcgm.name for row in SIGNALS if row.dcgm is not None]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"DCGM_(FI|EXP)_[A-Z0-9_]+", name) for name in SOURCES)


# ---------------------------------------------------------------------------------------------------------------- docs


def test_the_documentation_lists_every_field_and_says_which_default_one_is_absent() -> None:
    text = DOCS.read_text()
    lines = [line.split(" | ") for line in text.splitlines() if line[:3] == "| `"]
    rows = {name: " | ".join(cells) for cells in lines for name in re.findall("`([^`]+)`", cells[0])}
    assert set(SOURCES) <= set(rows)
    assert {field.name for field in DEFAULT_FIELDS} <= set(rows)
    absent = {name for name in rows if f"| `{name}` | absent" in text}
    assert absent == {field.name for field in DEFAULT_FIELDS if not measured(field.name)}
    for name, source in SOURCES.items():
        if not source.otel.endswith("nvlink.total"):
            assert f"`{source.otel}`" in rows[name], name
    for older, newer in RENAMED.items():
        assert older not in SOURCES or rows[older].startswith(f"| `{older}`, `{newer}` |")
