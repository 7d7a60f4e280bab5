"""What a machine can do at most: FLOPs per second by precision, bytes per second by cache, the cost of a launch.

Read in this order:

- `ceilings`: the values, each with its source, and as JSON.
- `cache`: kept between runs by what they hold for, else measured; `contention` says whether others disturbed that.
- `calibration`: how they are measured, within seconds. `benchmarks` is what it has a device do, by PyTorch
  (`torch_benchmarks`), NumPy or CuPy (`array_benchmarks`).
- `datasheet`: what the vendor promises (`datasheet_rows`), or clocks and widths allow, where it could not be measured.

Imports `machines`. A new ceiling is a field of `Ceilings` with its place in `best`, `to_json` and `from_json`, a
measurement in `calibration`, a higher `cache.SCHEMA`, and a line in `banner` and `cli.op_text`. A new GPU is a row in
`datasheet_rows`.
"""
