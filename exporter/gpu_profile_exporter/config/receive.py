"""The settings of receiving spans."""

# ruff: noqa: RUF009 - `setting` returns a dataclass field
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_profile_exporter.config.address import Address
from gpu_profile_exporter.config.kinds import ListenIfAny, Number, Text, Words
from gpu_profile_exporter.config.setting import Alias, check, setting


def forwarded_signals() -> Sequence[str]:
    """The values of `--receive-also`."""
    return ("metrics", "logs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """Receiving spans over OTLP."""

    http: Address | None = setting(
        None,
        ListenIfAny(),
        "Address to receive traces on over HTTP, as in :4318; empty receives none. Needs forward and a timeline.",
    )
    grpc: Address | None = setting(
        None, ListenIfAny(), "The same over gRPC, as in :4317; passwords are checked only over HTTP."
    )
    also: tuple[str, ...] = setting(
        (), Words(forwarded_signals, "SIGNAL,..."), "Signals to receive besides traces and to forward unchanged."
    )
    spans: str = setting(
        "server,consumer",
        Text("RULE"),
        "Which spans get GPU attributes besides those of regions and of generative AI, as in GPU_PROFILE_SPANS.",
        Alias((), ("GPU_PROFILE_SPANS",)),
    )
    late_s: float = setting(
        10.0,
        Number(0.1, 300, "seconds"),
        "Seconds after its end in which a span still counts in its region's rates; span exporters batch for 5 s.",
    )

    def __post_init__(self) -> None:
        check(self, "receive")

    @property
    def any(self) -> bool:
        """Whether anything is received."""
        return self.http is not None or self.grpc is not None
