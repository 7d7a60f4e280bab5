"""What tests of the exporter's settings share: the command with everything but the serving, and values to set."""

import os
import string
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.parse import quote

from hypothesis import strategies as st

from gpu_profile_exporter import cli, logs
from gpu_profile_exporter.config import Address, Config, Setting, toml
from gpu_profile_exporter.config.kinds import (
    Choice,
    File,
    FileMode,
    Headers,
    Listen,
    ListenIfAny,
    Number,
    Switch,
    Words,
)
from gpu_profile_exporter.config.serving import Named

MISSING = Path("/nonexistent/exporter.toml")
#: Characters that a path or a name may have, those that TOML or Markdown give a meaning to among them.
LETTERS = string.ascii_letters + string.digits + " \"'\\#[]{}=.,|$%é漢😀-_/"


class Ran(NamedTuple):
    """What a command did: the settings with which it would have served, if it came to that."""

    code: int
    out: str
    err: str
    config: Config | None


def run(arguments: Sequence[str] = (), environ: Mapping[str, str] | None = None, default_file: Path = MISSING) -> Ran:
    """Run the command in an environment that holds nothing else."""
    served: list[Config] = []
    out, err = StringIO(), StringIO()
    with (
        patch.dict(os.environ, environ or {}, clear=True),
        patch.object(cli, "serve", lambda config, _: served.append(config)),
        patch.object(logs, "set_up"),
        patch.object(toml, "DEFAULT_FILE", default_file),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = cli.run(list(arguments))
    return Ran(code, out.getvalue(), err.getvalue(), served[0] if served else None)


def served(
    arguments: Sequence[str] = (), environ: Mapping[str, str] | None = None, default_file: Path = MISSING
) -> Config:
    """The settings with which the command would have served."""
    ran = run(arguments, environ, default_file)
    assert ran.config is not None, ran.err
    return ran.config


def complaint(
    arguments: Sequence[str] = (), environ: Mapping[str, str] | None = None, default_file: Path = MISSING
) -> str:
    """The one line that the command says before it ends with exit code 2, without its name."""
    ran = run(arguments, environ, default_file)
    assert (ran.code, ran.out, ran.config) == (2, "", None)
    assert ran.err.startswith("gpu-profile-exporter: ")
    assert ran.err.count("\n") == 1
    return ran.err.removeprefix("gpu-profile-exporter: ").removesuffix("\n")


def values(row: Setting) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - a strategy for each kind
    """Values that a setting may have, none of them empty."""
    kind = row.type
    text = st.text(LETTERS, min_size=1, max_size=12)
    if row.dotted in ("otlp.endpoint", "forward.endpoint"):
        return st.sampled_from(["http://collector:4318", "https://[::1]:4317"])
    if isinstance(kind, Number):
        return st.integers(int(kind.low), int(kind.high)) if kind.whole else st.floats(kind.low, kind.high)
    if isinstance(kind, Switch):
        return st.booleans()
    if isinstance(kind, FileMode):
        return st.sampled_from(["644", "640", "600", "604"])
    if isinstance(kind, Choice):
        return st.sampled_from(kind.words)
    if isinstance(kind, File):
        return text.map(Path)
    if isinstance(kind, Listen | ListenIfAny):
        hosts = st.sampled_from(["127.0.0.1", "::1", "localhost", Address().host])
        return st.builds(Address, hosts, st.integers(0, 65535))
    if isinstance(kind, Words):
        words = [word for word in kind.choices() if word not in ("all", "none")]
        return st.lists(st.sampled_from(words), min_size=1, unique=True).map(tuple)
    if isinstance(kind, Headers):
        name, value = st.from_regex(r"x-[a-z]{1,6}", fullmatch=True), st.text("ab ,=%\"'\\", min_size=1, max_size=6)
        return st.dictionaries(name, value, min_size=1, max_size=3).map(lambda found: tuple(found.items()))
    if isinstance(kind, Named):
        name = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
        value = st.sampled_from([one for one in ("tcp://h:1", "unix:/a.sock", "0,1") if not kind.wrong_value(one)])
        return st.dictionaries(name, value, min_size=1, max_size=3).map(lambda found: tuple(found.items()))
    return text


def text_of(row: Setting, value: Any) -> str:
    """A value as a flag or a variable has it."""
    if isinstance(row.type, Switch):
        return "true" if value else "false"
    if isinstance(row.type, Words):
        return ",".join(value)
    if isinstance(row.type, Headers):
        return ",".join(f"{name}={quote(text)}" for name, text in value)
    if isinstance(row.type, Named):
        return ",".join(f"{name}={text}" for name, text in value)
    return repr(value) if isinstance(value, float) else str(value)


def flag_of(row: Setting, value: Any) -> str:
    """A value as an argument."""
    if isinstance(row.type, Switch):
        return row.flag if value else f"--no-{row.flag[2:]}"
    return f"{row.flag}={text_of(row, value)}"


def file_of(found: Mapping[Setting, Any]) -> str:
    """Values as a TOML file."""
    lines: list[str] = []
    topic = ""
    for row in sorted(found, key=lambda row: row.topic):
        if row.topic != topic:
            topic = row.topic
            lines.append(f"[{topic}]")
        lines.append(f"{row.key} = {row.type.toml(found[row])}")
    return "\n".join(lines)
