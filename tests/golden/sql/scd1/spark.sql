-- Policy scd1, spark. See tests/golden/test_sql.py.

-- one key: fold
SELECT * EXCEPT (`_k`, `_f`), CASE WHEN struct(`_seq_1`) = `_k` OR struct(`_seq_1`) = `_f` THEN 'duplicate' WHEN struct(`_seq_1`) < `_k` OR struct(`_seq_1`) < `_f` THEN 'superseded' ELSE 'kept' END AS _outcome FROM (SELECT *, max(struct(`_seq_1`)) OVER (PARTITION BY `id` ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS `_k`, max(CASE WHEN `_op` = 't' THEN struct(`_seq_1`) END) OVER (ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS `_f` FROM changes);

SELECT *, max(CASE WHEN _live THEN `_i` END) OVER (PARTITION BY `id`) AS _last,
  max(CASE WHEN _live THEN CASE WHEN `_op` = 'd' THEN `_i` WHEN `_reset` THEN `_i` - 1 END END) OVER (PARTITION BY `id`) AS _void FROM guarded;

-- one key: reconcile
SELECT r.`_op` AS `_op`, r.`id` AS `id`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`id` IS NULL ELSE (t.`id` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`id` = r.`id`
LEFT JOIN related AS o ON o.`id` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`)))
LEFT JOIN tombstones AS l ON l.`id` = r.`id`;

-- one key: write
MERGE INTO `target` AS t USING rows AS s ON t.`id` = s.`id`
WHEN MATCHED AND ((t.`_cdc_seq_1` IS NULL OR s.`_cdc_seq_1` > t.`_cdc_seq_1`) AND s.`_op` = 'd') THEN DELETE
WHEN MATCHED AND ((t.`_cdc_seq_1` IS NULL OR s.`_cdc_seq_1` > t.`_cdc_seq_1`) AND s.`_op` <> 'd') THEN UPDATE SET `v` = s.`v`, `_cdc_op` = s.`_cdc_op`, `_cdc_ts` = s.`_cdc_ts`, `_event_id` = s.`_event_id`, `_cdc_applied_at` = s.`_cdc_applied_at`, `_cdc_seq_1` = s.`_cdc_seq_1`
WHEN NOT MATCHED AND s.`_op` <> 'd' THEN INSERT (`id`, `v`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`) VALUES (s.`id`, s.`v`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`);

-- one key: names
CREATE SCHEMA IF NOT EXISTS `spark_catalog`.`shop`;

CREATE TABLE `spark_catalog`.`shop`.`it_x0027_s` USING delta COMMENT 'lane `a`.b' LOCATION '/a \'lake\'/it_x0027_s';

-- one key: fold, values that were not sent
SELECT *, max_by(`v`, CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND (`_unsent` IS NULL OR NOT array_contains(`_unsent`, 'v')) THEN `_i` END) OVER (PARTITION BY `id`) AS `_v0`, max(CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND (`_unsent` IS NULL OR NOT array_contains(`_unsent`, 'v')) THEN `_i` END) OVER (PARTITION BY `id`) AS `_p0`, max_by(`_moved_from`, CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND `_moved_from` IS NOT NULL THEN `_i` END) OVER (PARTITION BY `id`) AS `_m`, max(CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND `_unsent` IS NULL THEN `_i` END) OVER (PARTITION BY `id`) AS `_w` FROM windows;

-- one key: reconcile, after a truncate
SELECT r.`_op` AS `_op`, r.`id` AS `id`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7)) THEN 'superseded'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`id` IS NULL ELSE (t.`id` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`id` = r.`id`
LEFT JOIN related AS o ON o.`id` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`)))
LEFT JOIN tombstones AS l ON l.`id` = r.`id`;

-- one key: reconcile, after deletes were forgotten
SELECT r.`_op` AS `_op`, r.`id` AS `id`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7)) AND (t.`id` IS NULL) AND (l.`id` IS NULL) THEN 'late'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`id` IS NULL ELSE (t.`id` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`id` = r.`id`
LEFT JOIN related AS o ON o.`id` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`)))
LEFT JOIN tombstones AS l ON l.`id` = r.`id`;

-- one key: reconcile, after deletes were forgotten, with a truncate
SELECT r.`_op` AS `_op`, r.`id` AS `id`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7)) AND (t.`id` IS NULL OR (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`)))) AND (l.`id` IS NULL OR NOT ((l.`_cdc_seq_1` > 7))) THEN 'late'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`id` IS NULL ELSE (t.`id` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`id` = r.`id`
LEFT JOIN related AS o ON o.`id` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`)))
LEFT JOIN tombstones AS l ON l.`id` = r.`id`;

-- one key: truncate
WHEN NOT MATCHED BY SOURCE AND (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`))) THEN DELETE;

