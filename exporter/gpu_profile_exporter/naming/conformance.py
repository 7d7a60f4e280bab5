"""`gpu-profile-exporter conformance`: is everything there that a running dcgm-exporter publishes?"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Sequence
from http.client import HTTPException, HTTPResponse
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

import click
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile.report import text_table
from gpu_profile_exporter.naming.comparison import Verdict, compare, shares_gpus

_OURS: Final = "http://localhost:9400/metrics"
_TEXT: Final = "text/plain;version=0.0.4"
_MOST_BYTES: Final = 64 << 20
_COLUMNS: Final = ("metric", "default", "verdict", "detail", "theirs", "ours")


@click.command()
@click.option("--against", required=True, metavar="URL", help="Where dcgm-exporter publishes its metrics.")
@click.option("--ours", default=_OURS, show_default=True, metavar="URL", help="Where this exporter publishes them.")
@click.option("--timeout", default=10.0, show_default=True, type=click.FloatRange(0.1, 300), help="Seconds to wait.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def conformance(ctx: click.Context, *, against: str, ours: str, timeout: float, as_json: bool) -> None:
    """Compare what this exporter publishes with what a dcgm-exporter on the same node does, metric by metric.

    Exits with 0 if each of dcgm-exporter's default metrics that it publishes is there too, with the same type and
    labels and for the same GPUs; with 1 if not. Values are compared and shown, but two readers of a changing load may
    differ. This exporter must run with --names dcgm or both.
    """
    theirs_families, our_families = scrape(against, "--against", timeout), scrape(ours, "--ours", timeout)
    verdicts = compare(theirs_families, our_families)
    if not any(one.type_theirs for one in verdicts):
        raise GpuProfileError(f"--against {against}: no metric there has a name of dcgm-exporter's (DCGM_…)")
    failed = [one for one in verdicts if one.default and not one.passed]
    shared = shares_gpus(theirs_families, our_families)
    if as_json:
        metrics = [one._asdict() | {"passed": one.passed} for one in verdicts]
        click.echo(json.dumps({"conforms": not failed, "same_gpus": shared, "metrics": metrics}, indent=2))
    else:
        click.echo(text_table(_COLUMNS, [_row(one) for one in verdicts], left=4))
        click.echo(_conclusion(verdicts, failed, shared=shared))
    if failed:
        ctx.exit(1)


def scrape(url: str, option: str, timeout_s: float) -> list[Family]:
    """The families that a URL serves. UsageError if it is no http URL, GpuProfileError if it serves no metrics.

    A name and a password in the URL (`http://user:password@host/metrics`) are used and never shown.
    """
    request, shown = _request(url, option)
    try:
        with urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 - `_request` takes http and https only
            body, kind = _body(answer, timeout_s), answer.headers.get_content_type()
    except HTTPError as error:
        error.close()
        raise GpuProfileError(f"{option} {shown}: answers {error.code} {error.reason}") from error
    except (URLError, HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        late = isinstance(reason, TimeoutError)
        why = f"no whole answer within {timeout_s:g} s" if late else f"cannot be read: {reason}"
        raise GpuProfileError(f"{option} {shown}: {why}") from error
    if len(body) > _MOST_BYTES:
        raise GpuProfileError(f"{option} {shown}: answers more than {_MOST_BYTES >> 20} MiB, which no exporter does")
    text = body.decode(errors="replace")
    if kind == "text/html" or text.lstrip().startswith("<"):
        raise GpuProfileError(f"{option} {shown}: answers with a web page, not with metrics; is the path right?")
    try:
        return list(text_string_to_metric_families(text))
    except (ValueError, IndexError, KeyError) as error:
        raise GpuProfileError(f"{option} {shown}: answers with something that is no Prometheus text") from error


def _request(url: str, option: str) -> tuple[Request, str]:
    """The request for a URL, and the URL as it may be shown."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{option} {url!r}: not an address; write http://host:9400/metrics")
    _, _, place = parts.netloc.rpartition("@")
    shown = urlunsplit(parts._replace(netloc=place))
    path = "/metrics" if parts.path in ("", "/") else parts.path
    request = Request(  # noqa: S310 - checked above
        urlunsplit(parts._replace(netloc=place, path=path, fragment="")), headers={"Accept": _TEXT}
    )
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + b64encode(pair.encode()).decode())
    return request, shown


def _body(answer: HTTPResponse, timeout_s: float) -> bytes:
    """What is answered within `timeout_s`, TimeoutError if that is not all; it ends soon after what is sensible."""
    deadline, body = time.monotonic() + timeout_s, bytearray()
    while len(body) <= _MOST_BYTES and (chunk := answer.read1(1 << 16)):
        body += chunk
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(body)


def _row(one: Verdict) -> Sequence[str]:
    return (
        one.name,
        "yes" if one.default else "",
        one.status,
        _detail(one),
        "" if one.theirs is None else f"{one.theirs:g}",
        "" if one.ours is None else f"{one.ours:g}",
    )


def _detail(one: Verdict) -> str:
    if one.status == "type":
        return f"{one.type_theirs}, ours {one.type_ours}"
    if one.status == "labels":
        missing = [f"without {', '.join(one.labels_missing)}"] if one.labels_missing else []
        extra = [f"besides {', '.join(one.labels_extra)}"] if one.labels_extra else []
        return "; ".join(missing + extra)
    if one.status == "GPUs":
        more = f" and {len(one.missing_on) - 1} more" if len(one.missing_on) > 1 else ""
        return f"not for {one.missing_on[0]}{more}"
    return ""


def _conclusion(verdicts: Sequence[Verdict], failed: Sequence[Verdict], *, shared: bool) -> str:
    default = [one for one in verdicts if one.default and one.type_theirs]
    values = sum(one.status == "values" for one in verdicts)
    lines = [f"{len(default) - len(failed)} of the {len(default)} default metrics that it publishes are the same here."]
    if values:
        lines.append(f"Of {values} the values lie further apart than two readers of a steady load would see.")
    if not shared:
        lines.append("The two read no GPU in common, so values and GPUs were not compared.")
    return "\n" + " ".join(lines)
