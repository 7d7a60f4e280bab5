"""The file format in which samples and spans are kept: append, read, repair. See `docs/recording-format.md`."""

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
