"""Push over OTLP: the readings that a scrape shows as metrics, and what happens to devices as log records.

Read in this order:

- `settings`: endpoints, headers and certificates, from the exporter's settings.
- `metrics`, `logs`: readings and events as OTLP messages; `batch` is a request with what is around them.
- `queue`: the batches that wait, in memory; `disk_queue`: on disk too, where a killed process leaves them.
- `sender`: the thread that sends those of one signal; `outcome`: what an answer means.
- `http_client`, `grpc_client`: the two transports.
- `pusher`: all of it, started and stopped by `node`.

Imports the readings, the naming's rules for units, and the library's catalogue and protobuf writer.
"""

from gpu_profile_exporter.push.pusher import Pusher
from gpu_profile_exporter.push.settings import Endpoint, Endpoints, endpoint, resource_attributes

__all__ = ["Endpoint", "Endpoints", "Pusher", "endpoint", "resource_attributes"]
