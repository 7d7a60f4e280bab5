-- Each version of a service compared with the one before, region by region, with 95 % intervals.
--   service: the service; empty if it has no name, and for recordings
--   region: the region
--   quantity: duration, gpu_time or energy of an execution
--   unit: its unit
--   version_a: the version before
--   version_b: the version
--   runs_a: runs of version_a with this quantity
--   runs_b: runs of version_b with it
--   a: the value of version_a, the mean of its runs
--   b: the value of version_b
--   change: b / a - 1
--   low: the lower end of the interval of change
--   high: its upper end
--   finding: higher, lower or no change shown; or why there is no interval: too few runs, runs too unlike, a value is 0
-- A run counts if it has 8 executions, and if at most 5 % of its energy, or GPU time, is uncertain. The spread between
-- runs is the chance, pooled over both versions as a share of the value, as in `compare` for repeated runs. So 6 runs
-- are needed in both versions together. All intervals contain the truth together in 95 of 100 answers. An interval of a
-- ratio follows Donner and Zou (Stat. Methods Med. Res. 21, 2012).
WITH runs AS (
    SELECT u.service AS service, u.version AS version, u.region AS region, u.run AS run, 'energy' AS quantity,
        'J' AS unit, min(u.first_seen) AS since, sum(u.executions) AS n,
        sum(coalesce(u.energy_j, 0) + coalesce(u.uncertain_energy_j, 0)) AS x
    FROM gpu_profile_use AS u WHERE coalesce(u.energy_j, u.uncertain_energy_j) IS NOT NULL AND u.version <> ''
    GROUP BY u.service, u.version, u.region, u.run
    HAVING coalesce(sum(u.uncertain_energy_j), 0) <= 0.05 * (sum(u.energy_j) + coalesce(sum(u.uncertain_energy_j), 0))
    UNION ALL
    SELECT u.service AS service, u.version AS version, u.region AS region, u.run AS run, 'gpu_time' AS quantity,
        's' AS unit, min(u.first_seen) AS since, sum(u.executions) AS n,
        sum(coalesce(u.gpu_s, 0) + coalesce(u.uncertain_gpu_s, 0)) AS x
    FROM gpu_profile_use AS u WHERE coalesce(u.gpu_s, u.uncertain_gpu_s) IS NOT NULL AND u.version <> ''
    GROUP BY u.service, u.version, u.region, u.run
    HAVING coalesce(sum(u.uncertain_gpu_s), 0) <= 0.05 * (sum(u.gpu_s) + coalesce(sum(u.uncertain_gpu_s), 0))
    UNION ALL
    SELECT d.service AS service, d.version AS version, d.region AS region, d.run AS run, 'duration' AS quantity,
        's' AS unit, min(d.first_seen) AS since, sum(d.executions) AS n, sum(d.total_s) AS x
    FROM gpu_profile_durations AS d WHERE d.version <> ''
    GROUP BY d.service, d.version, d.region, d.run
),
sides AS (
    -- Each run is one observation: it shares clocks, temperature and load.
    SELECT r.service AS service, r.version AS version, r.region AS region, r.quantity AS quantity, r.unit AS unit,
        min(min(r.since)) OVER (PARTITION BY r.service, r.version) AS since, count(*) AS runs, avg(r.x / r.n) AS value,
        coalesce(var_samp(r.x / r.n), 0) * (count(*) - 1) / nullif(avg(r.x / r.n) * avg(r.x / r.n), 0) AS squares
    FROM runs AS r WHERE r.n >= 8
    GROUP BY r.service, r.version, r.region, r.quantity, r.unit
),
pairs AS (
    SELECT s.service AS service, s.region AS region, s.quantity AS quantity, s.unit AS unit,
        max(s.version) OVER before AS version_a, s.version AS version_b,
        count(*) OVER before AS earlier, max(s.runs) OVER before AS runs_a, s.runs AS runs_b,
        max(s.value) OVER before AS a, s.value AS b,
        max(s.squares) OVER before AS squares_a, s.squares AS squares_b
    FROM sides AS s
    WINDOW before AS (
        PARTITION BY s.service, s.region, s.quantity, s.unit ORDER BY s.since, s.version
        ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING
    )
),
spreads AS (
    SELECT p.service AS service, p.region AS region, p.quantity AS quantity, p.unit AS unit,
        p.version_a AS version_a, p.version_b AS version_b, p.runs_a AS runs_a, p.runs_b AS runs_b, p.a AS a, p.b AS b,
        p.runs_a + p.runs_b - 2 AS degrees,
        CASE
            WHEN p.runs_a + p.runs_b >= 6 AND p.a > 0 AND p.b > 0
            THEN sqrt((p.squares_a + p.squares_b) / (p.runs_a + p.runs_b - 2))
        END AS spread
    FROM pairs AS p WHERE p.earlier > 0
),
counted AS (
    SELECT s.*, count(s.spread) OVER () AS comparisons FROM spreads AS s
),
keyed AS (
    -- The table of Student's t has fewer degrees of freedom, and more comparisons, than these at most.
    SELECT c.*,
        CASE
            WHEN c.degrees <= 30 THEN c.degrees WHEN c.degrees < 40 THEN 30 WHEN c.degrees < 60 THEN 40
            WHEN c.degrees < 120 THEN 60 WHEN c.degrees < 240 THEN 120 WHEN c.degrees < 1000 THEN 240 ELSE 1000
        END AS degrees_key,
        CASE WHEN c.comparisons > 1 THEN round(power(4, ceil(log2(c.comparisons) / 2))) ELSE 1 END AS comparisons_key
    FROM counted AS c
),
edges AS (
    SELECT k.service AS service, k.region AS region, k.quantity AS quantity, k.unit AS unit,
        k.version_a AS version_a, k.version_b AS version_b, k.runs_a AS runs_a, k.runs_b AS runs_b, k.a AS a, k.b AS b,
        k.degrees AS degrees, k.spread AS spread,
        t.quantile * k.spread / sqrt(k.runs_a) AS wide_a, t.quantile * k.spread / sqrt(k.runs_b) AS wide_b,
        k.b / nullif(k.a, 0) AS ratio
    FROM keyed AS k
    LEFT JOIN gpu_profile_student AS t
        ON t.degrees = CAST(k.degrees_key AS INTEGER) AND t.comparisons = CAST(k.comparisons_key AS INTEGER)
),
intervals AS (
    -- The ratios r at which the interval of b - r a has an end at 0, from half-widths as shares.
    SELECT e.*,
        CASE WHEN e.wide_a < 1 THEN e.ratio
            * greatest(0, 1 - e.wide_b * e.wide_b)
            / (1 + sqrt(1 - greatest(0, 1 - e.wide_b * e.wide_b) * (1 - e.wide_a * e.wide_a))) - 1 END AS low,
        CASE WHEN e.wide_a < 1 THEN e.ratio
            * (1 + sqrt(greatest(0, 1 - (1 - e.wide_b * e.wide_b) * (1 - e.wide_a * e.wide_a))))
            / (1 - e.wide_a * e.wide_a) - 1 END AS high
    FROM edges AS e
)
SELECT i.service AS service, i.region AS region, i.quantity AS quantity, i.unit AS unit,
    i.version_a AS version_a, i.version_b AS version_b, i.runs_a AS runs_a, i.runs_b AS runs_b,
    i.a AS a, i.b AS b, i.ratio - 1 AS change, i.low AS low, i.high AS high,
    CASE
        WHEN i.runs_a + i.runs_b < 6 THEN 'too few runs'
        WHEN i.spread IS NULL THEN 'a value is 0'
        WHEN i.low IS NULL THEN 'runs too unlike'
        WHEN i.low > 0 THEN 'higher'
        WHEN i.high < 0 THEN 'lower'
        ELSE 'no change shown'
    END AS finding
FROM intervals AS i
ORDER BY CASE WHEN i.low > 0 THEN 0 WHEN i.high < 0 THEN 1 WHEN i.low IS NULL THEN 3 ELSE 2 END, abs(i.ratio - 1) DESC NULLS LAST,
    service, region, quantity, version_b
