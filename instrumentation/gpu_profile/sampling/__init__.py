"""When each signal is read from a driver, and the thread that does so.

Read in this order:

- `tracked`: the state of one device besides its samples, and the sink of its samples (a `SampleSink`).
- `periods`: the periods of the kinds of reads.
- `rounds`: a round of reading as a `step()` for any caller: fast and slow signals, drained buffers, events, and devices
  that appear, disappear and return.
- `sampler`: rounds in a thread, which fill timelines. Other threads can trigger a round and wait for it.

Imports drivers, the history and the catalogue. The exporter's reader processes drive `rounds` themselves. A new kind of
reading needs a period and a method of `driver.protocol.Driver`.
"""