-- composite key: fold
SELECT * EXCEPT (`_k`, `_f`), CASE WHEN struct(`_seq_1`, `_seq_2`) = `_k` OR struct(`_seq_1`, `_seq_2`) = `_f` THEN 'duplicate' WHEN struct(`_seq_1`, `_seq_2`) < `_k` OR struct(`_seq_1`, `_seq_2`) < `_f` THEN 'superseded' ELSE 'kept' END AS _outcome FROM (SELECT *, max(struct(`_seq_1`, `_seq_2`)) OVER (PARTITION BY `a`, `b` ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS `_k`, max(CASE WHEN `_op` = 't' THEN struct(`_seq_1`, `_seq_2`) END) OVER (ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS `_f` FROM changes);

SELECT *, max(CASE WHEN _live THEN `_i` END) OVER (PARTITION BY `a`, `b`) AS _last,
  max(CASE WHEN _live THEN CASE WHEN `_op` = 'd' THEN `_i` WHEN `_reset` THEN `_i` - 1 END END) OVER (PARTITION BY `a`, `b`) AS _void FROM guarded;

-- composite key: reconcile
SELECT r.`_op` AS `_op`, r.`a` AS `a`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_2` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`b` AS `b`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_from_2` AS `_from_2`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` AND r.`_cdc_seq_2` = t.`_cdc_seq_2` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` > r.`_cdc_seq_2`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` AND r.`_cdc_seq_2` = l.`_cdc_seq_2` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` > r.`_cdc_seq_2`)) THEN 'superseded'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_2` IS NOT NULL THEN o.`b` IS NULL ELSE (t.`b` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`a` = r.`a` AND t.`b` = r.`b`
LEFT JOIN related AS o ON o.`a` = r.`_from_1` AND o.`b` = r.`_from_2` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` > o.`_cdc_seq_2`)))
LEFT JOIN tombstones AS l ON l.`a` = r.`a` AND l.`b` = r.`b`;

-- composite key: write
MERGE INTO `target` AS t USING rows AS s ON t.`a` = s.`a` AND t.`b` = s.`b`
WHEN MATCHED AND ((t.`_cdc_seq_1` IS NULL OR (s.`_cdc_seq_1` > t.`_cdc_seq_1` OR (s.`_cdc_seq_1` = t.`_cdc_seq_1` AND s.`_cdc_seq_2` > t.`_cdc_seq_2`))) AND s.`_op` = 'd') THEN DELETE
WHEN MATCHED AND ((t.`_cdc_seq_1` IS NULL OR (s.`_cdc_seq_1` > t.`_cdc_seq_1` OR (s.`_cdc_seq_1` = t.`_cdc_seq_1` AND s.`_cdc_seq_2` > t.`_cdc_seq_2`))) AND s.`_op` <> 'd') THEN UPDATE SET `v` = s.`v`, `_cdc_op` = s.`_cdc_op`, `_cdc_ts` = s.`_cdc_ts`, `_event_id` = s.`_event_id`, `_cdc_applied_at` = s.`_cdc_applied_at`, `_cdc_seq_1` = s.`_cdc_seq_1`, `_cdc_seq_2` = s.`_cdc_seq_2`
WHEN NOT MATCHED AND s.`_op` <> 'd' THEN INSERT (`a`, `v`, `b`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`, `_cdc_seq_2`) VALUES (s.`a`, s.`v`, s.`b`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`, s.`_cdc_seq_2`);

-- composite key: fold, values that were not sent
SELECT *, max_by(`v`, CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND (`_unsent` IS NULL OR NOT array_contains(`_unsent`, 'v')) THEN `_i` END) OVER (PARTITION BY `a`, `b`) AS `_v0`, max(CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND (`_unsent` IS NULL OR NOT array_contains(`_unsent`, 'v')) THEN `_i` END) OVER (PARTITION BY `a`, `b`) AS `_p0`, max_by(`_moved_from`, CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND `_moved_from` IS NOT NULL THEN `_i` END) OVER (PARTITION BY `a`, `b`) AS `_m`, max(CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND `_unsent` IS NULL THEN `_i` END) OVER (PARTITION BY `a`, `b`) AS `_w` FROM windows;

