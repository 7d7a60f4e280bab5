"""The landing page: `devices` is the JSON of /api/devices, `html` fills `index.html` with it."""

from gpu_profile_exporter.server.page.devices import DeviceData, PageData, describe
from gpu_profile_exporter.server.page.html import render

__all__ = ["DeviceData", "PageData", "describe", "render"]
