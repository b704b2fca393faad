-- Policy scd2, postgres. See tests/golden/test_sql.py.

-- one key: repair
SELECT t."id", t."v", t."_cdc_op", t."_cdc_ts", t."_event_id", t."_cdc_applied_at", t."_cdc_seq_1", t."__START_AT", t."__END_AT", t."_cdc_end_seq_1", t."_cdc_last_seq_1", t."_cdc_unsent", -1 AS "_place"
FROM target AS t JOIN (SELECT DISTINCT "id" FROM folded) AS w ON t."id" = w."id"
WHERE (t."_cdc_end_seq_1" IS NULL OR NOT ((0 > t."_cdc_end_seq_1")));

WITH events AS (
SELECT 5 AS "_cdc__kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", r."id" AS "id", r."_cdc_seq_1" AS "_cdc_seq_1", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."v" AS "v", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM folded AS r
UNION ALL
SELECT 1 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 1 AS "_cdc__there", t."id" AS "id", t."_cdc_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."v" AS "v", t."_cdc_op" AS "_cdc_op", t."_cdc_ts" AS "_cdc_ts", t."_event_id" AS "_event_id", t."_cdc_applied_at" AS "_cdc_applied_at", t."_cdc_end_seq_1" AS "_cdc__was_end_1", t."_cdc_last_seq_1" AS "_cdc__was_last_1"
FROM related AS t
UNION ALL
SELECT 2 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."id" AS "id", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."v" AS "v", t."_cdc_op" AS "_cdc_op", t."_cdc_ts" AS "_cdc_ts", t."_event_id" AS "_event_id", t."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1"))
UNION ALL
SELECT 4 AS "_cdc__kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."id" AS "id", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "v", NULL AS "_cdc_op", NULL AS "_cdc_ts", NULL AS "_event_id", NULL AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_cdc__kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", m."id" AS "id", m."_cdc_seq_1" AS "_cdc_seq_1", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."v" AS "v", m."_cdc_op" AS "_cdc_op", m."_cdc_ts" AS "_cdc_ts", m."_event_id" AS "_event_id", m."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
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
SELECT "_cdc__kind", "_place", "_op", "_verdict", "_cdc__silent", "_cdc__first", "_cdc__life", "_cdc__touched", "_cdc__k_cdc__there", "_cdc__k_cdc__was_end_1", "_cdc__k_cdc__was_last_1", "id", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_cdc__first" OR "v" IS DISTINCT FROM lag("v") OVER (PARTITION BY "id", "_verdict", "_cdc__life" ORDER BY "_cdc_seq_1")) AS "_cdc__opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_cdc__opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_cdc__last_1", first_value("_place") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_cdc__latest_0", count(*) OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete") > 1 AS "_cdc__many" FROM (SELECT *, "_op" = 'd' AS "_cdc__is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "id" AS "id", "v" AS "v", "_cdc_op" AS "_cdc_op", "_cdc_ts" AS "_cdc_ts", "_event_id" AS "_event_id", "_cdc_applied_at" AS "_cdc_applied_at", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", "_cdc__next_at" AS "__END_AT", "_cdc__next_1" AS "_cdc_end_seq_1", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1") AS "_cdc__next_1", lead("__START_AT") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1") AS "_cdc__next_at" FROM events WHERE "_verdict" = 'apply' AND ("_cdc__opens" OR "_op" = 'd')) AS b WHERE "_cdc__opens" AND ("_cdc__k_cdc__there" = 0 OR "_cdc__next_1" IS DISTINCT FROM "_cdc__k_cdc__was_end_1" OR "_cdc__last_1" IS DISTINCT FROM "_cdc__k_cdc__was_last_1")
UNION ALL
SELECT 'd' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "id" AS "id", "v" AS "v", "_cdc_op" AS "_cdc_op", "_cdc_ts" AS "_cdc_ts", "_event_id" AS "_event_id", "_cdc_applied_at" AS "_cdc_applied_at", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent" FROM events WHERE "_verdict" = 'apply' AND "_cdc__k_cdc__there" = 1 AND NOT "_cdc__opens";

SELECT "_op", "_place", "id", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at" FROM events WHERE "_verdict" = 'apply' AND "_cdc__kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_cdc__opens") OR ("_cdc__silent" AND "_cdc__kind" <> 3));

