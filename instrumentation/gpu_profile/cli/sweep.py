"""`gpu-profile sweep`: traffic from which the exporter learns the prices of an LLM server's work."""

from __future__ import annotations

import click

from gpu_profile.cli.options import Finite


@click.command(short_help="Send requests to an LLM server, to learn its prices.")
@click.argument("url", metavar="URL")
@click.option("--seconds", type=Finite(min=1), default=60.0, show_default=True, help="How long new requests are sent.")
@click.option("--longest", type=click.IntRange(64, 10_000_000), metavar="TOKENS", help="Longest prompt; the default is "
              "what the model allows, 16,384 at most.")  # fmt: skip
@click.option("--most", type=click.IntRange(1, 512), default=32, show_default=True, help="Most requests at once.")
@click.option("--model", default="", metavar="NAME", help="The model; by default the server's first one.")
def sweep(*, url: str, seconds: float, longest: int | None, most: int, model: str) -> int:
    """Send requests of many lengths to an LLM server, so that the exporter learns the prices of its work.

    URL is one's own server with OpenAI's API, such as http://localhost:8000. Nobody else may use it meanwhile. Prompts
    are random tokens. $OPENAI_API_KEY is sent if it is set. Nothing is stored.
    """
    from gpu_profile.cli.completions import CompletionServer, base_url

    server = CompletionServer(base_url(url), model, longest)
    if not (sees := server.wait_until_idle()):
        click.echo("the server's /metrics has no counts of requests: other traffic would go unseen", err=True)
    sent = server.sweep(seconds, most)
    if sees and not server.counts_requests:
        click.echo("the server's /metrics did not count the sweep's requests: other traffic went unseen", err=True)
    click.echo(
        f"{sent.requests:,} requests in {sent.seconds:.0f} s, {sent.prompt:,} tokens in prompts of up to "
        f"{server.longest:,} and {sent.answer:,} in answers"
    )
    return 0