-- composite key: reconcile, after a truncate
SELECT r.`_op` AS `_op`, r.`a` AS `a`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_2` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`b` AS `b`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_from_2` AS `_from_2`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` AND r.`_cdc_seq_2` = t.`_cdc_seq_2` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` > r.`_cdc_seq_2`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` AND r.`_cdc_seq_2` = l.`_cdc_seq_2` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` > r.`_cdc_seq_2`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` > 8)) THEN 'superseded'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_2` IS NOT NULL THEN o.`b` IS NULL ELSE (t.`b` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`a` = r.`a` AND t.`b` = r.`b`
LEFT JOIN related AS o ON o.`a` = r.`_from_1` AND o.`b` = r.`_from_2` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` > o.`_cdc_seq_2`)))
LEFT JOIN tombstones AS l ON l.`a` = r.`a` AND l.`b` = r.`b`;

-- composite key: reconcile, after deletes were forgotten
SELECT r.`_op` AS `_op`, r.`a` AS `a`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_2` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`b` AS `b`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_from_2` AS `_from_2`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` AND r.`_cdc_seq_2` = t.`_cdc_seq_2` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` > r.`_cdc_seq_2`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` AND r.`_cdc_seq_2` = l.`_cdc_seq_2` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` > r.`_cdc_seq_2`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` > 8)) AND (t.`a` IS NULL) AND (l.`a` IS NULL) THEN 'late'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_2` IS NOT NULL THEN o.`b` IS NULL ELSE (t.`b` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`a` = r.`a` AND t.`b` = r.`b`
LEFT JOIN related AS o ON o.`a` = r.`_from_1` AND o.`b` = r.`_from_2` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` > o.`_cdc_seq_2`)))
LEFT JOIN tombstones AS l ON l.`a` = r.`a` AND l.`b` = r.`b`;

-- composite key: reconcile, after deletes were forgotten, with a truncate
SELECT r.`_op` AS `_op`, r.`a` AS `a`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_2` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`b` AS `b`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_from_2` AS `_from_2`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` AND r.`_cdc_seq_2` = t.`_cdc_seq_2` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` > r.`_cdc_seq_2`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` AND r.`_cdc_seq_2` = l.`_cdc_seq_2` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` > r.`_cdc_seq_2`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` > 8)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` > 8)) AND (t.`a` IS NULL OR (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`) OR (7 = t.`_cdc_seq_1` AND 8 > t.`_cdc_seq_2`)))) AND (l.`a` IS NULL OR NOT ((l.`_cdc_seq_1` > 7) OR (l.`_cdc_seq_1` = 7 AND l.`_cdc_seq_2` > 8))) THEN 'late'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_2` IS NOT NULL THEN o.`b` IS NULL ELSE (t.`b` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`a` = r.`a` AND t.`b` = r.`b`
LEFT JOIN related AS o ON o.`a` = r.`_from_1` AND o.`b` = r.`_from_2` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` > o.`_cdc_seq_2`)))
LEFT JOIN tombstones AS l ON l.`a` = r.`a` AND l.`b` = r.`b`;

-- composite key: truncate
WHEN NOT MATCHED BY SOURCE AND (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`) OR (7 = t.`_cdc_seq_1` AND 8 > t.`_cdc_seq_2`))) THEN DELETE;

