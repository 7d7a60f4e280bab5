"""Who holds each device: pods, containers, jobs, units and processes. Right or absent, never guessed."""

from gpu_profile_exporter.attribution.allocation import LABELS
from gpu_profile_exporter.attribution.attribution import KUBELET_SOCKET, Attribution, Mode
from gpu_profile_exporter.attribution.snapshot import Observed

__all__ = ["KUBELET_SOCKET", "LABELS", "Attribution", "Mode", "Observed"]
