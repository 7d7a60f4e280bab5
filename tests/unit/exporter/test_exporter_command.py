import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.programs import environment, python
from unit.exporter.settings import complaint, run

from gpu_profile.errors import UsageError
from gpu_profile_exporter import cli, logs, quiet_interrupts, version
from gpu_profile_exporter.config import SETTINGS, Config, Log
from gpu_profile_exporter.config.setting import Setting
from gpu_profile_exporter.node import ExporterNode
from gpu_profile_exporter.operating import control, systemd


@contextmanager
def root_logger() -> Iterator[logging.Logger]:
    """The root logger without handlers, as a program finds it; what pytest had put there comes back."""
    root = logging.getLogger()
    handlers, level, complain = root.handlers[:], root.level, logging.raiseExceptions
    root.handlers = []
    try:
        yield root
    finally:
        root.handlers, logging.raiseExceptions = handlers, complain
        root.setLevel(level)


# ---------------------------------------------------------------------- what is typed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--address", "nowhere"], "--address: 'nowhere' has no port"),
        (["-c", "soon"], "--collect-interval: 'soon' is not a whole number of milliseconds"),
        (["--colour"], "--colour"),
        (["--intervl", "1"], "--interval"),
        (["--interval"], "--interval"),
        (["dmeo"], "No such command 'dmeo'"),
        (["-c", "500", "healthcheck"], "--collect-interval: applies to serving, not to healthcheck"),
        (["--interval", "1", "healthcheck"], "--interval: applies to serving, not to healthcheck"),
        (["--print-config", "healthcheck"], "--print-config: applies to serving, not to healthcheck"),
        (["--config", "x", "healthcheck"], "--config: applies to serving, not to healthcheck"),
    ],
)
def test_what_the_user_typed_wrong_is_one_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    assert says in complaint(arguments)


@given(st.lists(st.text(max_size=8), max_size=3).filter(lambda found: "demo" not in found))
def test_any_arguments_serve_print_or_end_with_one_line(arguments: list[str]) -> None:
    ran = run(arguments)
    assert ran.code in (0, 2)
    assert ran.err.count("\n") == (ran.code == 2)


def test_an_unexpected_failure_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(config: Config, reread: object) -> None:
        raise RuntimeError("the sky\nfell")

    monkeypatch.setattr(cli, "serve", serve)
    with root_logger():
        assert cli.run(["--config", "/dev/null"]) == 1
    err = capsys.readouterr().err
    assert err == "gpu-profile-exporter: RuntimeError: the sky fell (--log-level debug shows where)\n"


@pytest.mark.parametrize(("number", "used"), [(None, "1"), ("3", "3")])
def test_an_exporter_computes_with_one_thread_unless_the_environment_has_a_number(
    monkeypatch: pytest.MonkeyPatch, number: str | None, used: str
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", number or "")
    if number is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")

    def built(_: Config) -> None:
        raise RuntimeError(os.environ["OPENBLAS_NUM_THREADS"])

    monkeypatch.setattr("gpu_profile_exporter.node.ExporterNode", built)
    with pytest.raises(RuntimeError, match=used):
        cli.serve(Config(), dict)


def test_help_names_every_setting_and_command_in_at_most_100_columns() -> None:
    result = CliRunner().invoke(cli.exporter, ["--help"], terminal_width=100)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 100
    words = set(result.output.replace(",", " ").replace("/", " ").split())
    for row in SETTINGS:
        assert row.flag in words
        assert {flag.strip(".") for alias in row.aliases for flag in alias.flags} <= {w.strip(".") for w in words}
    for name in ("demo", "release", "healthcheck", "--config", "--print-config", "--version"):
        assert name in words
    assert "simulated[:DIR]" in result.output


def test_help_begins_as_it_always_does() -> None:
    result = CliRunner().invoke(cli.exporter, ["--help"], terminal_width=100)
    lines = result.output.splitlines()
    assert lines[0] == "Usage: gpu-profile-exporter [OPTIONS] [COMMAND] [ARGS]..."
    assert [line for line in lines[1:] if line and not line.startswith(" ")] == [
        "Sampling and endpoint:",
        "dcgm-exporter compatibility:",
        "Attribution of GPUs to workloads:",
        "OTLP push:",
        "Receiving spans over OTLP:",
        "Forwarding of received telemetry:",
        "Costs of LLM serving:",
        "Logging:",
        "The command:",
        "Commands:",
    ]


def test_help_loads_no_command_and_nothing_that_only_serving_needs() -> None:
    code = (
        "import sys; from gpu_profile_exporter import cli; cli.run(['--help']);"
        "print([m for m in ('gpu_profile_exporter.demo.command', 'gpu_profile_exporter.node', 'rich', 'grpc', 'ssl',"
        "'pynvml', 'numpy', 'opentelemetry', 'google.protobuf', 'yaml') if m in sys.modules], file=sys.stderr)"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_serving_and_reading_load_no_module_that_takes_memory_for_one_line() -> None:
    """Each of them takes 0.1 to 2 MiB, in the exporter or in every reader process."""
    code = (
        "import sys; known = set(sys.modules); from gpu_profile_exporter{} import {};"
        "print({{'importlib.metadata', 'tomllib', 'secrets', {}}} & (set(sys.modules) - known))"
    )
    viewed = "'html', 'importlib.resources', 'tempfile', 'difflib', 'shutil', 'bz2', 'hashlib'"
    assert python("-c", code.format("", "cli, node", viewed)).stdout == "set()\n"
    more = "'hashlib', 'subprocess', 'email', 'asyncio', 'click'"
    assert python("-c", code.format(".reader", "launcher_process", more)).stdout == "set()\n"


def test_the_version_is_that_of_the_installed_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gpu_profile_more-9.9.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert version() == metadata.version("gpu-profile")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(tmp_path)])
    assert version() == "0+source"
    (tmp_path / "gpu_profile-1.2.3rc1.dist-info").mkdir()
    assert version() == "1.2.3rc1"


