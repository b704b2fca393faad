-- Policy append-watermark, spark. See tests/golden/test_sql.py.

-- one key: late
SELECT *, CASE WHEN `_op` <> 'r' AND unix_micros(`_ts`) < `_mark` THEN 'LATE: its event time ' || CAST(timestamp_micros(unix_micros(`_ts`)) AS STRING) || ' UTC is below the watermark of its partition, ' || CAST(timestamp_micros(`_mark`) AS STRING) || ' UTC. A longer \'watermark\' accepts such changes from now on. `replicator lanes resync LANE` also loads the rejected ones' END AS `_late`
FROM (SELECT *, max(CASE WHEN `_op` <> 'r' THEN unix_micros(`_ts`) END) OVER (PARTITION BY `_topic`, `_partition` ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - 600000000 AS `_mark` FROM changes);

-- one key: fold
SELECT *, min(`_i`) OVER (PARTITION BY `id`, `_seq_1`, `_op`) AS _last FROM changes;

-- one key: reconcile
SELECT r.`_op` AS `_op`, r.`id` AS `id`, r.`v` AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_unsent` AS `_cdc_unsent`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t.`id` IS NOT DISTINCT FROM r.`id` AND t.`_cdc_seq_1` = r.`_cdc_seq_1`) THEN 'duplicate'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r;

-- one key: write
INSERT INTO `target` (`id`, `v`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`, `_cdc_unsent`)
SELECT s.`id`, s.`v`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`, s.`_cdc_unsent`
FROM rows AS s;

-- one key: names
CREATE SCHEMA IF NOT EXISTS `spark_catalog`.`shop`;

CREATE TABLE `spark_catalog`.`shop`.`it_x0027_s` USING delta COMMENT 'lane `a`.b' LOCATION '/a \'lake\'/it_x0027_s';

-- one key: reconcile, after a truncate
SELECT r.`_op` AS `_op`, r.`id` AS `id`, r.`v` AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_unsent` AS `_cdc_unsent`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t.`id` IS NOT DISTINCT FROM r.`id` AND t.`_cdc_seq_1` = r.`_cdc_seq_1`) THEN 'duplicate'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r;

-- composite key: late
SELECT *, CASE WHEN `_op` <> 'r' AND unix_micros(`_ts`) < `_mark` THEN 'LATE: its event time ' || CAST(timestamp_micros(unix_micros(`_ts`)) AS STRING) || ' UTC is below the watermark of its partition, ' || CAST(timestamp_micros(`_mark`) AS STRING) || ' UTC. A longer \'watermark\' accepts such changes from now on. `replicator lanes resync LANE` also loads the rejected ones' END AS `_late`
FROM (SELECT *, max(CASE WHEN `_op` <> 'r' THEN unix_micros(`_ts`) END) OVER (PARTITION BY `_topic`, `_partition` ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - 600000000 AS `_mark` FROM changes);

-- composite key: fold
SELECT *, min(`_i`) OVER (PARTITION BY `a`, `b`, `_seq_1`, `_seq_2`, `_op`) AS _last FROM changes;

-- composite key: reconcile
SELECT r.`_op` AS `_op`, r.`a` AS `a`, r.`v` AS `v`, r.`b` AS `b`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_cdc_unsent` AS `_cdc_unsent`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_from_2` AS `_from_2`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t.`a` IS NOT DISTINCT FROM r.`a` AND t.`b` IS NOT DISTINCT FROM r.`b` AND t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2`) THEN 'duplicate'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r;

-- composite key: write
INSERT INTO `target` (`a`, `v`, `b`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`, `_cdc_seq_2`, `_cdc_unsent`)
SELECT s.`a`, s.`v`, s.`b`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`, s.`_cdc_seq_2`, s.`_cdc_unsent`
FROM rows AS s;

-- composite key: reconcile, after a truncate
SELECT r.`_op` AS `_op`, r.`a` AS `a`, r.`v` AS `v`, r.`b` AS `b`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_cdc_unsent` AS `_cdc_unsent`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_from_2` AS `_from_2`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t.`a` IS NOT DISTINCT FROM r.`a` AND t.`b` IS NOT DISTINCT FROM r.`b` AND t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2`) THEN 'duplicate'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r;

