-- GPUs that are allocated and not busy, by holder.
--   holder: the pod, job, container or unit; for recordings, the recording
--   devices: devices that it held
--   held_s: GPU seconds for which it held them
--   measured_s: the part of them with a known utilisation
--   idle_s: the part of measured_s in which no kernel ran
--   idle_share: idle_s over measured_s, 0-1
--   energy_j: joules of the devices while it was their only holder, idle time included
SELECT
    h.holder AS holder,
    count(DISTINCT h.device) AS devices,
    sum(h.held_s) AS held_s,
    sum(CASE WHEN h.idle_s IS NOT NULL THEN h.held_s ELSE 0 END) AS measured_s,
    sum(h.idle_s) AS idle_s,
    sum(h.idle_s) / nullif(sum(CASE WHEN h.idle_s IS NOT NULL THEN h.held_s ELSE 0 END), 0) AS idle_share,
    sum(h.energy_j) AS energy_j
FROM gpu_profile_held AS h
GROUP BY h.holder
ORDER BY idle_s DESC NULLS LAST, holder
