-- Energy and GPU time of each service and version.
--   service: the service; empty if it has no name, and for recordings
--   version: its version; empty if it has none
--   runs: runs with data: jobs, else instances; for recordings, the recordings
--   executions: executions of regions, counted on each of their devices
--   gpu_s: seconds for which GPUs were busy for the regions
--   energy_j: joules that GPUs used for the regions
--   uncertain_gpu_s: GPU seconds that were shared out by time, because the rate was refused; not in gpu_s
--   uncertain_energy_j: the same for joules; not in energy_j
--   unmeasured_executions: executions on devices without energy; energy_j is without them
SELECT
    u.service AS service,
    u.version AS version,
    count(DISTINCT u.run) AS runs,
    sum(u.executions) AS executions,
    sum(u.gpu_s) AS gpu_s,
    sum(u.energy_j) AS energy_j,
    sum(u.uncertain_gpu_s) AS uncertain_gpu_s,
    sum(u.uncertain_energy_j) AS uncertain_energy_j,
    sum(CASE WHEN u.energy_j IS NULL AND u.uncertain_energy_j IS NULL THEN u.executions ELSE 0 END)
        AS unmeasured_executions
FROM gpu_profile_use AS u
GROUP BY u.service, u.version
ORDER BY energy_j DESC NULLS LAST, service, version