-- several sequence elements: fold
SELECT * EXCEPT (`_k`, `_f`), CASE WHEN struct(`_seq_1`, `_seq_2`, `_seq_3`, `_seq_4`) = `_k` OR struct(`_seq_1`, `_seq_2`, `_seq_3`, `_seq_4`) = `_f` THEN 'duplicate' WHEN struct(`_seq_1`, `_seq_2`, `_seq_3`, `_seq_4`) < `_k` OR struct(`_seq_1`, `_seq_2`, `_seq_3`, `_seq_4`) < `_f` THEN 'superseded' ELSE 'kept' END AS _outcome FROM (SELECT *, max(struct(`_seq_1`, `_seq_2`, `_seq_3`, `_seq_4`)) OVER (PARTITION BY `id` ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS `_k`, max(CASE WHEN `_op` = 't' THEN struct(`_seq_1`, `_seq_2`, `_seq_3`, `_seq_4`) END) OVER (ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS `_f` FROM changes);

SELECT *, max(CASE WHEN _live THEN `_i` END) OVER (PARTITION BY `id`) AS _last,
  max(CASE WHEN _live THEN CASE WHEN `_op` = 'd' THEN `_i` WHEN `_reset` THEN `_i` - 1 END END) OVER (PARTITION BY `id`) AS _void FROM guarded;

-- several sequence elements: reconcile
SELECT r.`_op` AS `_op`, r.`id` AS `id`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_cdc_seq_3` AS `_cdc_seq_3`, r.`_cdc_seq_4` AS `_cdc_seq_4`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` AND r.`_cdc_seq_2` = t.`_cdc_seq_2` AND r.`_cdc_seq_3` = t.`_cdc_seq_3` AND r.`_cdc_seq_4` = t.`_cdc_seq_4` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` > r.`_cdc_seq_2`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2` AND t.`_cdc_seq_3` > r.`_cdc_seq_3`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2` AND t.`_cdc_seq_3` = r.`_cdc_seq_3` AND t.`_cdc_seq_4` > r.`_cdc_seq_4`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` AND r.`_cdc_seq_2` = l.`_cdc_seq_2` AND r.`_cdc_seq_3` = l.`_cdc_seq_3` AND r.`_cdc_seq_4` = l.`_cdc_seq_4` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` > r.`_cdc_seq_2`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` = r.`_cdc_seq_2` AND l.`_cdc_seq_3` > r.`_cdc_seq_3`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` = r.`_cdc_seq_2` AND l.`_cdc_seq_3` = r.`_cdc_seq_3` AND l.`_cdc_seq_4` > r.`_cdc_seq_4`)) THEN 'superseded'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`id` IS NULL ELSE (t.`id` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`id` = r.`id`
LEFT JOIN related AS o ON o.`id` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` > o.`_cdc_seq_2`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` = o.`_cdc_seq_2` AND r.`_cdc_seq_3` > o.`_cdc_seq_3`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` = o.`_cdc_seq_2` AND r.`_cdc_seq_3` = o.`_cdc_seq_3` AND r.`_cdc_seq_4` > o.`_cdc_seq_4`)))
LEFT JOIN tombstones AS l ON l.`id` = r.`id`;

-- several sequence elements: write
MERGE INTO `target` AS t USING rows AS s ON t.`id` = s.`id`
WHEN MATCHED AND ((t.`_cdc_seq_1` IS NULL OR (s.`_cdc_seq_1` > t.`_cdc_seq_1` OR (s.`_cdc_seq_1` = t.`_cdc_seq_1` AND s.`_cdc_seq_2` > t.`_cdc_seq_2`) OR (s.`_cdc_seq_1` = t.`_cdc_seq_1` AND s.`_cdc_seq_2` = t.`_cdc_seq_2` AND s.`_cdc_seq_3` > t.`_cdc_seq_3`) OR (s.`_cdc_seq_1` = t.`_cdc_seq_1` AND s.`_cdc_seq_2` = t.`_cdc_seq_2` AND s.`_cdc_seq_3` = t.`_cdc_seq_3` AND s.`_cdc_seq_4` > t.`_cdc_seq_4`))) AND s.`_op` = 'd') THEN DELETE
WHEN MATCHED AND ((t.`_cdc_seq_1` IS NULL OR (s.`_cdc_seq_1` > t.`_cdc_seq_1` OR (s.`_cdc_seq_1` = t.`_cdc_seq_1` AND s.`_cdc_seq_2` > t.`_cdc_seq_2`) OR (s.`_cdc_seq_1` = t.`_cdc_seq_1` AND s.`_cdc_seq_2` = t.`_cdc_seq_2` AND s.`_cdc_seq_3` > t.`_cdc_seq_3`) OR (s.`_cdc_seq_1` = t.`_cdc_seq_1` AND s.`_cdc_seq_2` = t.`_cdc_seq_2` AND s.`_cdc_seq_3` = t.`_cdc_seq_3` AND s.`_cdc_seq_4` > t.`_cdc_seq_4`))) AND s.`_op` <> 'd') THEN UPDATE SET `v` = s.`v`, `_cdc_op` = s.`_cdc_op`, `_cdc_ts` = s.`_cdc_ts`, `_event_id` = s.`_event_id`, `_cdc_applied_at` = s.`_cdc_applied_at`, `_cdc_seq_1` = s.`_cdc_seq_1`, `_cdc_seq_2` = s.`_cdc_seq_2`, `_cdc_seq_3` = s.`_cdc_seq_3`, `_cdc_seq_4` = s.`_cdc_seq_4`
WHEN NOT MATCHED AND s.`_op` <> 'd' THEN INSERT (`id`, `v`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`, `_cdc_seq_2`, `_cdc_seq_3`, `_cdc_seq_4`) VALUES (s.`id`, s.`v`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`, s.`_cdc_seq_2`, s.`_cdc_seq_3`, s.`_cdc_seq_4`);