-- several sequence elements: late
SELECT *, CASE WHEN `_op` <> 'r' AND unix_micros(`_ts`) < `_mark` THEN 'LATE: its event time ' || CAST(timestamp_micros(unix_micros(`_ts`)) AS STRING) || ' UTC is below the watermark of its partition, ' || CAST(timestamp_micros(`_mark`) AS STRING) || ' UTC. A longer \'watermark\' accepts such changes from now on. `replicator lanes resync LANE` also loads the rejected ones' END AS `_late`
FROM (SELECT *, max(CASE WHEN `_op` <> 'r' THEN unix_micros(`_ts`) END) OVER (PARTITION BY `_topic`, `_partition` ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - 600000000 AS `_mark` FROM changes);

-- several sequence elements: fold
SELECT *, min(`_i`) OVER (PARTITION BY `id`, `_seq_1`, `_seq_2`, `_seq_3`, `_seq_4`, `_op`) AS _last FROM changes;

-- several sequence elements: reconcile
SELECT r.`_op` AS `_op`, r.`id` AS `id`, r.`v` AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_cdc_seq_3` AS `_cdc_seq_3`, r.`_cdc_seq_4` AS `_cdc_seq_4`, r.`_cdc_unsent` AS `_cdc_unsent`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t.`id` IS NOT DISTINCT FROM r.`id` AND t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2` AND t.`_cdc_seq_3` = r.`_cdc_seq_3` AND t.`_cdc_seq_4` = r.`_cdc_seq_4`) THEN 'duplicate'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r;

-- several sequence elements: write
INSERT INTO `target` (`id`, `v`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`, `_cdc_seq_2`, `_cdc_seq_3`, `_cdc_seq_4`, `_cdc_unsent`)
SELECT s.`id`, s.`v`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`, s.`_cdc_seq_2`, s.`_cdc_seq_3`, s.`_cdc_seq_4`, s.`_cdc_unsent`
FROM rows AS s;

-- several sequence elements: reconcile, after a truncate
SELECT r.`_op` AS `_op`, r.`id` AS `id`, r.`v` AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_cdc_seq_3` AS `_cdc_seq_3`, r.`_cdc_seq_4` AS `_cdc_seq_4`, r.`_cdc_unsent` AS `_cdc_unsent`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t.`id` IS NOT DISTINCT FROM r.`id` AND t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2` AND t.`_cdc_seq_3` = r.`_cdc_seq_3` AND t.`_cdc_seq_4` = r.`_cdc_seq_4`) THEN 'duplicate'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r;

-- awkward name: late
SELECT *, CASE WHEN `_op` <> 'r' AND unix_micros(`_ts`) < `_mark` THEN 'LATE: its event time ' || CAST(timestamp_micros(unix_micros(`_ts`)) AS STRING) || ' UTC is below the watermark of its partition, ' || CAST(timestamp_micros(`_mark`) AS STRING) || ' UTC. A longer \'watermark\' accepts such changes from now on. `replicator lanes resync LANE` also loads the rejected ones' END AS `_late`
FROM (SELECT *, max(CASE WHEN `_op` <> 'r' THEN unix_micros(`_ts`) END) OVER (PARTITION BY `_topic`, `_partition` ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - 600000000 AS `_mark` FROM changes);

-- awkward name: fold
SELECT *, min(`_i`) OVER (PARTITION BY `k "1" ``2```, `_seq_1`, `_op`) AS _last FROM changes;

-- awkward name: reconcile
SELECT r.`_op` AS `_op`, r.`k "1" ``2``` AS `k "1" ``2```, r.`v'; \DROP {b}` AS `v'; \DROP {b}`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_unsent` AS `_cdc_unsent`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t.`k "1" ``2``` IS NOT DISTINCT FROM r.`k "1" ``2``` AND t.`_cdc_seq_1` = r.`_cdc_seq_1`) THEN 'duplicate'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r;

-- awkward name: write
INSERT INTO `target` (`k "1" ``2```, `v'; \DROP {b}`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`, `_cdc_unsent`)
SELECT s.`k "1" ``2```, s.`v'; \DROP {b}`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`, s.`_cdc_unsent`
FROM rows AS s;

-- awkward name: reconcile, after a truncate
SELECT r.`_op` AS `_op`, r.`k "1" ``2``` AS `k "1" ``2```, r.`v'; \DROP {b}` AS `v'; \DROP {b}`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_unsent` AS `_cdc_unsent`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t.`k "1" ``2``` IS NOT DISTINCT FROM r.`k "1" ``2``` AND t.`_cdc_seq_1` = r.`_cdc_seq_1`) THEN 'duplicate'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r;

