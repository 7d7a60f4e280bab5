"""`gpu-profile-exporter healthcheck`: checks a running exporter, for containers without curl."""

from __future__ import annotations

import http.client
import ssl
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import click

from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile_exporter.config import Config, load
from gpu_profile_exporter.config.address import Address
from gpu_profile_exporter.logs import one_line

_PATHS: Final = {False: "/-/healthy", True: "/-/ready"}
#: Wildcard addresses, and the address at which the same host reaches a server that listens on them.
_SELF: Final = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}  # noqa: S104 - looked up, not bound


class NotWell(GpuProfileError):  # noqa: N818 - the exporter's state, not a fault of this program
    """The exporter is not healthy or not ready. The text is the reason."""


class Answer(NamedTuple):
    """An answer. `status` is 0 if the server closed the connection because there was no client certificate."""

    status: int
    text: str


_NO_CERTIFICATE: Final = Answer(0, "it closed the connection: this client has no certificate")


@click.command()
@click.option("--ready", is_flag=True, help="Also check that the driver answers, not only that the exporter lives.")
@click.option("--url", metavar="URL", help="URL of the exporter. Default: the address in this machine's settings.")
@click.option("--timeout", default=2.0, type=click.FloatRange(0.1, 60), show_default=True, help="Seconds to wait.")
def healthcheck(*, ready: bool, url: str | None, timeout: float) -> None:
    """Check a running exporter: exit code 0 if it is healthy, else 1 and a line with the reason.

    An exporter that asks for a password or a certificate counts as alive. The address comes from the environment and
    the configuration file, not from the flags of the running exporter: if these set another address, give --url.
    """
    click.echo(check(_candidates(url), ready=ready, timeout_s=timeout))


def _candidates(url: str | None) -> list[str]:
    if url is not None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # not a port number
            valid = False
        if not valid:
            raise UsageError(f"--url: {url!r} is not written as http://host:port or https://host:port")
        return [f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"]
    return candidates(load().config)


def candidates(config: Config) -> list[str]:
    """The possible URLs of an exporter with these settings: another file determines whether it uses TLS."""
    listen = config.listen
    place = Address(_SELF.get(listen.host, listen.host), listen.port)
    schemes = ("https", "http") if config.web_config_file is not None else ("http",)
    return [f"{scheme}://{place}" for scheme in schemes]


def check(urls: list[str], *, ready: bool, timeout_s: float) -> str:
    """The answer of the first of `urls` that connects. NotWell with the reason if it is not well or none connects."""
    problem = ""
    for url in urls:
        try:
            answer = ask(url + _PATHS[ready], timeout_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            problem = f"{url}: {reason}"
            continue
        if answer.status == 200:
            return answer.text
        if answer.status in (0, 401, 403) and not ready:
            return f"alive: {answer.text}"
        note = "; its readiness is visible to authenticated clients only" if answer.status in (0, 401, 403) else ""
        raise NotWell(f"{url}: {answer.status or 'TLS'}: {answer.text}{note}")
    raise NotWell(problem)


def ask(url: str, timeout_s: float) -> Answer:
    """Send one GET request, never through a proxy. The server's certificate is not verified."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    try:
        try:
            connection.connect()
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):
                return _NO_CERTIFICATE
            raise
        try:
            connection.request("GET", parts.path)
            response = connection.getresponse()
        except (ssl.SSLError, ConnectionError):
            # With TLS 1.3 the server rejects a missing certificate after the handshake, and its alert may be lost
            # with the connection.
            if parts.scheme == "https":
                return _NO_CERTIFICATE
            raise
        return Answer(response.status, one_line(response.read(1000).decode("utf-8", "replace").strip()))
    finally:
        connection.close()
