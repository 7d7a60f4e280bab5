"""Push over OTLP: the readings that a scrape shows as metrics, and what happens to devices as log records."""

from gpu_profile_exporter.push.pusher import Pusher
from gpu_profile_exporter.push.settings import Endpoint, Endpoints, endpoint_settings, resource_attributes

__all__ = ["Endpoint", "Endpoints", "Pusher", "endpoint_settings", "resource_attributes"]
