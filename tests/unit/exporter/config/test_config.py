import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.exporter.settings import file_of, flag_of, run, served, text_of, values

from gpu_profile.catalogue import ALL_GROUPS, DEFAULT_GROUPS, Group
from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import (
    SETTINGS,
    Address,
    AttributionSettings,
    Config,
    DcgmSettings,
    Forward,
    Log,
    Otlp,
    Receive,
    ServingSettings,
)
from gpu_profile_exporter.config.address import address
from gpu_profile_exporter.config.model import BY_NAME
from gpu_profile_exporter.naming.schemes import choose

ANY = "::"
#: Two settings that only make sense together.
#: Settings that need another one beside them.
HALVES = {f"{topic}.client_{half}" for topic in ("otlp", "forward") for half in ("cert", "key")}


#: Two engines as `--serving` names them.
ENGINES = {"a": "tcp://h:1", "b": "unix:/b"}


# ---------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (":9400", Address(ANY, 9400)),
        ("9400", Address(ANY, 9400)),
        (" 9401 ", Address(ANY, 9401)),
        ("127.0.0.1:9400", Address("127.0.0.1", 9400)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:9400", Address("::1", 9400)),
        ("[::]:65535", Address("::", 65535)),
    ],
)
def test_an_address_is_read_as_written(text: str, found: Address) -> None:
    assert address(text) == Config(listen=found).listen == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "x",
        "host",
        "host:",
        ":65536",
        ":-1",
        "::1:9400",
        "[::1]",
        "[::1]9400",
        "[host]:1",
        "a:b:1",
        ":９４００",
        ":1e3",
    ],
)
def test_a_bad_address_is_the_users_error_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))) as caught:
        address(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_the_users_error(text: str) -> None:
    try:
        found = address(text)
    except ValueError:
        return
    assert 0 <= found.port <= 65535
    assert found.host
    assert address(str(found)) == address(found.short) == found


# ---------------------------------------------------------------------- a configuration in code


@pytest.mark.parametrize("interval", [0, -1, 0.009, 61, float("nan"), float("inf")])
def test_an_interval_out_of_bounds_is_the_users_error(interval: float) -> None:
    with pytest.raises(UsageError, match=r"--interval: must lie between 0\.01 and 60 seconds"):
        Config(interval_s=interval)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: Config(names="semcnov"),
            "--names: 'semcnov' is not one of semconv, dcgm, both; did you mean 'semconv'?",
        ),
        (lambda: Config(collect=("eec",)), "--collect: unknown 'eec'"),
        (lambda: Config(collect=("all", "none")), "--collect: all and none exclude each other"),
        (lambda: Config(series_budget=0), "--series-budget: must lie between 100 and 1000000 series, not 0"),
        (lambda: Config(driver="a\nb"), "--driver: 'a\\nb' has a character that is not printable UTF-8"),
        (lambda: Config(web_config_file=Path("a\0b")), "--web-config-file: 'a\\x00b' has a character"),
        (lambda: Config(listen=Address("h", 70000)), "--listen: 'h:70000' has no port between 0 and 65535"),
        (lambda: DcgmSettings(hostname_label="HOST"), "--dcgm-hostname-label: 'host' is not one of Hostname, hostname"),
        (lambda: AttributionSettings(pods="maybe"), "--attribution-pods: 'maybe'"),
        (lambda: AttributionSettings(labels=("podd",)), "--attribution-labels: unknown 'podd'"),
        (lambda: Otlp(timeout_s=0), "--otlp-timeout: must lie between 0.1 and 300 seconds, not 0"),
        (lambda: Otlp(endpoint="http://c:1", client_key=Path("k")), "--otlp-client-key: needs its other half"),
        (lambda: Otlp(endpoint="http://c:1", client_cert=Path("c")), "--otlp-client-cert: needs its other half"),
        (lambda: Otlp(headers=(("a b", "secret"),)), "--otlp-headers: header 1 has a name that HTTP cannot carry"),
        (lambda: Otlp(endpoint="collector"), "--otlp-endpoint: 'collector'"),
        (lambda: Receive(http=Address("h", 70000)), "--receive-http: 'h:70000' has no port between 0 and 65535"),
        (lambda: Receive(late_s=0), "--receive-late: must lie between 0.1 and 300 seconds, not 0"),
        (lambda: Forward(endpoint="collector"), "--forward-endpoint: 'collector'"),
        (lambda: Forward(endpoint="http://c:1", client_key=Path("k")), "--forward-client-key: needs its other half"),
        (lambda: ServingSettings(engines=(("a", "h:1"),)), "--serving-engines: a: 'h:1' is no address such as tcp://"),
        (
            lambda: ServingSettings(engines=(("a", "tcp://h:70000"),)),
            "--serving-engines: a: 'h:70000' has no port between",
        ),
        (lambda: ServingSettings(engines=(("a b", "tcp://h:1"),)), "--serving-engines: 'a b' is no name of letters"),
        (lambda: ServingSettings(devices=(("a", "0,,1"),)), "--serving-devices: a: '0,,1' is no list of indices"),
        (lambda: Log(level="loud"), "--log-level: 'loud' is not one of debug, info, warning, error"),
    ],
)
def test_a_value_that_cannot_be_is_refused_when_the_configuration_is_made(make: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value).startswith(says)


