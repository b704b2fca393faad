"""Stage 3 of a plan with a sequence for each column, as SQL for DuckDB. Both local sinks use it.

Relations:

- `changes`, every change of the batch: `_row` (number in arrival order), `_key` (number of its key, NULL for a
  truncate), `_op`, `_rank`, `_unsent`.
- `known`, one row per key: `_key`, `row_rank` of the target's row, `del_rank` of its last delete. NULL when
  there is none.
- `older`, the columns whose sequence differs from their row's: `_key`, `name`, `rank` (NULL when no change sent
  a value).
- `names`: `idx` and `name` of the columns outside the key.

A rank stands for a sequence: the higher sequence has the higher rank. `TRUNCATE_RANK` is the rank of the last truncate
before the batch, or NOTHING. The end of a key is the highest of its deletes and of all truncates. Changes at or
below the end are void.
"""

from __future__ import annotations

NOTHING = -1
UPSERTS = "('c', 'u', 'r')"
BEFORE = "ORDER BY _row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"

EVENTS = f"""
SELECT c.*, k.row_rank,
  greatest(coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END) OVER (PARTITION BY c._key {BEFORE}), {NOTHING}),
    coalesce(k.del_rank, {NOTHING})) AS deleted,
  greatest(coalesce(max(CASE WHEN c._op = 't' THEN c._rank END) OVER ({BEFORE}), {NOTHING}), TRUNCATE_RANK) AS cleared,
  coalesce(max(CASE WHEN c._op IN {UPSERTS} THEN c._rank END) OVER (PARTITION BY c._key {BEFORE}), {NOTHING}) AS top
FROM changes AS c LEFT JOIN known AS k ON k._key = c._key"""
"""Per change: the state of its key before it."""

COLUMNS = """
SELECT k._key, n.idx, CASE WHEN o._key IS NULL THEN k.row_rank ELSE o.rank END AS rank
FROM known AS k CROSS JOIN names AS n LEFT JOIN older AS o ON o._key = k._key AND o.name = n.name"""
"""The rank of each column of each key in the target."""

CELLS = f"""
SELECT e._row, e._key, n.idx, e._rank, k.rank AS known,
  max(e._rank) OVER (PARTITION BY e._key, n.idx ORDER BY e._row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM events AS e CROSS JOIN names AS n JOIN columns AS k ON k._key = e._key AND k.idx = n.idx
WHERE e._op IN {UPSERTS} AND NOT coalesce(list_contains(e._unsent, n.name), FALSE)"""
"""Every sent value, with the rank of its column in the target and in the batch before it."""

ENDS = f"""
SELECT k._key, k.row_rank,
  greatest(coalesce(k.del_rank, {NOTHING}), coalesce(max(CASE WHEN c._op = 'd' THEN c._rank END), {NOTHING})) AS deleted,
  greatest(TRUNCATE_RANK, coalesce((SELECT max(_rank) FROM changes WHERE _op = 't'), {NOTHING})) AS cleared
FROM known AS k LEFT JOIN changes AS c ON c._key = k._key GROUP BY k._key, k.row_rank, k.del_rank"""
"""The end of each key after the batch."""

KEYS = f"""
SELECT e._key, e.deleted, e.cleared, e.row_rank, min(c._row) AS any_row,
  CASE WHEN e.row_rank > greatest(e.deleted, e.cleared) THEN e.row_rank END AS alive,
  max(CASE WHEN c._op IN {UPSERTS} AND c._rank > greatest(e.deleted, e.cleared) THEN c._rank END) AS top,
  arg_max(c._row, c._rank) FILTER (WHERE c._op IN {UPSERTS} AND c._rank > greatest(e.deleted, e.cleared)) AS top_row
FROM ends AS e LEFT JOIN changes AS c ON c._key = e._key GROUP BY e._key, e.deleted, e.cleared, e.row_rank ORDER BY e._key"""
"""Per key: the rank of its row if it is alive in the target, and the highest change of the batch above its end."""

WINNERS = """
SELECT k._key, k.idx, p.place,
  CASE WHEN p.place IS NOT NULL THEN p.rank WHEN k.rank > greatest(e.deleted, e.cleared) THEN k.rank END AS rank
FROM columns AS k JOIN ends AS e ON e._key = k._key LEFT JOIN (
  SELECT c._key, c.idx, max(c._rank) AS rank, arg_max(c._row, c._rank) AS place
  FROM cells AS c JOIN ends AS e ON e._key = c._key
  WHERE c._rank > greatest(e.deleted, e.cleared) AND (c.known IS NULL OR c._rank > c.known) GROUP BY c._key, c.idx
) AS p ON p._key = k._key AND p.idx = k.idx ORDER BY k._key, k.idx"""
"""Per key and column: the change of the batch that gives the value (or NULL), and the column's rank. The rank
is NULL when no change has sent the column since the key's end."""

VERDICTS = f"""
SELECT e._row, CASE
  WHEN e._op = 't' AND e._rank > e.cleared THEN 'apply'
  WHEN e._op = 't' THEN CASE WHEN e._rank = e.cleared THEN 'duplicate' ELSE 'superseded' END
  WHEN e._rank <= greatest(e.deleted, e.cleared) THEN CASE WHEN e._rank = e.deleted THEN 'duplicate' ELSE 'superseded' END
  WHEN e._op = 'd' OR e._rank > greatest(e.top, coalesce(e.row_rank, {NOTHING})) OR coalesce(w.wins, FALSE) THEN 'apply'
  WHEN e._rank IN (e.top, e.row_rank) OR coalesce(w.equals, FALSE) THEN 'duplicate'
  ELSE 'superseded' END AS verdict
FROM events AS e LEFT JOIN (
  SELECT _row, bool_or(_rank > greatest(coalesce(known, {NOTHING}), coalesce(before, {NOTHING}))) AS wins,
    bool_or(coalesce(_rank = known, FALSE) OR coalesce(_rank = before, FALSE)) AS equals FROM cells GROUP BY _row
) AS w ON w._row = e._row ORDER BY e._row"""
"""The verdict on each change, as if it were applied alone after the changes before it."""

WITH = f"""WITH events AS ({EVENTS}),
columns AS ({COLUMNS}),
cells AS ({CELLS}),
ends AS ({ENDS})"""


def verdicts_select(truncate_rank: int) -> str:
    """`_row` and `verdict`: apply, duplicate or superseded."""
    return _select_over(VERDICTS, truncate_rank)


def keys_select(truncate_rank: int) -> str:
    """`KEYS`, ordered by `_key`."""
    return _select_over(KEYS, truncate_rank)


def winners_select(truncate_rank: int) -> str:
    """`WINNERS`, ordered by `_key` and `idx`."""
    return _select_over(WINNERS, truncate_rank)


QUERIES = (verdicts_select, keys_select, winners_select)
"""All queries of stage 3."""


def _select_over(query: str, truncate_rank: int) -> str:
    return f"{WITH}{query}".replace("TRUNCATE_RANK", str(truncate_rank))


def numbers_select(keys: str) -> str:
    """Numbers the keys of `rows`: `_row`, `_key`. `keys`: the key columns as SQL."""
    return f"SELECT _row, dense_rank() OVER (ORDER BY {keys}) - 1 AS _key FROM rows WHERE _op <> 't' ORDER BY _row"
