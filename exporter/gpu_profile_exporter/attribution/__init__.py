"""Who holds each device: pods, containers, jobs, units and processes. Right or absent, never guessed.

Read in this order:

- `attribution`: asks the sources in a thread of its own, keeps a snapshot, and has its readings and labels.
- `sources`: where answers come from: the kubelet (`kubelet`, decoded by `podresources`), files of a batch system
  (`mapping`), the driver's own list of processes (`processes`, whose containers and units `cgroups` tells).
- `devices`: what a source means by a device's name. `allocation`: what is published of a holder. `shares`: devices that
  several hold. `snapshot`: all of it at a moment.
- `labelling`: a device's only holder as labels on its own series.

Imports the readings and the library's catalogue. A new source has the methods of those in `sources` and a setting.
"""

from gpu_profile_exporter.attribution.allocation import LABELS
from gpu_profile_exporter.attribution.attribution import KUBELET_SOCKET, Attribution, Mode

__all__ = ["KUBELET_SOCKET", "LABELS", "Attribution", "Mode"]
