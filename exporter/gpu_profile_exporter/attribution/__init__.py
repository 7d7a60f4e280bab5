"""Attribution of devices to pods, containers, jobs, units and processes. Uncertain holders are omitted, never guessed.

Read in this order:

- `attribution`: queries the sources in its own thread and derives readings and labels from the last snapshot.
- `sources`: names of the sources, and the reasons for missing answers and omitted items.
- `kubelet`: the call to the kubelet. `podresources` decodes its answer.
- `mapping`: the job files of a batch system.
- `processes`: the driver's list of processes, looked up in `/proc`. `cgroups` finds their containers, jobs and units.
- `devices`: resolves the device names of a source to UUIDs.
- `allocation`: the published attributes of holders.
- `shares`: memory and utilisation of the processes on one device.
- `ledger`: sums of energy and time by holder. `instances`: the energy of a GPU by its MIG instances, for the ledger.
  `instance_windows` collects energy and activities, and `instance_prices` (with numpy) divides the energy.
- `snapshot`: the results of one refresh.
- `labelling`: adds a device's only holder as labels to the device's series.

Imports the settings, the readings and the library's catalogue. A new source needs a member of `HolderSource`, a
function that yields `DeviceHolder` rows, and a setting.
"""

from gpu_profile_exporter.attribution.attribution import Attribution

__all__ = ["Attribution"]