-- several sequence elements: fold, values that were not sent
SELECT *, max_by(`v`, CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND (`_unsent` IS NULL OR NOT array_contains(`_unsent`, 'v')) THEN `_i` END) OVER (PARTITION BY `id`) AS `_v0`, max(CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND (`_unsent` IS NULL OR NOT array_contains(`_unsent`, 'v')) THEN `_i` END) OVER (PARTITION BY `id`) AS `_p0`, max_by(`_moved_from`, CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND `_moved_from` IS NOT NULL THEN `_i` END) OVER (PARTITION BY `id`) AS `_m`, max(CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND `_unsent` IS NULL THEN `_i` END) OVER (PARTITION BY `id`) AS `_w` FROM windows;

-- several sequence elements: reconcile, after a truncate
SELECT r.`_op` AS `_op`, r.`id` AS `id`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_cdc_seq_3` AS `_cdc_seq_3`, r.`_cdc_seq_4` AS `_cdc_seq_4`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` AND r.`_cdc_seq_2` = t.`_cdc_seq_2` AND r.`_cdc_seq_3` = t.`_cdc_seq_3` AND r.`_cdc_seq_4` = t.`_cdc_seq_4` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` > r.`_cdc_seq_2`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2` AND t.`_cdc_seq_3` > r.`_cdc_seq_3`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2` AND t.`_cdc_seq_3` = r.`_cdc_seq_3` AND t.`_cdc_seq_4` > r.`_cdc_seq_4`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` AND r.`_cdc_seq_2` = l.`_cdc_seq_2` AND r.`_cdc_seq_3` = l.`_cdc_seq_3` AND r.`_cdc_seq_4` = l.`_cdc_seq_4` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` > r.`_cdc_seq_2`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` = r.`_cdc_seq_2` AND l.`_cdc_seq_3` > r.`_cdc_seq_3`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` = r.`_cdc_seq_2` AND l.`_cdc_seq_3` = r.`_cdc_seq_3` AND l.`_cdc_seq_4` > r.`_cdc_seq_4`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` > 8) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` = 8 AND r.`_cdc_seq_3` > 9) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` = 8 AND r.`_cdc_seq_3` = 9 AND r.`_cdc_seq_4` > 10)) THEN 'superseded'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`id` IS NULL ELSE (t.`id` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`id` = r.`id`
LEFT JOIN related AS o ON o.`id` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` > o.`_cdc_seq_2`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` = o.`_cdc_seq_2` AND r.`_cdc_seq_3` > o.`_cdc_seq_3`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` = o.`_cdc_seq_2` AND r.`_cdc_seq_3` = o.`_cdc_seq_3` AND r.`_cdc_seq_4` > o.`_cdc_seq_4`)))
LEFT JOIN tombstones AS l ON l.`id` = r.`id`;

-- several sequence elements: reconcile, after deletes were forgotten
SELECT r.`_op` AS `_op`, r.`id` AS `id`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_cdc_seq_3` AS `_cdc_seq_3`, r.`_cdc_seq_4` AS `_cdc_seq_4`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` AND r.`_cdc_seq_2` = t.`_cdc_seq_2` AND r.`_cdc_seq_3` = t.`_cdc_seq_3` AND r.`_cdc_seq_4` = t.`_cdc_seq_4` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` > r.`_cdc_seq_2`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2` AND t.`_cdc_seq_3` > r.`_cdc_seq_3`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2` AND t.`_cdc_seq_3` = r.`_cdc_seq_3` AND t.`_cdc_seq_4` > r.`_cdc_seq_4`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` AND r.`_cdc_seq_2` = l.`_cdc_seq_2` AND r.`_cdc_seq_3` = l.`_cdc_seq_3` AND r.`_cdc_seq_4` = l.`_cdc_seq_4` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` > r.`_cdc_seq_2`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` = r.`_cdc_seq_2` AND l.`_cdc_seq_3` > r.`_cdc_seq_3`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` = r.`_cdc_seq_2` AND l.`_cdc_seq_3` = r.`_cdc_seq_3` AND l.`_cdc_seq_4` > r.`_cdc_seq_4`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` > 8) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` = 8 AND r.`_cdc_seq_3` > 9) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` = 8 AND r.`_cdc_seq_3` = 9 AND r.`_cdc_seq_4` > 10)) AND (t.`id` IS NULL) AND (l.`id` IS NULL) THEN 'late'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`id` IS NULL ELSE (t.`id` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`id` = r.`id`
LEFT JOIN related AS o ON o.`id` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` > o.`_cdc_seq_2`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` = o.`_cdc_seq_2` AND r.`_cdc_seq_3` > o.`_cdc_seq_3`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` = o.`_cdc_seq_2` AND r.`_cdc_seq_3` = o.`_cdc_seq_3` AND r.`_cdc_seq_4` > o.`_cdc_seq_4`)))
LEFT JOIN tombstones AS l ON l.`id` = r.`id`;

