"""The landing page, which shows the devices. It works with and without scripts.

Read in this order:

- `devices`: the JSON of /api/devices, with one object per device.
- `html`: fills `index.html` with these values, so that the page is complete without scripts.
- `index.html`: the page, its styles, and its script, which refreshes the page's content.

Imports the catalogue, the readings and the units. A new value of a device needs a key in `devices`, a cell in `html`
and a heading in `index.html`.
"""

from gpu_profile_exporter.server.page.devices import DeviceData, PageData, describe
from gpu_profile_exporter.server.page.html import render

__all__ = ["DeviceData", "PageData", "describe", "render"]