-- one key: write
MERGE INTO "public"."target" AS t USING rows AS s ON t."id" = s."id" AND t."_cdc_seq_1" = s."_cdc_seq_1"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "__START_AT" = s."__START_AT", "__END_AT" = s."__END_AT", "_cdc_end_seq_1" = s."_cdc_end_seq_1", "_cdc_last_seq_1" = s."_cdc_last_seq_1", "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "__START_AT", "__END_AT", "_cdc_end_seq_1", "_cdc_last_seq_1", "_cdc_unsent") OVERRIDING SYSTEM VALUE VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."__START_AT", s."__END_AT", s."_cdc_end_seq_1", s."_cdc_last_seq_1", s."_cdc_unsent");

-- one key: truncate
(t."_cdc_end_seq_1" IS NULL AND ((7 > t."_cdc_seq_1")) AND NOT ((t."_cdc_last_seq_1" > 7)));

-- one key: view
CREATE OR REPLACE VIEW "public"."it's_current" AS SELECT * FROM "public"."it's" WHERE "_cdc_end_seq_1" IS NULL; COMMENT ON VIEW "public"."it's_current" IS 'replicator: the rows of it''s that hold now';

-- composite key: repair
SELECT t."a", t."v", t."b", t."_cdc_op", t."_cdc_ts", t."_event_id", t."_cdc_applied_at", t."_cdc_seq_1", t."_cdc_seq_2", t."__START_AT", t."__END_AT", t."_cdc_end_seq_1", t."_cdc_end_seq_2", t."_cdc_last_seq_1", t."_cdc_last_seq_2", t."_cdc_unsent", -1 AS "_place"
FROM target AS t JOIN (SELECT DISTINCT "a", "b" FROM folded) AS w ON t."a" = w."a" AND t."b" = w."b"
WHERE (t."_cdc_end_seq_1" IS NULL OR NOT ((0 > t."_cdc_end_seq_1") OR (0 = t."_cdc_end_seq_1" AND 0 > t."_cdc_end_seq_2")));