def test_headers_show_in_no_representation() -> None:
    assert "secret" not in repr(Config(otlp=Otlp(endpoint="http://c:1", headers=(("authorization", "secret"),))))


def test_groups_are_chosen_besides_the_default_ones() -> None:
    assert Config().groups == DEFAULT_GROUPS
    assert Config(collect=("ecc-detail",)).groups == DEFAULT_GROUPS | {Group.ECC_DETAIL}
    assert Config(collect=("all",)).groups == ALL_GROUPS
    assert Config(collect=("none",)).groups == {Group.CORE}
    assert Config(collect=("none", "gpm")).groups == {Group.CORE, Group.GPM}


def test_the_host_is_named_as_the_settings_say() -> None:
    assert DcgmSettings().host("node-1") == ("node-1", "both")
    assert DcgmSettings(hostname="gpu-7", hostname_label="hostname").host("node-1") == ("gpu-7", "hostname")
    assert DcgmSettings(hostname="gpu-7", hostname_label="none").host("node-1") == ("", "both")
    for label in ("Hostname", "hostname", "both", "none"):
        host, known = DcgmSettings(hostname_label=label).host("node-1")
        choose("dcgm", hostname=host, hostname_label=known)


def test_what_may_not_be_as_it_was_meant_is_remarked() -> None:
    assert list(Config().remarks()) == []
    (slow,) = Config(interval_s=30).remarks()
    assert "30 s between two readings" in slow
    (unused,) = Config(dcgm=DcgmSettings(csv=Path("my.csv"))).remarks()
    assert "my.csv is not used" in unused
    (named,) = Config(names="both", dcgm=DcgmSettings(csv=Path("my.csv"), names="4.6")).remarks()
    assert named == "dcgm_names changes nothing: my.csv names the metrics"
    (without,) = Config(dcgm=DcgmSettings(names="4.6")).remarks()
    assert without == "dcgm_names changes nothing without names = dcgm or both"
    (nowhere,) = Config(forward=Forward(endpoint="http://c:1")).remarks()
    assert "forward changes nothing without receive_http" in nowhere
    (tenants,) = Config(serving=ServingSettings(tenant="user.id")).remarks()
    assert tenants.startswith("serving_tenant changes nothing")
    (nothing,) = Config(process_names=True).remarks()
    assert nothing.startswith("process_names")


