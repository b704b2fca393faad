-- Policy scd1-soft, delta_rs. See tests/golden/test_sql.py.

-- one key: write
MERGE INTO "target" AS t USING rows AS s ON t."id" = s."id"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND s."_cdc_deleted" IS NULL) THEN UPDATE SET "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_deleted" = TRUE, "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND NOT (s."_cdc_deleted" IS NULL)) THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_deleted" = s."_cdc_deleted", "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN NOT MATCHED AND NOT (s."_cdc_deleted" IS NULL) THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_deleted", "_cdc_deleted_at") VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_deleted", s."_cdc_deleted_at");

-- one key: truncate
WHEN NOT MATCHED BY SOURCE AND NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1"))) THEN UPDATE SET "_cdc_deleted" = TRUE, "_cdc_deleted_at" = arrow_cast(1700000000000000, 'Timestamp(Microsecond, Some("UTC"))');

-- one key: forget deletes
NOT (("_cdc_seq_1" > 7));

-- one key: deleted rows that go
"_cdc_deleted" AND "_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7));

-- one key: deleted rows that go, after a truncate
"_cdc_deleted" AND ("_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7)) OR COALESCE("_cdc_op", '') <> 'd' AND ("_cdc_seq_1" IS NULL OR ((2 > "_cdc_seq_1"))));

-- composite key: write
MERGE INTO "target" AS t USING rows AS s ON t."a" = s."a" AND t."b" = s."b"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2"))) AND s."_cdc_deleted" IS NULL) THEN UPDATE SET "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_seq_2" = s."_cdc_seq_2", "_cdc_deleted" = TRUE, "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2"))) AND NOT (s."_cdc_deleted" IS NULL)) THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_seq_2" = s."_cdc_seq_2", "_cdc_deleted" = s."_cdc_deleted", "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN NOT MATCHED AND NOT (s."_cdc_deleted" IS NULL) THEN INSERT ("a", "v", "b", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2", "_cdc_deleted", "_cdc_deleted_at") VALUES (s."a", s."v", s."b", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2", s."_cdc_deleted", s."_cdc_deleted_at");

-- composite key: truncate
WHEN NOT MATCHED BY SOURCE AND NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2"))) THEN UPDATE SET "_cdc_deleted" = TRUE, "_cdc_deleted_at" = arrow_cast(1700000000000000, 'Timestamp(Microsecond, Some("UTC"))');

-- composite key: forget deletes
NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8));

-- composite key: deleted rows that go
"_cdc_deleted" AND "_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8));

-- composite key: deleted rows that go, after a truncate
"_cdc_deleted" AND ("_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8)) OR COALESCE("_cdc_op", '') <> 'd' AND ("_cdc_seq_1" IS NULL OR ((2 > "_cdc_seq_1") OR (2 = "_cdc_seq_1" AND 3 > "_cdc_seq_2"))));

-- several sequence elements: write
MERGE INTO "target" AS t USING rows AS s ON t."id" = s."id"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" > t."_cdc_seq_3") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" = t."_cdc_seq_3" AND s."_cdc_seq_4" > t."_cdc_seq_4"))) AND s."_cdc_deleted" IS NULL) THEN UPDATE SET "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_seq_2" = s."_cdc_seq_2", "_cdc_seq_3" = s."_cdc_seq_3", "_cdc_seq_4" = s."_cdc_seq_4", "_cdc_deleted" = TRUE, "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" > t."_cdc_seq_3") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" = t."_cdc_seq_3" AND s."_cdc_seq_4" > t."_cdc_seq_4"))) AND NOT (s."_cdc_deleted" IS NULL)) THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_seq_2" = s."_cdc_seq_2", "_cdc_seq_3" = s."_cdc_seq_3", "_cdc_seq_4" = s."_cdc_seq_4", "_cdc_deleted" = s."_cdc_deleted", "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN NOT MATCHED AND NOT (s."_cdc_deleted" IS NULL) THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4", "_cdc_deleted", "_cdc_deleted_at") VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2", s."_cdc_seq_3", s."_cdc_seq_4", s."_cdc_deleted", s."_cdc_deleted_at");

-- several sequence elements: truncate
WHEN NOT MATCHED BY SOURCE AND NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 > t."_cdc_seq_3") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 = t."_cdc_seq_3" AND 10 > t."_cdc_seq_4"))) THEN UPDATE SET "_cdc_deleted" = TRUE, "_cdc_deleted_at" = arrow_cast(1700000000000000, 'Timestamp(Microsecond, Some("UTC"))');

-- several sequence elements: forget deletes
NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" > 9) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" = 9 AND "_cdc_seq_4" > 10));

-- several sequence elements: deleted rows that go
"_cdc_deleted" AND "_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" > 9) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" = 9 AND "_cdc_seq_4" > 10));

-- several sequence elements: deleted rows that go, after a truncate
"_cdc_deleted" AND ("_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" > 9) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" = 9 AND "_cdc_seq_4" > 10)) OR COALESCE("_cdc_op", '') <> 'd' AND ("_cdc_seq_1" IS NULL OR ((2 > "_cdc_seq_1") OR (2 = "_cdc_seq_1" AND 3 > "_cdc_seq_2") OR (2 = "_cdc_seq_1" AND 3 = "_cdc_seq_2" AND 4 > "_cdc_seq_3") OR (2 = "_cdc_seq_1" AND 3 = "_cdc_seq_2" AND 4 = "_cdc_seq_3" AND 5 > "_cdc_seq_4"))));

-- awkward name: write
MERGE INTO "target" AS t USING rows AS s ON t."k ""1"" `2`" = s."k ""1"" `2`"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND s."_cdc_deleted" IS NULL) THEN UPDATE SET "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_deleted" = TRUE, "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND NOT (s."_cdc_deleted" IS NULL)) THEN UPDATE SET "v'; \DROP {b}" = s."v'; \DROP {b}", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_deleted" = s."_cdc_deleted", "_cdc_deleted_at" = s."_cdc_deleted_at"
WHEN NOT MATCHED AND NOT (s."_cdc_deleted" IS NULL) THEN INSERT ("k ""1"" `2`", "v'; \DROP {b}", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_deleted", "_cdc_deleted_at") VALUES (s."k ""1"" `2`", s."v'; \DROP {b}", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_deleted", s."_cdc_deleted_at");

-- awkward name: truncate
WHEN NOT MATCHED BY SOURCE AND NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1"))) THEN UPDATE SET "_cdc_deleted" = TRUE, "_cdc_deleted_at" = arrow_cast(1700000000000000, 'Timestamp(Microsecond, Some("UTC"))');

-- awkward name: forget deletes
NOT (("_cdc_seq_1" > 7));

-- awkward name: deleted rows that go
"_cdc_deleted" AND "_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7));

-- awkward name: deleted rows that go, after a truncate
"_cdc_deleted" AND ("_cdc_op" = 'd' AND NOT (("_cdc_seq_1" > 7)) OR COALESCE("_cdc_op", '') <> 'd' AND ("_cdc_seq_1" IS NULL OR ((2 > "_cdc_seq_1"))));

-- no key, counted: table public.t has no key, which policy scd1 needs
