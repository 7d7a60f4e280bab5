"""Endpoints by options and by OpenTelemetry's variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.errors import UsageError
from gpu_profile_exporter.push.settings import (
    Endpoint,
    endpoint_settings,
    http_url,
    parse_headers,
    resource_attributes,
)

T = TypeVar("T")
BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"


def refused(call: Callable[[], T]) -> tuple[T | None, str]:
    """What a call gives, or what it says in refusing."""
    try:
        return call(), ""
    except UsageError as error:
        return None, str(error)


def test_without_an_endpoint_nothing_is_pushed() -> None:
    found = endpoint_settings({"OTEL_EXPORTER_OTLP_HEADERS": "a=b", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert (found.metrics, found.logs) == (None, None)


def test_defaults_are_those_of_the_specification() -> None:
    found = endpoint_settings({BASE: "http://collector:4318"})
    assert found.metrics == Endpoint(
        url="http://collector:4318/v1/metrics",
        protocol="http/protobuf",
        headers=(),
        timeout_s=10.0,
        compression="gzip",
    )
    assert found.logs is not None
    assert found.logs.url == "http://collector:4318/v1/logs"


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/metrics"),
        ("http://collector:4318/", "http://collector:4318/v1/metrics"),
        ("https://vendor.example/otlp", "https://vendor.example/otlp/v1/metrics"),
        ("https://vendor.example/otlp/?tenant=7", "https://vendor.example/otlp/v1/metrics?tenant=7"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/metrics"),
    ],
)
def test_the_signals_path_is_appended_to_a_base(base: str, url: str) -> None:
    found = endpoint_settings({BASE: base}).metrics
    assert found is not None
    assert found.url == url


def test_a_signals_own_endpoint_is_used_as_it_is() -> None:
    found = endpoint_settings(
        {
            BASE: "http://all:4318",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://prometheus:9090/api/v1/otlp/v1/metrics",
        }
    )
    assert found.metrics is not None
    assert found.logs is not None
    assert found.metrics.url == "http://prometheus:9090/api/v1/otlp/v1/metrics"
    assert found.logs.url == "http://all:4318/v1/logs"
    alone = endpoint_settings({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://logs:4318"})
    assert alone.metrics is None
    assert alone.logs is not None
    assert alone.logs.url == "http://logs:4318/"


def test_a_signals_own_variable_wins_over_the_general_one_and_an_option_over_both() -> None:
    environ = {
        BASE: "http://c:4318",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "3000",
        "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "500",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "x-tenant=metrics",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=all",
    }
    found = endpoint_settings(environ)
    assert found.metrics is not None
    assert found.logs is not None
    assert (found.metrics.timeout_s, found.logs.timeout_s) == (3.0, 0.5)
    assert (found.metrics.headers, found.logs.headers) == ((("x-tenant", "metrics"),), (("x-tenant", "all"),))
    assert found.metrics.compression == "none"
    found = endpoint_settings(environ, {"timeout_s": 2, "endpoint": "http://d:1", "headers": {"X-Tenant": "mine"}})
    assert found.metrics is not None
    assert found.logs is not None
    assert (found.metrics.timeout_s, found.logs.timeout_s) == (2.0, 2.0)
    assert found.logs.headers == (("x-tenant", "mine"),)
    assert found.metrics.url == "http://d:1/v1/metrics"


def test_a_signal_whose_exporter_is_none_is_off() -> None:
    found = endpoint_settings({BASE: "http://c:4318", "OTEL_LOGS_EXPORTER": "none"})
    assert found.metrics is not None
    assert found.logs is None


@pytest.mark.parametrize(
    ("address", "insecure", "url"),
    [
        ("http://c:4317", "", "http://c:4317"),
        ("https://c:4317/", "true", "https://c:4317"),
        ("c:4317", "", "https://c:4317"),
        ("c:4317", "true", "http://c:4317"),
        ("[::1]:4317", "TRUE", "http://[::1]:4317"),
        ("unix:///run/otel.sock", "", "unix:/run/otel.sock"),
        ("unix:/run/otel.sock", "", "unix:/run/otel.sock"),
    ],
)
def test_grpc_takes_tls_from_the_scheme_and_else_from_insecure(address: str, insecure: str, url: str) -> None:
    environ = {BASE: address, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_INSECURE": insecure}
    found = endpoint_settings(environ)
    assert found.metrics is not None
    assert found.logs is not None
    assert (found.metrics.url, found.logs.url, found.metrics.protocol) == (url, url, "grpc")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({BASE: "collector:4318"}, "ENDPOINT: 'collector:4318' "),
        ({BASE: "ftp://c:4318"}, "is no URL for http/protobuf"),
        ({BASE: "http://"}, "has no host"),
        ({BASE: "http://c:99999"}, "is no URL"),
        ({BASE: "http://c:0"}, "no port between"),
        ({BASE: "http://[::1"}, "is no URL"),
        ({BASE: "http://c d:4318"}, "blanks"),
        ({BASE: "http://c/\x00"}, "blanks"),
        ({BASE: "http://user:secret@c:4318"}, "name or password"),
        ({BASE: "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "none of http/protobuf, grpc"),
        ({BASE: "http://c:4318", "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, "none of gzip, none"),
        ({BASE: "http://c:4318", "OTEL_EXPORTER_OTLP_TIMEOUT": "ten"}, "milliseconds"),
        ({BASE: "http://c:4318", "OTEL_EXPORTER_OTLP_TIMEOUT": "nan"}, "milliseconds"),
        ({BASE: "http://c:4318", "OTEL_EXPORTER_OTLP_TIMEOUT": "-1"}, "milliseconds"),
        ({BASE: "http://c:4318", "OTEL_EXPORTER_OTLP_INSECURE": "perhaps"}, "neither true nor false"),
        ({BASE: "http://c:4318", "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/k.pem"}, "the client cert"),
        ({BASE: "http://c:4318", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/c.pem"}, "the client key"),
        ({BASE: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "has no port"),
        ({BASE: "http://c:1/v1/metrics", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "is no gRPC endpoint"),
        ({BASE: "unix:", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "names no socket"),
        ({BASE: "http://c:4318", "OTEL_EXPORTER_OTLP_HEADERS": "a=b,c"}, "entry 2 has no '='"),
        ({BASE: "http://c:4318", "OTEL_EXPORTER_OTLP_HEADERS": "a b=c"}, "entry 1 is no header"),
        ({BASE: "http://c:4318", "OTEL_EXPORTER_OTLP_HEADERS": "content-length=3"}, "set by the exporter"),
        ({BASE: "c:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_HEADERS": "k-bin=x"}, "gRPC cannot"),
    ],
)
def test_a_value_that_is_no_good_is_one_line_that_names_it(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        endpoint_settings(environ)
    text = str(raised.value)
    assert said in text
    assert text.startswith(("OTEL_EXPORTER_OTLP", "--otlp"))
    assert "\n" not in text
    assert "secret" not in text


def test_an_option_that_is_no_good_is_named_as_the_option() -> None:
    with pytest.raises(UsageError, match="--otlp-timeout: '0' is not a time in seconds"):
        endpoint_settings({}, {"endpoint": "http://c:4318", "timeout_s": 0})
    with pytest.raises(UsageError, match="--otlp-client-cert needs"):
        endpoint_settings({}, {"endpoint": "http://c:4318", "client_cert": "/c.pem"})


@pytest.mark.parametrize("value", ["Bearer top%0d%0asecret", "top%00secret", "tops%C3%A9cret", "top%7Fsecret"])
def test_a_headers_value_that_could_break_out_is_refused_and_not_told(value: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_headers(f"authorization={value}", "X")
    assert "authorization" in str(raised.value)
    assert "top" not in str(raised.value)


def test_an_endpoint_shows_no_header_values() -> None:
    endpoint = Endpoint(url="http://c/", headers=(("authorization", "Bearer s3cret"),))
    assert "s3cret" not in repr(endpoint)
    assert "authorization" in repr(endpoint)


def test_headers_are_percent_decoded_and_blanks_around_them_are_not_theirs() -> None:
    text = "Authorization=Basic%20YTpi==, x-tenant = a%2Cb ,,"
    assert parse_headers(text, "X") == (("authorization", "Basic YTpi=="), ("x-tenant", "a,b"))


NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=12).map(lambda name: f"x{name}")
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20).map(str.strip)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_headers_that_were_quoted_come_back_as_they_were(headers: dict[str, str]) -> None:
    text = ",".join(f"{name}={quote(value, safe='')}" for name, value in headers.items())
    assert dict(parse_headers(text, "X")) == headers


@given(st.text(max_size=60))
def test_whatever_stands_in_the_headers_is_taken_or_refused_in_one_line(text: str) -> None:
    headers, said = refused(lambda: parse_headers(text, "OTEL_EXPORTER_OTLP_HEADERS"))
    assert said.startswith("OTEL_EXPORTER_OTLP_HEADERS: ") or not said
    assert said.isprintable()
    for name, value in headers or ():
        assert name == name.lower()
        assert f"{name}{value}".isascii()
        assert f"{name}{value}".isprintable()


@given(st.text(max_size=40) | st.from_regex(r"https?://[a-z\[\]:/?#@%0-9.]{0,30}", fullmatch=True))
def test_whatever_stands_in_an_endpoint_is_taken_or_refused_in_one_line(address: str) -> None:
    for protocol in ("grpc", "http/protobuf"):
        environ = {BASE: address, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        found, said = refused(lambda given=environ: endpoint_settings(given))  # type: ignore[misc]
        assert said.isprintable()
        assert found is None or found.metrics is None or found.metrics.url.isprintable()


@given(st.sampled_from(["http://c:1", "https://c", "http://c/a/b"]), st.sampled_from(["v1/metrics", "v1/logs"]))
def test_a_base_with_and_without_a_slash_at_its_end_is_the_same(base: str, path: str) -> None:
    assert http_url(base, "X", path=path) == http_url(f"{base}/", "X", path=path)


def test_the_resource_says_which_node_it_is_and_the_environment_may_change_it() -> None:
    assert dict(resource_attributes({}, version="1.2", host="node-1")) == {
        "service.name": "gpu-profile-exporter",
        "service.version": "1.2",
        "host.name": "node-1",
        "service.instance.id": "node-1",
    }
    environ = {"OTEL_RESOURCE_ATTRIBUTES": "k8s.cluster.name=a%2Cb, service.name=x", "OTEL_SERVICE_NAME": "gpus"}
    found = dict(resource_attributes(environ, version="1.2", host="node-1", instance="node-1:9400"))
    assert found["k8s.cluster.name"] == "a,b"
    assert found["service.name"] == "gpus"
    assert found["service.instance.id"] == "node-1:9400"
    with pytest.raises(UsageError, match="OTEL_RESOURCE_ATTRIBUTES: entry 1 is not key=value"):
        resource_attributes({"OTEL_RESOURCE_ATTRIBUTES": "nonsense"}, version="", host="h")
