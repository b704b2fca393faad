-- Policy scd2-untracked, delta_rs. See tests/golden/test_sql.py.

-- one key: write
MERGE INTO "target" AS t USING rows AS s ON t."id" = s."id" AND t."_cdc_seq_1" = s."_cdc_seq_1"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "__START_AT" = s."__START_AT", "__END_AT" = s."__END_AT", "_cdc_end_seq_1" = s."_cdc_end_seq_1", "_cdc_last_seq_1" = s."_cdc_last_seq_1", "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "__START_AT", "__END_AT", "_cdc_end_seq_1", "_cdc_last_seq_1", "_cdc_unsent") VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."__START_AT", s."__END_AT", s."_cdc_end_seq_1", s."_cdc_last_seq_1", s."_cdc_unsent");

-- one key: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_end_seq_1" IS NULL AND ((7 > t."_cdc_seq_1")) AND NOT ((t."_cdc_last_seq_1" > 7))) THEN UPDATE SET "_cdc_end_seq_1" = 7, "__END_AT" = arrow_cast(1700000000000000, 'Timestamp(Microsecond, Some("UTC"))');

-- composite key: write
MERGE INTO "target" AS t USING rows AS s ON t."a" = s."a" AND t."b" = s."b" AND t."_cdc_seq_1" = s."_cdc_seq_1" AND t."_cdc_seq_2" = s."_cdc_seq_2"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "__START_AT" = s."__START_AT", "__END_AT" = s."__END_AT", "_cdc_end_seq_1" = s."_cdc_end_seq_1", "_cdc_end_seq_2" = s."_cdc_end_seq_2", "_cdc_last_seq_1" = s."_cdc_last_seq_1", "_cdc_last_seq_2" = s."_cdc_last_seq_2", "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("a", "v", "b", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2", "__START_AT", "__END_AT", "_cdc_end_seq_1", "_cdc_end_seq_2", "_cdc_last_seq_1", "_cdc_last_seq_2", "_cdc_unsent") VALUES (s."a", s."v", s."b", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2", s."__START_AT", s."__END_AT", s."_cdc_end_seq_1", s."_cdc_end_seq_2", s."_cdc_last_seq_1", s."_cdc_last_seq_2", s."_cdc_unsent");

-- composite key: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_end_seq_1" IS NULL AND ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2")) AND NOT ((t."_cdc_last_seq_1" > 7) OR (t."_cdc_last_seq_1" = 7 AND t."_cdc_last_seq_2" > 8))) THEN UPDATE SET "_cdc_end_seq_1" = 7, "_cdc_end_seq_2" = 8, "__END_AT" = arrow_cast(1700000000000000, 'Timestamp(Microsecond, Some("UTC"))');

-- several sequence elements: write
MERGE INTO "target" AS t USING rows AS s ON t."id" = s."id" AND t."_cdc_seq_1" = s."_cdc_seq_1" AND t."_cdc_seq_2" = s."_cdc_seq_2" AND t."_cdc_seq_3" = s."_cdc_seq_3" AND t."_cdc_seq_4" = s."_cdc_seq_4"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v" = s."v", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "__START_AT" = s."__START_AT", "__END_AT" = s."__END_AT", "_cdc_end_seq_1" = s."_cdc_end_seq_1", "_cdc_end_seq_2" = s."_cdc_end_seq_2", "_cdc_end_seq_3" = s."_cdc_end_seq_3", "_cdc_end_seq_4" = s."_cdc_end_seq_4", "_cdc_last_seq_1" = s."_cdc_last_seq_1", "_cdc_last_seq_2" = s."_cdc_last_seq_2", "_cdc_last_seq_3" = s."_cdc_last_seq_3", "_cdc_last_seq_4" = s."_cdc_last_seq_4", "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("id", "v", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_seq_2", "_cdc_seq_3", "_cdc_seq_4", "__START_AT", "__END_AT", "_cdc_end_seq_1", "_cdc_end_seq_2", "_cdc_end_seq_3", "_cdc_end_seq_4", "_cdc_last_seq_1", "_cdc_last_seq_2", "_cdc_last_seq_3", "_cdc_last_seq_4", "_cdc_unsent") VALUES (s."id", s."v", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."_cdc_seq_2", s."_cdc_seq_3", s."_cdc_seq_4", s."__START_AT", s."__END_AT", s."_cdc_end_seq_1", s."_cdc_end_seq_2", s."_cdc_end_seq_3", s."_cdc_end_seq_4", s."_cdc_last_seq_1", s."_cdc_last_seq_2", s."_cdc_last_seq_3", s."_cdc_last_seq_4", s."_cdc_unsent");

-- several sequence elements: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_end_seq_1" IS NULL AND ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 > t."_cdc_seq_3") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 = t."_cdc_seq_3" AND 10 > t."_cdc_seq_4")) AND NOT ((t."_cdc_last_seq_1" > 7) OR (t."_cdc_last_seq_1" = 7 AND t."_cdc_last_seq_2" > 8) OR (t."_cdc_last_seq_1" = 7 AND t."_cdc_last_seq_2" = 8 AND t."_cdc_last_seq_3" > 9) OR (t."_cdc_last_seq_1" = 7 AND t."_cdc_last_seq_2" = 8 AND t."_cdc_last_seq_3" = 9 AND t."_cdc_last_seq_4" > 10))) THEN UPDATE SET "_cdc_end_seq_1" = 7, "_cdc_end_seq_2" = 8, "_cdc_end_seq_3" = 9, "_cdc_end_seq_4" = 10, "__END_AT" = arrow_cast(1700000000000000, 'Timestamp(Microsecond, Some("UTC"))');

-- awkward name: write
MERGE INTO "target" AS t USING rows AS s ON t."k ""1"" `2`" = s."k ""1"" `2`" AND t."_cdc_seq_1" = s."_cdc_seq_1"
WHEN MATCHED AND s."_op" = 'd' THEN DELETE
WHEN MATCHED AND s."_op" <> 'd' THEN UPDATE SET "v'; \DROP {b}" = s."v'; \DROP {b}", "_cdc_op" = s."_cdc_op", "_cdc_ts" = s."_cdc_ts", "_event_id" = s."_event_id", "_cdc_applied_at" = s."_cdc_applied_at", "__START_AT" = s."__START_AT", "__END_AT" = s."__END_AT", "_cdc_end_seq_1" = s."_cdc_end_seq_1", "_cdc_last_seq_1" = s."_cdc_last_seq_1", "_cdc_unsent" = s."_cdc_unsent"
WHEN NOT MATCHED AND s."_op" <> 'd' THEN INSERT ("k ""1"" `2`", "v'; \DROP {b}", "_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "__START_AT", "__END_AT", "_cdc_end_seq_1", "_cdc_last_seq_1", "_cdc_unsent") VALUES (s."k ""1"" `2`", s."v'; \DROP {b}", s."_cdc_op", s."_cdc_ts", s."_event_id", s."_cdc_applied_at", s."_cdc_seq_1", s."__START_AT", s."__END_AT", s."_cdc_end_seq_1", s."_cdc_last_seq_1", s."_cdc_unsent");

-- awkward name: truncate
WHEN NOT MATCHED BY SOURCE AND (t."_cdc_end_seq_1" IS NULL AND ((7 > t."_cdc_seq_1")) AND NOT ((t."_cdc_last_seq_1" > 7))) THEN UPDATE SET "_cdc_end_seq_1" = 7, "__END_AT" = arrow_cast(1700000000000000, 'Timestamp(Microsecond, Some("UTC"))');

-- no key, counted: table public.t has no key, which policy scd2 needs