def test_the_names_of_a_setting_follow_from_each_other_and_no_two_share_one() -> None:
    row = BY_NAME["otlp.interval"]
    assert (row.flag, row.variable, row.field) == (
        "--otlp-interval",
        "GPU_PROFILE_EXPORTER_OTLP_INTERVAL",
        "interval_s",
    )
    flags = [flag for row in SETTINGS for flag in (row.flag, *(f for alias in row.aliases for f in alias.flags))]
    variables = [v for row in SETTINGS for v in (row.variable, *(v for a in row.aliases for v in a.variables))]
    assert len(flags) == len(set(flags))
    assert len(variables) == len(set(variables))


# ---------------------------------------------------------------------- where settings come from


def test_without_anything_it_serves_the_defaults() -> None:
    assert served() == Config()
    assert (Config().listen, Config().driver) == (Address(ANY, 9400), "auto")
    assert Config().interval_s == 0.1


@pytest.mark.parametrize("name", [row.dotted for row in SETTINGS])
@settings(max_examples=10)
@given(data=st.data())
def test_every_setting_can_be_made_in_all_three_ways(name: str, tmp_path_factory: Any, data: st.DataObject) -> None:
    row = BY_NAME[name]
    value = data.draw(values(row))
    file = tmp_path_factory.getbasetemp() / "three-ways.toml"
    file.write_text(file_of({row: value}), encoding="utf-8")
    for config in (
        served([flag_of(row, value)]),
        served([], {row.variable: text_of(row, value)}),
        served(["--config", str(file)]),
        served([], {"GPU_PROFILE_EXPORTER_CONFIG": str(file)}),
        served(default_file=file),
    ):
        assert row.of(config) == value
        others = [other for other in SETTINGS if other != row and (name, other.dotted) != ("dcgm.csv", "names")]
        assert all(other.of(config) == other.default for other in others)


layers = st.fixed_dictionaries(
    {}, optional={row.dotted: st.tuples(st.integers(1, 7), values(row), values(row), values(row)) for row in SETTINGS}
).map(lambda found: {key: value for key, value in found.items() if key not in HALVES})


@settings(max_examples=60)
@given(layers)
def test_flags_win_over_variables_and_variables_over_the_file(tmp_path_factory: Any, found: dict[str, Any]) -> None:
    """Each setting is made in any of the three ways (the bits of a number), each with a value of its own."""
    rows = {BY_NAME[name]: said for name, said in found.items()}
    file = tmp_path_factory.getbasetemp() / "layers.toml"
    file.write_text(file_of({row: said[1] for row, said in rows.items() if said[0] & 1}), encoding="utf-8")
    environ = {row.variable: text_of(row, said[2]) for row, said in rows.items() if said[0] & 2}
    arguments = [flag_of(row, said[3]) for row, said in rows.items() if said[0] & 4]
    config = served(["--config", str(file), *arguments], environ)
    for row in SETTINGS:
        if row in rows:
            where = rows[row][0]
            assert row.of(config) == rows[row][3 if where & 4 else 2 if where & 2 else 1]
        elif row.dotted != "names":
            assert row.of(config) == row.default


def test_a_certificate_and_its_key_may_come_from_different_places(tmp_path: Path) -> None:
    file = tmp_path / "exporter.toml"
    file.write_text('[otlp]\nclient_cert = "c.pem"\n')
    config = served(["--config", str(file)], {"GPU_PROFILE_EXPORTER_OTLP_CLIENT_KEY": "k.pem"})
    assert (config.otlp.client_cert, config.otlp.client_key) == (Path("c.pem"), Path("k.pem"))


def test_a_flag_wins_over_the_environment_and_the_exporters_variable_over_the_shared_one() -> None:
    shared = {"GPU_PROFILE_BACKEND": "smi"}
    own = {"GPU_PROFILE_EXPORTER_DRIVER": "nvml", **shared}
    assert [served(a, e).driver for a, e in (([], shared), ([], own), (["--driver", "none"], own))] == [
        "smi",
        "nvml",
        "none",
    ]


