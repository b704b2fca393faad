-- Policy scd1-by-column, spark. See tests/golden/test_sql.py.

-- one key: fold
SELECT *, min(`_i`) OVER (PARTITION BY `id`, `_seq_1`, `_op`) AS _last FROM changes;

-- one key: reconcile
WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT e._row, CASE
  WHEN e._op = 't' AND e._rank > e.cleared THEN 'apply'
  WHEN e._op = 't' THEN CASE WHEN e._rank = e.cleared THEN 'duplicate' ELSE 'superseded' END
  WHEN e._rank <= greatest(e.deleted, e.cleared) THEN CASE WHEN e._rank = e.deleted THEN 'duplicate' ELSE 'superseded' END
  WHEN e._op = 'd' OR e._rank > greatest(e.top, coalesce(e.row_rank, -1)) OR coalesce(w.wins, FALSE) THEN 'apply'
  WHEN e._rank IN (e.top, e.row_rank) OR coalesce(w.equals, FALSE) THEN 'duplicate'
  ELSE 'superseded' END AS verdict
FROM events AS e LEFT JOIN (
  SELECT _row, bool_or(_rank > greatest(coalesce(known, -1), coalesce(before, -1))) AS wins,
    bool_or(coalesce(_rank = known, FALSE) OR coalesce(_rank = before, FALSE)) AS equals FROM cells GROUP BY _row
) AS w ON w._row = e._row ORDER BY e._row;

WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT e._key, e.deleted, e.cleared, e.row_rank, min(c._row) AS any_row,
  CASE WHEN e.row_rank > greatest(e.deleted, e.cleared) THEN e.row_rank END AS alive,
  max(CASE WHEN c._op IN ('c', 'u', 'r') AND c._rank > greatest(e.deleted, e.cleared) THEN c._rank END) AS top,
  arg_max(c._row, c._rank) FILTER (WHERE c._op IN ('c', 'u', 'r') AND c._rank > greatest(e.deleted, e.cleared)) AS top_row
FROM ends AS e LEFT JOIN changes AS c ON c._key = e._key GROUP BY e._key, e.deleted, e.cleared, e.row_rank ORDER BY e._key;

WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT k._key, k.idx, p.place,
  CASE WHEN p.place IS NOT NULL THEN p.rank WHEN k.rank > greatest(e.deleted, e.cleared) THEN k.rank END AS rank
FROM columns AS k JOIN ends AS e ON e._key = k._key LEFT JOIN (
  SELECT c._key, c.idx, max(c._rank) AS rank, arg_max(c._row, c._rank) AS place
  FROM cells AS c JOIN ends AS e ON e._key = c._key
  WHERE c._rank > greatest(e.deleted, e.cleared) AND (c.known IS NULL OR c._rank > c.known) GROUP BY c._key, c.idx
) AS p ON p._key = k._key AND p.idx = k.idx ORDER BY k._key, k.idx;

-- one key: write
MERGE INTO `target` AS t USING rows AS s ON t.`id` = s.`id`
WHEN MATCHED AND s.`_op` = 'd' THEN DELETE
WHEN MATCHED AND s.`_op` <> 'd' THEN UPDATE SET `v` = CASE WHEN array_contains(s.`_unsent`, 'v') THEN t.`v` ELSE s.`v` END, `_cdc_op` = CASE WHEN array_contains(s.`_unsent`, '_cdc_op') THEN t.`_cdc_op` ELSE s.`_cdc_op` END, `_cdc_ts` = CASE WHEN array_contains(s.`_unsent`, '_cdc_ts') THEN t.`_cdc_ts` ELSE s.`_cdc_ts` END, `_event_id` = CASE WHEN array_contains(s.`_unsent`, '_event_id') THEN t.`_event_id` ELSE s.`_event_id` END, `_cdc_applied_at` = s.`_cdc_applied_at`, `_cdc_seq_1` = CASE WHEN array_contains(s.`_unsent`, '_cdc_seq_1') THEN t.`_cdc_seq_1` ELSE s.`_cdc_seq_1` END, `_cdc_unsent` = s.`_cdc_unsent`
WHEN NOT MATCHED AND s.`_op` <> 'd' THEN INSERT (`id`, `v`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`, `_cdc_unsent`) VALUES (s.`id`, s.`v`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`, s.`_cdc_unsent`);

