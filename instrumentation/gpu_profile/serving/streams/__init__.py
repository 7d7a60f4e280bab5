"""The reports of an engine: its iterations, the requests in them, and the times of both. Pure.

Messages carry iterations without requests, and spans carry requests without iterations. Read in this order:

- `forward_pass`: messages of engines, decoded strictly as `message_types`.
- `pass_times`: when the iterations of messages ran.
- `request_spans`: requests from the engines' spans; `span_arrivals`: how late they come.
- `tenants`: bounded names. `finished`: requests that have ended, and the reasons for an engine without costs.
- `pass_parts`: iterations with the parts of requests, as arrays.
- `membership`: the requests of each iteration: in decode by `decoding`, with the delay of stamps by
  `stamp_delay`; in prefill by `prefill`, with `packing` for prefill workers and `prompt_shares` for prompts without
  reported cached tokens.
- `workers`: an engine's prefill and decode workers.

Imports `serving.work`. A new engine's message is a decoder in `forward_pass`.
"""
