import re
import tomllib
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.exporter.settings import file_of, flag_of, run, served, text_of, values

from gpu_profile_exporter.config import SETTINGS, Config
from gpu_profile_exporter.config.toml import parse

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "docker" / "gpu-profile-exporter.toml"
PAGE = ROOT / "docs" / "settings.md"


some_of_each = st.fixed_dictionaries(
    {},
    optional={
        row.dotted: st.tuples(st.sampled_from(["file", "variable", "flag"]), values(row))
        for row in SETTINGS
        if row.field not in ("client_cert", "client_key")
    },
)


@settings(max_examples=60)
@given(some_of_each)
def test_what_is_printed_is_a_file_that_gives_the_same_settings_but_for_secrets(
    tmp_path_factory: Any, found: dict[str, Any]
) -> None:
    rows = {row: found[row.dotted] for row in SETTINGS if row.dotted in found}
    file, again = (tmp_path_factory.getbasetemp() / name for name in ("printed.toml", "again.toml"))
    file.write_text(file_of({row: value for row, (way, value) in rows.items() if way == "file"}), encoding="utf-8")
    environ = {row.variable: text_of(row, value) for row, (way, value) in rows.items() if way == "variable"}
    arguments = ["--config", str(file), *(flag_of(row, value) for row, (way, value) in rows.items() if way == "flag")]
    config, ran = served(arguments, environ), run([*arguments, "--print-config"], environ)
    assert (ran.code, ran.err, ran.config) == (0, "", None)
    again.write_text(ran.out, encoding="utf-8")
    reread = served(["--config", str(again)])
    assert {row.dotted for row in SETTINGS if row.secret} == {"otlp.headers", "forward.headers"}
    assert _without_headers(reread) == _without_headers(config)
    assert reread.otlp.headers == reread.forward.headers == ()
    for row in SETTINGS:
        if row in rows and not row.secret:
            place = {"file": f"{file}:", "variable": row.variable, "flag": row.flag}[rows[row][0]]
            assert re.search(rf"^{row.key} = .*  # {re.escape(place)}", ran.out, re.MULTILINE)


def _without_headers(config: Config) -> dict[str, Any]:
    return {row.dotted: row.of(config) for row in SETTINGS if not row.secret}


def test_secrets_are_named_and_not_printed(tmp_path: Path) -> None:
    file = tmp_path / "exporter.toml"
    file.write_text('[otlp]\nheaders = {authorization = "Bearer hunter2"}\n')
    variable = {"GPU_PROFILE_EXPORTER_OTLP_HEADERS": "authorization=hunter2"}
    standard = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=hunter2"}
    for arguments, environ in (
        (["--config", str(file)], {}),
        ([], variable),
        ([], standard),
        (["--otlp-headers", "authorization=hunter2"], {}),
    ):
        out = run([*arguments, "--otlp-endpoint", "http://c:4318", "--print-config"], environ).out
        assert "hunter2" not in out
        assert "# headers: authorization; not shown  # " in out


def test_where_things_are_pushed_to_is_printed_when_they_are() -> None:
    out = run(["--print-config"], {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m:1/in"}).out
    assert "# Metrics are pushed to http://m:1/in by http/protobuf.\n# Events are not pushed.\n" in out
    assert "pushed to" not in run(["--print-config"]).out


def test_a_place_with_odd_characters_stays_in_its_comment(tmp_path: Path) -> None:
    file = tmp_path / "a\nlisten = 1\x01.toml"
    file.write_text("interval = 1\n")
    out = run(["--config", str(file), "--print-config"]).out
    assert served(["--config", str(file)]).interval_s == tomllib.loads(out)["interval"] == 1


def test_the_example_states_every_default_and_changes_nothing() -> None:
    assert parse(EXAMPLE.read_text(encoding="utf-8"), "example").values.keys() == {row.name for row in SETTINGS}
    assert served(["--config", str(EXAMPLE)]) == served() == Config()


def test_the_example_explains_every_setting_in_lines_of_readable_length() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert all(row.help in text for row in SETTINGS)
    assert max(map(len, text.splitlines())) <= 120


def test_every_setting_has_its_row_with_its_flag_its_variable_and_its_default() -> None:
    _, _, tables = PAGE.read_text(encoding="utf-8").partition("## Settings of `gpu-profile-exporter`")
    rows = [line for line in tables.splitlines() if line.startswith("| `")]
    for row in SETTINGS:
        default = row.type.toml(row.default).replace("|", "\\|")
        (line,) = [line for line in rows if f"`{row.flag}`" in line]
        assert line.startswith(f"| `{row.key}` | ")
        assert f"`{row.variable}`" in line
        assert f"| `{default}` |" in line


def test_the_helps_are_sentences() -> None:
    for row in SETTINGS:
        assert re.fullmatch(r"[A-Z].*\.", row.help), row.dotted
        assert "`" not in row.help


def test_what_is_printed_of_each_setting_is_where_it_comes_from() -> None:
    out = run(["--print-config"], {"GPU_PROFILE_EXPORTER_INTERVAL": "2", "DCGM_EXPORTER_LISTEN": ":1"}).out
    for line in (
        "interval = 2  # GPU_PROFILE_EXPORTER_INTERVAL",
        'listen = ":1"  # DCGM_EXPORTER_LISTEN',
        'driver = "auto"  # default',
    ):
        assert line in out.splitlines()
