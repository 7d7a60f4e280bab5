"""Push over OTLP: the readings of a scrape as metrics, and events of devices as log records.

Read in this order:

- `settings`: endpoints, headers and certificates, from the exporter's settings.
- `metrics`, `logs`: encode readings and events as OTLP messages. `batch`: a request, and its resource and scope.
- `queue`: waiting batches in memory. `disk_queue`: waiting batches on disk, which survive the process.
- `sender`: the thread that sends the batches of one signal. `outcome`: the result of a try.
- `http_client`, `grpc_client`: the two transports.
- `pusher`: combines them. `node` starts and stops it.

Imports the readings, the naming's rules for units, and the library's catalogue and protobuf writer.
"""

from gpu_profile_exporter.push.pusher import Pusher
from gpu_profile_exporter.push.settings import Endpoint, Endpoints, endpoint, resource_attributes

__all__ = ["Endpoint", "Endpoints", "Pusher", "endpoint", "resource_attributes"]