-- one key: names
CREATE SCHEMA IF NOT EXISTS `spark_catalog`.`shop`;

CREATE TABLE `spark_catalog`.`shop`.`it_x0027_s` USING delta COMMENT 'lane `a`.b' LOCATION '/a \'lake\'/it_x0027_s';

-- one key: truncate
WHEN NOT MATCHED BY SOURCE AND (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`))) THEN DELETE;

-- composite key: fold
SELECT *, min(`_i`) OVER (PARTITION BY `a`, `b`, `_seq_1`, `_seq_2`, `_op`) AS _last FROM changes;

-- composite key: reconcile
WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT e._row, CASE
  WHEN e._op = 't' AND e._rank > e.cleared THEN 'apply'
  WHEN e._op = 't' THEN CASE WHEN e._rank = e.cleared THEN 'duplicate' ELSE 'superseded' END
  WHEN e._rank <= greatest(e.deleted, e.cleared) THEN CASE WHEN e._rank = e.deleted THEN 'duplicate' ELSE 'superseded' END
  WHEN e._op = 'd' OR e._rank > greatest(e.top, coalesce(e.row_rank, -1)) OR coalesce(w.wins, FALSE) THEN 'apply'
  WHEN e._rank IN (e.top, e.row_rank) OR coalesce(w.equals, FALSE) THEN 'duplicate'
  ELSE 'superseded' END AS verdict
FROM events AS e LEFT JOIN (
  SELECT _row, bool_or(_rank > greatest(coalesce(known, -1), coalesce(before, -1))) AS wins,
    bool_or(coalesce(_rank = known, FALSE) OR coalesce(_rank = before, FALSE)) AS equals FROM cells GROUP BY _row
) AS w ON w._row = e._row ORDER BY e._row;

WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT e._key, e.deleted, e.cleared, e.row_rank, min(c._row) AS any_row,
  CASE WHEN e.row_rank > greatest(e.deleted, e.cleared) THEN e.row_rank END AS alive,
  max(CASE WHEN c._op IN ('c', 'u', 'r') AND c._rank > greatest(e.deleted, e.cleared) THEN c._rank END) AS top,
  arg_max(c._row, c._rank) FILTER (WHERE c._op IN ('c', 'u', 'r') AND c._rank > greatest(e.deleted, e.cleared)) AS top_row
FROM ends AS e LEFT JOIN changes AS c ON c._key = e._key GROUP BY e._key, e.deleted, e.cleared, e.row_rank ORDER BY e._key;

WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT k._key, k.idx, p.place,
  CASE WHEN p.place IS NOT NULL THEN p.rank WHEN k.rank > greatest(e.deleted, e.cleared) THEN k.rank END AS rank
FROM columns AS k JOIN ends AS e ON e._key = k._key LEFT JOIN (
  SELECT c._key, c.idx, max(c._rank) AS rank, arg_max(c._row, c._rank) AS place
  FROM cells AS c JOIN ends AS e ON e._key = c._key
  WHERE c._rank > greatest(e.deleted, e.cleared) AND (c.known IS NULL OR c._rank > c.known) GROUP BY c._key, c.idx
) AS p ON p._key = k._key AND p.idx = k.idx ORDER BY k._key, k.idx;

-- composite key: write
MERGE INTO `target` AS t USING rows AS s ON t.`a` = s.`a` AND t.`b` = s.`b`
WHEN MATCHED AND s.`_op` = 'd' THEN DELETE
WHEN MATCHED AND s.`_op` <> 'd' THEN UPDATE SET `v` = CASE WHEN array_contains(s.`_unsent`, 'v') THEN t.`v` ELSE s.`v` END, `_cdc_op` = CASE WHEN array_contains(s.`_unsent`, '_cdc_op') THEN t.`_cdc_op` ELSE s.`_cdc_op` END, `_cdc_ts` = CASE WHEN array_contains(s.`_unsent`, '_cdc_ts') THEN t.`_cdc_ts` ELSE s.`_cdc_ts` END, `_event_id` = CASE WHEN array_contains(s.`_unsent`, '_event_id') THEN t.`_event_id` ELSE s.`_event_id` END, `_cdc_applied_at` = s.`_cdc_applied_at`, `_cdc_seq_1` = CASE WHEN array_contains(s.`_unsent`, '_cdc_seq_1') THEN t.`_cdc_seq_1` ELSE s.`_cdc_seq_1` END, `_cdc_seq_2` = CASE WHEN array_contains(s.`_unsent`, '_cdc_seq_2') THEN t.`_cdc_seq_2` ELSE s.`_cdc_seq_2` END, `_cdc_unsent` = s.`_cdc_unsent`
WHEN NOT MATCHED AND s.`_op` <> 'd' THEN INSERT (`a`, `v`, `b`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`, `_cdc_seq_2`, `_cdc_unsent`) VALUES (s.`a`, s.`v`, s.`b`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`, s.`_cdc_seq_2`, s.`_cdc_unsent`);

-- composite key: truncate
WHEN NOT MATCHED BY SOURCE AND (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`) OR (7 = t.`_cdc_seq_1` AND 8 > t.`_cdc_seq_2`))) THEN DELETE;

