-- Policy scd1-soft, postgres. See tests/golden/test_sql.py.

-- one key: reconcile
SELECT r."_op" AS "_op", r."id" AS "id", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."id" = r."id";

-- one key: write
MERGE INTO "public"."target" AS t USING rows AS s ON t."id" = s."id"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND s."_cdc_deleted" IS NULL) THEN UPDATE SET "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_deleted" = TRUE, "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND NOT (s."_cdc_deleted" IS NULL)) THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_deleted" = s."_cdc_deleted", "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN NOT MATCHED AND NOT (s."_cdc_deleted" IS NULL) THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_deleted", "_cdc_deleted_at") OVERRIDING SYSTEM VALUE VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_deleted", s."_cdc_deleted_at");

-- one key: reconcile, after a truncate
SELECT r."_op" AS "_op", r."id" AS "id", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."id" = r."id";

-- one key: reconcile, after deletes were forgotten
SELECT r."_op" AS "_op", r."id" AS "id", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) AND (t."id" IS NULL) AND (l."id" IS NULL) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."id" = r."id";

-- one key: reconcile, after deletes were forgotten, with a truncate
SELECT r."_op" AS "_op", r."id" AS "id", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) AND (t."id" IS NULL OR NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1")))) AND (l."id" IS NULL OR NOT ((l."_cdc_seq_1" > 7))) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."id" = r."id";

-- one key: truncate
UPDATE "public"."target" AS t SET "_cdc_deleted" = TRUE, "_cdc_deleted_at" = ('1970-01-01 00:00:00+00'::timestamptz + 1700000000000000 * interval '1 microsecond') WHERE NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1")));

-- one key: view
CREATE OR REPLACE VIEW "public"."it's_living" AS SELECT * FROM "public"."it's" WHERE "_cdc_deleted" IS NOT TRUE; COMMENT ON VIEW "public"."it's_living" IS 'replicator: the rows of it''s that hold now';

-- one key: remember deletes
INSERT INTO "tombstones" AS l ("id", "_cdc_seq_1") SELECT "id", "_cdc_seq_1" FROM "rows" ON CONFLICT ("id") DO UPDATE SET "_cdc_seq_1" = excluded."_cdc_seq_1" WHERE (excluded."_cdc_seq_1") > (l."_cdc_seq_1");

-- one key: forget deletes
DELETE FROM "tombstones" AS l WHERE NOT ((l."_cdc_seq_1" > 7));

-- one key: deleted rows that go
"_cdc_deleted" AND "_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7));

-- one key: deleted rows that go, after a truncate
"_cdc_deleted" AND ("_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7)) OR COALESCE("_cdc_op", '') <> 'd' AND ("_cdc_seq_1" IS NULL OR ((2 > "_cdc_seq_1"))));

-- composite key: reconcile
SELECT r."_op" AS "_op", r."a" AS "a", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_2" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."b" AS "b", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_from_2" AS "_from_2", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."a" = r."a" AND t."b" = r."b"
LEFT JOIN related AS o ON o."a" = r."_from_1" AND o."b" = r."_from_2" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2")))
LEFT JOIN tombstones AS l ON l."a" = r."a" AND l."b" = r."b";

-- composite key: write
MERGE INTO "public"."target" AS t USING rows AS s ON t."a" = s."a" AND t."b" = s."b"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2"))) AND s."_cdc_deleted" IS NULL) THEN UPDATE SET "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_seq_2" = s."_cdc_seq_2", "_cdc_deleted" = TRUE, "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2"))) AND NOT (s."_cdc_deleted" IS NULL)) THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_seq_2" = s."_cdc_seq_2", "_cdc_deleted" = s."_cdc_deleted", "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN NOT MATCHED AND NOT (s."_cdc_deleted" IS NULL) THEN INSERT ("a", "v", "b", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2", "_cdc_deleted", "_cdc_deleted_at") OVERRIDING SYSTEM VALUE VALUES (s."a", s."v", s."b", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2", s."_cdc_deleted", s."_cdc_deleted_at");

-- composite key: reconcile, after a truncate
SELECT r."_op" AS "_op", r."a" AS "a", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_2" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."b" AS "b", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_from_2" AS "_from_2", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8)) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."a" = r."a" AND t."b" = r."b"
LEFT JOIN related AS o ON o."a" = r."_from_1" AND o."b" = r."_from_2" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2")))
LEFT JOIN tombstones AS l ON l."a" = r."a" AND l."b" = r."b";

