-- Policy scd2-untracked, duckdb. See tests/golden/test_sql.py.

-- one key: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "id", "_seq_1", "_op"
ORDER BY _last;

-- one key: repair
WITH events AS (
SELECT 5 AS "_cdc__kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", r."id" AS "id", r."_cdc_seq_1" AS "_cdc_seq_1", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM folded AS r
UNION ALL
SELECT 1 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 1 AS "_cdc__there", t."id" AS "id", t."_cdc_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."_cdc__image" AS "_cdc__image", t."_cdc_end_seq_1" AS "_cdc__was_end_1", t."_cdc_last_seq_1" AS "_cdc__was_last_1"
FROM related AS t
UNION ALL
SELECT 2 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."id" AS "id", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1"))
UNION ALL
SELECT 4 AS "_cdc__kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."id" AS "id", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_cdc__kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", m."id" AS "id", m."_cdc_seq_1" AS "_cdc_seq_1", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM remembered AS m
WHERE NOT ((0 > m."_cdc_seq_1")) OR EXISTS (SELECT 1 FROM related AS t WHERE t."id" = m."id" AND NOT ((t."_cdc_seq_1" > m."_cdc_seq_1")))),
ranked AS (
SELECT *, row_number() OVER (PARTITION BY "id", "_cdc_seq_1" ORDER BY "_cdc__kind", "_place") AS "_cdc__nth", max("_cdc__kind") OVER (PARTITION BY "id") AS "_cdc__touched", max("_cdc__there") OVER (PARTITION BY "id", "_cdc_seq_1") AS "_cdc__k_cdc__there", max("_cdc__was_end_1") OVER (PARTITION BY "id", "_cdc_seq_1") AS "_cdc__k_cdc__was_end_1", max("_cdc__was_last_1") OVER (PARTITION BY "id", "_cdc_seq_1") AS "_cdc__k_cdc__was_last_1" FROM events),
lives AS (
SELECT *, sum(CASE WHEN "_op" = 'd' AND "_cdc__nth" = 1 THEN 1 ELSE 0 END) OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__life" FROM ranked),
judged AS (
SELECT *, CASE WHEN "_cdc__nth" > 1 THEN 'duplicate' WHEN "_cdc__kind" = 5 AND NOT ("_op" = 'd') AND "_cdc_unsent" IS NOT NULL AND ("_cdc__lost" OR "_cdc__based" IS NULL OR "_cdc__based" > "_place") THEN 'incomplete' ELSE 'apply' END AS "_verdict" FROM (
SELECT *, min(CASE WHEN "_cdc__nth" = 1 AND NOT ("_op" = 'd') AND ("_cdc__kind" < 5 OR "_cdc_unsent" IS NULL) THEN "_place" END) OVER (PARTITION BY "id", "_cdc__life" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__based" FROM lives) AS j),
placed AS (
SELECT *, NOT ("_op" = 'd') AND COALESCE(lag("_op") OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1"), 'd') = 'd' AS "_cdc__first", "_op" = 'd' AND COALESCE(lag("_op") OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1"), 'd') = 'd' AS "_cdc__silent" FROM judged),
grouped AS (
SELECT * FROM placed),
filled AS (
SELECT "_cdc__kind", "_place", "_op", "_verdict", "_cdc__silent", "_cdc__first", "_cdc__life", "_cdc__touched", "_cdc__k_cdc__there", "_cdc__k_cdc__was_end_1", "_cdc__k_cdc__was_last_1", "id", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "_cdc__image" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_cdc__first" OR "_cdc__image" IS DISTINCT FROM lag("_cdc__image") OVER (PARTITION BY "id", "_verdict", "_cdc__life" ORDER BY "_cdc_seq_1")) AS "_cdc__opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_cdc__opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_cdc__last_1", first_value("_place") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_cdc__latest_0", count(*) OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete") > 1 AS "_cdc__many" FROM (SELECT *, "_op" = 'd' AS "_cdc__is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "id" AS "id", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", "_cdc__next_at" AS "__END_AT", "_cdc__next_1" AS "_cdc_end_seq_1", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent", "_cdc__image" AS "_cdc__image" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1") AS "_cdc__next_1", lead("__START_AT") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1") AS "_cdc__next_at" FROM events WHERE "_verdict" = 'apply' AND ("_cdc__opens" OR "_op" = 'd')) AS b WHERE "_cdc__opens" AND ("_cdc__k_cdc__there" = 0 OR "_cdc__next_1" IS DISTINCT FROM "_cdc__k_cdc__was_end_1" OR "_cdc__last_1" IS DISTINCT FROM "_cdc__k_cdc__was_last_1")
UNION ALL
SELECT 'd' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "id" AS "id", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent", "_cdc__image" AS "_cdc__image" FROM events WHERE "_verdict" = 'apply' AND "_cdc__k_cdc__there" = 1 AND NOT "_cdc__opens";

SELECT "_op", "_place", "id", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "_cdc__image" FROM events WHERE "_verdict" = 'apply' AND "_cdc__kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_cdc__opens") OR ("_cdc__silent" AND "_cdc__kind" <> 3) OR ("_cdc__opens" AND "_cdc__many" AND ("_cdc__kind" = 5 OR ("_cdc__k_cdc__was_last_1" = "_cdc_seq_1"))));

