"""The prices of an engine's work, and each request's share of the measured energy. Pure.

Read in this order:

- `terms`: the terms of an iteration's cost, and each request's share of them (Aumann-Shapley).
- `renewals`: the moments at which an energy counter is renewed, from readings that repeat its values.
- `windows`: readings matched with iterations under a lag; the search for the lag.
- `prices`: the prices of the terms, with intervals; the prediction of durations.
- `model`: the model of one engine over time, and the test whether windows reject it; `seen_work`: unlike new work.
- `sharing`: the parts of each window: idle, iterations, and the reasons for energy that is unallocated.
- `charging`: the energy of iterations by request; `cost_sums`: its totals; `savings`: by a prefix cache.
- `account`: the totals by request, tenant and phase, and the costs of single requests.
- `pipelines`: recognises pipelines; their iterations have no costs.

Imports `serving.work`, `streams` and `join.unmixing`. A new quantity of work is a member of `work.WorkQuantity` and a
term in `terms`.
"""
