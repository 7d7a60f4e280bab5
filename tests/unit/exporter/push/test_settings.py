"""The endpoint of one signal, from the settings that hold for it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import SETTINGS
from gpu_profile_exporter.push.settings import Endpoint, endpoint, http_url, resource_attributes

DEFAULTS = {row.field: (row.default, row.flag) for row in SETTINGS if row.topic == "otlp"}


def made(address: str, *, signal: str = "metrics", name: str = "--otlp-endpoint", **settings: Any) -> Endpoint:
    """The endpoint of a signal by flags."""
    given = {field: (value, DEFAULTS[field][1]) for field, value in settings.items()}
    return endpoint(signal, DEFAULTS | {"endpoint": (address, name)} | given)


def test_defaults_are_those_of_the_specification() -> None:
    assert made("http://collector:4318") == Endpoint(
        url="http://collector:4318/v1/metrics", protocol="http/protobuf", headers=(), timeout_s=10.0, compression="gzip"
    )
    assert made("http://collector:4318", signal="logs").url == "http://collector:4318/v1/logs"


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
    assert made(base).url == url


@pytest.mark.parametrize("url", ["http://prometheus:9090/api/v1/otlp/v1/metrics", "http://logs:4318/"])
def test_a_signals_own_endpoint_is_used_as_it_is(url: str) -> None:
    own = {signal: f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT" for signal in ("metrics", "logs")}
    for signal, name in own.items():
        assert made(url.removesuffix("4318/") + "4318" * url.endswith("/"), signal=signal, name=name).url == url


@pytest.mark.parametrize(
    ("address", "insecure", "url"),
    [
        ("http://c:4317", False, "http://c:4317"),
        ("https://c:4317/", True, "https://c:4317"),
        ("c:4317", False, "https://c:4317"),
        ("c:4317", True, "http://c:4317"),
        ("[::1]:4317", True, "http://[::1]:4317"),
        ("unix:///run/otel.sock", False, "unix:/run/otel.sock"),
        ("unix:/run/otel.sock", False, "unix:/run/otel.sock"),
    ],
)
def test_grpc_takes_tls_from_the_scheme_and_else_from_insecure(address: str, insecure: bool, url: str) -> None:
    for signal in ("metrics", "logs"):
        found = made(address, signal=signal, protocol="grpc", insecure=insecure)
        assert (found.url, found.protocol) == (url, "grpc")


@pytest.mark.parametrize(
    ("address", "settings", "says"),
    [
        ("collector:4318", {}, "--otlp-endpoint: 'collector:4318' "),
        ("ftp://c:4318", {}, "is no URL for http/protobuf"),
        ("http://", {}, "has no host"),
        ("http://c:99999", {}, "is no URL"),
        ("http://c:0", {}, "no port between"),
        ("http://[::1", {}, "is no URL"),
        ("http://c d:4318", {}, "blanks"),
        ("http://c/\x00", {}, "blanks"),
        ("http://user:secret@c:4318", {}, "name or password"),
        ("http://c:4318", {"client_key": "/k.pem"}, "--otlp-client-key: needs its other half, the client cert"),
        ("http://c:4318", {"client_cert": "/c.pem"}, "--otlp-client-cert: needs its other half, the client key"),
        ("http://c", {"protocol": "grpc"}, "has no port"),
        ("http://c:1/v1/metrics", {"protocol": "grpc"}, "is no gRPC endpoint"),
        ("unix:", {"protocol": "grpc"}, "names no socket"),
        ("c:1", {"protocol": "grpc", "headers": (("k-bin", "x"),)}, "--otlp-headers: gRPC cannot"),
    ],
)
def test_a_value_that_is_no_good_is_one_line_that_names_it(address: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as raised:
        made(address, **settings)
    text = str(raised.value)
    assert says in text
    assert text.startswith("--otlp")
    assert "\n" not in text
    assert "secret" not in text


def test_an_endpoint_shows_no_header_values() -> None:
    found = Endpoint(url="http://c/", headers=(("authorization", "Bearer s3cret"),))
    assert "s3cret" not in repr(found)
    assert "authorization" in repr(found)


@given(st.text(max_size=40) | st.from_regex(r"https?://[a-z\[\]:/?#@%0-9.]{0,30}", fullmatch=True))
def test_whatever_stands_in_an_endpoint_is_taken_or_refused_in_one_line(address: str) -> None:
    for protocol in ("grpc", "http/protobuf"):
        try:
            said = made(address, protocol=protocol).url
        except UsageError as error:
            said = str(error)
        assert said.isprintable()


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
