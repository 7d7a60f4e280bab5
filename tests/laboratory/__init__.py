"""Simulated devices with a computed truth, and the error of the product's answers about them.

Everything is computed from physics on a grid of 0.1 ms. Nothing is tuned to an estimator. Read in this order:

- `programs`: descriptions of a program, of its stamps and of its device. `Program.draw` returns its executions.
- `curves`: power, busy and activity of the device over time, and each region's share of every moment.
- `sensors`: the readings of sensors of any kind, with the stamps of a driver.
- `recordings`: a case (program, sensors, seed) as a recording, read back and analysed, or replayed live.
- `oracle`: the truth of each region, and the smallest half-width that the samples permit.
- `score`: compares answers with truth and oracle, by row and quantity, and gives a verdict.
- `rows`: the table of cases. `mixes`: random combinations of programs, sensors and violated assumptions. `kinds`:
  further programs, hosts and sensors. `starved`: samplers that stop for seconds. `services`: tasks that overlap
  partly.
- `chips`: a calibration load, and the calibration's result for sensors under it.
- `run`: the command. `search`: hypothesis searches for confident errors. `found`: the cases of the search.

Imports only the parts of the product that users import: the catalogue, the recording's format, `analyse`, the live join
and `calibration`.
"""