-- several sequence elements: reconcile, after deletes were forgotten, with a truncate
SELECT r.`_op` AS `_op`, r.`id` AS `id`, CASE WHEN array_contains(r.`_unsent`, 'v') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v` ELSE t.`v` END ELSE r.`v` END AS `v`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_cdc_seq_2` AS `_cdc_seq_2`, r.`_cdc_seq_3` AS `_cdc_seq_3`, r.`_cdc_seq_4` AS `_cdc_seq_4`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` AND r.`_cdc_seq_2` = t.`_cdc_seq_2` AND r.`_cdc_seq_3` = t.`_cdc_seq_3` AND r.`_cdc_seq_4` = t.`_cdc_seq_4` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` > r.`_cdc_seq_2`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2` AND t.`_cdc_seq_3` > r.`_cdc_seq_3`) OR (t.`_cdc_seq_1` = r.`_cdc_seq_1` AND t.`_cdc_seq_2` = r.`_cdc_seq_2` AND t.`_cdc_seq_3` = r.`_cdc_seq_3` AND t.`_cdc_seq_4` > r.`_cdc_seq_4`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` AND r.`_cdc_seq_2` = l.`_cdc_seq_2` AND r.`_cdc_seq_3` = l.`_cdc_seq_3` AND r.`_cdc_seq_4` = l.`_cdc_seq_4` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` > r.`_cdc_seq_2`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` = r.`_cdc_seq_2` AND l.`_cdc_seq_3` > r.`_cdc_seq_3`) OR (l.`_cdc_seq_1` = r.`_cdc_seq_1` AND l.`_cdc_seq_2` = r.`_cdc_seq_2` AND l.`_cdc_seq_3` = r.`_cdc_seq_3` AND l.`_cdc_seq_4` > r.`_cdc_seq_4`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` > 8) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` = 8 AND r.`_cdc_seq_3` > 9) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` = 8 AND r.`_cdc_seq_3` = 9 AND r.`_cdc_seq_4` > 10)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` > 8) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` = 8 AND r.`_cdc_seq_3` > 9) OR (r.`_cdc_seq_1` = 7 AND r.`_cdc_seq_2` = 8 AND r.`_cdc_seq_3` = 9 AND r.`_cdc_seq_4` > 10)) AND (t.`id` IS NULL OR (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`) OR (7 = t.`_cdc_seq_1` AND 8 > t.`_cdc_seq_2`) OR (7 = t.`_cdc_seq_1` AND 8 = t.`_cdc_seq_2` AND 9 > t.`_cdc_seq_3`) OR (7 = t.`_cdc_seq_1` AND 8 = t.`_cdc_seq_2` AND 9 = t.`_cdc_seq_3` AND 10 > t.`_cdc_seq_4`)))) AND (l.`id` IS NULL OR NOT ((l.`_cdc_seq_1` > 7) OR (l.`_cdc_seq_1` = 7 AND l.`_cdc_seq_2` > 8) OR (l.`_cdc_seq_1` = 7 AND l.`_cdc_seq_2` = 8 AND l.`_cdc_seq_3` > 9) OR (l.`_cdc_seq_1` = 7 AND l.`_cdc_seq_2` = 8 AND l.`_cdc_seq_3` = 9 AND l.`_cdc_seq_4` > 10))) THEN 'late'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`id` IS NULL ELSE (t.`id` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`id` = r.`id`
LEFT JOIN related AS o ON o.`id` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` > o.`_cdc_seq_2`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` = o.`_cdc_seq_2` AND r.`_cdc_seq_3` > o.`_cdc_seq_3`) OR (r.`_cdc_seq_1` = o.`_cdc_seq_1` AND r.`_cdc_seq_2` = o.`_cdc_seq_2` AND r.`_cdc_seq_3` = o.`_cdc_seq_3` AND r.`_cdc_seq_4` > o.`_cdc_seq_4`)))
LEFT JOIN tombstones AS l ON l.`id` = r.`id`;

