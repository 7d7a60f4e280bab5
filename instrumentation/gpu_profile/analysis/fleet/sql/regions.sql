-- Energy and GPU time of each region, by service and version.
--   service: the service; empty if it has no name, and for recordings
--   version: its version; empty if it has none
--   region: the region
--   executions: executions, counted on each of their devices
--   gpu_s: seconds for which GPUs were busy for the region, without the regions inside it
--   energy_j: joules that GPUs used for the region, without the regions inside it
--   execution_energy_j: joules of an execution on a device, uncertain ones included; of the executions with energy
--   uncertain_gpu_s: GPU seconds that were shared out by time, because the rate was refused; not in gpu_s
--   uncertain_energy_j: the same for joules; not in energy_j
--   unmeasured_executions: executions on devices without energy; energy_j is without them
SELECT
    u.service AS service,
    u.version AS version,
    u.region AS region,
    sum(u.executions) AS executions,
    sum(u.gpu_s) AS gpu_s,
    sum(u.energy_j) AS energy_j,
    sum(coalesce(u.energy_j, 0) + coalesce(u.uncertain_energy_j, 0))
        / nullif(sum(CASE WHEN u.energy_j IS NULL AND u.uncertain_energy_j IS NULL THEN 0 ELSE u.executions END), 0)
        AS execution_energy_j,
    sum(u.uncertain_gpu_s) AS uncertain_gpu_s,
    sum(u.uncertain_energy_j) AS uncertain_energy_j,
    sum(CASE WHEN u.energy_j IS NULL AND u.uncertain_energy_j IS NULL THEN u.executions ELSE 0 END)
        AS unmeasured_executions
FROM gpu_profile_use AS u
GROUP BY u.service, u.version, u.region
ORDER BY energy_j DESC NULLS LAST, service, version, region
