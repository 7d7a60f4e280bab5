"""The file format of recorded samples and spans: append, read, repair. `docs/recording-format.md` describes it.

Read in this order:

- `format`: the bytes of a file, in frames with a mark and a checksum.
- `records`: facts as JSON: processes, spans, device intervals. `kernel_stamps`: the kernels of a span.
- `columns`: samples as compressed arrays.
- `writer`: appends whole records. `reader`: reads all intact records, reports the damage, and repairs.
- `set_clocks`: clocks that were set during the recording, from recorded moments or the order of writing.
- `pauses`: suspensions of the machine, and clocks that were set ahead without such moments.
- `rank`: a process's place in a launched job.
- `nccl_inspector`: collectives from the files of another program, NCCL Inspector.

Imports the catalogue's values and the units. To add a fact, add a class to `records` and a number to
`format.RecordType`; old readers skip unknown numbers. A change of an existing fact needs a new `VERSION`, and a test
with a recording of the old one.
"""

from gpu_profile.recording.columns import Columns
from gpu_profile.recording.format import VERSION
from gpu_profile.recording.kernel_stamps import KernelStamps
from gpu_profile.recording.reader import Cut, Recording, read_recording, repair
from gpu_profile.recording.records import DeviceInterval, ProcessInfo, SpanRecord
from gpu_profile.recording.writer import RecordingWriter

__all__ = [
    "VERSION",
    "Columns",
    "Cut",
    "DeviceInterval",
    "KernelStamps",
    "ProcessInfo",
    "Recording",
    "RecordingWriter",
    "SpanRecord",
    "read_recording",
    "repair",
]