-- several sequence elements: fold
SELECT *, min(`_i`) OVER (PARTITION BY `id`, `_seq_1`, `_seq_2`, `_seq_3`, `_seq_4`, `_op`) AS _last FROM changes;

-- several sequence elements: reconcile
WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT e._row, CASE
  WHEN e._op = 't' AND e._rank > e.cleared THEN 'apply'
  WHEN e._op = 't' THEN CASE WHEN e._rank = e.cleared THEN 'duplicate' ELSE 'superseded' END
  WHEN e._rank <= greatest(e.deleted, e.cleared) THEN CASE WHEN e._rank = e.deleted THEN 'duplicate' ELSE 'superseded' END
  WHEN e._op = 'd' OR e._rank > greatest(e.top, coalesce(e.row_rank, -1)) OR coalesce(w.wins, FALSE) THEN 'apply'
  WHEN e._rank IN (e.top, e.row_rank) OR coalesce(w.equals, FALSE) THEN 'duplicate'
  ELSE 'superseded' END AS verdict
FROM events AS e LEFT JOIN (
  SELECT _row, bool_or(_rank > greatest(coalesce(known, -1), coalesce(before, -1))) AS wins,
    bool_or(coalesce(_rank = known, FALSE) OR coalesce(_rank = before, FALSE)) AS equals FROM cells GROUP BY _row
) AS w ON w._row = e._row ORDER BY e._row;

WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT e._key, e.deleted, e.cleared, e.row_rank, min(c._row) AS any_row,
  CASE WHEN e.row_rank > greatest(e.deleted, e.cleared) THEN e.row_rank END AS alive,
  max(CASE WHEN c._op IN ('c', 'u', 'r') AND c._rank > greatest(e.deleted, e.cleared) THEN c._rank END) AS top,
  arg_max(c._row, c._rank) FILTER (WHERE c._op IN ('c', 'u', 'r') AND c._rank > greatest(e.deleted, e.cleared)) AS top_row
FROM ends AS e LEFT JOIN changes AS c ON c._key = e._key GROUP BY e._key, e.deleted, e.cleared, e.row_rank ORDER BY e._key;

WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT k._key, k.idx, p.place,
  CASE WHEN p.place IS NOT NULL THEN p.rank WHEN k.rank > greatest(e.deleted, e.cleared) THEN k.rank END AS rank
FROM columns AS k JOIN ends AS e ON e._key = k._key LEFT JOIN (
  SELECT c._key, c.idx, max(c._rank) AS rank, arg_max(c._row, c._rank) AS place
  FROM cells AS c JOIN ends AS e ON e._key = c._key
  WHERE c._rank > greatest(e.deleted, e.cleared) AND (c.known IS NULL OR c._rank > c.known) GROUP BY c._key, c.idx
) AS p ON p._key = k._key AND p.idx = k.idx ORDER BY k._key, k.idx;