-- composite key: reconcile, after deletes were forgotten
SELECT r."_op" AS "_op", r."a" AS "a", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_2" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."b" AS "b", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_from_2" AS "_from_2", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8)) AND (t."a" IS NULL) AND (l."a" IS NULL) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."a" = r."a" AND t."b" = r."b"
LEFT JOIN related AS o ON o."a" = r."_from_1" AND o."b" = r."_from_2" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2")))
LEFT JOIN tombstones AS l ON l."a" = r."a" AND l."b" = r."b";

-- composite key: reconcile, after deletes were forgotten, with a truncate
SELECT r."_op" AS "_op", r."a" AS "a", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_2" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."b" AS "b", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_from_2" AS "_from_2", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8)) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8)) AND (t."a" IS NULL OR NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2")))) AND (l."a" IS NULL OR NOT ((l."_cdc_seq_1" > 7) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" > 8))) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."a" = r."a" AND t."b" = r."b"
LEFT JOIN related AS o ON o."a" = r."_from_1" AND o."b" = r."_from_2" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2")))
LEFT JOIN tombstones AS l ON l."a" = r."a" AND l."b" = r."b";

-- composite key: truncate
UPDATE "public"."target" AS t SET "_cdc_deleted" = TRUE, "_cdc_deleted_at" = ('1970-01-01 00:00:00+00'::timestamptz + 1700000000000000 * interval '1 microsecond') WHERE NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2")));

-- composite key: remember deletes
INSERT INTO "tombstones" AS l ("a", "b", "_cdc_seq_1", "_cdc_seq_2") SELECT "a", "b", "_cdc_seq_1", "_cdc_seq_2" FROM "rows" ON CONFLICT ("a", "b") DO UPDATE SET "_cdc_seq_1" = excluded."_cdc_seq_1", "_cdc_seq_2" = excluded."_cdc_seq_2" WHERE (excluded."_cdc_seq_1", excluded."_cdc_seq_2") > (l."_cdc_seq_1", l."_cdc_seq_2");

-- composite key: forget deletes
DELETE FROM "tombstones" AS l WHERE NOT ((l."_cdc_seq_1" > 7) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" > 8));

-- composite key: deleted rows that go
"_cdc_deleted" AND "_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8));

-- composite key: deleted rows that go, after a truncate
"_cdc_deleted" AND ("_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8)) OR COALESCE("_cdc_op", '') <> 'd' AND ("_cdc_seq_1" IS NULL OR ((2 > "_cdc_seq_1") OR (2 = "_cdc_seq_1" AND 3 > "_cdc_seq_2"))));

-- several sequence elements: reconcile
SELECT r."_op" AS "_op", r."id" AS "id", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", r."_cdc_seq_3" AS "_cdc_seq_3", r."_cdc_seq_4" AS "_cdc_seq_4", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" AND r."_cdc_seq_3" = t."_cdc_seq_3" AND r."_cdc_seq_4" = t."_cdc_seq_4" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" > r."_cdc_seq_3") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" = r."_cdc_seq_3" AND t."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" AND r."_cdc_seq_3" = l."_cdc_seq_3" AND r."_cdc_seq_4" = l."_cdc_seq_4" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" > r."_cdc_seq_3") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" = r."_cdc_seq_3" AND l."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" > o."_cdc_seq_3") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" = o."_cdc_seq_3" AND r."_cdc_seq_4" > o."_cdc_seq_4")))
LEFT JOIN tombstones AS l ON l."id" = r."id";

-- several sequence elements: write
MERGE INTO "public"."target" AS t USING rows AS s ON t."id" = s."id"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" > t."_cdc_seq_3") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" = t."_cdc_seq_3" AND s."_cdc_seq_4" > t."_cdc_seq_4"))) AND s."_cdc_deleted" IS NULL) THEN UPDATE SET "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_seq_2" = s."_cdc_seq_2", "_cdc_seq_3" = s."_cdc_seq_3", "_cdc_seq_4" = s."_cdc_seq_4", "_cdc_deleted" = TRUE, "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" > t."_cdc_seq_3") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" = t."_cdc_seq_3" AND s."_cdc_seq_4" > t."_cdc_seq_4"))) AND NOT (s."_cdc_deleted" IS NULL)) THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_seq_2" = s."_cdc_seq_2", "_cdc_seq_3" = s."_cdc_seq_3", "_cdc_seq_4" = s."_cdc_seq_4", "_cdc_deleted" = s."_cdc_deleted", "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN NOT MATCHED AND NOT (s."_cdc_deleted" IS NULL) THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4", "_cdc_deleted", "_cdc_deleted_at") OVERRIDING SYSTEM VALUE VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2", s."_cdc_seq_3", s."_cdc_seq_4", s."_cdc_deleted", s."_cdc_deleted_at");

