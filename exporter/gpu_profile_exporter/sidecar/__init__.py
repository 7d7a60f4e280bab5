"""The sidecar: spans of any program come in over OTLP, and go on with what the node's GPUs did during them.

Metrics and logs go on as they are, if they are asked for.

Read in this order:

- `trace_request`: a request as bytes, where its spans are in it, and the same bytes with attributes added.
- `receiver`: OTLP over HTTP: what is decoded, what is refused and how. `grpc_receiver`: the same over gRPC.
- `encodings`: what bodies are packed in. `messages`: requests as the protobuf library reads them, from JSON too.
- `placing`: on which devices a span ran. `ancestry`: which span was inside which.
- `joining`: spans as executions of the library's join, and what it says of each. `attributes`: that as bytes.
- `region_metrics`: the regions of received spans on /metrics.
- `pipeline`: what was received waits for samples, and goes to a sender.
- `sidecar`: all of it, put together from the settings.

Imports the server, the push, and the library's regions. Loaded only where spans are received.
"""

from gpu_profile_exporter.sidecar.sidecar import Sidecar

__all__ = ["Sidecar"]