-- several sequence elements: truncate
WHEN NOT MATCHED BY SOURCE AND (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`) OR (7 = t.`_cdc_seq_1` AND 8 > t.`_cdc_seq_2`) OR (7 = t.`_cdc_seq_1` AND 8 = t.`_cdc_seq_2` AND 9 > t.`_cdc_seq_3`) OR (7 = t.`_cdc_seq_1` AND 8 = t.`_cdc_seq_2` AND 9 = t.`_cdc_seq_3` AND 10 > t.`_cdc_seq_4`))) THEN DELETE;

-- awkward name: fold
SELECT * EXCEPT (`_k`, `_f`), CASE WHEN struct(`_seq_1`) = `_k` OR struct(`_seq_1`) = `_f` THEN 'duplicate' WHEN struct(`_seq_1`) < `_k` OR struct(`_seq_1`) < `_f` THEN 'superseded' ELSE 'kept' END AS _outcome FROM (SELECT *, max(struct(`_seq_1`)) OVER (PARTITION BY `k "1" ``2``` ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS `_k`, max(CASE WHEN `_op` = 't' THEN struct(`_seq_1`) END) OVER (ORDER BY `_i` ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS `_f` FROM changes);

SELECT *, max(CASE WHEN _live THEN `_i` END) OVER (PARTITION BY `k "1" ``2```) AS _last,
  max(CASE WHEN _live THEN CASE WHEN `_op` = 'd' THEN `_i` WHEN `_reset` THEN `_i` - 1 END END) OVER (PARTITION BY `k "1" ``2```) AS _void FROM guarded;

-- awkward name: reconcile
SELECT r.`_op` AS `_op`, r.`k "1" ``2``` AS `k "1" ``2```, CASE WHEN array_contains(r.`_unsent`, 'v\'; \\DROP {b}') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v'; \DROP {b}` ELSE t.`v'; \DROP {b}` END ELSE r.`v'; \DROP {b}` END AS `v'; \DROP {b}`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`k "1" ``2``` IS NULL ELSE (t.`k "1" ``2``` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`k "1" ``2``` = r.`k "1" ``2```
LEFT JOIN related AS o ON o.`k "1" ``2``` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`)))
LEFT JOIN tombstones AS l ON l.`k "1" ``2``` = r.`k "1" ``2```;

-- awkward name: write
MERGE INTO `target` AS t USING rows AS s ON t.`k "1" ``2``` = s.`k "1" ``2```
WHEN MATCHED AND ((t.`_cdc_seq_1` IS NULL OR s.`_cdc_seq_1` > t.`_cdc_seq_1`) AND s.`_op` = 'd') THEN DELETE
WHEN MATCHED AND ((t.`_cdc_seq_1` IS NULL OR s.`_cdc_seq_1` > t.`_cdc_seq_1`) AND s.`_op` <> 'd') THEN UPDATE SET `v'; \DROP {b}` = s.`v'; \DROP {b}`, `_cdc_op` = s.`_cdc_op`, `_cdc_ts` = s.`_cdc_ts`, `_event_id` = s.`_event_id`, `_cdc_applied_at` = s.`_cdc_applied_at`, `_cdc_seq_1` = s.`_cdc_seq_1`
WHEN NOT MATCHED AND s.`_op` <> 'd' THEN INSERT (`k "1" ``2```, `v'; \DROP {b}`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`) VALUES (s.`k "1" ``2```, s.`v'; \DROP {b}`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`);

-- awkward name: fold, values that were not sent
SELECT *, max_by(`v'; \DROP {b}`, CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND (`_unsent` IS NULL OR NOT array_contains(`_unsent`, 'v\'; \\DROP {b}')) THEN `_i` END) OVER (PARTITION BY `k "1" ``2```) AS `_v0`, max(CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND (`_unsent` IS NULL OR NOT array_contains(`_unsent`, 'v\'; \\DROP {b}')) THEN `_i` END) OVER (PARTITION BY `k "1" ``2```) AS `_p0`, max_by(`_moved_from`, CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND `_moved_from` IS NOT NULL THEN `_i` END) OVER (PARTITION BY `k "1" ``2```) AS `_m`, max(CASE WHEN _live AND `_i` > COALESCE(_void, -1) AND `_unsent` IS NULL THEN `_i` END) OVER (PARTITION BY `k "1" ``2```) AS `_w` FROM windows;

-- awkward name: reconcile, after a truncate
SELECT r.`_op` AS `_op`, r.`k "1" ``2``` AS `k "1" ``2```, CASE WHEN array_contains(r.`_unsent`, 'v\'; \\DROP {b}') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v'; \DROP {b}` ELSE t.`v'; \DROP {b}` END ELSE r.`v'; \DROP {b}` END AS `v'; \DROP {b}`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7)) THEN 'superseded'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`k "1" ``2``` IS NULL ELSE (t.`k "1" ``2``` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`k "1" ``2``` = r.`k "1" ``2```
LEFT JOIN related AS o ON o.`k "1" ``2``` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`)))
LEFT JOIN tombstones AS l ON l.`k "1" ``2``` = r.`k "1" ``2```;

