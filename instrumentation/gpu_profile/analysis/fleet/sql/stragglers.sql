-- The ranks of each job by their time in a region, the latest first.
--   service: the service; empty if it has no name, and for recordings
--   version: its version; empty if it has none
--   run: the job; for recordings, the recording
--   region: the region
--   rank: the rank of the process in its job
--   executions: executions on the rank
--   mean_s: seconds of an execution on the host, the mean
--   excess: how much longer than on the fastest rank, as a share
--   late: 1 if the excess is 5 % or more and chance does not explain it, else 0
SELECT
    f.service AS service,
    f.version AS version,
    f.run AS run,
    f.region AS region,
    f.process_rank AS rank,
    f.executions AS executions,
    f.mean_s AS mean_s,
    f.mean_s / nullif(f.least_s, 0) - 1 AS excess,
    CASE
        WHEN f.least_s <= 0 OR f.mean_s < 1.05 * f.least_s THEN 0
        WHEN f.executions < 2 OR f.least_executions < 2 THEN 1
        WHEN f.mean_s - f.least_s > 1.96 * sqrt(f.error2 + f.least_error2) THEN 1
        ELSE 0
    END AS late
FROM (
    SELECT
        r.*,
        count(*) OVER job AS ranks,
        first_value(r.mean_s) OVER fastest AS least_s,
        first_value(r.executions) OVER fastest AS least_executions,
        first_value(r.error2) OVER fastest AS least_error2
    FROM (
        SELECT
            e.service AS service,
            e.version AS version,
            e.run AS run,
            e.region AS region,
            e.rank AS process_rank,
            count(*) AS executions,
            avg(e.duration_s) AS mean_s,
            coalesce(var_samp(e.duration_s), 0) / count(*) AS error2
        FROM gpu_profile_executions AS e
        WHERE e.rank IS NOT NULL
        GROUP BY e.service, e.version, e.run, e.region, e.rank
    ) AS r
    WINDOW
        job AS (PARTITION BY r.service, r.version, r.run, r.region),
        fastest AS (
            PARTITION BY r.service, r.version, r.run, r.region ORDER BY r.mean_s, r.process_rank
            ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
        )
) AS f
WHERE f.ranks > 1
ORDER BY excess DESC NULLS LAST, service, run, region, rank