-- several sequence elements: reconcile, after a truncate
SELECT r."_op" AS "_op", r."id" AS "id", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", r."_cdc_seq_3" AS "_cdc_seq_3", r."_cdc_seq_4" AS "_cdc_seq_4", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" AND r."_cdc_seq_3" = t."_cdc_seq_3" AND r."_cdc_seq_4" = t."_cdc_seq_4" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" > r."_cdc_seq_3") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" = r."_cdc_seq_3" AND t."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" AND r."_cdc_seq_3" = l."_cdc_seq_3" AND r."_cdc_seq_4" = l."_cdc_seq_4" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" > r."_cdc_seq_3") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" = r."_cdc_seq_3" AND l."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" > 9) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" = 9 AND r."_cdc_seq_4" > 10)) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" > o."_cdc_seq_3") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" = o."_cdc_seq_3" AND r."_cdc_seq_4" > o."_cdc_seq_4")))
LEFT JOIN tombstones AS l ON l."id" = r."id";

-- several sequence elements: reconcile, after deletes were forgotten
SELECT r."_op" AS "_op", r."id" AS "id", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", r."_cdc_seq_3" AS "_cdc_seq_3", r."_cdc_seq_4" AS "_cdc_seq_4", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" AND r."_cdc_seq_3" = t."_cdc_seq_3" AND r."_cdc_seq_4" = t."_cdc_seq_4" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" > r."_cdc_seq_3") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" = r."_cdc_seq_3" AND t."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" AND r."_cdc_seq_3" = l."_cdc_seq_3" AND r."_cdc_seq_4" = l."_cdc_seq_4" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" > r."_cdc_seq_3") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" = r."_cdc_seq_3" AND l."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" > 9) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" = 9 AND r."_cdc_seq_4" > 10)) AND (t."id" IS NULL) AND (l."id" IS NULL) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" > o."_cdc_seq_3") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" = o."_cdc_seq_3" AND r."_cdc_seq_4" > o."_cdc_seq_4")))
LEFT JOIN tombstones AS l ON l."id" = r."id";

-- several sequence elements: reconcile, after deletes were forgotten, with a truncate
SELECT r."_op" AS "_op", r."id" AS "id", CASE WHEN 'v' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v" ELSE t."v" END ELSE r."v" END AS "v", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", r."_cdc_seq_2" AS "_cdc_seq_2", r."_cdc_seq_3" AS "_cdc_seq_3", r."_cdc_seq_4" AS "_cdc_seq_4", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" AND r."_cdc_seq_3" = t."_cdc_seq_3" AND r."_cdc_seq_4" = t."_cdc_seq_4" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" > r."_cdc_seq_3") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" = r."_cdc_seq_3" AND t."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" AND r."_cdc_seq_3" = l."_cdc_seq_3" AND r."_cdc_seq_4" = l."_cdc_seq_4" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" > r."_cdc_seq_3") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" = r."_cdc_seq_3" AND l."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" > 9) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" = 9 AND r."_cdc_seq_4" > 10)) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" > 9) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" = 9 AND r."_cdc_seq_4" > 10)) AND (t."id" IS NULL OR NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 > t."_cdc_seq_3") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 = t."_cdc_seq_3" AND 10 > t."_cdc_seq_4")))) AND (l."id" IS NULL OR NOT ((l."_cdc_seq_1" > 7) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" > 8) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" = 8 AND l."_cdc_seq_3" > 9) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" = 8 AND l."_cdc_seq_3" = 9 AND l."_cdc_seq_4" > 10))) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" > o."_cdc_seq_3") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" = o."_cdc_seq_3" AND r."_cdc_seq_4" > o."_cdc_seq_4")))
LEFT JOIN tombstones AS l ON l."id" = r."id";

