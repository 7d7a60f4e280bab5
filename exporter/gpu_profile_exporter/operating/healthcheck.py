"""`gpu-profile-exporter healthcheck`: asks a running exporter how it is, for containers that have no curl."""

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
#: Addresses that mean every interface, and where to find who listens on them from the same host.
_SELF: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - looked up, not bound


class NotWell(GpuProfileError):  # noqa: N818 - the exporter's state, not a fault of this program
    """The exporter does not answer as it should."""


class Answer(NamedTuple):
    """What came back; `status` 0 where the server closed the door for want of a certificate."""

    status: int
    text: str


_NO_CERTIFICATE: Final = Answer(0, "it hung up, as it does on who has no client certificate")


@click.command()
@click.option("--ready", is_flag=True, help="Ask whether the driver answers too, not only whether the exporter lives.")
@click.option("--url", metavar="URL", help="Of the exporter; without it, where this machine's settings say.")
@click.option("--timeout", default=2.0, type=click.FloatRange(0.1, 60), show_default=True, help="Seconds to wait.")
def healthcheck(*, ready: bool, url: str | None, timeout: float) -> None:
    """Ask a running exporter how it is: exit code 0 if it is well, 1 and a line if not.

    An exporter that asks for a password or a certificate is taken to live. Flags of the running exporter are not seen
    from here: if it listens elsewhere than its environment and its file say, give --url.
    """
    click.echo(check(_candidates(url), ready=ready, timeout_s=timeout))


def _candidates(url: str | None) -> list[str]:
    if url is not None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is none
            known = False
        if not known:
            raise UsageError(f"--url: {url!r} is not written as http://host:port or https://host:port")
        return [f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"]
    return candidates(load().config)


def candidates(config: Config) -> list[str]:
    """Where an exporter with these settings may be found: whether it speaks TLS stands in another file."""
    listen = config.listen
    place = Address(_SELF.get(listen.host, listen.host), listen.port)
    schemes = ("https", "http") if config.web_config_file is not None else ("http",)
    return [f"{scheme}://{place}" for scheme in schemes]


def check(urls: list[str], *, ready: bool, timeout_s: float) -> str:
    """What to say if one of `urls` is well; NotWell for the reason why not."""
    problem = ""
    for url in urls:
        try:
            answer = ask(url + _PATHS[ready], timeout_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            problem = f"{url}: {said}"
            continue
        if answer.status == 200:
            return answer.text
        if answer.status in (0, 401, 403) and not ready:
            return f"alive: {answer.text}"
        note = "; whether it is ready only those can see who may come in" if answer.status in (0, 401, 403) else ""
        raise NotWell(f"{url}: {answer.status or 'TLS'}: {answer.text}{note}")
    raise NotWell(problem)


def ask(url: str, timeout_s: float) -> Answer:
    """One request, never through a proxy, to a server whose certificate need not bear this address."""
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
            # With TLS 1.3 a certificate is only missed after the handshake, and the alert may be lost with the
            # connection.
            if parts.scheme == "https":
                return _NO_CERTIFICATE
            raise
        return Answer(response.status, one_line(response.read(1000).decode("utf-8", "replace").strip()))
    finally:
        connection.close()
