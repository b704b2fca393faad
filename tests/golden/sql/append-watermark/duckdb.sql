-- Policy append-watermark, duckdb. See tests/golden/test_sql.py.

-- one key: late
SELECT *, CASE WHEN "_op" <> 'r' AND "_ts" < "_mark" THEN 'LATE: its event time ' || CAST(make_timestamp("_ts") AS VARCHAR) || ' UTC is below the watermark of its partition, ' || CAST(make_timestamp("_mark") AS VARCHAR) || ' UTC. A longer ''watermark'' accepts such changes from now on. `replicator lanes resync LANE` also loads the rejected ones' END AS "_late"
FROM (SELECT *, max(CASE WHEN "_op" <> 'r' THEN "_ts" END) OVER (PARTITION BY "_topic", "_partition" ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - 600000000 AS "_mark" FROM changes);

-- one key: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "id", "_seq_1", "_op"
ORDER BY _last;

-- one key: reconcile
SELECT CAST(NULL AS BIGINT) AS _t, CAST(NULL AS BIGINT) AS _o,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t."id" IS NOT DISTINCT FROM r."id" AND t."_cdc_seq_1" = r."_cdc_seq_1") THEN 'duplicate'
  ELSE 'apply' END AS _verdict
FROM changes AS r
ORDER BY r._row;

-- one key: reconcile, after a truncate
SELECT CAST(NULL AS BIGINT) AS _t, CAST(NULL AS BIGINT) AS _o,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t."id" IS NOT DISTINCT FROM r."id" AND t."_cdc_seq_1" = r."_cdc_seq_1") THEN 'duplicate'
  ELSE 'apply' END AS _verdict
FROM changes AS r
ORDER BY r._row;

