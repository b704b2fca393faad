-- Policy scd1-by-column, duckdb. See tests/golden/test_sql.py.

-- one key: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "id", "_seq_1", "_op"
ORDER BY _last;

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

-- composite key: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "a", "b", "_seq_1", "_seq_2", "_op"
ORDER BY _last;

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

-- several sequence elements: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "id", "_seq_1", "_seq_2", "_seq_3", "_seq_4", "_op"
ORDER BY _last;

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

-- awkward name: fold
SELECT min("_i") AS _last
FROM changes
GROUP BY "k ""1"" `2`", "_seq_1", "_op"
ORDER BY _last;

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

-- no key, counted: table public.t has no key, which policy scd1 needs
