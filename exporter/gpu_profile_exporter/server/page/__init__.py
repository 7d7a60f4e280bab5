"""The live page, and the JSON of the devices.

Read in this order:

- `devices`: the JSON of /api/devices, with one object per device.
- `recent`: takes the readers' samples and events as they arrive.
- `history`: older samples from the node's timeline, such as those of a previous exporter.
- `live`: the answers to the live page's requests, with the node's present state.

The page itself, its protocol and its front end are in `gpu_profile.report.live`, because a program serves the same
page. Imports the catalogue, the readings and that package. A new value of a device needs a key in `devices`, or in
`gpu_profile.report.live.device_state` to appear on the page.
"""

from gpu_profile_exporter.server.page.devices import DeviceData, PageData, describe
from gpu_profile_exporter.server.page.live import NodeLive

__all__ = ["DeviceData", "NodeLive", "PageData", "describe"]