WITH events AS (
SELECT 5 AS "_cdc__kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", r."a" AS "a", r."b" AS "b", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."v" AS "v", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2"
FROM folded AS r
UNION ALL
SELECT 1 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 1 AS "_cdc__there", t."a" AS "a", t."b" AS "b", t."_cdc_seq_1" AS "_cdc_seq_1", t."_cdc_seq_2" AS "_cdc_seq_2", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."v" AS "v", t."_cdc_op" AS "_cdc_op", t."_cdc_ts" AS "_cdc_ts", t."_event_id" AS "_event_id", t."_cdc_applied_at" AS "_cdc_applied_at", t."_cdc_end_seq_1" AS "_cdc__was_end_1", t."_cdc_end_seq_2" AS "_cdc__was_end_2", t."_cdc_last_seq_1" AS "_cdc__was_last_1", t."_cdc_last_seq_2" AS "_cdc__was_last_2"
FROM related AS t
UNION ALL
SELECT 2 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."a" AS "a", t."b" AS "b", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."_cdc_last_seq_2" AS "_cdc_seq_2", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."v" AS "v", t."_cdc_op" AS "_cdc_op", t."_cdc_ts" AS "_cdc_ts", t."_event_id" AS "_event_id", t."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" > t."_cdc_seq_2"))
UNION ALL
SELECT 4 AS "_cdc__kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."a" AS "a", t."b" AS "b", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."_cdc_end_seq_2" AS "_cdc_seq_2", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "v", NULL AS "_cdc_op", NULL AS "_cdc_ts", NULL AS "_event_id", NULL AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_cdc__kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", m."a" AS "a", m."b" AS "b", m."_cdc_seq_1" AS "_cdc_seq_1", m."_cdc_seq_2" AS "_cdc_seq_2", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."v" AS "v", m."_cdc_op" AS "_cdc_op", m."_cdc_ts" AS "_cdc_ts", m."_event_id" AS "_event_id", m."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2"
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
SELECT "_cdc__kind", "_place", "_op", "_verdict", "_cdc__silent", "_cdc__first", "_cdc__life", "_cdc__touched", "_cdc__k_cdc__there", "_cdc__k_cdc__was_end_1", "_cdc__k_cdc__was_end_2", "_cdc__k_cdc__was_last_1", "_cdc__k_cdc__was_last_2", "a", "b", "_cdc_seq_1", "_cdc_seq_2", "__START_AT", "_cdc_unsent", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_cdc__first" OR "v" IS DISTINCT FROM lag("v") OVER (PARTITION BY "a", "b", "_verdict", "_cdc__life" ORDER BY "_cdc_seq_1", "_cdc_seq_2")) AS "_cdc__opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_cdc__opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "a", "b", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "a", "b", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC) AS "_cdc__last_1", first_value("_cdc_seq_2") OVER (PARTITION BY "a", "b", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC) AS "_cdc__last_2", first_value("_place") OVER (PARTITION BY "a", "b", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC) AS "_cdc__latest_0", count(*) OVER (PARTITION BY "a", "b", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete") > 1 AS "_cdc__many" FROM (SELECT *, "_op" = 'd' AS "_cdc__is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "a" AS "a", "v" AS "v", "b" AS "b", "_cdc_op" AS "_cdc_op", "_cdc_ts" AS "_cdc_ts", "_event_id" AS "_event_id", "_cdc_applied_at" AS "_cdc_applied_at", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "__START_AT" AS "__START_AT", "_cdc__next_at" AS "__END_AT", "_cdc__next_1" AS "_cdc_end_seq_1", "_cdc__next_2" AS "_cdc_end_seq_2", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc__last_2" AS "_cdc_last_seq_2", "_cdc_unsent" AS "_cdc_unsent" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "a", "b" ORDER BY "_cdc_seq_1", "_cdc_seq_2") AS "_cdc__next_1", lead("_cdc_seq_2") OVER (PARTITION BY "a", "b" ORDER BY "_cdc_seq_1", "_cdc_seq_2") AS "_cdc__next_2", lead("__START_AT") OVER (PARTITION BY "a", "b" ORDER BY "_cdc_seq_1", "_cdc_seq_2") AS "_cdc__next_at" FROM events WHERE "_verdict" = 'apply' AND ("_cdc__opens" OR "_op" = 'd')) AS b WHERE "_cdc__opens" AND ("_cdc__k_cdc__there" = 0 OR "_cdc__next_1" IS DISTINCT FROM "_cdc__k_cdc__was_end_1" OR "_cdc__last_1" IS DISTINCT FROM "_cdc__k_cdc__was_last_1" OR "_cdc__next_2" IS DISTINCT FROM "_cdc__k_cdc__was_end_2" OR "_cdc__last_2" IS DISTINCT FROM "_cdc__k_cdc__was_last_2")
UNION ALL
SELECT 'd' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "a" AS "a", "v" AS "v", "b" AS "b", "_cdc_op" AS "_cdc_op", "_cdc_ts" AS "_cdc_ts", "_event_id" AS "_event_id", "_cdc_applied_at" AS "_cdc_applied_at", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", NULL AS "_cdc_end_seq_2", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc__last_2" AS "_cdc_last_seq_2", "_cdc_unsent" AS "_cdc_unsent" FROM events WHERE "_verdict" = 'apply' AND "_cdc__k_cdc__there" = 1 AND NOT "_cdc__opens";

SELECT "_op", "_place", "a", "b", "_cdc_seq_1", "_cdc_seq_2", "__START_AT", "_cdc_unsent", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at" FROM events WHERE "_verdict" = 'apply' AND "_cdc__kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_cdc__opens") OR ("_cdc__silent" AND "_cdc__kind" <> 3));

-- composite key: write
MERGE INTO "public"."target" AS t USING rows AS s ON t."a" = s."a" AND t."b" = s."b" AND t."_cdc_seq_1" = s."_cdc_seq_1" AND t."_cdc_seq_2" = s."_cdc_seq_2"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "__START_AT" = s."__START_AT", "__END_AT" = s."__END_AT", "_cdc_end_seq_1" = s."_cdc_end_seq_1", "_cdc_end_seq_2" = s."_cdc_end_seq_2", "_cdc_last_seq_1" = s."_cdc_last_seq_1", "_cdc_last_seq_2" = s."_cdc_last_seq_2", "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("a", "v", "b", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2", "__START_AT", "__END_AT", "_cdc_end_seq_1", "_cdc_end_seq_2", "_cdc_last_seq_1", "_cdc_last_seq_2", "_cdc_unsent") OVERRIDING SYSTEM VALUE VALUES (s."a", s."v", s."b", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2", s."__START_AT", s."__END_AT", s."_cdc_end_seq_1", s."_cdc_end_seq_2", s."_cdc_last_seq_1", s."_cdc_last_seq_2", s."_cdc_unsent");

-- composite key: truncate
(t."_cdc_end_seq_1" IS NULL AND ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2")) AND NOT ((t."_cdc_last_seq_1" > 7) OR (t."_cdc_last_seq_1" = 7 AND t."_cdc_last_seq_2" > 8)));

-- several sequence elements: repair
SELECT t."id", t."v", t."_cdc_op", t."_cdc_ts", t."_event_id", t."_cdc_applied_at", t."_cdc_seq_1", t."_cdc_seq_2", t."_cdc_seq_3", t."_cdc_seq_4", t."__START_AT", t."__END_AT", t."_cdc_end_seq_1", t."_cdc_end_seq_2", t."_cdc_end_seq_3", t."_cdc_end_seq_4", t."_cdc_last_seq_1", t."_cdc_last_seq_2", t."_cdc_last_seq_3", t."_cdc_last_seq_4", t."_cdc_unsent", -1 AS "_place"
FROM target AS t JOIN (SELECT DISTINCT "id" FROM folded) AS w ON t."id" = w."id"
WHERE (t."_cdc_end_seq_1" IS NULL OR NOT ((0 > t."_cdc_end_seq_1") OR (0 = t."_cdc_end_seq_1" AND 0 > t."_cdc_end_seq_2") OR (0 = t."_cdc_end_seq_1" AND 0 = t."_cdc_end_seq_2" AND 0 > t."_cdc_end_seq_3") OR (0 = t."_cdc_end_seq_1" AND 0 = t."_cdc_end_seq_2" AND 0 = t."_cdc_end_seq_3" AND 0 > t."_cdc_end_seq_4")));

WITH events AS (
SELECT 5 AS "_cdc__kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", r."id" AS "id", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", r."_cdc_seq_3" AS "_cdc_seq_3", r."_cdc_seq_4" AS "_cdc_seq_4", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."v" AS "v", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_end_3", NULL AS "_cdc__was_end_4", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2", NULL AS "_cdc__was_last_3", NULL AS "_cdc__was_last_4"
FROM folded AS r
UNION ALL
SELECT 1 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 1 AS "_cdc__there", t."id" AS "id", t."_cdc_seq_1" AS "_cdc_seq_1", t."_cdc_seq_2" AS "_cdc_seq_2", t."_cdc_seq_3" AS "_cdc_seq_3", t."_cdc_seq_4" AS "_cdc_seq_4", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."v" AS "v", t."_cdc_op" AS "_cdc_op", t."_cdc_ts" AS "_cdc_ts", t."_event_id" AS "_event_id", t."_cdc_applied_at" AS "_cdc_applied_at", t."_cdc_end_seq_1" AS "_cdc__was_end_1", t."_cdc_end_seq_2" AS "_cdc__was_end_2", t."_cdc_end_seq_3" AS "_cdc__was_end_3", t."_cdc_end_seq_4" AS "_cdc__was_end_4", t."_cdc_last_seq_1" AS "_cdc__was_last_1", t."_cdc_last_seq_2" AS "_cdc__was_last_2", t."_cdc_last_seq_3" AS "_cdc__was_last_3", t."_cdc_last_seq_4" AS "_cdc__was_last_4"
FROM related AS t
UNION ALL
SELECT 2 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."id" AS "id", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."_cdc_last_seq_2" AS "_cdc_seq_2", t."_cdc_last_seq_3" AS "_cdc_seq_3", t."_cdc_last_seq_4" AS "_cdc_seq_4", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."v" AS "v", t."_cdc_op" AS "_cdc_op", t."_cdc_ts" AS "_cdc_ts", t."_event_id" AS "_event_id", t."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_end_3", NULL AS "_cdc__was_end_4", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2", NULL AS "_cdc__was_last_3", NULL AS "_cdc__was_last_4"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" > t."_cdc_seq_2") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" = t."_cdc_seq_2" AND t."_cdc_last_seq_3" > t."_cdc_seq_3") OR (t."_cdc_last_seq_1" = t."_cdc_seq_1" AND t."_cdc_last_seq_2" = t."_cdc_seq_2" AND t."_cdc_last_seq_3" = t."_cdc_seq_3" AND t."_cdc_last_seq_4" > t."_cdc_seq_4"))
UNION ALL
SELECT 4 AS "_cdc__kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."id" AS "id", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."_cdc_end_seq_2" AS "_cdc_seq_2", t."_cdc_end_seq_3" AS "_cdc_seq_3", t."_cdc_end_seq_4" AS "_cdc_seq_4", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "v", NULL AS "_cdc_op", NULL AS "_cdc_ts", NULL AS "_event_id", NULL AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_end_3", NULL AS "_cdc__was_end_4", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2", NULL AS "_cdc__was_last_3", NULL AS "_cdc__was_last_4"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_cdc__kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", m."id" AS "id", m."_cdc_seq_1" AS "_cdc_seq_1", m."_cdc_seq_2" AS "_cdc_seq_2", m."_cdc_seq_3" AS "_cdc_seq_3", m."_cdc_seq_4" AS "_cdc_seq_4", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."v" AS "v", m."_cdc_op" AS "_cdc_op", m."_cdc_ts" AS "_cdc_ts", m."_event_id" AS "_event_id", m."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_end_2", NULL AS "_cdc__was_end_3", NULL AS "_cdc__was_end_4", NULL AS "_cdc__was_last_1", NULL AS "_cdc__was_last_2", NULL AS "_cdc__was_last_3", NULL AS "_cdc__was_last_4"
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
SELECT "_cdc__kind", "_place", "_op", "_verdict", "_cdc__silent", "_cdc__first", "_cdc__life", "_cdc__touched", "_cdc__k_cdc__there", "_cdc__k_cdc__was_end_1", "_cdc__k_cdc__was_end_2", "_cdc__k_cdc__was_end_3", "_cdc__k_cdc__was_end_4", "_cdc__k_cdc__was_last_1", "_cdc__k_cdc__was_last_2", "_cdc__k_cdc__was_last_3", "_cdc__k_cdc__was_last_4", "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4", "__START_AT", "_cdc_unsent", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_cdc__first" OR "v" IS DISTINCT FROM lag("v") OVER (PARTITION BY "id", "_verdict", "_cdc__life" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4")) AS "_cdc__opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_cdc__opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "id", "_verdict" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_cdc__last_1", first_value("_cdc_seq_2") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_cdc__last_2", first_value("_cdc_seq_3") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_cdc__last_3", first_value("_cdc_seq_4") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_cdc__last_4", first_value("_place") OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC, "_cdc_seq_2" DESC, "_cdc_seq_3" DESC, "_cdc_seq_4" DESC) AS "_cdc__latest_0", count(*) OVER (PARTITION BY "id", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete") > 1 AS "_cdc__many" FROM (SELECT *, "_op" = 'd' AS "_cdc__is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "id" AS "id", "v" AS "v", "_cdc_op" AS "_cdc_op", "_cdc_ts" AS "_cdc_ts", "_event_id" AS "_event_id", "_cdc_applied_at" AS "_cdc_applied_at", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "_cdc_seq_3" AS "_cdc_seq_3", "_cdc_seq_4" AS "_cdc_seq_4", "__START_AT" AS "__START_AT", "_cdc__next_at" AS "__END_AT", "_cdc__next_1" AS "_cdc_end_seq_1", "_cdc__next_2" AS "_cdc_end_seq_2", "_cdc__next_3" AS "_cdc_end_seq_3", "_cdc__next_4" AS "_cdc_end_seq_4", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc__last_2" AS "_cdc_last_seq_2", "_cdc__last_3" AS "_cdc_last_seq_3", "_cdc__last_4" AS "_cdc_last_seq_4", "_cdc_unsent" AS "_cdc_unsent" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__next_1", lead("_cdc_seq_2") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__next_2", lead("_cdc_seq_3") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__next_3", lead("_cdc_seq_4") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__next_4", lead("__START_AT") OVER (PARTITION BY "id" ORDER BY "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") AS "_cdc__next_at" FROM events WHERE "_verdict" = 'apply' AND ("_cdc__opens" OR "_op" = 'd')) AS b WHERE "_cdc__opens" AND ("_cdc__k_cdc__there" = 0 OR "_cdc__next_1" IS DISTINCT FROM "_cdc__k_cdc__was_end_1" OR "_cdc__last_1" IS DISTINCT FROM "_cdc__k_cdc__was_last_1" OR "_cdc__next_2" IS DISTINCT FROM "_cdc__k_cdc__was_end_2" OR "_cdc__last_2" IS DISTINCT FROM "_cdc__k_cdc__was_last_2" OR "_cdc__next_3" IS DISTINCT FROM "_cdc__k_cdc__was_end_3" OR "_cdc__last_3" IS DISTINCT FROM "_cdc__k_cdc__was_last_3" OR "_cdc__next_4" IS DISTINCT FROM "_cdc__k_cdc__was_end_4" OR "_cdc__last_4" IS DISTINCT FROM "_cdc__k_cdc__was_last_4")
UNION ALL
SELECT 'd' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "id" AS "id", "v" AS "v", "_cdc_op" AS "_cdc_op", "_cdc_ts" AS "_cdc_ts", "_event_id" AS "_event_id", "_cdc_applied_at" AS "_cdc_applied_at", "_cdc_seq_1" AS "_cdc_seq_1", "_cdc_seq_2" AS "_cdc_seq_2", "_cdc_seq_3" AS "_cdc_seq_3", "_cdc_seq_4" AS "_cdc_seq_4", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", NULL AS "_cdc_end_seq_2", NULL AS "_cdc_end_seq_3", NULL AS "_cdc_end_seq_4", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc__last_2" AS "_cdc_last_seq_2", "_cdc__last_3" AS "_cdc_last_seq_3", "_cdc__last_4" AS "_cdc_last_seq_4", "_cdc_unsent" AS "_cdc_unsent" FROM events WHERE "_verdict" = 'apply' AND "_cdc__k_cdc__there" = 1 AND NOT "_cdc__opens";

