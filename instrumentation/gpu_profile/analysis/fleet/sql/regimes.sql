-- GPU time and energy by regime, over all services.
--   regime: the bound of the regions' speed
--   services: services with such regions
--   regions: regions with it, counted by service
--   executions: executions, counted on each of their devices
--   gpu_s: seconds for which GPUs were busy for these regions
--   energy_j: joules that GPUs used for them
--   energy_share: their part of the energy of all regions, 0-1
SELECT
    u.regime AS regime,
    count(DISTINCT u.service) AS services,
    count(DISTINCT concat(u.service, '/', u.region)) AS regions,
    sum(u.executions) AS executions,
    sum(u.gpu_s) AS gpu_s,
    sum(u.energy_j) AS energy_j,
    sum(u.energy_j) / nullif(max(u.total_j), 0) AS energy_share
FROM (SELECT *, sum(energy_j) OVER () AS total_j FROM gpu_profile_use) AS u
GROUP BY u.regime
ORDER BY energy_j DESC NULLS LAST, regime