def test_every_option_of_the_command_is_a_setting_or_said_to_be_none() -> None:
    settings = {parameter for parameter in cli.exporter.params if isinstance(parameter, Setting)}
    aliases = {flag for row in SETTINGS for alias in row.aliases for flag in alias.flags}
    others = {option for parameter in cli.exporter.params if parameter not in settings for option in parameter.opts}
    assert others - aliases == {"--config", "--print-config", "--version"}
    assert settings == set(SETTINGS)
    assert all(isinstance(parameter, click.Option) for parameter in cli.exporter.params)


def test_each_command_is_in_the_module_that_the_table_names() -> None:
    for name in cli._COMMANDS:
        found = cli.exporter.get_command(click.Context(cli.exporter), name)
        assert isinstance(found, click.Command)
        assert CliRunner().invoke(found, ["--help"]).exit_code == 0


# ---------------------------------------------------------------------- the log


@given(st.text())
def test_a_line_of_the_log_is_one_line_whatever_is_in_it(text: str) -> None:
    record = logging.LogRecord("n", logging.INFO, __file__, 1, "%s", (text,), None)
    for formatter in (logs.TextLines(), logs.JsonLines()):
        assert formatter.format(record).isprintable()
    assert json.loads(logs.JsonLines().format(record))["message"] == text


def test_a_traceback_is_part_of_its_line() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    text = logs.TextLines().format(record)
    assert text.isprintable()
    assert " ERROR failed\\nTraceback" in text
    found = json.loads(logs.JsonLines().format(record))
    assert found.keys() == {"time", "level", "logger", "message", "error"}
    assert found["level"] == "error"
    assert found["error"].endswith("ValueError: first\nsecond")
    assert found["time"].endswith("Z")


def test_level_and_style_can_be_changed_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with root_logger() as root:
        logs.set_up("warning", "json")
        logging.getLogger("x").info("not this")
        logging.getLogger("x").warning("this")
        logs.set_up("info", "text")
        logging.getLogger("x").info("and this")
        assert len(root.handlers) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert json.loads(first)["message"] == "this"
    assert second.endswith(" INFO and this")


def test_a_stream_that_is_gone_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = io.StringIO()
    broken.close()
    monkeypatch.setattr(sys, "stderr", broken)
    with root_logger():
        logs.set_up("info")
        logging.getLogger("x").error("lost")
    monkeypatch.setattr(sys, "stdout", broken)
    cli.say("lost")
    assert cli.run(["--config", "/dev/null", "--interval", "x"]) == 2


# ---------------------------------------------------------------------- signals


def test_other_signals_are_acted_on_until_one_says_to_stop() -> None:
    acted: list[str] = []
    done = threading.Event()

    def act() -> None:
        acted.append(threading.current_thread().name)
        done.set()

    with control.signals() as found:
        os.kill(os.getpid(), signal.SIGUSR1)

        def stop() -> None:
            done.wait(10)
            os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=stop)
        thread.start()
        found.wait({signal.SIGUSR1: act})
        thread.join()
    assert acted == ["SIGUSR1"]


def test_an_action_that_takes_long_keeps_no_stop_waiting() -> None:
    begun, end = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        end.wait(10)

    def stop() -> None:
        begun.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    with control.signals() as found:
        os.kill(os.getpid(), signal.SIGHUP)
        thread = threading.Thread(target=stop)
        thread.start()
        found.wait({signal.SIGHUP: slow})
        thread.join()
    assert begun.is_set()
    end.set()


