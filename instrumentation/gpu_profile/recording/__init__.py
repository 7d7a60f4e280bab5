"""The file format in which samples and spans are kept: append, read, repair. `docs/recording-format.md` describes it.

Read in this order:

- `format`: how bytes lie in a file, in frames that can be checked and found again.
- `records`: facts as JSON: processes, spans, device intervals. `columns`: samples as compressed arrays.
- `writer`: appends whole records. `reader`: reads all that is intact, says how much is not, and repairs.
- `rank`: a process's place among those that a launcher started together.

Imports the catalogue's values and the units. A new fact is a class in `records` with a number of `format.RecordType`;
old readers skip a number that they do not know. A change of what is there already needs a new `VERSION`, and a
recording of the old one among the tests.
"""

from gpu_profile.recording.format import VERSION
from gpu_profile.recording.reader import Columns, Cut, Recording, read_recording, repair
from gpu_profile.recording.records import DeviceInterval, ProcessInfo, SpanRecord
from gpu_profile.recording.writer import RecordingWriter

__all__ = [
    "VERSION",
    "Columns",
    "Cut",
    "DeviceInterval",
    "ProcessInfo",
    "Recording",
    "RecordingWriter",
    "SpanRecord",
    "read_recording",
    "repair",
]
