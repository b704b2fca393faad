-- Policy scd1-by-column, delta_rs. See tests/golden/test_sql.py.

-- one key: write
MERGE INTO "target" AS t USING rows AS s ON t."id" = s."id"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v" = CASE WHEN array_has(s."_unsent", 'v') THEN t."v" ELSE s."v" END, "_cdc_op" = CASE WHEN array_has(s."_unsent", '_cdc_op') THEN t."_cdc_op" ELSE s."_cdc_op" END, "_cdc_ts" = CASE WHEN array_has(s."_unsent", '_cdc_ts') THEN t."_cdc_ts" ELSE s."_cdc_ts" END, "_event_id" = CASE WHEN array_has(s."_unsent", '_event_id') THEN t."_event_id" ELSE s."_event_id" END, "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = CASE WHEN array_has(s."_unsent", '_cdc_seq_1') THEN t."_cdc_seq_1" ELSE s."_cdc_seq_1" END, "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_unsent") VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_unsent");

-- one key: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1"))) THEN DELETE;

-- composite key: write
MERGE INTO "target" AS t USING rows AS s ON t."a" = s."a" AND t."b" = s."b"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v" = CASE WHEN array_has(s."_unsent", 'v') THEN t."v" ELSE s."v" END, "_cdc_op" = CASE WHEN array_has(s."_unsent", '_cdc_op') THEN t."_cdc_op" ELSE s."_cdc_op" END, "_cdc_ts" = CASE WHEN array_has(s."_unsent", '_cdc_ts') THEN t."_cdc_ts" ELSE s."_cdc_ts" END, "_event_id" = CASE WHEN array_has(s."_unsent", '_event_id') THEN t."_event_id" ELSE s."_event_id" END, "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = CASE WHEN array_has(s."_unsent", '_cdc_seq_1') THEN t."_cdc_seq_1" ELSE s."_cdc_seq_1" END, "_cdc_seq_2" = CASE WHEN array_has(s."_unsent", '_cdc_seq_2') THEN t."_cdc_seq_2" ELSE s."_cdc_seq_2" END, "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("a", "v", "b", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2", "_cdc_unsent") VALUES (s."a", s."v", s."b", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2", s."_cdc_unsent");

-- composite key: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2"))) THEN DELETE;

-- several sequence elements: write
MERGE INTO "target" AS t USING rows AS s ON t."id" = s."id"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v" = CASE WHEN array_has(s."_unsent", 'v') THEN t."v" ELSE s."v" END, "_cdc_op" = CASE WHEN array_has(s."_unsent", '_cdc_op') THEN t."_cdc_op" ELSE s."_cdc_op" END, "_cdc_ts" = CASE WHEN array_has(s."_unsent", '_cdc_ts') THEN t."_cdc_ts" ELSE s."_cdc_ts" END, "_event_id" = CASE WHEN array_has(s."_unsent", '_event_id') THEN t."_event_id" ELSE s."_event_id" END, "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = CASE WHEN array_has(s."_unsent", '_cdc_seq_1') THEN t."_cdc_seq_1" ELSE s."_cdc_seq_1" END, "_cdc_seq_2" = CASE WHEN array_has(s."_unsent", '_cdc_seq_2') THEN t."_cdc_seq_2" ELSE s."_cdc_seq_2" END, "_cdc_seq_3" = CASE WHEN array_has(s."_unsent", '_cdc_seq_3') THEN t."_cdc_seq_3" ELSE s."_cdc_seq_3" END, "_cdc_seq_4" = CASE WHEN array_has(s."_unsent", '_cdc_seq_4') THEN t."_cdc_seq_4" ELSE s."_cdc_seq_4" END, "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4", "_cdc_unsent") VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2", s."_cdc_seq_3", s."_cdc_seq_4", s."_cdc_unsent");

-- several sequence elements: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 > t."_cdc_seq_3") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 = t."_cdc_seq_3" AND 10 > t."_cdc_seq_4"))) THEN DELETE;

-- awkward name: write
MERGE INTO "target" AS t USING rows AS s ON t."k ""1"" `2`" = s."k ""1"" `2`"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v'; \DROP {b}" = CASE WHEN array_has(s."_unsent", 'v''; \DROP {b}') THEN t."v'; \DROP {b}" ELSE s."v'; \DROP {b}" END, "_cdc_op" = CASE WHEN array_has(s."_unsent", '_cdc_op') THEN t."_cdc_op" ELSE s."_cdc_op" END, "_cdc_ts" = CASE WHEN array_has(s."_unsent", '_cdc_ts') THEN t."_cdc_ts" ELSE s."_cdc_ts" END, "_event_id" = CASE WHEN array_has(s."_unsent", '_event_id') THEN t."_event_id" ELSE s."_event_id" END, "_cdc_applied_at" = s."_cdc_applied_at", "_cdc_seq_1" = CASE WHEN array_has(s."_unsent", '_cdc_seq_1') THEN t."_cdc_seq_1" ELSE s."_cdc_seq_1" END, "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("k ""1"" `2`", "v'; \DROP {b}", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_unsent") VALUES (s."k ""1"" `2`", s."v'; \DROP {b}", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_unsent");

-- awkward name: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1"))) THEN DELETE;

-- no key, counted: table public.t has no key, which policy scd1 needs
