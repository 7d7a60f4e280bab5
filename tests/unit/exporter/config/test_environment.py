from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.exporter.settings import complaint, run, served

from gpu_profile_exporter.config import SETTINGS, Address, Config
from gpu_profile_exporter.config.kinds import Headers
from gpu_profile_exporter.config.model import BY_NAME
from gpu_profile_exporter.push.settings import Endpoint, Endpoints

PREFIX = "GPU_PROFILE_EXPORTER_"
OTLP = "OTEL_EXPORTER_OTLP_"


def endpoints(arguments: list[str], environ: Mapping[str, str]) -> tuple[Endpoint | None, Endpoint | None]:
    """Where metrics and events go to."""
    found = served(arguments, environ).otlp.endpoints or Endpoints()
    return found.metrics, found.logs


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("INTERVALL", f"{PREFIX}INTERVALL: there is no such setting; did you mean '{PREFIX}INTERVAL'?"),
        ("OTLP_ENDPONT", f"there is no such setting; did you mean '{PREFIX}OTLP_ENDPOINT'?"),
        ("CONFIG_FILE", f"{PREFIX}CONFIG_FILE: there is no such setting; did you mean"),
        ("", f"{PREFIX}: there is no such setting"),
        ("INTERVAL\n", f"{PREFIX}INTERVAL\\n: there is no such setting"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused_with_the_nearest_name(name: str, says: str) -> None:
    assert says in complaint([], {PREFIX + name: "1"})


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("interval", "soon", "'soon' is not a number of seconds"),
        ("interval", "100ms", "'100ms' is not a number of seconds"),
        ("interval", "1_0", "'1_0' is not a number"),
        ("interval", "nan", "'nan' is not a number"),
        ("interval", "0", "must lie between 0.01 and 60 seconds, not 0"),
        ("interval", "1e999", "must lie between 0.01 and 60 seconds, not inf"),
        ("interval", "１", "'１' is not a number"),
        ("interval", "9" * 200, "must lie between"),
        ("series_budget", "1e3", "'1e3' is not a whole number"),
        ("series_budget", "9" * 5000, "'999"),
        ("processes", "ja", "'ja' is neither true nor false"),
        ("collect", "ecc,pci", "unknown 'pci': one of core,"),
        ("names", "prometheus", "'prometheus' is not one of semconv, dcgm, both"),
        ("listen", "here", "'here' has no port"),
        ("driver", "\udcff", "'\\udcff' has a character that is not printable UTF-8"),
        ("log.level", "loud", "'loud' is not one of debug, info, warning, error"),
        ("otlp.headers", "Bearer hunter2", "header 1 is not written as name=value"),
        ("otlp.endpoint", "c:x", "'c:x'"),
    ],
)
def test_what_is_wrong_in_a_variable_or_a_flag_is_told_with_its_name_and_the_reason(
    name: str, text: str, says: str
) -> None:
    row = BY_NAME[name]
    assert complaint([], {row.variable: text}).startswith(f"{row.variable}: {says}")
    if not row.switch:
        assert complaint([f"{row.flag}={text}"]).startswith(f"{row.flag}: {says}")


def test_what_is_wrong_in_a_variable_or_the_file_is_told_though_a_flag_wins_over_it(tmp_path: Path) -> None:
    file = tmp_path / "exporter.toml"
    file.write_text("interval = 'soon'\n")
    assert complaint(["--interval", "1"], {}, file).startswith(f"{file}:1: interval: 'soon'")
    assert complaint(["--interval", "1"], {f"{PREFIX}INTERVAL": "soon"}).startswith(f"{PREFIX}INTERVAL: 'soon'")


@pytest.mark.parametrize("text", ["Bearer hunter2", "a b=hunter2", "authorization=hunter2\x01", "host=hunter2"])
def test_a_secret_is_in_no_message(text: str) -> None:
    environ = {f"{PREFIX}OTLP_HEADERS": text, f"{PREFIX}OTLP_ENDPOINT": "http://c:1"}
    assert "hunter2" not in complaint([], environ)
    assert "hunter2" not in complaint(["--otlp-headers", text, "--otlp-endpoint", "http://c:1"])