def test_a_file_that_is_named_is_the_only_one_that_is_read(tmp_path: Path) -> None:
    for name in ("default", "variable", "flag"):
        (tmp_path / name).write_text(f'driver = "{name}"')
    default, variable = tmp_path / "default", {"GPU_PROFILE_EXPORTER_CONFIG": str(tmp_path / "variable")}
    assert served(default_file=default).driver == "default"
    assert served([], variable, default).driver == "variable"
    assert served(["--config", str(tmp_path / "flag")], variable, default).driver == "flag"
    assert served(["--config", "/dev/null"], variable, default) == Config()


def test_dcgms_names_come_with_its_file_unless_names_are_chosen() -> None:
    assert served(["-f", "my.csv"]).names == "both"
    assert served(["-f", "my.csv", "--names", "semconv"]).names == "semconv"
    assert served(["-f", "my.csv"], {"GPU_PROFILE_EXPORTER_NAMES": "dcgm"}).names == "dcgm"
    assert served([]).names == "semconv"


def test_a_list_is_taken_from_one_place_and_may_come_in_parts() -> None:
    environ = {"GPU_PROFILE_EXPORTER_COLLECT": "c2c"}
    assert served([], environ).collect == ("c2c",)
    assert served(["--collect", "clocks, limits,", "--collect", "CLOCKS,module"], environ).collect == (
        "clocks",
        "limits",
        "module",
    )


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["-a", ":1"], "listen", Address(ANY, 1)),
        (["--address", ":1"], "listen", Address(ANY, 1)),
        (["--web.config.file", "w"], "web_config_file", Path("w")),
        (["-c", "500"], "interval", 0.5),
        (["--collect-interval", "10000"], "interval", 10),
        (["-f", "x.csv"], "dcgm.csv", Path("x.csv")),
        (["--collectors", "x.csv"], "dcgm.csv", Path("x.csv")),
        (["-n"], "dcgm.hostname_label", "none"),
        (["--no-hostname"], "dcgm.hostname_label", "none"),
        (["--hostname", "node-7"], "dcgm.hostname", "node-7"),
        (["-k"], "attribution.pods", "on"),
        (["--kubernetes"], "attribution.pods", "on"),
        (["--kubernetes-enable-dra"], "attribution.dra", True),
        (["--pod-resources-kubelet-socket", "s"], "attribution.kubelet_socket", Path("s")),
        (["--hpc-job-mapping-dir", "d"], "attribution.job_mapping_dir", Path("d")),
        (["--debug"], "log.level", "debug"),
        (["--forward", "http://c:4318"], "forward.endpoint", "http://c:4318"),
        (["--serving", "a=tcp://h:1", "--serving", "b=unix:/b"], "serving.engines", tuple(ENGINES.items())),
    ],
)
def test_a_flag_of_dcgm_exporter_means_here_what_it_means_there(arguments: list[str], name: str, value: Any) -> None:
    assert BY_NAME[name].of(served(arguments)) == value


def test_every_flag_of_another_program_is_held_by_a_test_above() -> None:
    marks = test_a_flag_of_dcgm_exporter_means_here_what_it_means_there.pytestmark
    tested = {row[0][0] for row in marks[0].args[1]}
    assert {flag for row in SETTINGS for alias in row.aliases for flag in alias.flags} == tested


def test_one_thing_said_by_two_flags_is_an_error() -> None:
    ran = run(["--interval", "1", "-c", "500"])
    assert ran.code == 2
    assert "--interval and --collect-interval set the same setting; leave one out" in ran.err


@pytest.mark.parametrize("mode", ["666", "646", "662", "755", "400", "6440", "rw", ""])
def test_a_timeline_that_others_may_write_to_or_execute_is_refused(mode: str) -> None:
    ran = run(["--timeline-mode", mode])
    assert ran.code == 2
    assert "--timeline-mode" in ran.err