-- several sequence elements: truncate
UPDATE "public"."target" AS t SET "_cdc_deleted" = TRUE, "_cdc_deleted_at" = ('1970-01-01 00:00:00+00'::timestamptz + 1700000000000000 * interval '1 microsecond') WHERE NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 > t."_cdc_seq_3") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 = t."_cdc_seq_3" AND 10 > t."_cdc_seq_4")));

-- several sequence elements: remember deletes
INSERT INTO "tombstones" AS l ("id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") SELECT "id", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4" FROM "rows" ON CONFLICT ("id") DO UPDATE SET "_cdc_seq_1" = excluded."_cdc_seq_1", "_cdc_seq_2" = excluded."_cdc_seq_2", "_cdc_seq_3" = excluded."_cdc_seq_3", "_cdc_seq_4" = excluded."_cdc_seq_4" WHERE (excluded."_cdc_seq_1", excluded."_cdc_seq_2", excluded."_cdc_seq_3", excluded."_cdc_seq_4") > (l."_cdc_seq_1", l."_cdc_seq_2", l."_cdc_seq_3", l."_cdc_seq_4");

-- several sequence elements: forget deletes
DELETE FROM "tombstones" AS l WHERE NOT ((l."_cdc_seq_1" > 7) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" > 8) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" = 8 AND l."_cdc_seq_3" > 9) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" = 8 AND l."_cdc_seq_3" = 9 AND l."_cdc_seq_4" > 10));

-- several sequence elements: deleted rows that go
"_cdc_deleted" AND "_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" > 9) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" = 9 AND "_cdc_seq_4" > 10));

-- several sequence elements: deleted rows that go, after a truncate
"_cdc_deleted" AND ("_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" > 9) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" = 9 AND "_cdc_seq_4" > 10)) OR COALESCE("_cdc_op", '') <> 'd' AND ("_cdc_seq_1" IS NULL OR ((2 > "_cdc_seq_1") OR (2 = "_cdc_seq_1" AND 3 > "_cdc_seq_2") OR (2 = "_cdc_seq_1" AND 3 = "_cdc_seq_2" AND 4 > "_cdc_seq_3") OR (2 = "_cdc_seq_1" AND 3 = "_cdc_seq_2" AND 4 = "_cdc_seq_3" AND 5 > "_cdc_seq_4"))));

-- awkward name: reconcile
SELECT r."_op" AS "_op", r."k ""1"" `2`" AS "k ""1"" `2`", CASE WHEN 'v''; \DROP {b}' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v'; \DROP {b}" ELSE t."v'; \DROP {b}" END ELSE r."v'; \DROP {b}" END AS "v'; \DROP {b}", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."k ""1"" `2`" = r."k ""1"" `2`"
LEFT JOIN related AS o ON o."k ""1"" `2`" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."k ""1"" `2`" = r."k ""1"" `2`";

-- awkward name: write
MERGE INTO "public"."target" AS t USING rows AS s ON t."k ""1"" `2`" = s."k ""1"" `2`"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND s."_cdc_deleted" IS NULL) THEN UPDATE SET "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_deleted" = TRUE, "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND NOT (s."_cdc_deleted" IS NULL)) THEN UPDATE SET "v'; \DROP {b}" = s."v'; \DROP {b}", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_deleted" = s."_cdc_deleted", "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN NOT MATCHED AND NOT (s."_cdc_deleted" IS NULL) THEN INSERT ("k ""1"" `2`", "v'; \DROP {b}", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_deleted", "_cdc_deleted_at") OVERRIDING SYSTEM VALUE VALUES (s."k ""1"" `2`", s."v'; \DROP {b}", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_deleted", s."_cdc_deleted_at");

