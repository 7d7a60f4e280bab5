"""The equations of all windows, the rates that solve them, and each rate's interval or refusal.

Read in this order:

- `region_columns`: the columns of the equations, one or two per region; `nesting`: their time inside each region;
  `concurrent_time`: which of them run at once.
- `stamp_edges`, `stamps`: bounds on the errors of host stamps; `lateness`: ends that are always later than starts;
  `unmarked`: executions without a mark, by the pauses.
- `design`: the equations of windows under a timing; `sums`, `equations`: their sums, without and with probes.
- `normal_equations`: one signal's sums; `least_squares`: the solution within bounds; `common_factor`: a slow factor of
  all regions' power.
- `shrinkage`: the solution with each violation of the assumptions as large as the readings support.
- `unmix`: a `rate` with its confidence interval, or its refusal and the reason.
- `undetermined`: rates that only physics bounds; `overlap`: rates that the mean of windows bounds.
- `unseen`: the parts of executions that no window shows.

Imports `windows`. The timing is given here; `timing` searches for it.
"""
