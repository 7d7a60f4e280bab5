from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.exporter.settings import complaint, served, value_of

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import SETTINGS, Address, Config, load
from gpu_profile_exporter.push.settings import Endpoint, Endpoints

PREFIX = "GPU_PROFILE_EXPORTER_"


def endpoints(arguments: list[str], environ: Mapping[str, str]) -> tuple[Endpoint | None, Endpoint | None]:
    """Where metrics and events go to."""
    found = served(arguments, environ).otlp.endpoints or Endpoints()
    return found.metrics, found.logs


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("INTERVALL", "1", "GPU_PROFILE_EXPORTER_INTERVALL: there is no such setting; did you mean '…INTERVAL'?"),
        ("OTLP_ENDPONT", "x", "there is no such setting; did you mean '…OTLP_ENDPOINT'?"),
        ("CONFIG_FILE", "x", "GPU_PROFILE_EXPORTER_CONFIG_FILE: there is no such setting; did you mean"),
        ("", "x", "GPU_PROFILE_EXPORTER_: there is no such setting"),
        ("INTERVAL\n", "1", "GPU_PROFILE_EXPORTER_INTERVAL\\n: there is no such setting"),
        ("INTERVAL", "soon", "GPU_PROFILE_EXPORTER_INTERVAL: 'soon' is not a number of seconds"),
        ("INTERVAL", "100ms", "GPU_PROFILE_EXPORTER_INTERVAL: '100ms' is not a number of seconds"),
        ("INTERVAL", "1_0", "GPU_PROFILE_EXPORTER_INTERVAL: '1_0' is not a number"),
        ("INTERVAL", "nan", "GPU_PROFILE_EXPORTER_INTERVAL: 'nan' is not a number"),
        ("INTERVAL", "1e999", "GPU_PROFILE_EXPORTER_INTERVAL: must lie between 0.01 and 60 seconds, not inf"),
        ("INTERVAL", "１", "GPU_PROFILE_EXPORTER_INTERVAL: '１' is not a number"),
        ("INTERVAL", "9" * 200, "GPU_PROFILE_EXPORTER_INTERVAL: must lie between"),
        ("SERIES_BUDGET", "1e3", "GPU_PROFILE_EXPORTER_SERIES_BUDGET: '1e3' is not a whole number"),
        ("SERIES_BUDGET", "9" * 5000, "GPU_PROFILE_EXPORTER_SERIES_BUDGET: '999"),
        ("PROCESSES", "ja", "GPU_PROFILE_EXPORTER_PROCESSES: 'ja' is neither true nor false"),
        ("COLLECT", "ecc,pci", "GPU_PROFILE_EXPORTER_COLLECT: unknown 'pci': one of core,"),
        ("NAMES", "prometheus", "GPU_PROFILE_EXPORTER_NAMES: 'prometheus' is not one of semconv, dcgm, both"),
        ("LISTEN", "here", "GPU_PROFILE_EXPORTER_LISTEN: 'here' has no port"),
        ("DRIVER", "\udcff", "GPU_PROFILE_EXPORTER_DRIVER: '\\udcff' has a character that is not printable UTF-8"),
        ("OTLP_HEADERS", "Bearer hunter2", "GPU_PROFILE_EXPORTER_OTLP_HEADERS: header 1 is not written as name=value"),
        ("OTLP_ENDPOINT", "c:x", "GPU_PROFILE_EXPORTER_OTLP_ENDPOINT: 'c:x'"),
    ],
)
def test_what_is_wrong_in_a_variable_is_told_with_its_name_and_the_reason(name: str, text: str, says: str) -> None:
    assert complaint([], {PREFIX + name: text}).startswith(says.replace("…", PREFIX)) or says.startswith("there")
    assert says.replace("…", PREFIX) in complaint([], {PREFIX + name: text})


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
    tmp_path: Path, name: str, text: str, setting: str, value: Any
) -> None:
    (row,) = (row for row in SETTINGS if row.name == setting)
    assert value_of(served([], {name: text}), row) == value
    assert name in [variable for alias in row.spec.aliases for variable in alias.variables]


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
    metrics, logs = endpoints([], {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m:1/in"})
    assert metrics is not None
    assert (metrics.url, logs) == ("http://m:1/in", None)


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
    + [name for row in SETTINGS for alias in row.spec.aliases for name in alias.variables]
    + [f"{PREFIX}X", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_METRICS_EXPORTER"]
)
texts = st.one_of(
    st.text(st.characters(blacklist_characters="\0"), max_size=12),
    st.sampled_from(
        ["true", "0", "1000", "gzip", "http://c:1", "ecc,all", "a=b", "a=b,c", "json", "grpc", "\udcff", "²"]
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(names, texts, max_size=5))
def test_any_environment_is_a_configuration_or_refused_in_one_line(environ: dict[str, str]) -> None:
    try:
        config = load({}, environ).config
    except UsageError as error:
        assert str(error).isprintable()  # noqa: PT017 - no error is fine too
        return
    for row in SETTINGS:
        row.spec.kind.check(value_of(config, row))