-- composite key: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "a", "b", "_seq_1", "_seq_2", "_op"
ORDER BY _last;

-- composite key: repair
WITH events AS (
SELECT 5 AS "_cdc__kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", r."a" AS "a", r."b" AS "b", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2"
FROM folded AS r
UNION ALL
SELECT 1 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 1 AS "_cdc__there", t."a" AS "a", t."b" AS "b", t."_cdc_seq_1" AS "_cdc_seq_1", t."_cdc_seq_2" AS "_cdc_seq_2", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."_cdc__image" AS "_cdc__image", t."_cdc_end_seq_1" AS "_cdc__was_end_1", t."_cdc_end_seq_2" AS "_cdc__was_end_2", t."_cdc_last_seq_1" AS "_cdc__was_last_1", t."_cdc_last_seq_2" AS "_cdc__was_last_2"
FROM related AS t
UNION ALL
SELECT 2 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."a" AS "a", t."b" AS "b", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."_cdc_last_seq_2" AS "_cdc_seq_2", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" > t."_cdc_seq_2"))
UNION ALL
SELECT 4 AS "_cdc__kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."a" AS "a", t."b" AS "b", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."_cdc_end_seq_2" AS "_cdc_seq_2", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_cdc__kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", m."a" AS "a", m."b" AS "b", m."_cdc_seq_1" AS "_cdc_seq_1", m."_cdc_seq_2" AS "_cdc_seq_2", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2"
FROM remembered AS m
WHERE NOT ((0 > m."_cdc_seq_1") OR (0 = m."_cdc_seq_1" AND 0 > m."_cdc_seq_2")) OR EXISTS (SELECT 1 FROM related AS t WHERE t."a" = m."a" AND t."b" = m."b" AND NOT ((t."_cdc_seq_1" > m."_cdc_seq_1") OR (t."_cdc_seq_1" = m."_cdc_seq_1" AND t."_cdc_seq_2" > m."_cdc_seq_2")))),
ranked AS (
SELECT *, row_number() OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2" ORDER BY "_cdc__kind", "_place") AS "_cdc__nth", max("_cdc__kind") OVER (PARTITION BY "a", "b") AS "_cdc__touched", max("_cdc__there") OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2") AS "_cdc__k_cdc__there", max("_cdc__was_end_1") OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2") AS "_cdc__k_cdc__was_end_1", max("_cdc__was_end_2") OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2") AS "_cdc__k_cdc__was_end_2", max("_cdc__was_last_1") OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2") AS "_cdc__k_cdc__was_last_1", max("_cdc__was_last_2") OVER (PARTITION BY "a", "b", "_cdc_seq_1", "_cdc_seq_2") AS "_cdc__k_cdc__was_last_2" FROM events),
lives AS (
SELECT *, sum(CASE WHEN "_op" = 'd' AND "_cdc__nth" = 1 THEN 1 ELSE 0 END) OVER (PARTITION BY "a", "b" ORDER BY "_cdc_seq_1", "_cdc_seq_2" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__life" FROM ranked),
judged AS (
SELECT *, CASE WHEN "_cdc__nth" > 1 THEN 'duplicate' WHEN "_cdc__kind" = 5 AND NOT ("_op" = 'd') AND "_cdc_unsent" IS NOT NULL AND ("_cdc__lost" OR "_cdc__based" IS NULL OR "_cdc__based" > "_place") THEN 'incomplete' ELSE 'apply' END AS "_verdict" FROM (
SELECT *, min(CASE WHEN "_cdc__nth" = 1 AND NOT ("_op" = 'd') AND ("_cdc__kind" < 5 OR "_cdc_unsent" IS NULL) THEN "_place" END) OVER (PARTITION BY "a", "b", "_cdc__life" ORDER BY "_cdc_seq_1", "_cdc_seq_2" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__based" FROM lives) AS j),
placed AS (
SELECT *, NOT ("_op" = 'd') AND COALESCE(lag("_op") OVER (PARTITION BY "a", "b", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2"), 'd') = 'd' AS "_cdc__first", "_op" = 'd' AND COALESCE(lag("_op") OVER (PARTITION BY "a", "b", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2"), 'd') = 'd' AS "_cdc__silent" FROM judged),
grouped AS (
SELECT * FROM placed),
filled AS (
SELECT "_cdc__kind", "_place", "_op", "_verdict", "_cdc__silent", "_cdc__first", "_cdc__life", "_cdc__touched", "_cdc__k_cdc__there", "_cdc__k_cdc__was_end_1", "_cdc__k_cdc__was_end_2", "_cdc__k_cdc__was_last_1", "_cdc__k_cdc__was_last_2", "a", "b", "_cdc_seq_1", "_cdc_seq_2", "__START_AT", "_cdc_unsent", "_cdc__image" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_cdc__first" OR "_cdc__image" IS DISTINCT FROM lag("_cdc__image") OVER (PARTITION BY "a", "b", "_verdict", "_cdc__life" ORDER BY "_cdc_seq_1", "_cdc_seq_2")) AS "_cdc__opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_cdc__opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "a", "b", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "a", "b", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC) AS "_cdc__last_1", first_value("_cdc_seq_2") OVER (PARTITION BY "a", "b", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC) AS "_cdc__last_2", first_value("_place") OVER (PARTITION BY "a", "b", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC) AS "_cdc__latest_0", count(*) OVER (PARTITION BY "a", "b", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete") > 1 AS "_cdc__many" FROM (SELECT *, "_op" = 'd' AS "_cdc__is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "a" AS "a", "b" AS "b", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "__START_AT" AS "__START_AT", "_cdc__next_at" AS "__END_AT", "_cdc__next_1" AS "_cdc_end_seq_1", "_cdc__next_2" AS "_cdc_end_seq_2", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc__last_2" AS "_cdc_last_seq_2", "_cdc_unsent" AS "_cdc_unsent", "_cdc__image" AS "_cdc__image" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "a", "b" ORDER BY "_cdc_seq_1", "_cdc_seq_2") AS "_cdc__next_1", lead("_cdc_seq_2") OVER (PARTITION BY "a", "b" ORDER BY "_cdc_seq_1", "_cdc_seq_2") AS "_cdc__next_2", lead("__START_AT") OVER (PARTITION BY "a", "b" ORDER BY "_cdc_seq_1", "_cdc_seq_2") AS "_cdc__next_at" FROM events WHERE "_verdict" = 'apply' AND ("_cdc__opens" OR "_op" = 'd')) AS b WHERE "_cdc__opens" AND ("_cdc__k_cdc__there" = 0 OR "_cdc__next_1" IS DISTINCT FROM "_cdc__k_cdc__was_end_1" OR "_cdc__last_1" IS DISTINCT FROM "_cdc__k_cdc__was_last_1" OR "_cdc__next_2" IS DISTINCT FROM "_cdc__k_cdc__was_end_2" OR "_cdc__last_2" IS DISTINCT FROM "_cdc__k_cdc__was_last_2")
UNION ALL
SELECT 'd' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "a" AS "a", "b" AS "b", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", NULL AS "_cdc_end_seq_2", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc__last_2" AS "_cdc_last_seq_2", "_cdc_unsent" AS "_cdc_unsent", "_cdc__image" AS "_cdc__image" FROM events WHERE "_verdict" = 'apply' AND "_cdc__k_cdc__there" = 1 AND NOT "_cdc__opens";

SELECT "_op", "_place", "a", "b", "_cdc_seq_1", "_cdc_seq_2", "__START_AT", "_cdc_unsent", "_cdc__image" FROM events WHERE "_verdict" = 'apply' AND "_cdc__kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_cdc__opens") OR ("_cdc__silent" AND "_cdc__kind" <> 3) OR ("_cdc__opens" AND "_cdc__many" AND ("_cdc__kind" = 5 OR ("_cdc__k_cdc__was_last_1" = "_cdc_seq_1" AND "_cdc__k_cdc__was_last_2" = "_cdc_seq_2"))));

-- several sequence elements: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "id", "_seq_1", "_seq_2", "_seq_3", "_seq_4", "_op"
ORDER BY _last;

-- several sequence elements: repair
WITH events AS (
SELECT 5 AS "_cdc__kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", r."id" AS "id", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", r."_cdc_seq_3" AS "_cdc_seq_3", r."_cdc_seq_4" AS "_cdc_seq_4", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_end_3", NULL AS "_cdc__was_end_4", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2", NULL AS "_cdc__was_last_3", NULL AS "_cdc__was_last_4"
FROM folded AS r
UNION ALL
SELECT 1 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 1 AS "_cdc__there", t."id" AS "id", t."_cdc_seq_1" AS "_cdc_seq_1", t."_cdc_seq_2" AS "_cdc_seq_2", t."_cdc_seq_3" AS "_cdc_seq_3", t."_cdc_seq_4" AS "_cdc_seq_4", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."_cdc__image" AS "_cdc__image", t."_cdc_end_seq_1" AS "_cdc__was_end_1", t."_cdc_end_seq_2" AS "_cdc__was_end_2", t."_cdc_end_seq_3" AS "_cdc__was_end_3", t."_cdc_end_seq_4" AS "_cdc__was_end_4", t."_cdc_last_seq_1" AS "_cdc__was_last_1", t."_cdc_last_seq_2" AS "_cdc__was_last_2", t."_cdc_last_seq_3" AS "_cdc__was_last_3", t."_cdc_last_seq_4" AS "_cdc__was_last_4"
FROM related AS t
UNION ALL
SELECT 2 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."id" AS "id", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."_cdc_last_seq_2" AS "_cdc_seq_2", t."_cdc_last_seq_3" AS "_cdc_seq_3", t."_cdc_last_seq_4" AS "_cdc_seq_4", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_end_3", NULL AS "_cdc__was_end_4", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2", NULL AS "_cdc__was_last_3", NULL AS "_cdc__was_last_4"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" > t."_cdc_seq_2") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" = t."_cdc_seq_2" AND t."_cdc_last_seq_3" > t."_cdc_seq_3") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" = t."_cdc_seq_2" AND t."_cdc_last_seq_3" = t."_cdc_seq_3" AND t."_cdc_last_seq_4" > t."_cdc_seq_4"))
UNION ALL
SELECT 4 AS "_cdc__kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."id" AS "id", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."_cdc_end_seq_2" AS "_cdc_seq_2", t."_cdc_end_seq_3" AS "_cdc_seq_3", t."_cdc_end_seq_4" AS "_cdc_seq_4", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_end_3", NULL AS "_cdc__was_end_4", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2", NULL AS "_cdc__was_last_3", NULL AS "_cdc__was_last_4"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_cdc__kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", m."id" AS "id", m."_cdc_seq_1" AS "_cdc_seq_1", m."_cdc_seq_2" AS "_cdc_seq_2", m."_cdc_seq_3" AS "_cdc_seq_3", m."_cdc_seq_4" AS "_cdc_seq_4", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_end_3", NULL AS "_cdc__was_end_4", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2", NULL AS "_cdc__was_last_3", NULL AS "_cdc__was_last_4"
FROM remembered AS m
WHERE NOT ((0 > m."_cdc_seq_1") OR (0 = m."_cdc_seq_1" AND 0 > m."_cdc_seq_2") OR (0 = m."_cdc_seq_1" AND 0 = m."_cdc_seq_2" AND 0 > m."_cdc_seq_3") OR (0 = m."_cdc_seq_1" AND 0 = m."_cdc_seq_2" AND 0 = m."_cdc_seq_3" AND 0 > m."_cdc_seq_4")) OR EXISTS (SELECT 1 FROM related AS t WHERE t."id" = m."id" AND NOT ((t."_cdc_seq_1" > m."_cdc_seq_1") OR (t."_cdc_seq_1" = m."_cdc_seq_1" AND t."_cdc_seq_2" > m."_cdc_seq_2") OR (t."_cdc_seq_1" = m."_cdc_seq_1" AND t."_cdc_seq_2" = m."_cdc_seq_2" AND t."_cdc_seq_3" > m."_cdc_seq_3") OR (t."_cdc_seq_1" = m."_cdc_seq_1" AND t."_cdc_seq_2" = m."_cdc_seq_2" AND t."_cdc_seq_3" = m."_cdc_seq_3" AND t."_cdc_seq_4" > m."_cdc_seq_4")))),
ranked AS (
SELECT *, row_number() OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4" ORDER BY "_cdc__kind", "_place") AS "_cdc__nth", max("_cdc__kind") OVER (PARTITION BY "id") AS "_cdc__touched", max("_cdc__there") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__k_cdc__there", max("_cdc__was_end_1") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__k_cdc__was_end_1", max("_cdc__was_end_2") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__k_cdc__was_end_2", max("_cdc__was_end_3") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__k_cdc__was_end_3", max("_cdc__was_end_4") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__k_cdc__was_end_4", max("_cdc__was_last_1") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__k_cdc__was_last_1", max("_cdc__was_last_2") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__k_cdc__was_last_2", max("_cdc__was_last_3") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__k_cdc__was_last_3", max("_cdc__was_last_4") OVER (PARTITION BY "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__k_cdc__was_last_4" FROM events),
lives AS (
SELECT *, sum(CASE WHEN "_op" = 'd' AND "_cdc__nth" = 1 THEN 1 ELSE 0 END) OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__life" FROM ranked),
judged AS (
SELECT *, CASE WHEN "_cdc__nth" > 1 THEN 'duplicate' WHEN "_cdc__kind" = 5 AND NOT ("_op" = 'd') AND "_cdc_unsent" IS NOT NULL AND ("_cdc__lost" OR "_cdc__based" IS NULL OR "_cdc__based" > "_place") THEN 'incomplete' ELSE 'apply' END AS "_verdict" FROM (
SELECT *, min(CASE WHEN "_cdc__nth" = 1 AND NOT ("_op" = 'd') AND ("_cdc__kind" < 5 OR "_cdc_unsent" IS NULL) THEN "_place" END) OVER (PARTITION BY "id", "_cdc__life" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__based" FROM lives) AS j),
placed AS (
SELECT *, NOT ("_op" = 'd') AND COALESCE(lag("_op") OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4"), 'd') = 'd' AS "_cdc__first", "_op" = 'd' AND COALESCE(lag("_op") OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4"), 'd') = 'd' AS "_cdc__silent" FROM judged),
grouped AS (
SELECT * FROM placed),
filled AS (
SELECT "_cdc__kind", "_place", "_op", "_verdict", "_cdc__silent", "_cdc__first", "_cdc__life", "_cdc__touched", "_cdc__k_cdc__there", "_cdc__k_cdc__was_end_1", "_cdc__k_cdc__was_end_2", "_cdc__k_cdc__was_end_3", "_cdc__k_cdc__was_end_4", "_cdc__k_cdc__was_last_1", "_cdc__k_cdc__was_last_2", "_cdc__k_cdc__was_last_3", "_cdc__k_cdc__was_last_4", "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4", "__START_AT", "_cdc_unsent", "_cdc__image" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_cdc__first" OR "_cdc__image" IS DISTINCT FROM lag("_cdc__image") OVER (PARTITION BY "id", "_verdict", "_cdc__life" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4")) AS "_cdc__opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_cdc__opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_cdc__last_1", first_value("_cdc_seq_2") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_cdc__last_2", first_value("_cdc_seq_3") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_cdc__last_3", first_value("_cdc_seq_4") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_cdc__last_4", first_value("_place") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_cdc__latest_0", count(*) OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete") > 1 AS "_cdc__many" FROM (SELECT *, "_op" = 'd' AS "_cdc__is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "id" AS "id", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "_cdc_seq_3" AS "_cdc_seq_3", "_cdc_seq_4" AS "_cdc_seq_4", "__START_AT" AS "__START_AT", "_cdc__next_at" AS "__END_AT", "_cdc__next_1" AS "_cdc_end_seq_1", "_cdc__next_2" AS "_cdc_end_seq_2", "_cdc__next_3" AS "_cdc_end_seq_3", "_cdc__next_4" AS "_cdc_end_seq_4", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc__last_2" AS "_cdc_last_seq_2", "_cdc__last_3" AS "_cdc_last_seq_3", "_cdc__last_4" AS "_cdc_last_seq_4", "_cdc_unsent" AS "_cdc_unsent", "_cdc__image" AS "_cdc__image" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__next_1", lead("_cdc_seq_2") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__next_2", lead("_cdc_seq_3") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__next_3", lead("_cdc_seq_4") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__next_4", lead("__START_AT") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__next_at" FROM events WHERE "_verdict" = 'apply' AND ("_cdc__opens" OR "_op" = 'd')) AS b WHERE "_cdc__opens" AND ("_cdc__k_cdc__there" = 0 OR "_cdc__next_1" IS DISTINCT FROM "_cdc__k_cdc__was_end_1" OR "_cdc__last_1" IS DISTINCT FROM "_cdc__k_cdc__was_last_1" OR "_cdc__next_2" IS DISTINCT FROM "_cdc__k_cdc__was_end_2" OR "_cdc__last_2" IS DISTINCT FROM "_cdc__k_cdc__was_last_2" OR "_cdc__next_3" IS DISTINCT FROM "_cdc__k_cdc__was_end_3" OR "_cdc__last_3" IS DISTINCT FROM "_cdc__k_cdc__was_last_3" OR "_cdc__next_4" IS DISTINCT FROM "_cdc__k_cdc__was_end_4" OR "_cdc__last_4" IS DISTINCT FROM "_cdc__k_cdc__was_last_4")
UNION ALL
SELECT 'd' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "id" AS "id", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "_cdc_seq_3" AS "_cdc_seq_3", "_cdc_seq_4" AS "_cdc_seq_4", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", NULL AS "_cdc_end_seq_2", NULL AS "_cdc_end_seq_3", NULL AS "_cdc_end_seq_4", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc__last_2" AS "_cdc_last_seq_2", "_cdc__last_3" AS "_cdc_last_seq_3", "_cdc__last_4" AS "_cdc_last_seq_4", "_cdc_unsent" AS "_cdc_unsent", "_cdc__image" AS "_cdc__image" FROM events WHERE "_verdict" = 'apply' AND "_cdc__k_cdc__there" = 1 AND NOT "_cdc__opens";

SELECT "_op", "_place", "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4", "__START_AT", "_cdc_unsent", "_cdc__image" FROM events WHERE "_verdict" = 'apply' AND "_cdc__kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_cdc__opens") OR ("_cdc__silent" AND "_cdc__kind" <> 3) OR ("_cdc__opens" AND "_cdc__many" AND ("_cdc__kind" = 5 OR ("_cdc__k_cdc__was_last_1" = "_cdc_seq_1" AND "_cdc__k_cdc__was_last_2" = "_cdc_seq_2" AND "_cdc__k_cdc__was_last_3" = "_cdc_seq_3" AND "_cdc__k_cdc__was_last_4" = "_cdc_seq_4"))));

-- awkward name: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "k ""1"" `2`", "_seq_1", "_op"
ORDER BY _last;

-- awkward name: repair
WITH events AS (
SELECT 5 AS "_cdc__kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", r."k ""1"" `2`" AS "k ""1"" `2`", r."_cdc_seq_1" AS "_cdc_seq_1", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM folded AS r
UNION ALL
SELECT 1 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 1 AS "_cdc__there", t."k ""1"" `2`" AS "k ""1"" `2`", t."_cdc_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."_cdc__image" AS "_cdc__image", t."_cdc_end_seq_1" AS "_cdc__was_end_1", t."_cdc_last_seq_1" AS "_cdc__was_last_1"
FROM related AS t
UNION ALL
SELECT 2 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."k ""1"" `2`" AS "k ""1"" `2`", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1"))
UNION ALL
SELECT 4 AS "_cdc__kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."k ""1"" `2`" AS "k ""1"" `2`", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_cdc__kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", m."k ""1"" `2`" AS "k ""1"" `2`", m."_cdc_seq_1" AS "_cdc_seq_1", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."_cdc__image" AS "_cdc__image", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM remembered AS m
WHERE NOT ((0 > m."_cdc_seq_1")) OR EXISTS (SELECT 1 FROM related AS t WHERE t."k ""1"" `2`" = m."k ""1"" `2`" AND NOT ((t."_cdc_seq_1" > m."_cdc_seq_1")))),
ranked AS (
SELECT *, row_number() OVER (PARTITION BY "k ""1"" `2`", "_cdc_seq_1" ORDER BY "_cdc__kind", "_place") AS "_cdc__nth", max("_cdc__kind") OVER (PARTITION BY "k ""1"" `2`") AS "_cdc__touched", max("_cdc__there") OVER (PARTITION BY "k ""1"" `2`", "_cdc_seq_1") AS "_cdc__k_cdc__there", max("_cdc__was_end_1") OVER (PARTITION BY "k ""1"" `2`", "_cdc_seq_1") AS "_cdc__k_cdc__was_end_1", max("_cdc__was_last_1") OVER (PARTITION BY "k ""1"" `2`", "_cdc_seq_1") AS "_cdc__k_cdc__was_last_1" FROM events),
lives AS (
SELECT *, sum(CASE WHEN "_op" = 'd' AND "_cdc__nth" = 1 THEN 1 ELSE 0 END) OVER (PARTITION BY "k ""1"" `2`" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__life" FROM ranked),
judged AS (
SELECT *, CASE WHEN "_cdc__nth" > 1 THEN 'duplicate' WHEN "_cdc__kind" = 5 AND NOT ("_op" = 'd') AND "_cdc_unsent" IS NOT NULL AND ("_cdc__lost" OR "_cdc__based" IS NULL OR "_cdc__based" > "_place") THEN 'incomplete' ELSE 'apply' END AS "_verdict" FROM (
SELECT *, min(CASE WHEN "_cdc__nth" = 1 AND NOT ("_op" = 'd') AND ("_cdc__kind" < 5 OR "_cdc_unsent" IS NULL) THEN "_place" END) OVER (PARTITION BY "k ""1"" `2`", "_cdc__life" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__based" FROM lives) AS j),
placed AS (
SELECT *, NOT ("_op" = 'd') AND COALESCE(lag("_op") OVER (PARTITION BY "k ""1"" `2`", "_verdict" ORDER BY "_cdc_seq_1"), 'd') = 'd' AS "_cdc__first", "_op" = 'd' AND COALESCE(lag("_op") OVER (PARTITION BY "k ""1"" `2`", "_verdict" ORDER BY "_cdc_seq_1"), 'd') = 'd' AS "_cdc__silent" FROM judged),
grouped AS (
SELECT * FROM placed),
filled AS (
SELECT "_cdc__kind", "_place", "_op", "_verdict", "_cdc__silent", "_cdc__first", "_cdc__life", "_cdc__touched", "_cdc__k_cdc__there", "_cdc__k_cdc__was_end_1", "_cdc__k_cdc__was_last_1", "k ""1"" `2`", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "_cdc__image" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_cdc__first" OR "_cdc__image" IS DISTINCT FROM lag("_cdc__image") OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_cdc__life" ORDER BY "_cdc_seq_1")) AS "_cdc__opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_cdc__opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "k ""1"" `2`", "_verdict" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_cdc__last_1", first_value("_place") OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_cdc__latest_0", count(*) OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete") > 1 AS "_cdc__many" FROM (SELECT *, "_op" = 'd' AS "_cdc__is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "k ""1"" `2`" AS "k ""1"" `2`", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", "_cdc__next_at" AS "__END_AT", "_cdc__next_1" AS "_cdc_end_seq_1", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent", "_cdc__image" AS "_cdc__image" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "k ""1"" `2`" ORDER BY "_cdc_seq_1") AS "_cdc__next_1", lead("__START_AT") OVER (PARTITION BY "k ""1"" `2`" ORDER BY "_cdc_seq_1") AS "_cdc__next_at" FROM events WHERE "_verdict" = 'apply' AND ("_cdc__opens" OR "_op" = 'd')) AS b WHERE "_cdc__opens" AND ("_cdc__k_cdc__there" = 0 OR "_cdc__next_1" IS DISTINCT FROM "_cdc__k_cdc__was_end_1" OR "_cdc__last_1" IS DISTINCT FROM "_cdc__k_cdc__was_last_1")
UNION ALL
SELECT 'd' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "k ""1"" `2`" AS "k ""1"" `2`", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent", "_cdc__image" AS "_cdc__image" FROM events WHERE "_verdict" = 'apply' AND "_cdc__k_cdc__there" = 1 AND NOT "_cdc__opens";

SELECT "_op", "_place", "k ""1"" `2`", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "_cdc__image" FROM events WHERE "_verdict" = 'apply' AND "_cdc__kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_cdc__opens") OR ("_cdc__silent" AND "_cdc__kind" <> 3) OR ("_cdc__opens" AND "_cdc__many" AND ("_cdc__kind" = 5 OR ("_cdc__k_cdc__was_last_1" = "_cdc_seq_1"))));

-- no key, counted: table public.t has no key, which policy scd2 needs
