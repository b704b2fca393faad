-- Policy scd1, delta_rs. See tests/golden/test_sql.py.

-- one key: write
MERGE INTO "target" AS t USING rows AS s ON t."id" = s."id"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND s."_op" = 'd') THEN DELETE
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND s."_op" <> 'd') THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1") VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1");

-- one key: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1"))) THEN DELETE;

-- one key: forget deletes
NOT (("_cdc_seq_1" > 7));

-- composite key: write
MERGE INTO "target" AS t USING rows AS s ON t."a" = s."a" AND t."b" = s."b"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2"))) AND s."_op" = 'd') THEN DELETE
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2"))) AND s."_op" <> 'd') THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_seq_2" = s."_cdc_seq_2"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("a", "v", "b", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2") VALUES (s."a", s."v", s."b", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2");

-- composite key: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2"))) THEN DELETE;

-- composite key: forget deletes
NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8));

-- several sequence elements: write
MERGE INTO "target" AS t USING rows AS s ON t."id" = s."id"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" > t."_cdc_seq_3") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" = t."_cdc_seq_3" AND s."_cdc_seq_4" > t."_cdc_seq_4"))) AND s."_op" = 'd') THEN DELETE
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR (s."_cdc_seq_1" > t."_cdc_seq_1" OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" > t."_cdc_seq_2") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" > t."_cdc_seq_3") OR (s."_cdc_seq_1" = t."_cdc_seq_1" AND s."_cdc_seq_2" = t."_cdc_seq_2" AND s."_cdc_seq_3" = t."_cdc_seq_3" AND s."_cdc_seq_4" > t."_cdc_seq_4"))) AND s."_op" <> 'd') THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1", "_cdc_seq_2" = s."_cdc_seq_2", "_cdc_seq_3" = s."_cdc_seq_3", "_cdc_seq_4" = s."_cdc_seq_4"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4") VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2", s."_cdc_seq_3", s."_cdc_seq_4");

-- several sequence elements: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 > t."_cdc_seq_3") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 = t."_cdc_seq_3" AND 10 > t."_cdc_seq_4"))) THEN DELETE;

-- several sequence elements: forget deletes
NOT (("_cdc_seq_1" > 7) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" > 8) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" > 9) OR ("_cdc_seq_1" = 7 AND "_cdc_seq_2" = 8 AND "_cdc_seq_3" = 9 AND "_cdc_seq_4" > 10));

-- awkward name: write
MERGE INTO "target" AS t USING rows AS s ON t."k ""1"" `2`" = s."k ""1"" `2`"
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND s."_op" = 'd') THEN DELETE
WHEN MATCHED AND ((t."_cdc_seq_1" IS NULL OR s."_cdc_seq_1" > t."_cdc_seq_1") AND s."_op" <> 'd') THEN UPDATE SET "v'; \DROP {b}" = s."v'; \DROP {b}", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = s."_cdc_seq_1"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("k ""1"" `2`", "v'; \DROP {b}", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1") VALUES (s."k ""1"" `2`", s."v'; \DROP {b}", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1");

-- awkward name: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1"))) THEN DELETE;

-- awkward name: forget deletes
NOT (("_cdc_seq_1" > 7));

-- no key, counted: table public.t has no key, which policy scd1 needs
