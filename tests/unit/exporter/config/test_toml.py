import errno
import os
import string
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.exporter.settings import complaint, file_of, served, values

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import SETTINGS, Address, Config
from gpu_profile_exporter.config.toml import parse, read_file

WHOLE = """\
# A node's settings.
listen = "127.0.0.1:9401"   # loopback
interval = 1                # an integer will do
collect = ["gpm", "C2C"]

[otlp]
endpoint = "http://collector:4318"
headers = {Authorization = "Bearer a,b=c", x-team = "gpu"}
timeout = 2.5

[log]
level = "warning"
"""


def test_a_file_is_read_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "exporter.toml"
    file.write_text(WHOLE)
    config = served(["--config", str(file)])
    assert config.listen == Address("127.0.0.1", 9401)
    assert config.interval_s == 1.0
    assert config.collect == ("gpm", "c2c")
    assert config.otlp.headers == (("authorization", "Bearer a,b=c"), ("x-team", "gpu"))
    assert config.otlp.timeout_s == 2.5
    assert config.log.level == "warning"
    assert config.otlp.endpoints is not None
    assert config.otlp.endpoints.metrics is not None
    assert config.otlp.endpoints.metrics.headers == (("authorization", "Bearer a,b=c"), ("x-team", "gpu"))
    assert config.otlp.endpoints.metrics.timeout_s == 2.5


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"# nothing\n", "\ufeffinterval = 0.1\n".encode(), b"interval = 0.1\r\n"]
)
def test_a_file_with_nothing_new_changes_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "exporter.toml"
    file.write_bytes(content)
    assert served(["--config", str(file)]) == Config()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        # names
        ("intervall = 1", "F:1: there is no such setting as 'intervall'; did you mean 'interval'?"),
        (
            "\n\n[otlp]\n\nendpont = 'x'",
            "F:5: there is no such setting as 'otlp.endpont'; did you mean 'otlp.endpoint'?",
        ),
        ("[oltp]\n", "F:1: there is no such setting as 'oltp'; did you mean 'otlp'?"),
        ("otlp.endpont = 'x'", "F: there is no such setting as 'otlp.endpont'; did you mean 'otlp.endpoint'?"),
        ("endpoint = 'x'", "F:1: there is no such setting as 'endpoint'; did you mean 'otlp.endpoint'?"),
        ("[server]\nlisten = ':1'", "F:1: there is no such setting as 'server'"),
        ("[log]\nlisten = ':1'", "F:2: there is no such setting as 'log.listen'; did you mean 'listen'?"),
        ("[[otlp]]\nendpoint = 'x'", "F: otlp: is a table of settings; write it as [otlp]"),
        ("otlp = 1", "F:1: otlp: is a table of settings; write it as [otlp]"),
        ("'a\\nb' = 1", "F: there is no such setting as 'a\\\\nb'"),
        ('"a\\nb" = 1', "F: there is no such setting as 'a\\nb'"),
        # types
        ("interval = true", "F:1: interval: True is not a number"),
        ("interval = '1'", "F:1: interval: '1' is not a number"),
        ("interval = [1]", "F:1: interval: [1] is not a number"),
        ("series_budget = 1000.0", "F:1: series_budget: 1000.0 is not a whole number"),
        ("series_budget = true", "F:1: series_budget: True is not a whole number"),
        ("processes = 1", "F:1: processes: 1 is neither true nor false"),
        ("processes = 'true'", "F:1: processes: 'true' is neither true nor false"),
        ("driver = 1", "F:1: driver: 1 is not text in quotation marks"),
        ("listen = 9400", "F:1: listen: 9400 is not text in quotation marks"),
        ("collect = 'ecc'", "F:1: collect: 'ecc' is not a list of words"),
        ("collect = [1]", "F:1: collect: [1] is not a list of words"),
        ("web_config_file = 1979-05-27", "F:1: web_config_file: datetime.date(1979, 5, 27) is not text"),
        ("[otlp]\nheaders = 'a=b'", "F:2: otlp.headers: is not a table of texts"),
        ("[otlp.headers]\na = 1", "F: otlp.headers: is not a table of texts"),
        # bounds
        ("interval = inf", "F:1: interval: must lie between 0.01 and 60 seconds, not inf"),
        ("interval = nan", "F:1: interval: must lie between 0.01 and 60 seconds, not nan"),
        ("interval = -1", "F:1: interval: must lie between 0.01 and 60 seconds, not -1"),
        ("interval = 1" + "0" * 400, "F:1: interval: must lie between 0.01 and 60 seconds, not inf"),
        ("series_budget = 99999999999", "F:1: series_budget: must lie between"),
        ("names = 'dgcm'", "F:1: names: 'dgcm' is not one of semconv, dcgm, both; did you mean 'dcgm'?"),
        ("collect = ['nvlnk']", "F:1: collect: unknown 'nvlnk': one of core,"),
        ("collect = ['nvlnk']", "did you mean 'nvlink'?"),
        ("listen = 'nowhere'", "F:1: listen: 'nowhere' has no port"),
        ('driver = "a\\u0000b"', "F:1: driver: 'a\\x00b' has a character that is not printable UTF-8"),
        ("[attribution]\npods = 'yes'", "F:2: attribution.pods: 'yes' is not one of auto, on, off"),
        ("[otlp]\nendpoint = 'collector'", "F:2: otlp.endpoint: 'collector'"),
        ("[otlp]\nendpoint = 'http://u:p@c:1'", "F:2: otlp.endpoint: a URL with a name or password"),
        ("[otlp]\nendpoint = 'http://c:1'\nclient_key = 'k'", "F:3: otlp.client_key: needs its other half"),
        # not TOML
        ("interval 1", "F:1: not TOML: Expected '=' after a key"),
        ("interval = 1\ninterval = 2", "F:2: not TOML: "),
        ("a = " + "[" * 100_000, "F: nested too deeply"),
        ("interval = 1" + "0" * 10_000, "F: not TOML: Exceeds the limit"),
        ("driver = 'a\tb\x01'", "F:1: not TOML: "),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line_the_reason_and_the_nearest_name(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "F"
    file.write_text(text)
    assert says in complaint(["--config", str(file)]).replace(str(file), "F")


def test_a_line_that_might_be_another_is_not_told() -> None:
    text = "[otlp.headers]\ninterval = 'x'\n[log]\nlevel = 'x'\n"
    with pytest.raises(UsageError, match=r"^F:4: log\.level: 'x' is not one of"):
        parse(text, "F")
    text = "otlp.interval = 'x'\n[otlp.headers]\ninterval = 'y'\n"
    with pytest.raises(UsageError, match=r"^F: otlp\.interval: 'x' is not a number$"):
        parse(text, "F")
    text = 'interval = "x"\ndriver = """\ninterval = 2\n"""\n'
    with pytest.raises(UsageError, match=r"^F: interval: 'x' is not a number$"):
        parse(text, "F")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    missing, binary, large = tmp_path / "missing", tmp_path / "binary", tmp_path / "large"
    binary.write_bytes(b"interval = 1\ndriver = '\xff'\n")
    large.write_bytes(b"#" * (1 << 20) + b"\n")
    for path, says in (
        (missing, f"cannot read the configuration {missing}: No such file or directory"),
        (tmp_path, f"cannot read the configuration {tmp_path}: Is a directory"),
        (binary, f"{binary}:2: not UTF-8"),
        (large, f"{large}: larger than 1 MiB"),
        (Path("/dev/zero"), "/dev/zero: larger than 1 MiB"),
    ):
        assert complaint(["--config", str(path)]) == says
    assert complaint([], {"GPU_PROFILE_EXPORTER_CONFIG": str(missing)}).startswith("cannot read the configuration")


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "exporter.toml"
    file.touch(mode=0)
    if os.geteuid() == 0:  # who may read everything
        denied = PermissionError(errno.EACCES, "Permission denied", str(file))
        for name in ("open", "read_bytes", "read_text"):
            monkeypatch.setattr(Path, name, Mock(side_effect=denied))
    assert complaint([], {}, file) == f"cannot read the configuration {file}: Permission denied"


fragments = st.lists(
    st.one_of(
        st.sampled_from([row.key for row in SETTINGS]),
        st.sampled_from(["[otlp]", "[log]", "[[log]]", "=", "\n", ".", "{", "}", "[", "]", '"', "'''", "#", ",", " "]),
        st.sampled_from(["true", "1", "-1", "inf", "nan", "1e400", "0x1", "1979-05-27", '"ecc"', '":9400"', "''"]),
        st.text(string.printable, max_size=5),
    ),
    max_size=20,
).map("".join)


def accepted_or_refused_in_a_line(text: str) -> None:
    try:
        written = parse(text, "F")
    except UsageError as error:
        assert "\n" not in str(error)  # noqa: PT017 - no error is fine too
        assert str(error).startswith("F")  # noqa: PT017
        return
    for row in SETTINGS:
        if row.name in written.values:
            row.type.read(written.values[row.name])


@settings(max_examples=300)
@given(st.one_of(fragments, st.text(max_size=40)))
@example("interval = 1\x00")
@example("'' = 1")
@example("interval.x = 1")
def test_any_text_is_a_configuration_or_refused_in_one_line(text: str) -> None:
    accepted_or_refused_in_a_line(text)


scalars = st.one_of(
    st.booleans().map(lambda yes: "true" if yes else "false"),
    st.integers().map(str),
    st.floats(allow_nan=True).map(repr),
    st.text(string.ascii_letters + "\u00e9 ,=", max_size=8).map(lambda text: f"'{text}'"),
    st.sampled_from(["1979-05-27", "07:32:00", "[]", "{}", "[[]]", "[1, 'a']", "{a = 1}", "{a = 'b'}"]),
)


@settings(max_examples=300)
@given(st.sampled_from(SETTINGS), scalars)
def test_any_value_of_any_setting_is_taken_or_refused_in_one_line(row: Any, value: str) -> None:
    header = f"[{row.topic}]\n" if row.topic else ""
    accepted_or_refused_in_a_line(f"{header}{row.key} = {value}\n")


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_configuration_or_refused_in_one_line(tmp_path_factory: Any, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.toml"
    file.write_bytes(content)
    try:
        read_file(file)
    except UsageError as error:
        assert "\n" not in str(error)  # noqa: PT017 - no error is fine too


@settings(max_examples=50)
@given(st.data())
def test_the_line_that_is_told_is_the_line_of_the_key(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.sampled_from(SETTINGS), min_size=1, unique_by=lambda row: row.dotted))
    text = file_of({row: data.draw(values(row)) for row in rows})
    lines = text.split("\n")
    places = parse(text, "F").places
    assert places.keys() == {row.name for row in rows}
    for row in rows:
        assert lines[int(places[row.name].removeprefix("F:")) - 1].startswith(f"{row.key} = ")
