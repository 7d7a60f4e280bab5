"""The landing page, which shows the devices now, with scripts or without.

Read in this order:

- `devices`: the JSON of /api/devices, an object for each device.
- `html`: fills `index.html` with it, so that the page is complete before a script runs.
- `index.html`: the page, its styles and its script, which then keeps it up to date.

Imports the catalogue, the readings and the units. What a device's card shows is a key in `devices` and an element that
the script of `index.html` fills.
"""

from gpu_profile_exporter.server.page.devices import DeviceData, PageData, describe
from gpu_profile_exporter.server.page.html import render

__all__ = ["DeviceData", "PageData", "describe", "render"]
