import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.errors import UsageError
from gpu_profile_exporter import cli
from gpu_profile_exporter.config import Address, Config, parse_listen

ANY = "0.0.0.0"  # noqa: S104 - the exporter's default


@pytest.mark.parametrize(
    ("text", "address"),
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
def test_an_address_is_read_as_written(text: str, address: Address) -> None:
    assert parse_listen(text) == address


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
    with pytest.raises(UsageError) as caught:
        parse_listen(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_the_users_error(text: str) -> None:
    try:
        address = parse_listen(text)
    except UsageError:
        return
    assert 0 <= address.port <= 65535
    assert address.host
    assert parse_listen(str(address)) == address


@pytest.mark.parametrize("interval", [0, -1, 0.009, 61, float("nan"), float("inf")])
def test_an_interval_out_of_bounds_is_the_users_error(interval: float) -> None:
    with pytest.raises(UsageError, match=r"--interval must lie between 0\.01 and 60 seconds"):
        Config(interval_s=interval)


@pytest.mark.parametrize("retention", [0, 0.5, 1e9, float("nan")])
def test_a_retention_out_of_bounds_is_the_users_error(retention: float) -> None:
    with pytest.raises(UsageError, match="--retention"):
        Config(retention_s=retention)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """What the command would have served."""
    for name in ("LISTEN", "DRIVER", "INTERVAL", "RETENTION", "LOG_LEVEL"):
        monkeypatch.delenv(f"GPU_PROFILE_EXPORTER_{name}", raising=False)
    monkeypatch.delenv("GPU_PROFILE_BACKEND", raising=False)
    configs: list[Config] = []
    monkeypatch.setattr(cli, "serve", configs.append)
    return configs


def test_without_options_it_serves_the_defaults(served: list[Config]) -> None:
    assert cli.run([]) == 0
    assert served == [Config(listen=Address(ANY, 9400), driver="auto", interval_s=0.1, retention_s=120.0)]


def test_every_option_has_an_environment_variable(served: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LISTEN": ":1", "DRIVER": "none", "INTERVAL": "2", "RETENTION": "60"}.items():
        monkeypatch.setenv(f"GPU_PROFILE_EXPORTER_{name}", value)
    assert cli.run([]) == 0
    assert served == [Config(listen=Address(ANY, 1), driver="none", interval_s=2.0, retention_s=60.0)]


def test_a_flag_wins_over_the_environment_and_the_exporters_variable_over_the_shared_one(
    served: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PROFILE_BACKEND", "smi")
    assert cli.run([]) == 0
    monkeypatch.setenv("GPU_PROFILE_EXPORTER_DRIVER", "nvml")
    assert cli.run([]) == 0
    assert cli.run(["--driver", "none"]) == 0
    assert [config.driver for config in served] == ["smi", "nvml", "none"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--listen", "nowhere"], "--listen 'nowhere'"),
        (["--interval", "soon"], "'soon' is not a valid float"),
        (["--interval", "0"], "--interval must lie between"),
        (["--log-level", "loud"], "'loud' is not one of"),
        (["--colour"], "--colour"),
        (["dmeo"], "No such command 'dmeo'"),
    ],
)
def test_what_the_user_typed_wrong_is_one_line_and_exit_code_2(
    served: list[Config], capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert err.startswith("gpu-profile-exporter: ")
    assert err.count("\n") == 1
    assert out == ""
    assert served == []


def test_an_unexpected_failure_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(config: Config) -> None:
        raise RuntimeError("the sky\nfell")

    monkeypatch.setattr(cli, "serve", serve)
    assert cli.run([]) == 1
    err = capsys.readouterr().err
    assert err == "gpu-profile-exporter: RuntimeError: the sky fell (--log-level debug shows where)\n"


def test_help_names_the_demo_without_loading_it() -> None:
    result = CliRunner().invoke(cli.exporter, ["--help"])
    assert result.exit_code == 0
    assert "demo" in result.output
    assert "simulated[:DIR]" in result.output