-- no key, counted: late
SELECT *, CASE WHEN `_op` <> 'r' AND unix_micros(`_ts`) < `_mark` THEN 'LATE: its event time ' || CAST(timestamp_micros(unix_micros(`_ts`)) AS STRING) || ' UTC is below the watermark of its partition, ' || CAST(timestamp_micros(`_mark`) AS STRING) || ' UTC. A longer \'watermark\' accepts such changes from now on. `replicator lanes resync LANE` also loads the rejected ones' END AS `_late`
FROM (SELECT *, max(CASE WHEN `_op` <> 'r' THEN unix_micros(`_ts`) END) OVER (PARTITION BY `_topic`, `_partition` ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - 600000000 AS `_mark` FROM changes);

-- no key, counted: fold
SELECT *, min(`_i`) OVER (PARTITION BY `v`, `w`, `_seq_1`, `_seq_2`, `_op`, `_copy`) AS _last FROM (SELECT *, row_number() OVER (PARTITION BY `_reading`, `_topic`, `_partition`, `v`, `w`, `_seq_1`, `_seq_2`, `_op` ORDER BY `_i`) AS `_copy` FROM (SELECT *, sum(`_falls`) OVER (PARTITION BY `_topic`, `_partition` ORDER BY `_i`) AS `_reading` FROM (SELECT *, CASE WHEN struct(`_seq_1`, `_seq_2`, `_seq_3`) <= lag(struct(`_seq_1`, `_seq_2`, `_seq_3`)) OVER (PARTITION BY `_topic`, `_partition` ORDER BY `_i`) THEN 1 ELSE 0 END AS `_falls` FROM changes)));

-- no key, counted: reconcile
SELECT r.`_op` AS `_op`, r.`v` AS `v`, r.`w` AS `w`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_cdc_seq_3` AS `_cdc_seq_3`, r.`_cdc_unsent` AS `_cdc_unsent`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN EXISTS (SELECT 1 FROM related AS t WHERE t.`v` IS NOT DISTINCT FROM r.`v` AND t.`w` IS NOT DISTINCT FROM r.`w` AND t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2` AND t.`_cdc_seq_3` = r.`_cdc_seq_3`) THEN 'duplicate'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r;

-- no key, counted: write
INSERT INTO `target` (`v`, `w`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`, `_cdc_seq_2`, `_cdc_seq_3`, `_cdc_unsent`)
SELECT s.`v`, s.`w`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`, s.`_cdc_seq_2`, s.`_cdc_seq_3`, s.`_cdc_unsent`
FROM rows AS s;

-- no key, counted: reconcile, after a truncate
SELECT r.`_op` AS `_op`, r.`v` AS `v`, r.`w` AS `w`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_cdc_seq_3` AS `_cdc_seq_3`, r.`_cdc_unsent` AS `_cdc_unsent`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN NOT ((r.`_cdc_seq_1` > 7) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` > 8) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` = 8 AND r.`_cdc_seq_3` > 9)) AND (SELECT count(*) FROM related AS t WHERE t.`v` IS NOT DISTINCT FROM r.`v` AND t.`w` IS NOT DISTINCT FROM r.`w` AND t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2`) >= row_number() OVER (PARTITION BY r.`v`, r.`w`, r.`_cdc_seq_1`, r.`_cdc_seq_2` ORDER BY r.`_cdc_seq_3`, r.`_offset`) THEN 'duplicate'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r;