-- several sequence elements: write
MERGE INTO `target` AS t USING rows AS s ON t.`id` = s.`id`
WHEN MATCHED AND s.`_op` = 'd' THEN DELETE
WHEN MATCHED AND s.`_op` <> 'd' THEN UPDATE SET `v` = CASE WHEN array_contains(s.`_unsent`, 'v') THEN t.`v` ELSE s.`v` END, `_cdc_op` = CASE WHEN array_contains(s.`_unsent`, '_cdc_op') THEN t.`_cdc_op` ELSE s.`_cdc_op` END, `_cdc_ts` = CASE WHEN array_contains(s.`_unsent`, '_cdc_ts') THEN t.`_cdc_ts` ELSE s.`_cdc_ts` END, `_event_id` = CASE WHEN array_contains(s.`_unsent`, '_event_id') THEN t.`_event_id` ELSE s.`_event_id` END, `_cdc_applied_at` = s.`_cdc_applied_at`, `_cdc_seq_1` = CASE WHEN array_contains(s.`_unsent`, '_cdc_seq_1') THEN t.`_cdc_seq_1` ELSE s.`_cdc_seq_1` END, `_cdc_seq_2` = CASE WHEN array_contains(s.`_unsent`, '_cdc_seq_2') THEN t.`_cdc_seq_2` ELSE s.`_cdc_seq_2` END, `_cdc_seq_3` = CASE WHEN array_contains(s.`_unsent`, '_cdc_seq_3') THEN t.`_cdc_seq_3` ELSE s.`_cdc_seq_3` END, `_cdc_seq_4` = CASE WHEN array_contains(s.`_unsent`, '_cdc_seq_4') THEN t.`_cdc_seq_4` ELSE s.`_cdc_seq_4` END, `_cdc_unsent` = s.`_cdc_unsent`
WHEN NOT MATCHED AND s.`_op` <> 'd' THEN INSERT (`id`, `v`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`, `_cdc_seq_2`, `_cdc_seq_3`, `_cdc_seq_4`, `_cdc_unsent`) VALUES (s.`id`, s.`v`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`, s.`_cdc_seq_2`, s.`_cdc_seq_3`, s.`_cdc_seq_4`, s.`_cdc_unsent`);