def test_a_signal_that_comes_often_while_it_is_acted_on_is_acted_on_once_more() -> None:
    begun, end, twice = threading.Event(), threading.Event(), threading.Event()
    running: list[str] = []

    def slow() -> None:
        running.append(threading.current_thread().name)
        begun.set()
        end.wait(10)
        if len(running) == 2:
            twice.set()

    reading, writing = os.pipe()
    found = control.Control(reading)
    thread = threading.Thread(target=found.wait, args=({signal.SIGHUP: slow},))
    thread.start()
    os.write(writing, bytes([signal.SIGHUP]))
    assert begun.wait(10)
    os.write(writing, bytes([signal.SIGHUP] * 5 + [signal.SIGTERM]))
    thread.join(10)
    end.set()
    assert twice.wait(10)
    while found._again:
        pass
    assert running == ["SIGHUP", "SIGHUP"]
    os.close(reading)
    os.close(writing)


def test_an_action_that_fails_is_told_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise UsageError("exporter.toml:3: nonsense")

    told = control.Control(-1)
    told._again[signal.SIGHUP] = False
    told._run(signal.SIGHUP, fail)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO] == [
        "SIGHUP could not be acted on: exporter.toml:3: nonsense"
    ]


def test_a_signal_that_means_nothing_is_told_and_one_that_was_ignored_stays_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with control.signals() as found:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            found.wait({})
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "SIGUSR1 is ignored: this exporter has no action for it" in caplog.text
    assert "SIGHUP" not in caplog.text


def test_while_nothing_comes_it_beats() -> None:
    beats: list[int] = []

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with control.signals() as found:
        found.wait(beat=beat, beat_s=0.001)
    assert len(beats) == 3


class FakeNode:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def reload(self) -> None:
        self.calls.append("reload")

    def release(self) -> None:
        self.calls.append("release")


def test_signals_call_the_nodes_methods_and_read_the_settings_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(systemd, "notify", said.append)
    node = FakeNode()
    actions = cli._actions(cast("ExporterNode", node), lambda: node.calls.append("reread"))
    actions[signal.SIGHUP]()
    actions[signal.SIGUSR1]()
    assert node.calls == ["reload", "reread", "release"]
    assert [text.partition("=")[0] for text in said] == ["RELOADING", "READY"]


def test_a_node_that_cannot_reload_does_not_keep_the_settings_from_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode()
    monkeypatch.setattr(node, "reload", lambda: (_ for _ in ()).throw(UsageError("web.yml: nonsense")))
    read: list[int] = []
    with pytest.raises(UsageError, match=r"web\.yml"):
        cli._actions(cast("ExporterNode", node), lambda: read.append(1))[signal.SIGHUP]()
    assert read == [1]


def test_reading_the_settings_again_changes_the_log_and_names_what_needs_a_restart(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up: list[Any] = []
    monkeypatch.setattr(logs, "set_up", lambda *found: set_up.append(found))
    caplog.set_level("INFO")
    cli.reload(Config(), Config(interval_s=1, names="both", log=Log(level="debug", format="json")))
    cli.reload(Config(), Config())
    assert set_up == [("debug", "json"), ("info", "text")]
    assert [record.getMessage() for record in caplog.records] == [
        "changed, and in force only after a restart: interval, names",
        "the settings were read again",
    ]


def test_standard_files_that_are_closed_are_not_left_to_sockets(tmp_path: Path) -> None:
    code = (
        "import os, socket, sys; from gpu_profile_exporter import cli;"
        "cli._open_standard_files(); s = socket.socket(); open(sys.argv[1], 'w').write(str(s.fileno()))"
    )
    command = f'exec "{sys.executable}" -c "$1" "$2" <&- >&- 2>&-'
    found = tmp_path / "found"
    subprocess.run(["bash", "-c", command, "bash", code, str(found)], env=environment(), check=True)
    assert int(found.read_text()) > 2


def test_an_output_that_nobody_reads_does_not_change_the_exit_code() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken:
        done = subprocess.run(
            [sys.executable, "-m", "gpu_profile_exporter", "--print-config", "--config", "/dev/null"],
            stdout=broken,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")


INTERRUPTS = """
import os, signal, sys

module = sys.argv.pop()

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.{number})

sys.meta_path.insert(0, Interrupts())
import gpu_profile_exporter.__main__
gpu_profile_exporter.__main__.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["cli", "config.model", "node", "server.listener"])
def test_a_signal_while_the_exporter_loads_ends_it_and_prints_nothing(module: str, number: signal.Signals) -> None:
    code = INTERRUPTS.format(number=number.name)
    done = python("-c", code, "--driver", "simulated", f"gpu_profile_exporter.{module}")
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")


def test_ctrl_c_while_a_subcommand_loads_prints_nothing() -> None:
    code = INTERRUPTS.format(number="SIGINT")
    done = python("-c", code, "healthcheck", "gpu_profile_exporter.operating.healthcheck")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_is_an_exception_again_after_the_imports() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with quiet_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a shell's background job
        with quiet_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