-- composite key: late
SELECT *, CASE WHEN "_op" <> 'r' AND "_ts" < "_mark" THEN 'LATE: its event time ' || CAST(make_timestamp("_ts") AS VARCHAR) || ' UTC is below the watermark of its partition, ' || CAST(make_timestamp("_mark") AS VARCHAR) || ' UTC. A longer ''watermark'' accepts such changes from now on. `replicator lanes resync LANE` also loads the rejected ones' END AS "_late"
FROM (SELECT *, max(CASE WHEN "_op" <> 'r' THEN "_ts" END) OVER (PARTITION BY "_topic", "_partition" ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - 600000000 AS "_mark" FROM changes);

-- composite key: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "a", "b", "_seq_1", "_seq_2", "_op"
ORDER BY _last;

-- composite key: reconcile
SELECT CAST(NULL AS BIGINT) AS _t, CAST(NULL AS BIGINT) AS _o,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t."a" IS NOT DISTINCT FROM r."a" AND t."b" IS NOT DISTINCT FROM r."b" AND t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2") THEN 'duplicate'
  ELSE 'apply' END AS _verdict
FROM changes AS r
ORDER BY r._row;

-- composite key: reconcile, after a truncate
SELECT CAST(NULL AS BIGINT) AS _t, CAST(NULL AS BIGINT) AS _o,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t."a" IS NOT DISTINCT FROM r."a" AND t."b" IS NOT DISTINCT FROM r."b" AND t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2") THEN 'duplicate'
  ELSE 'apply' END AS _verdict
FROM changes AS r
ORDER BY r._row;

-- several sequence elements: late
SELECT *, CASE WHEN "_op" <> 'r' AND "_ts" < "_mark" THEN 'LATE: its event time ' || CAST(make_timestamp("_ts") AS VARCHAR) || ' UTC is below the watermark of its partition, ' || CAST(make_timestamp("_mark") AS VARCHAR) || ' UTC. A longer ''watermark'' accepts such changes from now on. `replicator lanes resync LANE` also loads the rejected ones' END AS "_late"
FROM (SELECT *, max(CASE WHEN "_op" <> 'r' THEN "_ts" END) OVER (PARTITION BY "_topic", "_partition" ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - 600000000 AS "_mark" FROM changes);

-- several sequence elements: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "id", "_seq_1", "_seq_2", "_seq_3", "_seq_4", "_op"
ORDER BY _last;

-- several sequence elements: reconcile
SELECT CAST(NULL AS BIGINT) AS _t, CAST(NULL AS BIGINT) AS _o,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t."id" IS NOT DISTINCT FROM r."id" AND t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" = r."_cdc_seq_3" AND t."_cdc_seq_4" = r."_cdc_seq_4") THEN 'duplicate'
  ELSE 'apply' END AS _verdict
FROM changes AS r
ORDER BY r._row;

-- several sequence elements: reconcile, after a truncate
SELECT CAST(NULL AS BIGINT) AS _t, CAST(NULL AS BIGINT) AS _o,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t."id" IS NOT DISTINCT FROM r."id" AND t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" = r."_cdc_seq_3" AND t."_cdc_seq_4" = r."_cdc_seq_4") THEN 'duplicate'
  ELSE 'apply' END AS _verdict
FROM changes AS r
ORDER BY r._row;

-- awkward name: late
SELECT *, CASE WHEN "_op" <> 'r' AND "_ts" < "_mark" THEN 'LATE: its event time ' || CAST(make_timestamp("_ts") AS VARCHAR) || ' UTC is below the watermark of its partition, ' || CAST(make_timestamp("_mark") AS VARCHAR) || ' UTC. A longer ''watermark'' accepts such changes from now on. `replicator lanes resync LANE` also loads the rejected ones' END AS "_late"
FROM (SELECT *, max(CASE WHEN "_op" <> 'r' THEN "_ts" END) OVER (PARTITION BY "_topic", "_partition" ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - 600000000 AS "_mark" FROM changes);

-- awkward name: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "k ""1"" `2`", "_seq_1", "_op"
ORDER BY _last;

-- awkward name: reconcile
SELECT CAST(NULL AS BIGINT) AS _t, CAST(NULL AS BIGINT) AS _o,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t."k ""1"" `2`" IS NOT DISTINCT FROM r."k ""1"" `2`" AND t."_cdc_seq_1" = r."_cdc_seq_1") THEN 'duplicate'
  ELSE 'apply' END AS _verdict
FROM changes AS r
ORDER BY r._row;

-- awkward name: reconcile, after a truncate
SELECT CAST(NULL AS BIGINT) AS _t, CAST(NULL AS BIGINT) AS _o,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t."k ""1"" `2`" IS NOT DISTINCT FROM r."k ""1"" `2`" AND t."_cdc_seq_1" = r."_cdc_seq_1") THEN 'duplicate'
  ELSE 'apply' END AS _verdict
FROM changes AS r
ORDER BY r._row;

-- no key, counted: late
SELECT *, CASE WHEN "_op" <> 'r' AND "_ts" < "_mark" THEN 'LATE: its event time ' || CAST(make_timestamp("_ts") AS VARCHAR) || ' UTC is below the watermark of its partition, ' || CAST(make_timestamp("_mark") AS VARCHAR) || ' UTC. A longer ''watermark'' accepts such changes from now on. `replicator lanes resync LANE` also loads the rejected ones' END AS "_late"
FROM (SELECT *, max(CASE WHEN "_op" <> 'r' THEN "_ts" END) OVER (PARTITION BY "_topic", "_partition" ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - 600000000 AS "_mark" FROM changes);

-- no key, counted: fold
SELECT min("_i") AS _last
FROM (SELECT *, row_number() OVER (PARTITION BY "_reading", "_topic", "_partition", "v", "w", "_seq_1", "_seq_2", "_op" ORDER BY "_i") AS "_copy" FROM (SELECT *, sum("_falls") OVER (PARTITION BY "_topic", "_partition" ORDER BY "_i") AS "_reading" FROM (SELECT *, CASE WHEN row("_seq_1", "_seq_2", "_seq_3") <= lag(row("_seq_1", "_seq_2", "_seq_3")) OVER (PARTITION BY "_topic", "_partition" ORDER BY "_i") THEN 1 ELSE 0 END AS "_falls" FROM changes)))
GROUP BY "v", "w", "_seq_1", "_seq_2", "_op", "_copy"
ORDER BY _last;

-- no key, counted: reconcile
SELECT CAST(NULL AS BIGINT) AS _t, CAST(NULL AS BIGINT) AS _o,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t."v" IS NOT DISTINCT FROM r."v" AND t."w" IS NOT DISTINCT FROM r."w" AND t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" = r."_cdc_seq_3") THEN 'duplicate'
  ELSE 'apply' END AS _verdict
FROM changes AS r
ORDER BY r._row;

-- no key, counted: reconcile, after a truncate
SELECT CAST(NULL AS BIGINT) AS _t, CAST(NULL AS BIGINT) AS _o,
CASE
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" > 9)) AND (SELECT count(*) FROM related AS t WHERE t."v" IS NOT DISTINCT FROM r."v" AND t."w" IS NOT DISTINCT FROM r."w" AND t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2") >= row_number() OVER (PARTITION BY r."v", r."w", r."_cdc_seq_1", r."_cdc_seq_2" ORDER BY r."_cdc_seq_3", r."_offset") THEN 'duplicate'
  ELSE 'apply' END AS _verdict
FROM changes AS r
ORDER BY r._row;
