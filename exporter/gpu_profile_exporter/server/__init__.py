"""The listener: uvicorn's protocol under deadlines, in a thread of its own. It carries requests, and knows no GPU."""

from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.listener import Server

__all__ = ["Limits", "Server"]