SELECT "_op", "_place", "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4", "__START_AT", "_cdc_unsent", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at" FROM events WHERE "_verdict" = 'apply' AND "_cdc__kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_cdc__opens") OR ("_cdc__silent" AND "_cdc__kind" <> 3));

-- several sequence elements: write
MERGE INTO "public"."target" AS t USING rows AS s ON t."id" = s."id" AND t."_cdc_seq_1" = s."_cdc_seq_1" AND t."_cdc_seq_2" = s."_cdc_seq_2" AND t."_cdc_seq_3" = s."_cdc_seq_3" AND t."_cdc_seq_4" = s."_cdc_seq_4"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "__START_AT" = s."__START_AT", "__END_AT" = s."__END_AT", "_cdc_end_seq_1" = s."_cdc_end_seq_1", "_cdc_end_seq_2" = s."_cdc_end_seq_2", "_cdc_end_seq_3" = s."_cdc_end_seq_3", "_cdc_end_seq_4" = s."_cdc_end_seq_4", "_cdc_last_seq_1" = s."_cdc_last_seq_1", "_cdc_last_seq_2" = s."_cdc_last_seq_2", "_cdc_last_seq_3" = s."_cdc_last_seq_3", "_cdc_last_seq_4" = s."_cdc_last_seq_4", "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4", "__START_AT", "__END_AT", "_cdc_end_seq_1", "_cdc_end_seq_2", "_cdc_end_seq_3", "_cdc_end_seq_4", "_cdc_last_seq_1", "_cdc_last_seq_2", "_cdc_last_seq_3", "_cdc_last_seq_4", "_cdc_unsent") OVERRIDING SYSTEM VALUE VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2", s."_cdc_seq_3", s."_cdc_seq_4", s."__START_AT", s."__END_AT", s."_cdc_end_seq_1", s."_cdc_end_seq_2", s."_cdc_end_seq_3", s."_cdc_end_seq_4", s."_cdc_last_seq_1", s."_cdc_last_seq_2", s."_cdc_last_seq_3", s."_cdc_last_seq_4", s."_cdc_unsent");