-- awkward name: reconcile, after deletes were forgotten
SELECT r.`_op` AS `_op`, r.`k "1" ``2``` AS `k "1" ``2```, CASE WHEN array_contains(r.`_unsent`, 'v\'; \\DROP {b}') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v'; \DROP {b}` ELSE t.`v'; \DROP {b}` END ELSE r.`v'; \DROP {b}` END AS `v'; \DROP {b}`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7)) AND (t.`k "1" ``2``` IS NULL) AND (l.`k "1" ``2``` IS NULL) THEN 'late'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`k "1" ``2``` IS NULL ELSE (t.`k "1" ``2``` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`k "1" ``2``` = r.`k "1" ``2```
LEFT JOIN related AS o ON o.`k "1" ``2``` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`)))
LEFT JOIN tombstones AS l ON l.`k "1" ``2``` = r.`k "1" ``2```;

-- awkward name: reconcile, after deletes were forgotten, with a truncate
SELECT r.`_op` AS `_op`, r.`k "1" ``2``` AS `k "1" ``2```, CASE WHEN array_contains(r.`_unsent`, 'v\'; \\DROP {b}') THEN CASE WHEN r.`_from_1` IS NOT NULL THEN o.`v'; \DROP {b}` ELSE t.`v'; \DROP {b}` END ELSE r.`v'; \DROP {b}` END AS `v'; \DROP {b}`, r.`_cdc_op` AS `_cdc_op`, r.`_cdc_ts` AS `_cdc_ts`, r.`_event_id` AS `_event_id`, r.`_cdc_applied_at` AS `_cdc_applied_at`, r.`_cdc_seq_1` AS `_cdc_seq_1`, r.`_unsent` AS `_unsent`, r.`_reset` AS `_reset`, r.`_from_1` AS `_from_1`, r.`_topic` AS `_topic`, r.`_partition` AS `_partition`, r.`_offset` AS `_offset`,
CASE
  WHEN r.`_cdc_seq_1` = t.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((t.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN r.`_cdc_seq_1` = l.`_cdc_seq_1` THEN 'duplicate'
  WHEN ((l.`_cdc_seq_1` > r.`_cdc_seq_1`)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7)) THEN 'superseded'
  WHEN NOT ((r.`_cdc_seq_1` > 7)) AND (t.`k "1" ``2``` IS NULL OR (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`)))) AND (l.`k "1" ``2``` IS NULL OR NOT ((l.`_cdc_seq_1` > 7))) THEN 'late'
  WHEN r.`_op` <> 'd' AND r.`_unsent` IS NOT NULL AND CASE WHEN r.`_from_1` IS NOT NULL THEN o.`k "1" ``2``` IS NULL ELSE (t.`k "1" ``2``` IS NULL OR COALESCE(r.`_reset`, FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS `_verdict`
FROM folded AS r
LEFT JOIN related AS t ON t.`k "1" ``2``` = r.`k "1" ``2```
LEFT JOIN related AS o ON o.`k "1" ``2``` = r.`_from_1` AND (o.`_cdc_seq_1` IS NULL OR ((r.`_cdc_seq_1` > o.`_cdc_seq_1`)))
LEFT JOIN tombstones AS l ON l.`k "1" ``2``` = r.`k "1" ``2```;

-- awkward name: truncate
WHEN NOT MATCHED BY SOURCE AND (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`))) THEN DELETE;

-- no key, counted: table public.t has no key, which policy scd1 needs
