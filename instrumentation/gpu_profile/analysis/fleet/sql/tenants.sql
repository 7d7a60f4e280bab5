-- Energy and GPU time of the tenants of LLM engines, by phase, and the energy that no tenant has.
--   engine: the engine
--   tenant: the tenant; empty for unallocated energy and for requests without one
--   model: the language model
--   phase: prefill or decode; empty for unallocated energy
--   unallocated: why no tenant has the energy; empty for tenants
--   energy_j: joules of the engine's GPUs
--   gpu_s: GPU seconds of the engine's iterations
--   tokens: tokens that the engine computed
--   energy_share: the row's part of the engine's energy, 0-1
SELECT
    t.engine AS engine,
    t.tenant AS tenant,
    t.model AS model,
    t.phase AS phase,
    t.unallocated AS unallocated,
    sum(t.energy_j) AS energy_j,
    sum(t.gpu_s) AS gpu_s,
    sum(t.tokens) AS tokens,
    sum(t.energy_j) / nullif(max(t.engine_j), 0) AS energy_share
FROM (SELECT *, sum(energy_j) OVER (PARTITION BY engine) AS engine_j FROM gpu_profile_tenant_use) AS t
GROUP BY t.engine, t.tenant, t.model, t.phase, t.unallocated
ORDER BY engine, energy_j DESC NULLS LAST, tenant, phase
