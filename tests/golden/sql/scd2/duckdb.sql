-- Policy scd2, duckdb. See tests/golden/test_sql.py.

-- one key: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "id", "_seq_1", "_op"
ORDER BY _last;

-- one key: repair
WITH events AS (
SELECT 5 AS "_kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_lost", 0 AS "_there", r."id" AS "id", r."_cdc_seq_1" AS "_cdc_seq_1", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_last_1"
FROM folded AS r
UNION ALL
SELECT 1 AS "_kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_lost", 1 AS "_there", t."id" AS "id", t."_cdc_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."_image" AS "_image", t."_cdc_end_seq_1" AS "_was_end_1", t."_cdc_last_seq_1" AS "_was_last_1"
FROM related AS t
UNION ALL
SELECT 2 AS "_kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_lost", 0 AS "_there", t."id" AS "id", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_last_1"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1"))
UNION ALL
SELECT 4 AS "_kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_lost", 0 AS "_there", t."id" AS "id", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "_image", NULL AS "_was_end_1", NULL AS "_was_last_1"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_lost", 0 AS "_there", m."id" AS "id", m."_cdc_seq_1" AS "_cdc_seq_1", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_last_1"
FROM remembered AS m
WHERE NOT ((0 > m."_cdc_seq_1")) OR EXISTS (SELECT 1 FROM related AS t WHERE t."id" = m."id" AND NOT ((t."_cdc_seq_1" > m."_cdc_seq_1")))),
ranked AS (
SELECT *, row_number() OVER (PARTITION BY "id", "_cdc_seq_1" ORDER BY "_kind", "_place") AS "_nth", max("_kind") OVER (PARTITION BY "id") AS "_touched", max("_there") OVER (PARTITION BY "id", "_cdc_seq_1") AS "_k_there", max("_was_end_1") OVER (PARTITION BY "id", "_cdc_seq_1") AS "_k_was_end_1", max("_was_last_1") OVER (PARTITION BY "id", "_cdc_seq_1") AS "_k_was_last_1" FROM events),
lives AS (
SELECT *, sum(CASE WHEN "_op" = 'd' AND "_nth" = 1 THEN 1 ELSE 0 END) OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_life" FROM ranked),
judged AS (
SELECT *, CASE WHEN "_nth" > 1 THEN 'duplicate' WHEN "_kind" = 5 AND NOT ("_op" = 'd') AND "_cdc_unsent" IS NOT NULL AND ("_lost" OR "_based" IS NULL OR "_based" > "_place") THEN 'incomplete' ELSE 'apply' END AS "_verdict" FROM (
SELECT *, min(CASE WHEN "_nth" = 1 AND NOT ("_op" = 'd') AND ("_kind" < 5 OR "_cdc_unsent" IS NULL) THEN "_place" END) OVER (PARTITION BY "id", "_life" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_based" FROM lives) AS j),
placed AS (
SELECT *, NOT ("_op" = 'd') AND COALESCE(lag("_op") OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1"), 'd') = 'd' AS "_first", "_op" = 'd' AND COALESCE(lag("_op") OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1"), 'd') = 'd' AS "_silent" FROM judged),
grouped AS (
SELECT * FROM placed),
filled AS (
SELECT "_kind", "_place", "_op", "_verdict", "_silent", "_first", "_life", "_touched", "_k_there", "_k_was_end_1", "_k_was_last_1", "id", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "_image" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_first" OR "_image" IS DISTINCT FROM lag("_image") OVER (PARTITION BY "id", "_verdict", "_life" ORDER BY "_cdc_seq_1")) AS "_opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "id", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_last_1", first_value("_place") OVER (PARTITION BY "id", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_latest_0", count(*) OVER (PARTITION BY "id", "_verdict", "_life", "_version", "_is_delete") > 1 AS "_many" FROM (SELECT *, "_op" = 'd' AS "_is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_latest_0" AS "_last_place", "id" AS "id", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", "_next_at" AS "__END_AT", "_next_1" AS "_cdc_end_seq_1", "_last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent", "_image" AS "_image" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1") AS "_next_1", lead("__START_AT") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1") AS "_next_at" FROM events WHERE "_verdict" = 'apply' AND ("_opens" OR "_op" = 'd')) AS b WHERE "_opens" AND ("_k_there" = 0 OR "_next_1" IS DISTINCT FROM "_k_was_end_1" OR "_last_1" IS DISTINCT FROM "_k_was_last_1")
UNION ALL
SELECT 'd' AS "_op", "_place", "_latest_0" AS "_last_place", "id" AS "id", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", "_last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent", "_image" AS "_image" FROM events WHERE "_verdict" = 'apply' AND "_k_there" = 1 AND NOT "_opens";

SELECT "_op", "_place", "id", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "_image" FROM events WHERE "_verdict" = 'apply' AND "_kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_opens") OR ("_silent" AND "_kind" <> 3));

-- composite key: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "a", "b", "_seq_1", "_seq_2", "_op"
ORDER BY _last;

-- composite key: repair
WITH events AS (
SELECT 5 AS "_kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_lost", 0 AS "_there", r."a" AS "a", r."b" AS "b", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_end_2", NULL AS "_was_last_1", NULL AS "_was_last_2"
FROM folded AS r
UNION ALL
SELECT 1 AS "_kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_lost", 1 AS "_there", t."a" AS "a", t."b" AS "b", t."_cdc_seq_1" AS "_cdc_seq_1", t."_cdc_seq_2" AS "_cdc_seq_2", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."_image" AS "_image", t."_cdc_end_seq_1" AS "_was_end_1", t."_cdc_end_seq_2" AS "_was_end_2", t."_cdc_last_seq_1" AS "_was_last_1", t."_cdc_last_seq_2" AS "_was_last_2"
FROM related AS t
UNION ALL
SELECT 2 AS "_kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_lost", 0 AS "_there", t."a" AS "a", t."b" AS "b", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."_cdc_last_seq_2" AS "_cdc_seq_2", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_end_2", NULL AS "_was_last_1", NULL AS "_was_last_2"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" > t."_cdc_seq_2"))
UNION ALL
SELECT 4 AS "_kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_lost", 0 AS "_there", t."a" AS "a", t."b" AS "b", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."_cdc_end_seq_2" AS "_cdc_seq_2", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "_image", NULL AS "_was_end_1", NULL AS "_was_end_2", NULL AS "_was_last_1", NULL AS "_was_last_2"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_lost", 0 AS "_there", m."a" AS "a", m."b" AS "b", m."_cdc_seq_1" AS "_cdc_seq_1", m."_cdc_seq_2" AS "_cdc_seq_2", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_end_2", NULL AS "_was_last_1", NULL AS "_was_last_2"
FROM remembered AS m
WHERE NOT ((0 > m."_cdc_seq_1") OR (0 = m."_cdc_seq_1" AND 0 > m."_cdc_seq_2")) OR EXISTS (SELECT 1 FROM related AS t WHERE t."a" = m."a" AND t."b" = m."b" AND NOT ((t."_cdc_seq_1" > m."_cdc_seq_1") OR (t."_cdc_seq_1" = m."_cdc_seq_1" AND t."_cdc_seq_2" > m."_cdc_seq_2")))),
ranked AS (
SELECT *, row_number() OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2" ORDER BY "_kind", "_place") AS "_nth", max("_kind") OVER (PARTITION BY "a", "b") AS "_touched", max("_there") OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2") AS "_k_there", max("_was_end_1") OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2") AS "_k_was_end_1", max("_was_end_2") OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2") AS "_k_was_end_2", max("_was_last_1") OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2") AS "_k_was_last_1", max("_was_last_2") OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2") AS "_k_was_last_2" FROM events),
lives AS (
SELECT *, sum(CASE WHEN "_op" = 'd' AND "_nth" = 1 THEN 1 ELSE 0 END) OVER (PARTITION BY "a", "b" ORDER BY "_cdc_seq_1", "_cdc_seq_2" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_life" FROM ranked),
judged AS (
SELECT *, CASE WHEN "_nth" > 1 THEN 'duplicate' WHEN "_kind" = 5 AND NOT ("_op" = 'd') AND "_cdc_unsent" IS NOT NULL AND ("_lost" OR "_based" IS NULL OR "_based" > "_place") THEN 'incomplete' ELSE 'apply' END AS "_verdict" FROM (
SELECT *, min(CASE WHEN "_nth" = 1 AND NOT ("_op" = 'd') AND ("_kind" < 5 OR "_cdc_unsent" IS NULL) THEN "_place" END) OVER (PARTITION BY "a", "b", "_life" ORDER BY "_cdc_seq_1", "_cdc_seq_2" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_based" FROM lives) AS j),
placed AS (
SELECT *, NOT ("_op" = 'd') AND COALESCE(lag("_op") OVER (PARTITION BY "a", "b", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2"), 'd') = 'd' AS "_first", "_op" = 'd' AND COALESCE(lag("_op") OVER (PARTITION BY "a", "b", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2"), 'd') = 'd' AS "_silent" FROM judged),
grouped AS (
SELECT * FROM placed),
filled AS (
SELECT "_kind", "_place", "_op", "_verdict", "_silent", "_first", "_life", "_touched", "_k_there", "_k_was_end_1", "_k_was_end_2", "_k_was_last_1", "_k_was_last_2", "a", "b", "_cdc_seq_1", "_cdc_seq_2", "__START_AT", "_cdc_unsent", "_image" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_first" OR "_image" IS DISTINCT FROM lag("_image") OVER (PARTITION BY "a", "b", "_verdict", "_life" ORDER BY "_cdc_seq_1", "_cdc_seq_2")) AS "_opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "a", "b", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "a", "b", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC) AS "_last_1", first_value("_cdc_seq_2") OVER (PARTITION BY "a", "b", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC) AS "_last_2", first_value("_place") OVER (PARTITION BY "a", "b", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC) AS "_latest_0", count(*) OVER (PARTITION BY "a", "b", "_verdict", "_life", "_version", "_is_delete") > 1 AS "_many" FROM (SELECT *, "_op" = 'd' AS "_is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_latest_0" AS "_last_place", "a" AS "a", "b" AS "b", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "__START_AT" AS "__START_AT", "_next_at" AS "__END_AT", "_next_1" AS "_cdc_end_seq_1", "_next_2" AS "_cdc_end_seq_2", "_last_1" AS "_cdc_last_seq_1", "_last_2" AS "_cdc_last_seq_2", "_cdc_unsent" AS "_cdc_unsent", "_image" AS "_image" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "a", "b" ORDER BY "_cdc_seq_1", "_cdc_seq_2") AS "_next_1", lead("_cdc_seq_2") OVER (PARTITION BY "a", "b" ORDER BY "_cdc_seq_1", "_cdc_seq_2") AS "_next_2", lead("__START_AT") OVER (PARTITION BY "a", "b" ORDER BY "_cdc_seq_1", "_cdc_seq_2") AS "_next_at" FROM events WHERE "_verdict" = 'apply' AND ("_opens" OR "_op" = 'd')) AS b WHERE "_opens" AND ("_k_there" = 0 OR "_next_1" IS DISTINCT FROM "_k_was_end_1" OR "_last_1" IS DISTINCT FROM "_k_was_last_1" OR "_next_2" IS DISTINCT FROM "_k_was_end_2" OR "_last_2" IS DISTINCT FROM "_k_was_last_2")
UNION ALL
SELECT 'd' AS "_op", "_place", "_latest_0" AS "_last_place", "a" AS "a", "b" AS "b", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", NULL AS "_cdc_end_seq_2", "_last_1" AS "_cdc_last_seq_1", "_last_2" AS "_cdc_last_seq_2", "_cdc_unsent" AS "_cdc_unsent", "_image" AS "_image" FROM events WHERE "_verdict" = 'apply' AND "_k_there" = 1 AND NOT "_opens";

SELECT "_op", "_place", "a", "b", "_cdc_seq_1", "_cdc_seq_2", "__START_AT", "_cdc_unsent", "_image" FROM events WHERE "_verdict" = 'apply' AND "_kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_opens") OR ("_silent" AND "_kind" <> 3));

-- several sequence elements: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "id", "_seq_1", "_seq_2", "_seq_3", "_seq_4", "_op"
ORDER BY _last;

-- several sequence elements: repair
WITH events AS (
SELECT 5 AS "_kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_lost", 0 AS "_there", r."id" AS "id", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", r."_cdc_seq_3" AS "_cdc_seq_3", r."_cdc_seq_4" AS "_cdc_seq_4", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_end_2", NULL AS "_was_end_3", NULL AS "_was_end_4", NULL AS "_was_last_1", NULL AS "_was_last_2", NULL AS "_was_last_3", NULL AS "_was_last_4"
FROM folded AS r
UNION ALL
SELECT 1 AS "_kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_lost", 1 AS "_there", t."id" AS "id", t."_cdc_seq_1" AS "_cdc_seq_1", t."_cdc_seq_2" AS "_cdc_seq_2", t."_cdc_seq_3" AS "_cdc_seq_3", t."_cdc_seq_4" AS "_cdc_seq_4", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."_image" AS "_image", t."_cdc_end_seq_1" AS "_was_end_1", t."_cdc_end_seq_2" AS "_was_end_2", t."_cdc_end_seq_3" AS "_was_end_3", t."_cdc_end_seq_4" AS "_was_end_4", t."_cdc_last_seq_1" AS "_was_last_1", t."_cdc_last_seq_2" AS "_was_last_2", t."_cdc_last_seq_3" AS "_was_last_3", t."_cdc_last_seq_4" AS "_was_last_4"
FROM related AS t
UNION ALL
SELECT 2 AS "_kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_lost", 0 AS "_there", t."id" AS "id", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."_cdc_last_seq_2" AS "_cdc_seq_2", t."_cdc_last_seq_3" AS "_cdc_seq_3", t."_cdc_last_seq_4" AS "_cdc_seq_4", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_end_2", NULL AS "_was_end_3", NULL AS "_was_end_4", NULL AS "_was_last_1", NULL AS "_was_last_2", NULL AS "_was_last_3", NULL AS "_was_last_4"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" > t."_cdc_seq_2") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" = t."_cdc_seq_2" AND t."_cdc_last_seq_3" > t."_cdc_seq_3") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" = t."_cdc_seq_2" AND t."_cdc_last_seq_3" = t."_cdc_seq_3" AND t."_cdc_last_seq_4" > t."_cdc_seq_4"))
UNION ALL
SELECT 4 AS "_kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_lost", 0 AS "_there", t."id" AS "id", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."_cdc_end_seq_2" AS "_cdc_seq_2", t."_cdc_end_seq_3" AS "_cdc_seq_3", t."_cdc_end_seq_4" AS "_cdc_seq_4", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "_image", NULL AS "_was_end_1", NULL AS "_was_end_2", NULL AS "_was_end_3", NULL AS "_was_end_4", NULL AS "_was_last_1", NULL AS "_was_last_2", NULL AS "_was_last_3", NULL AS "_was_last_4"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_lost", 0 AS "_there", m."id" AS "id", m."_cdc_seq_1" AS "_cdc_seq_1", m."_cdc_seq_2" AS "_cdc_seq_2", m."_cdc_seq_3" AS "_cdc_seq_3", m."_cdc_seq_4" AS "_cdc_seq_4", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_end_2", NULL AS "_was_end_3", NULL AS "_was_end_4", NULL AS "_was_last_1", NULL AS "_was_last_2", NULL AS "_was_last_3", NULL AS "_was_last_4"
FROM remembered AS m
WHERE NOT ((0 > m."_cdc_seq_1") OR (0 = m."_cdc_seq_1" AND 0 > m."_cdc_seq_2") OR (0 = m."_cdc_seq_1" AND 0 = m."_cdc_seq_2" AND 0 > m."_cdc_seq_3") OR (0 = m."_cdc_seq_1" AND 0 = m."_cdc_seq_2" AND 0 = m."_cdc_seq_3" AND 0 > m."_cdc_seq_4")) OR EXISTS (SELECT 1 FROM related AS t WHERE t."id" = m."id" AND NOT ((t."_cdc_seq_1" > m."_cdc_seq_1") OR (t."_cdc_seq_1" = m."_cdc_seq_1" AND t."_cdc_seq_2" > m."_cdc_seq_2") OR (t."_cdc_seq_1" = m."_cdc_seq_1" AND t."_cdc_seq_2" = m."_cdc_seq_2" AND t."_cdc_seq_3" > m."_cdc_seq_3") OR (t."_cdc_seq_1" = m."_cdc_seq_1" AND t."_cdc_seq_2" = m."_cdc_seq_2" AND t."_cdc_seq_3" = m."_cdc_seq_3" AND t."_cdc_seq_4" > m."_cdc_seq_4")))),
ranked AS (
SELECT *, row_number() OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4" ORDER BY "_kind", "_place") AS "_nth", max("_kind") OVER (PARTITION BY "id") AS "_touched", max("_there") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_k_there", max("_was_end_1") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_k_was_end_1", max("_was_end_2") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_k_was_end_2", max("_was_end_3") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_k_was_end_3", max("_was_end_4") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_k_was_end_4", max("_was_last_1") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_k_was_last_1", max("_was_last_2") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_k_was_last_2", max("_was_last_3") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_k_was_last_3", max("_was_last_4") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_k_was_last_4" FROM events),
lives AS (
SELECT *, sum(CASE WHEN "_op" = 'd' AND "_nth" = 1 THEN 1 ELSE 0 END) OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_life" FROM ranked),
judged AS (
SELECT *, CASE WHEN "_nth" > 1 THEN 'duplicate' WHEN "_kind" = 5 AND NOT ("_op" = 'd') AND "_cdc_unsent" IS NOT NULL AND ("_lost" OR "_based" IS NULL OR "_based" > "_place") THEN 'incomplete' ELSE 'apply' END AS "_verdict" FROM (
SELECT *, min(CASE WHEN "_nth" = 1 AND NOT ("_op" = 'd') AND ("_kind" < 5 OR "_cdc_unsent" IS NULL) THEN "_place" END) OVER (PARTITION BY "id", "_life" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_based" FROM lives) AS j),
placed AS (
SELECT *, NOT ("_op" = 'd') AND COALESCE(lag("_op") OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4"), 'd') = 'd' AS "_first", "_op" = 'd' AND COALESCE(lag("_op") OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4"), 'd') = 'd' AS "_silent" FROM judged),
grouped AS (
SELECT * FROM placed),
filled AS (
SELECT "_kind", "_place", "_op", "_verdict", "_silent", "_first", "_life", "_touched", "_k_there", "_k_was_end_1", "_k_was_end_2", "_k_was_end_3", "_k_was_end_4", "_k_was_last_1", "_k_was_last_2", "_k_was_last_3", "_k_was_last_4", "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4", "__START_AT", "_cdc_unsent", "_image" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_first" OR "_image" IS DISTINCT FROM lag("_image") OVER (PARTITION BY "id", "_verdict", "_life" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4")) AS "_opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "id", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_last_1", first_value("_cdc_seq_2") OVER (PARTITION BY "id", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_last_2", first_value("_cdc_seq_3") OVER (PARTITION BY "id", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_last_3", first_value("_cdc_seq_4") OVER (PARTITION BY "id", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_last_4", first_value("_place") OVER (PARTITION BY "id", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_latest_0", count(*) OVER (PARTITION BY "id", "_verdict", "_life", "_version", "_is_delete") > 1 AS "_many" FROM (SELECT *, "_op" = 'd' AS "_is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_latest_0" AS "_last_place", "id" AS "id", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "_cdc_seq_3" AS "_cdc_seq_3", "_cdc_seq_4" AS "_cdc_seq_4", "__START_AT" AS "__START_AT", "_next_at" AS "__END_AT", "_next_1" AS "_cdc_end_seq_1", "_next_2" AS "_cdc_end_seq_2", "_next_3" AS "_cdc_end_seq_3", "_next_4" AS "_cdc_end_seq_4", "_last_1" AS "_cdc_last_seq_1", "_last_2" AS "_cdc_last_seq_2", "_last_3" AS "_cdc_last_seq_3", "_last_4" AS "_cdc_last_seq_4", "_cdc_unsent" AS "_cdc_unsent", "_image" AS "_image" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_next_1", lead("_cdc_seq_2") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_next_2", lead("_cdc_seq_3") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_next_3", lead("_cdc_seq_4") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_next_4", lead("__START_AT") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_next_at" FROM events WHERE "_verdict" = 'apply' AND ("_opens" OR "_op" = 'd')) AS b WHERE "_opens" AND ("_k_there" = 0 OR "_next_1" IS DISTINCT FROM "_k_was_end_1" OR "_last_1" IS DISTINCT FROM "_k_was_last_1" OR "_next_2" IS DISTINCT FROM "_k_was_end_2" OR "_last_2" IS DISTINCT FROM "_k_was_last_2" OR "_next_3" IS DISTINCT FROM "_k_was_end_3" OR "_last_3" IS DISTINCT FROM "_k_was_last_3" OR "_next_4" IS DISTINCT FROM "_k_was_end_4" OR "_last_4" IS DISTINCT FROM "_k_was_last_4")
UNION ALL
SELECT 'd' AS "_op", "_place", "_latest_0" AS "_last_place", "id" AS "id", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "_cdc_seq_3" AS "_cdc_seq_3", "_cdc_seq_4" AS "_cdc_seq_4", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", NULL AS "_cdc_end_seq_2", NULL AS "_cdc_end_seq_3", NULL AS "_cdc_end_seq_4", "_last_1" AS "_cdc_last_seq_1", "_last_2" AS "_cdc_last_seq_2", "_last_3" AS "_cdc_last_seq_3", "_last_4" AS "_cdc_last_seq_4", "_cdc_unsent" AS "_cdc_unsent", "_image" AS "_image" FROM events WHERE "_verdict" = 'apply' AND "_k_there" = 1 AND NOT "_opens";

SELECT "_op", "_place", "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4", "__START_AT", "_cdc_unsent", "_image" FROM events WHERE "_verdict" = 'apply' AND "_kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_opens") OR ("_silent" AND "_kind" <> 3));

-- awkward name: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "k ""1"" `2`", "_seq_1", "_op"
ORDER BY _last;

-- awkward name: repair
WITH events AS (
SELECT 5 AS "_kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_lost", 0 AS "_there", r."k ""1"" `2`" AS "k ""1"" `2`", r."_cdc_seq_1" AS "_cdc_seq_1", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_last_1"
FROM folded AS r
UNION ALL
SELECT 1 AS "_kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_lost", 1 AS "_there", t."k ""1"" `2`" AS "k ""1"" `2`", t."_cdc_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."_image" AS "_image", t."_cdc_end_seq_1" AS "_was_end_1", t."_cdc_last_seq_1" AS "_was_last_1"
FROM related AS t
UNION ALL
SELECT 2 AS "_kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_lost", 0 AS "_there", t."k ""1"" `2`" AS "k ""1"" `2`", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_last_1"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1"))
UNION ALL
SELECT 4 AS "_kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_lost", 0 AS "_there", t."k ""1"" `2`" AS "k ""1"" `2`", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "_image", NULL AS "_was_end_1", NULL AS "_was_last_1"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_lost", 0 AS "_there", m."k ""1"" `2`" AS "k ""1"" `2`", m."_cdc_seq_1" AS "_cdc_seq_1", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."_image" AS "_image", NULL AS "_was_end_1", NULL AS "_was_last_1"
FROM remembered AS m
WHERE NOT ((0 > m."_cdc_seq_1")) OR EXISTS (SELECT 1 FROM related AS t WHERE t."k ""1"" `2`" = m."k ""1"" `2`" AND NOT ((t."_cdc_seq_1" > m."_cdc_seq_1")))),
ranked AS (
SELECT *, row_number() OVER (PARTITION BY "k ""1"" `2`", "_cdc_seq_1" ORDER BY "_kind", "_place") AS "_nth", max("_kind") OVER (PARTITION BY "k ""1"" `2`") AS "_touched", max("_there") OVER (PARTITION BY "k ""1"" `2`", "_cdc_seq_1") AS "_k_there", max("_was_end_1") OVER (PARTITION BY "k ""1"" `2`", "_cdc_seq_1") AS "_k_was_end_1", max("_was_last_1") OVER (PARTITION BY "k ""1"" `2`", "_cdc_seq_1") AS "_k_was_last_1" FROM events),
lives AS (
SELECT *, sum(CASE WHEN "_op" = 'd' AND "_nth" = 1 THEN 1 ELSE 0 END) OVER (PARTITION BY "k ""1"" `2`" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_life" FROM ranked),
judged AS (
SELECT *, CASE WHEN "_nth" > 1 THEN 'duplicate' WHEN "_kind" = 5 AND NOT ("_op" = 'd') AND "_cdc_unsent" IS NOT NULL AND ("_lost" OR "_based" IS NULL OR "_based" > "_place") THEN 'incomplete' ELSE 'apply' END AS "_verdict" FROM (
SELECT *, min(CASE WHEN "_nth" = 1 AND NOT ("_op" = 'd') AND ("_kind" < 5 OR "_cdc_unsent" IS NULL) THEN "_place" END) OVER (PARTITION BY "k ""1"" `2`", "_life" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_based" FROM lives) AS j),
placed AS (
SELECT *, NOT ("_op" = 'd') AND COALESCE(lag("_op") OVER (PARTITION BY "k ""1"" `2`", "_verdict" ORDER BY "_cdc_seq_1"), 'd') = 'd' AS "_first", "_op" = 'd' AND COALESCE(lag("_op") OVER (PARTITION BY "k ""1"" `2`", "_verdict" ORDER BY "_cdc_seq_1"), 'd') = 'd' AS "_silent" FROM judged),
grouped AS (
SELECT * FROM placed),
filled AS (
SELECT "_kind", "_place", "_op", "_verdict", "_silent", "_first", "_life", "_touched", "_k_there", "_k_was_end_1", "_k_was_last_1", "k ""1"" `2`", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "_image" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_first" OR "_image" IS DISTINCT FROM lag("_image") OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_life" ORDER BY "_cdc_seq_1")) AS "_opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "k ""1"" `2`", "_verdict" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_last_1", first_value("_place") OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_life", "_version", "_is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_latest_0", count(*) OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_life", "_version", "_is_delete") > 1 AS "_many" FROM (SELECT *, "_op" = 'd' AS "_is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_latest_0" AS "_last_place", "k ""1"" `2`" AS "k ""1"" `2`", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", "_next_at" AS "__END_AT", "_next_1" AS "_cdc_end_seq_1", "_last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent", "_image" AS "_image" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "k ""1"" `2`" ORDER BY "_cdc_seq_1") AS "_next_1", lead("__START_AT") OVER (PARTITION BY "k ""1"" `2`" ORDER BY "_cdc_seq_1") AS "_next_at" FROM events WHERE "_verdict" = 'apply' AND ("_opens" OR "_op" = 'd')) AS b WHERE "_opens" AND ("_k_there" = 0 OR "_next_1" IS DISTINCT FROM "_k_was_end_1" OR "_last_1" IS DISTINCT FROM "_k_was_last_1")
UNION ALL
SELECT 'd' AS "_op", "_place", "_latest_0" AS "_last_place", "k ""1"" `2`" AS "k ""1"" `2`", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", "_last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent", "_image" AS "_image" FROM events WHERE "_verdict" = 'apply' AND "_k_there" = 1 AND NOT "_opens";

SELECT "_op", "_place", "k ""1"" `2`", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "_image" FROM events WHERE "_verdict" = 'apply' AND "_kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_opens") OR ("_silent" AND "_kind" <> 3));

-- no key, counted: table public.t has no key, which policy scd2 needs
