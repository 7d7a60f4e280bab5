"""The landing page and the JSON that keeps it fresh."""

from gpu_profile_exporter.page.devices import DeviceData, PageData, describe
from gpu_profile_exporter.page.html import render

__all__ = ["DeviceData", "PageData", "describe", "render"]