-- several sequence elements: truncate
WHEN NOT MATCHED BY SOURCE AND (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`) OR (7 = t.`_cdc_seq_1` AND 8 > t.`_cdc_seq_2`) OR (7 = t.`_cdc_seq_1` AND 8 = t.`_cdc_seq_2` AND 9 > t.`_cdc_seq_3`) OR (7 = t.`_cdc_seq_1` AND 8 = t.`_cdc_seq_2` AND 9 = t.`_cdc_seq_3` AND 10 > t.`_cdc_seq_4`))) THEN DELETE;

-- awkward name: fold
SELECT *, min(`_i`) OVER (PARTITION BY `k "1" ``2```, `_seq_1`, `_op`) AS _last FROM changes;

-- awkward name: reconcile
WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT e._row, CASE
  WHEN e._op = 't' AND e._rank > e.cleared THEN 'apply'
  WHEN e._op = 't' THEN CASE WHEN e._rank = e.cleared THEN 'duplicate' ELSE 'superseded' END
  WHEN e._rank <= greatest(e.deleted, e.cleared) THEN CASE WHEN e._rank = e.deleted THEN 'duplicate' ELSE 'superseded' END
  WHEN e._op = 'd' OR e._rank > greatest(e.top, coalesce(e.row_rank, -1)) OR coalesce(w.wins, FALSE) THEN 'apply'
  WHEN e._rank IN (e.top, e.row_rank) OR coalesce(w.equals, FALSE) THEN 'duplicate'
  ELSE 'superseded' END AS verdict
FROM events AS e LEFT JOIN (
  SELECT _row, bool_or(_rank > greatest(coalesce(known, -1), coalesce(before, -1))) AS wins,
    bool_or(coalesce(_rank = known, FALSE) OR coalesce(_rank = before, FALSE)) AS equals FROM cells GROUP BY _row
) AS w ON w._row = e._row ORDER BY e._row;

WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT e._key, e.deleted, e.cleared, e.row_rank, min(c._row) AS any_row,
  CASE WHEN e.row_rank > greatest(e.deleted, e.cleared) THEN e.row_rank END AS alive,
  max(CASE WHEN c._op IN ('c', 'u', 'r') AND c._rank > greatest(e.deleted, e.cleared) THEN c._rank END) AS top,
  arg_max(c._row, c._rank) FILTER (WHERE c._op IN ('c', 'u', 'r') AND c._rank > greatest(e.deleted, e.cleared)) AS top_row
FROM ends AS e LEFT JOIN changes AS c ON c._key = e._key GROUP BY e._key, e.deleted, e.cleared, e.row_rank ORDER BY e._key;

WITH events AS (
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1),
    coalesce(k.del_rank, -1)) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER (ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1), -1) AS cleared,
  coalesce(max(CASE WHEN c._op IN ('c', 'u', 'r') THEN c._rank END) OVER (PARTITION BY c._key ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key),
columns AS (
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name),
cells AS (
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN ('c', 'u', 'r') AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)),
ends AS (
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, -1), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), -1)) AS deleted,
  greatest(-1, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), -1)) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank)
SELECT k._key, k.idx, p.place,
  CASE WHEN p.place IS NOT NULL THEN p.rank WHEN k.rank > greatest(e.deleted, e.cleared) THEN k.rank END AS rank
FROM columns AS k JOIN ends AS e ON e._key = k._key LEFT JOIN (
  SELECT c._key, c.idx, max(c._rank) AS rank, arg_max(c._row, c._rank) AS place
  FROM cells AS c JOIN ends AS e ON e._key = c._key
  WHERE c._rank > greatest(e.deleted, e.cleared) AND (c.known IS NULL OR c._rank > c.known) GROUP BY c._key, c.idx
) AS p ON p._key = k._key AND p.idx = k.idx ORDER BY k._key, k.idx;

-- awkward name: write
MERGE INTO `target` AS t USING rows AS s ON t.`k "1" ``2``` = s.`k "1" ``2```
WHEN MATCHED AND s.`_op` = 'd' THEN DELETE
WHEN MATCHED AND s.`_op` <> 'd' THEN UPDATE SET `v'; \DROP {b}` = CASE WHEN array_contains(s.`_unsent`, 'v\'; \\DROP {b}') THEN t.`v'; \DROP {b}` ELSE s.`v'; \DROP {b}` END, `_cdc_op` = CASE WHEN array_contains(s.`_unsent`, '_cdc_op') THEN t.`_cdc_op` ELSE s.`_cdc_op` END, `_cdc_ts` = CASE WHEN array_contains(s.`_unsent`, '_cdc_ts') THEN t.`_cdc_ts` ELSE s.`_cdc_ts` END, `_event_id` = CASE WHEN array_contains(s.`_unsent`, '_event_id') THEN t.`_event_id` ELSE s.`_event_id` END, `_cdc_applied_at` = s.`_cdc_applied_at`, `_cdc_seq_1` = CASE WHEN array_contains(s.`_unsent`, '_cdc_seq_1') THEN t.`_cdc_seq_1` ELSE s.`_cdc_seq_1` END, `_cdc_unsent` = s.`_cdc_unsent`
WHEN NOT MATCHED AND s.`_op` <> 'd' THEN INSERT (`k "1" ``2```, `v'; \DROP {b}`, `_cdc_op`, `_cdc_ts`, `_event_id`, `_cdc_applied_at`, `_cdc_seq_1`, `_cdc_unsent`) VALUES (s.`k "1" ``2```, s.`v'; \DROP {b}`, s.`_cdc_op`, s.`_cdc_ts`, s.`_event_id`, s.`_cdc_applied_at`, s.`_cdc_seq_1`, s.`_cdc_unsent`);

-- awkward name: truncate
WHEN NOT MATCHED BY SOURCE AND (t.`_cdc_seq_1` IS NULL OR ((7 > t.`_cdc_seq_1`))) THEN DELETE;

-- no key, counted: table public.t has no key, which policy scd1 needs