def test_an_empty_variable_says_nothing() -> None:
    assert served([], dict.fromkeys([row.variable for row in SETTINGS], "")) == Config()
    assert served([], {f"{PREFIX}CONFIG": ""}) == Config()


def test_what_kubernetes_sets_for_a_service_of_this_name_is_no_mistake() -> None:
    beside = {
        "SERVICE_HOST": "10.0.0.7",
        "SERVICE_PORT": "9400",
        "SERVICE_PORT_METRICS": "9400",
        "PORT": "tcp://10.0.0.7:9400",
        "PORT_9400_TCP": "tcp://10.0.0.7:9400",
        "PORT_9400_TCP_PROTO": "tcp",
        "PORT_9400_TCP_PORT": "9400",
        "PORT_9400_TCP_ADDR": "10.0.0.7",
        "CANARY_SERVICE_HOST": "10.0.0.8",
        "CANARY_PORT": "tcp://10.0.0.8:9400",
        "CANARY_PORT_9400_UDP_ADDR": "10.0.0.8",
    }
    assert served([], {PREFIX + name: text for name, text in beside.items()}) == Config()
    assert "there is no such setting" in complaint([], {f"{PREFIX}PORT": "9400"})
    assert "there is no such setting" in complaint([], {f"{PREFIX}LISTEN_PORT": "9400"})
    assert not any(row.variable.endswith(("_PORT", "_SERVICE_HOST")) for row in SETTINGS)


@pytest.mark.parametrize(
    ("name", "text", "setting", "value"),
    [
        ("GPU_PROFILE_BACKEND", "none", "driver", "none"),
        ("DCGM_EXPORTER_LISTEN", ":1", "listen", Address(port=1)),
        ("DCGM_EXPORTER_WEB_CONFIG_FILE", "w", "web_config_file", Path("w")),
        ("DCGM_EXPORTER_INTERVAL", "30000", "interval", 30),
        ("DCGM_EXPORTER_COLLECTORS", "x.csv", "dcgm.csv", Path("x.csv")),
        ("DCGM_EXPORTER_NO_HOSTNAME", "true", "dcgm.hostname_label", "none"),
        ("DCGM_EXPORTER_NO_HOSTNAME", "false", "dcgm.hostname_label", "both"),
        ("NODE_NAME", "node-7", "dcgm.hostname", "node-7"),
        ("DCGM_EXPORTER_KUBERNETES", "true", "attribution.pods", "on"),
        ("DCGM_EXPORTER_KUBERNETES", "false", "attribution.pods", "auto"),
        ("DCGM_POD_RESOURCES_KUBELET_SOCKET", "s", "attribution.kubelet_socket", Path("s")),
        ("KUBERNETES_ENABLE_DRA", "1", "attribution.dra", True),
        ("DCGM_HPC_JOB_MAPPING_DIR", "d", "attribution.job_mapping_dir", Path("d")),
        ("DCGM_EXPORTER_DEBUG", "true", "log.level", "debug"),
        ("DCGM_EXPORTER_LOG_FORMAT", "json", "log.format", "json"),
    ],
)
def test_another_programs_variable_means_here_what_it_means_there_below_ours_and_above_the_file(
    name: str, text: str, setting: str, value: Any
) -> None:
    row = BY_NAME[setting]
    assert row.of(served([], {name: text})) == value
    assert name in [variable for alias in row.aliases for variable in alias.variables]


def test_other_programs_variables_come_after_the_exporters_and_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "exporter.toml"
    file.write_text('listen = ":3"\n')
    theirs, ours = {"DCGM_EXPORTER_LISTEN": ":2"}, {f"{PREFIX}LISTEN": ":1"}
    assert [served([], environ, file).listen.port for environ in ({}, theirs, {**theirs, **ours})] == [3, 2, 1]


def test_another_programs_variable_that_cannot_be_read_is_told_unless_something_stronger_is_said() -> None:
    environ = {"DCGM_EXPORTER_INTERVAL": "30s"}
    assert complaint([], environ) == "DCGM_EXPORTER_INTERVAL: '30s' is not a whole number of milliseconds"
    assert served(["--interval", "1"], environ).interval_s == 1
    assert complaint([], {"DCGM_EXPORTER_INTERVAL": "120000"}) == (
        "DCGM_EXPORTER_INTERVAL: must lie between 0.01 and 60 seconds, not 120"
    )


