"""The laboratory of truth: recordings of made-up devices whose truth is known, and how right the product is about them.

Everything is computed from physics, on a grid of 0.1 ms: nothing here is tuned to an estimator. Read in this order:

- `programs`: the description of a program, of its stamps and of its device; `Program.draw` gives its executions.
- `curves`: what the device did, as dense curves: power, busy, activity; and whose every moment was.
- `sensors`: what sensors of any kind make of the curves, as `Sample`s with the stamps that a driver would give.
- `recordings`: a case (program, sensors, seed) as a recording, read back and analysed; the same one replayed live.
- `oracle`: the truth of each region, and how well anybody could know it who is given the samples.
- `score`: answers held against truth and oracle, by row and quantity, with a verdict.
- `rows`: the table of cases; `mixes`: random combinations of program, sensor and violations of the usual assumptions;
  `kinds`: programs, hosts and sensors that neither names.
- `chips`: a known load, and what calibration makes of sensors under it.
- `run`: the command. `search`: hypothesis looks for confident errors; `found` keeps what it found.

It imports the product only where a user would: the catalogue, the recording's format, `analyse`, the live join and
`calibration`.
"""