-- awkward name: reconcile, after a truncate
SELECT r."_op" AS "_op", r."k ""1"" `2`" AS "k ""1"" `2`", CASE WHEN 'v''; \DROP {b}' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v'; \DROP {b}" ELSE t."v'; \DROP {b}" END ELSE r."v'; \DROP {b}" END AS "v'; \DROP {b}", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."k ""1"" `2`" = r."k ""1"" `2`"
LEFT JOIN related AS o ON o."k ""1"" `2`" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."k ""1"" `2`" = r."k ""1"" `2`";

-- awkward name: reconcile, after deletes were forgotten
SELECT r."_op" AS "_op", r."k ""1"" `2`" AS "k ""1"" `2`", CASE WHEN 'v''; \DROP {b}' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v'; \DROP {b}" ELSE t."v'; \DROP {b}" END ELSE r."v'; \DROP {b}" END AS "v'; \DROP {b}", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) AND (t."k ""1"" `2`" IS NULL) AND (l."k ""1"" `2`" IS NULL) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."k ""1"" `2`" = r."k ""1"" `2`"
LEFT JOIN related AS o ON o."k ""1"" `2`" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."k ""1"" `2`" = r."k ""1"" `2`";

-- awkward name: reconcile, after deletes were forgotten, with a truncate
SELECT r."_op" AS "_op", r."k ""1"" `2`" AS "k ""1"" `2`", CASE WHEN 'v''; \DROP {b}' = ANY(r."_unsent") THEN CASE WHEN r."_from_1" IS NOT NULL THEN o."v'; \DROP {b}" ELSE t."v'; \DROP {b}" END ELSE r."v'; \DROP {b}" END AS "v'; \DROP {b}", r."_cdc_op" AS "_cdc_op", r."_cdc_ts" AS "_cdc_ts", r."_event_id" AS "_event_id", r."_cdc_applied_at" AS "_cdc_applied_at", r."_cdc_seq_1" AS "_cdc_seq_1", CASE WHEN r."_op" = 'd' AND NOT '' = ANY(r."_unsent") AND NOT CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE (t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) END THEN TRUE ELSE r."_cdc_deleted" END AS "_cdc_deleted", r."_cdc_deleted_at" AS "_cdc_deleted_at", r."_unsent" AS "_unsent", r."_reset" AS "_reset", r."_from_1" AS "_from_1", r."_topic" AS "_topic", r."_partition" AS "_partition", r."_offset" AS "_offset",
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) AND (t."k ""1"" `2`" IS NULL OR NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1")))) AND (l."k ""1"" `2`" IS NULL OR NOT ((l."_cdc_seq_1" > 7))) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS "_verdict"
FROM folded AS r
LEFT JOIN related AS t ON t."k ""1"" `2`" = r."k ""1"" `2`"
LEFT JOIN related AS o ON o."k ""1"" `2`" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."k ""1"" `2`" = r."k ""1"" `2`";

-- awkward name: truncate
UPDATE "public"."target" AS t SET "_cdc_deleted" = TRUE, "_cdc_deleted_at" = ('1970-01-01 00:00:00+00'::timestamptz + 1700000000000000 * interval '1 microsecond') WHERE NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1")));

-- awkward name: remember deletes
INSERT INTO "tombstones" AS l ("k ""1"" `2`", "_cdc_seq_1") SELECT "k ""1"" `2`", "_cdc_seq_1" FROM "rows" ON CONFLICT ("k ""1"" `2`") DO UPDATE SET "_cdc_seq_1" = excluded."_cdc_seq_1" WHERE (excluded."_cdc_seq_1") > (l."_cdc_seq_1");

-- awkward name: forget deletes
DELETE FROM "tombstones" AS l WHERE NOT ((l."_cdc_seq_1" > 7));

-- awkward name: deleted rows that go
"_cdc_deleted" AND "_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7));

-- awkward name: deleted rows that go, after a truncate
"_cdc_deleted" AND ("_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7)) OR COALESCE("_cdc_op", '') <> 'd' AND ("_cdc_seq_1" IS NULL OR ((2 > "_cdc_seq_1"))));

-- no key, counted: table public.t has no key, which policy scd1 needs