# ---------------------------------------------------------------------- OpenTelemetry's


def test_the_standard_variables_say_where_to_push() -> None:
    metrics, logs = endpoints(
        [], {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_EXPORTER_OTLP_TIMEOUT": "2000"}
    )
    assert metrics is not None
    assert logs is not None
    assert (metrics.url, metrics.timeout_s, logs.url) == ("http://c:4318/v1/metrics", 2.0, "http://c:4318/v1/logs")


def test_a_variable_for_one_signal_says_something_of_that_one_alone() -> None:
    environ = {f"{OTLP}METRICS_ENDPOINT": "http://m:1/in", f"{OTLP}TIMEOUT": "4000", f"{OTLP}LOGS_TIMEOUT": "soon"}
    metrics, logs = endpoints([], environ)
    assert metrics is not None
    assert (metrics.url, metrics.timeout_s, logs) == ("http://m:1/in", 4.0, None)
    assert served([], {**environ, "OTEL_METRIC_EXPORT_INTERVAL": "60000"}).otlp.interval_s == 60


def test_a_signals_own_variable_wins_over_the_general_one_and_a_flag_over_both() -> None:
    environ = {
        f"{OTLP}ENDPOINT": "http://c:4318",
        f"{OTLP}TIMEOUT": "3000",
        f"{OTLP}LOGS_TIMEOUT": "500",
        f"{OTLP}COMPRESSION": "none",
        f"{OTLP}METRICS_HEADERS": "x-tenant=metrics",
        f"{OTLP}HEADERS": "x-tenant=all",
    }
    metrics, logs = endpoints([], environ)
    assert metrics is not None
    assert logs is not None
    assert (metrics.timeout_s, logs.timeout_s, metrics.compression) == (3.0, 0.5, "none")
    assert (metrics.headers, logs.headers) == ((("x-tenant", "metrics"),), (("x-tenant", "all"),))
    flags = ["--otlp-timeout=2", "--otlp-endpoint=http://d:1", "--otlp-headers=X-Tenant=mine"]
    for found in endpoints(flags, {**environ, f"{OTLP}METRICS_ENDPOINT": "http://m:1"}):
        assert found is not None
        assert (found.timeout_s, found.headers) == (2.0, (("x-tenant", "mine"),))
        assert found.url.startswith("http://d:1/v1/")


def test_a_signal_whose_exporter_is_none_is_off() -> None:
    metrics, logs = endpoints([], {f"{OTLP}ENDPOINT": "http://c:4318", "OTEL_LOGS_EXPORTER": "None"})
    assert metrics is not None
    assert logs is None


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("ENDPOINT", "collector:4318", "'collector:4318' has no host"),
        ("PROTOCOL", "http/json", "'http/json' is not one of http/protobuf, grpc"),
        ("COMPRESSION", "zstd", "'zstd' is not one of gzip, none"),
        ("TIMEOUT", "ten", "'ten' is not a whole number of milliseconds"),
        ("TIMEOUT", "-1", "'-1' is not a whole number of milliseconds"),
        ("TIMEOUT", "50", "must lie between 0.1 and 300 seconds, not 0.05"),
        ("INSECURE", "perhaps", "'perhaps' is neither true nor false"),
        ("CLIENT_KEY", "/k.pem", "needs its other half, the client cert"),
        ("HEADERS", "a=b,c", "header 2 is not written as name=value"),
        ("HEADERS", "a b=c", "header 1 has a name that HTTP cannot carry"),
        ("HEADERS", "content-length=3", "'content-length' is set by the exporter itself; leave it out"),
    ],
)
def test_a_standard_variable_that_is_no_good_is_named_for_all_signals_and_for_one(
    name: str, text: str, says: str
) -> None:
    base = {f"{OTLP}ENDPOINT": "http://c:4318"}
    for variable in (f"{OTLP}{name}", f"{OTLP}METRICS_{name}", f"{OTLP}LOGS_{name}"):
        assert complaint([], {**base, variable: text}).startswith(f"{variable}: {says}")


