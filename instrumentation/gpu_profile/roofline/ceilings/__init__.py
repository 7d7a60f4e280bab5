"""The ceilings of a machine: FLOP/s per precision, B/s per cache and memory, seconds of a launch and a first touch.

Read in this order:

- `ceilings`: the values with their sources, and their JSON form.
- `cache`: loads the ceilings of a machine from the user's cache, else measures and stores them. `contention` measures
  how much other programs disturbed the calibration.
- `calibration`: measures the ceilings within seconds. `benchmarks` is the protocol of the operations that it runs, with
  PyTorch (`torch_benchmarks`), NumPy or CuPy (`array_benchmarks`).
- `datasheet`: replaces a failed measurement by the vendor's figure (`datasheet_rows`), or one from clocks and widths.

Imports `machines`. A new ceiling is a field of `Ceilings` with its place in `best`, `to_json` and `from_json`, a
measurement in `calibration`, a higher `cache.SCHEMA`, and a line in `banner` and `cli.op_text`. A new GPU is a row in
`datasheet_rows`.
"""
