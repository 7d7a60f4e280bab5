"""What is read from a driver when, in a thread of its own.

Read in this order:

- `tracked`: what is known of one device beside its samples, and where its samples go (a `Keeper`).
- `rounds`: a round of reading as a `step()` that anybody may drive: fast and slow signals, drained buffers, events,
  devices that come, go and come back.
- `sampler`: rounds in a thread, which fill timelines and which others can wake and wait for.

Imports drivers, the history and the catalogue. The exporter's reader processes drive `rounds` themselves. A new kind of
reading has a period here and a method of `driver.protocol.Driver`.
"""
