"""The sidecar: receives spans of any program over OTLP, adds GPU attributes from the node's samples, and forwards them.

On request it also forwards metrics and logs, unchanged.

Read in this order:

- `trace_request`: a request as bytes, the positions of its spans, and the same bytes with added attributes.
- `receiver`: OTLP over HTTP: decodes requests, and accepts or refuses them. `grpc_receiver`: the same over gRPC.
- `encodings`: decompresses bodies. `messages`: converts requests from JSON and counts their items.
- `placing`: the devices of a span. `peers`: proves the process that sent it.
- `ancestry`: the parents of spans. `hash_set`: the keys of spans that arrived, as hashes.
- `span_fields`: the fields of spans that the join needs, as columns. `searching`: texts in the bytes of requests.
- `joining`: joins spans as executions of regions. `attributes`: encodes the resulting attributes.
- `region_metrics`: the metrics of the regions of received spans.
- `request_costs`: passes the spans of an LLM server's requests to `serving`, and encodes their costs.
- `pipeline`: keeps requests until the samples of their spans have arrived, then passes them to a sender.
- `sidecar`: builds all parts from the settings.

Imports the server, the push, the costs of serving, and the library's regions. Loaded only if the exporter receives
spans.
"""

from gpu_profile_exporter.sidecar.sidecar import Sidecar

__all__ = ["Sidecar"]