@pytest.mark.parametrize("value", ["Bearer top%0d%0asecret", "top%00secret", "tops%C3%A9cret", "top%7Fsecret"])
def test_a_headers_value_that_could_break_out_is_refused_and_not_told(value: str) -> None:
    with pytest.raises(ValueError, match=r"^header 'authorization' has a value") as raised:
        Headers().read(f"authorization={value}")
    assert "top" not in str(raised.value)


def test_headers_are_percent_decoded_and_blanks_around_them_are_not_theirs() -> None:
    found = Headers().read("Authorization=Basic%20YTpi==, x-tenant = a%2Cb ,,")
    assert found == (("authorization", "Basic YTpi=="), ("x-tenant", "a,b"))


@given(st.text(max_size=60))
def test_whatever_stands_in_the_headers_is_taken_or_refused_in_one_line(text: str) -> None:
    try:
        headers = Headers().read(text)
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017 - no error is fine too
        return
    for name, value in headers:
        assert name == name.lower()
        assert f"{name}{value}".isascii()
        assert f"{name}{value}".isprintable()


def test_flags_win_over_the_standard_variables_and_these_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "exporter.toml"
    file.write_text('[otlp]\nendpoint = "http://file:1"\ncompression = "none"\ntimeout = 3\n')
    environ = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m:1/in", "OTEL_EXPORTER_OTLP_TIMEOUT": "4000"}
    metrics, logs = endpoints(["--config", str(file)], environ)
    assert metrics is not None
    assert logs is not None
    assert (metrics.url, metrics.compression, metrics.timeout_s) == ("http://m:1/in", "none", 4.0)
    assert (logs.url, logs.compression, logs.timeout_s) == ("http://file:1/v1/logs", "none", 4.0)
    metrics, _ = endpoints(["--config", str(file), "--otlp-endpoint", "http://flag:1", "--otlp-timeout", "5"], environ)
    assert metrics is not None
    assert (metrics.url, metrics.timeout_s) == ("http://flag:1/v1/metrics", 5.0)


def test_without_an_endpoint_the_standard_variables_mean_nothing() -> None:
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}
    assert endpoints([], environ) == (None, None)
    assert "OTEL_EXPORTER_OTLP_" in complaint([], {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", **environ})
    assert (
        endpoints(["--otlp-protocol", "grpc", "--otlp-timeout", "1", "--otlp-endpoint", "c:1"], environ)[0] is not None
    )


def test_an_empty_endpoint_as_a_flag_pushes_nothing_whatever_the_environment_says() -> None:
    assert served(["--otlp-endpoint", ""], {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1"}).otlp.endpoints is None


def test_headers_of_the_file_reach_the_push_whatever_is_in_them(tmp_path: Path) -> None:
    file = tmp_path / "exporter.toml"
    file.write_text('[otlp]\nendpoint = "http://c:1"\nheaders = {authorization = "a,b=c%20 \\"d\\""}\n')
    metrics, _ = endpoints(["--config", str(file)], {})
    assert metrics is not None
    assert metrics.headers == (("authorization", 'a,b=c%20 "d"'),)


names = st.sampled_from(
    [row.variable for row in SETTINGS]
    + [name for row in SETTINGS for alias in row.aliases for name in alias.variables]
    + [f"{PREFIX}X", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_METRICS_EXPORTER"]
)
texts = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["true", "0", "1000", "gzip", "http://c:1", "ecc,all", "a=b", "a=b,c", "json", "grpc", "\udcff", "²"]
    ),
)


@settings(max_examples=300)
@given(st.dictionaries(names, texts, max_size=5))
def test_any_environment_is_a_configuration_or_refused_in_one_line(environ: dict[str, str]) -> None:
    ran = run([], environ)
    assert (ran.code, bool(ran.err)) in ((0, False), (2, True))
    assert ran.err.rstrip("\n").isprintable()
    for row in SETTINGS if ran.config is not None else ():
        assert row.type.read(row.of(ran.config)) == row.of(ran.config)