-- several sequence elements: truncate
(t."_cdc_end_seq_1" IS NULL AND ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 > t."_cdc_seq_3") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 = t."_cdc_seq_3" AND 10 > t."_cdc_seq_4")) AND NOT ((t."_cdc_last_seq_1" > 7) OR (t."_cdc_last_seq_1" = 7 AND t."_cdc_last_seq_2" > 8) OR (t."_cdc_last_seq_1" = 7 AND t."_cdc_last_seq_2" = 8 AND t."_cdc_last_seq_3" > 9) OR (t."_cdc_last_seq_1" = 7 AND t."_cdc_last_seq_2" = 8 AND t."_cdc_last_seq_3" = 9 AND t."_cdc_last_seq_4" > 10)));

-- awkward name: repair
SELECT t."k ""1"" `2`", t."v'; \DROP {b}", t."_cdc_op", t."_cdc_ts", t."_event_id", t."_cdc_applied_at", t."_cdc_seq_1", t."__START_AT", t."__END_AT", t."_cdc_end_seq_1", t."_cdc_last_seq_1", t."_cdc_unsent", -1 AS "_place"
FROM target AS t JOIN (SELECT DISTINCT "k ""1"" `2`" FROM folded) AS w ON t."k ""1"" `2`" = w."k ""1"" `2`"
WHERE (t."_cdc_end_seq_1" IS NULL OR NOT ((0 > t."_cdc_end_seq_1")));

WITH events AS (
SELECT 5 AS "_cdc__kind", r."_place" AS "_place", r."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", r."k ""1"" `2`" AS "k ""1"" `2`", r."_cdc_seq_1" AS "_cdc_seq_1", r."__START_AT" AS "__START_AT", r."_cdc_unsent" AS "_cdc_unsent", r."v'; \DROP {b}" AS "v'; \DROP {b}", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM folded AS r
UNION ALL
SELECT 1 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 1 AS "_cdc__there", t."k ""1"" `2`" AS "k ""1"" `2`", t."_cdc_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", t."_cdc_unsent" AS "_cdc_unsent", t."v'; \DROP {b}" AS "v'; \DROP {b}", t."_cdc_op" AS "_cdc_op", t."_cdc_ts" AS "_cdc_ts", t."_event_id" AS "_event_id", t."_cdc_applied_at" AS "_cdc_applied_at", t."_cdc_end_seq_1" AS "_cdc__was_end_1", t."_cdc_last_seq_1" AS "_cdc__was_last_1"
FROM related AS t
UNION ALL
SELECT 2 AS "_cdc__kind", t."_place" AS "_place", 'u' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."k ""1"" `2`" AS "k ""1"" `2`", t."_cdc_last_seq_1" AS "_cdc_seq_1", t."__START_AT" AS "__START_AT", NULL AS "_cdc_unsent", t."v'; \DROP {b}" AS "v'; \DROP {b}", t."_cdc_op" AS "_cdc_op", t."_cdc_ts" AS "_cdc_ts", t."_event_id" AS "_event_id", t."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM related AS t WHERE ((t."_cdc_last_seq_1" > t."_cdc_seq_1"))
UNION ALL
SELECT 4 AS "_cdc__kind", t."_place" AS "_place", 'd' AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", t."k ""1"" `2`" AS "k ""1"" `2`", t."_cdc_end_seq_1" AS "_cdc_seq_1", t."__END_AT" AS "__START_AT", NULL AS "_cdc_unsent", NULL AS "v'; \DROP {b}", NULL AS "_cdc_op", NULL AS "_cdc_ts", NULL AS "_event_id", NULL AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
FROM related AS t WHERE t."_cdc_end_seq_1" IS NOT NULL
UNION ALL
SELECT 0 AS "_cdc__kind", m."_place" AS "_place", m."_op" AS "_op", FALSE AS "_cdc__lost", 0 AS "_cdc__there", m."k ""1"" `2`" AS "k ""1"" `2`", m."_cdc_seq_1" AS "_cdc_seq_1", m."__START_AT" AS "__START_AT", m."_cdc_unsent" AS "_cdc_unsent", m."v'; \DROP {b}" AS "v'; \DROP {b}", m."_cdc_op" AS "_cdc_op", m."_cdc_ts" AS "_cdc_ts", m."_event_id" AS "_event_id", m."_cdc_applied_at" AS "_cdc_applied_at", NULL AS "_cdc__was_end_1", NULL AS "_cdc__was_last_1"
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
SELECT "_cdc__kind", "_place", "_op", "_verdict", "_cdc__silent", "_cdc__first", "_cdc__life", "_cdc__touched", "_cdc__k_cdc__there", "_cdc__k_cdc__was_end_1", "_cdc__k_cdc__was_last_1", "k ""1"" `2`", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "v'; \DROP {b}", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at" FROM grouped),
compared AS (
SELECT *, NOT ("_op" = 'd') AND ("_cdc__first" OR "v'; \DROP {b}" IS DISTINCT FROM lag("v'; \DROP {b}") OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_cdc__life" ORDER BY "_cdc_seq_1")) AS "_cdc__opens" FROM filled),
opened AS (
SELECT *, sum(CASE WHEN "_cdc__opens" THEN 1 ELSE 0 END) OVER (PARTITION BY "k ""1"" `2`", "_verdict" ORDER BY "_cdc_seq_1" ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS "_cdc__version" FROM compared)
SELECT *, first_value("_cdc_seq_1") OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_cdc__last_1", first_value("_place") OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete" ORDER BY "_cdc_seq_1" DESC) AS "_cdc__latest_0", count(*) OVER (PARTITION BY "k ""1"" `2`", "_verdict", "_cdc__life", "_cdc__version", "_cdc__is_delete") > 1 AS "_cdc__many" FROM (SELECT *, "_op" = 'd' AS "_cdc__is_delete" FROM opened) AS f;

SELECT 'u' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "k ""1"" `2`" AS "k ""1"" `2`", "v'; \DROP {b}" AS "v'; \DROP {b}", "_cdc_op" AS "_cdc_op", "_cdc_ts" AS "_cdc_ts", "_event_id" AS "_event_id", "_cdc_applied_at" AS "_cdc_applied_at", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", "_cdc__next_at" AS "__END_AT", "_cdc__next_1" AS "_cdc_end_seq_1", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent" FROM (SELECT *, lead("_cdc_seq_1") OVER (PARTITION BY "k ""1"" `2`" ORDER BY "_cdc_seq_1") AS "_cdc__next_1", lead("__START_AT") OVER (PARTITION BY "k ""1"" `2`" ORDER BY "_cdc_seq_1") AS "_cdc__next_at" FROM events WHERE "_verdict" = 'apply' AND ("_cdc__opens" OR "_op" = 'd')) AS b WHERE "_cdc__opens" AND ("_cdc__k_cdc__there" = 0 OR "_cdc__next_1" IS DISTINCT FROM "_cdc__k_cdc__was_end_1" OR "_cdc__last_1" IS DISTINCT FROM "_cdc__k_cdc__was_last_1")
UNION ALL
SELECT 'd' AS "_op", "_place", "_cdc__latest_0" AS "_cdc__last_place", "k ""1"" `2`" AS "k ""1"" `2`", "v'; \DROP {b}" AS "v'; \DROP {b}", "_cdc_op" AS "_cdc_op", "_cdc_ts" AS "_cdc_ts", "_event_id" AS "_event_id", "_cdc_applied_at" AS "_cdc_applied_at", "_cdc_seq_1" AS "_cdc_seq_1", "__START_AT" AS "__START_AT", NULL AS "__END_AT", NULL AS "_cdc_end_seq_1", "_cdc__last_1" AS "_cdc_last_seq_1", "_cdc_unsent" AS "_cdc_unsent" FROM events WHERE "_verdict" = 'apply' AND "_cdc__k_cdc__there" = 1 AND NOT "_cdc__opens";

SELECT "_op", "_place", "k ""1"" `2`", "_cdc_seq_1", "__START_AT", "_cdc_unsent", "v'; \DROP {b}", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at" FROM events WHERE "_verdict" = 'apply' AND "_cdc__kind" NOT IN (0, 2) AND ((NOT ("_op" = 'd') AND NOT "_cdc__opens") OR ("_cdc__silent" AND "_cdc__kind" <> 3));

-- awkward name: write
MERGE INTO "public"."target" AS t USING rows AS s ON t."k ""1"" `2`" = s."k ""1"" `2`" AND t."_cdc_seq_1" = s."_cdc_seq_1"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v'; \DROP {b}" = s."v'; \DROP {b}", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "__START_AT" = s."__START_AT", "__END_AT" = s."__END_AT", "_cdc_end_seq_1" = s."_cdc_end_seq_1", "_cdc_last_seq_1" = s."_cdc_last_seq_1", "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("k ""1"" `2`", "v'; \DROP {b}", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "__START_AT", "__END_AT", "_cdc_end_seq_1", "_cdc_last_seq_1", "_cdc_unsent") OVERRIDING SYSTEM VALUE VALUES (s."k ""1"" `2`", s."v'; \DROP {b}", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."__START_AT", s."__END_AT", s."_cdc_end_seq_1", s."_cdc_last_seq_1", s."_cdc_unsent");

-- awkward name: truncate
(t."_cdc_end_seq_1" IS NULL AND ((7 > t."_cdc_seq_1")) AND NOT ((t."_cdc_last_seq_1" > 7)));

-- no key, counted: table public.t has no key, which policy scd2 needs
